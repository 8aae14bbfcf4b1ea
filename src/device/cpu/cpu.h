/* cpu.h - private to the cpu backend: its device, its streams, and what the kernel files share.
 *
 * Every table entry packs its arguments in a struct and submits (function, arguments) to a stream.
 * The compute stream runs the function at once; the others queue it for their thread.
 *
 * Results never depend on the number of threads: each output element is computed whole by one
 * thread, or from partial sums over pieces whose size depends on the shape only. */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "device/device.h"
#include <pthread.h>

#define CPU_ALIGN 64u
/* Below this many elements a loop is not worth waking threads for. */
#define CPU_PARALLEL_ELEMS 16384

struct cpu_device {
    struct device base;
    pthread_mutex_t lock;     /* the counters below base: scratch may grow on any stream */
    struct gemm_cache *gemms; /* oneDNN primitives by shape; see gemm.c */
};

typedef void kernel_fn(struct stream *s, const void *args);

enum { TASK_ARGS_BYTES = 192 };

struct task {
    struct task *next;
    kernel_fn *fn;
    bool always; /* runs after a failure too: events, so that nobody waits for ever */
    _Alignas(16) unsigned char args[TASK_ARGS_BYTES];
};

struct stream {
    struct cpu_device *dev;
    bool inline_run; /* the compute stream */
    void *scratch;   /* grows on demand, kept; used by one kernel at a time */
    size_t scratch_bytes;
    /* queue of a threaded stream */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    struct task *head, *tail, *spare;
    bool busy, stop;
    struct error error; /* first failure in the thread; moved to the device at a sync */
};

/* --- stream.c --- */
enum status cpu_stream_create(struct device *dev, struct stream **s, struct error *e) MUST_CHECK;
enum status stream_new(struct cpu_device *dev, bool inline_run, struct stream **s,
                       struct error *e) MUST_CHECK;
void cpu_stream_free(struct device *dev, struct stream *s);
void stream_submit(struct stream *s, kernel_fn *fn, const void *args, size_t bytes);
/* Called by a running kernel: keeps the first failure of the stream. */
void stream_fail(struct stream *s, const char *operation, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* At least `bytes` of 64-byte aligned scratch until the kernel returns; NULL after stream_fail. */
void *stream_scratch(struct stream *s, const char *operation, size_t bytes);
enum status cpu_event_create(struct device *dev, struct event **ev, struct error *e) MUST_CHECK;
void cpu_event_free(struct device *dev, struct event *ev);
void cpu_event_record(struct device *dev, struct event *ev, struct stream *s);
void cpu_stream_wait(struct device *dev, struct stream *s, struct event *ev);
enum status cpu_stream_sync(struct device *dev, struct stream *s, struct error *e) MUST_CHECK;
enum status cpu_event_sync(struct device *dev, struct event *ev, struct error *e) MUST_CHECK;
double cpu_event_elapsed_ms(struct device *dev, struct event *from, struct event *to);
void cpu_host_call(struct device *dev, struct stream *s, void (*fn)(void *), void *arg);

/* --- memory.c --- */
enum status cpu_alloc(struct device *dev, enum memory_kind kind, size_t bytes, void **out,
                      struct error *e) MUST_CHECK;
void cpu_free(struct device *dev, enum memory_kind kind, void *p);
void cpu_copy(struct device *dev, struct stream *s, void *dst, const void *src, size_t bytes);
void cpu_fill_zero(struct device *dev, struct stream *s, void *dst, size_t bytes);

/* --- gemm.c, gemm_plain.c, gemv.c --- */
struct gemm_cache;
enum status gemm_cache_new(struct gemm_cache **cache, struct error *e) MUST_CHECK;
void gemm_cache_free(struct gemm_cache *cache);
void cpu_gemm(struct device *dev, struct stream *s, const struct gemm *g);
/* The definition of struct gemm in plain loops, one thread, double accumulation: the test's twin.
 */
void gemm_plain(const struct gemm *g);
/* Products with few rows, which read the weights once. Handles !transpose_a and m <= GEMV_ROWS. */
enum { GEMV_ROWS = 8 };
void gemv_run(struct stream *s, const struct gemm *g);
/* value[0,n) of row `row`, columns [col, col+n): bias, GELU and dGELU as struct gemm orders them.
 */
void gemm_epilogue_row(const struct gemm *g, float *value, int64_t row, int64_t col, int64_t n);
/* dst[c] += sum over rows of src[r*ld + c], accumulated in double. */
void column_sums(struct stream *s, float *dst, const void *src, int64_t rows, int64_t columns,
                 int64_t ld, enum dtype dt);

/* --- the kernels, one file a topic; contracts in device.h --- */
void cpu_embed_forward(struct device *dev, struct stream *s, void *x, const void *wte,
                       const void *wpe, const int32_t *tokens, const int32_t *positions,
                       int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                       struct dropout dropout);
void cpu_embed_backward(struct device *dev, struct stream *s, float *dwte, float *dwpe,
                        const void *dx, const int32_t *tokens, int64_t batch, int64_t time,
                        int64_t channels, int64_t vocab_padded, enum dtype dt,
                        struct dropout dropout, void *workspace, size_t workspace_bytes);
size_t cpu_embed_backward_workspace(int64_t batch, int64_t time, int64_t channels,
                                    int64_t vocab_padded);
void cpu_layernorm_forward(struct device *dev, struct stream *s, void *y, void *sum, float *mean,
                           float *rstd, const void *residual, const void *delta, const void *weight,
                           const void *bias, int64_t batch, int64_t time, int64_t channels,
                           float eps, enum dtype dt, struct dropout dropout);
void cpu_layernorm_backward(struct device *dev, struct stream *s, void *dx, void *ddelta,
                            float *dweight, float *dbias, const void *dy, const void *x,
                            const float *mean, const float *rstd, const void *weight, int64_t batch,
                            int64_t time, int64_t channels, bool accumulate, enum dtype dt,
                            struct dropout dropout, void *workspace, size_t workspace_bytes);
size_t cpu_layernorm_backward_workspace(int64_t rows, int64_t channels);
void cpu_attention_forward(struct device *dev, struct stream *s, void *out, float *lse,
                           const void *qkv, const struct attention *a);
void cpu_attention_backward(struct device *dev, struct stream *s, void *dqkv, const void *dout,
                            const void *qkv, const void *out, const float *lse,
                            const struct attention *a, void *workspace, size_t workspace_bytes);
size_t cpu_attention_backward_workspace(const struct attention *a);
void cpu_classifier(struct device *dev, struct stream *s, void *logits, float *losses,
                    const int32_t *targets, int64_t rows, int64_t vocab, int64_t vocab_padded,
                    float grad_scale, enum dtype dt);
void cpu_token_logprobs(struct device *dev, struct stream *s, float *logprobs, const void *logits,
                        const int32_t *targets, int64_t rows, int64_t vocab, int64_t vocab_padded,
                        enum dtype dt);
void cpu_bias_backward(struct device *dev, struct stream *s, float *dbias, const void *dy,
                       int64_t rows, int64_t channels, enum dtype dt, void *workspace,
                       size_t workspace_bytes);
size_t cpu_bias_backward_workspace(int64_t rows, int64_t channels);
void cpu_dropout_backward(struct device *dev, struct stream *s, void *dst, const void *src,
                          int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                          struct dropout dropout);
void cpu_reduce_sum(struct device *dev, struct stream *s, float *sum, const float *x, int64_t n,
                    bool squares, bool accumulate);
void cpu_step_control(struct device *dev, struct stream *s, struct step_control *c,
                      const float *norm_squared, const float *loss_sum, float unscale,
                      float loss_unscale, float clip);
void cpu_adamw(struct device *dev, struct stream *s, float *master, float *m, float *v,
               const float *grad, void *working, int64_t n, enum dtype dt, const struct adamw *h,
               const struct step_control *c);
void cpu_cast(struct device *dev, struct stream *s, void *dst, enum dtype dst_dt, const void *src,
              enum dtype src_dt, int64_t n);
void cpu_accumulate(struct device *dev, struct stream *s, float *dst, const void *src,
                    enum dtype src_dt, int64_t n, float scale);
void cpu_kv_append(struct device *dev, struct stream *s, const struct kv_cache *kv, const void *qkv,
                   const int32_t *sequences, const int32_t *positions, int64_t rows, int64_t heads,
                   int64_t head_dim, enum dtype dt);
void cpu_attention_cached(struct device *dev, struct stream *s, void *out,
                          const struct kv_cache *kv, const void *qkv, const int32_t *sequences,
                          const int32_t *positions, int64_t rows, int64_t heads, int64_t head_dim,
                          enum dtype dt, bool append, void *workspace, size_t workspace_bytes);
size_t cpu_attention_cached_workspace(int64_t rows, int64_t max_positions, int64_t heads,
                                      int64_t head_dim);
void cpu_gather_rows(struct device *dev, struct stream *s, void *dst, const void *src,
                     const int32_t *rows, int64_t n, int64_t channels, enum dtype dt);
void cpu_sample(struct device *dev, struct stream *s, int32_t *ids, float *logprobs,
                const void *logits, const struct sampling *params, int64_t rows, int64_t vocab,
                int64_t vocab_padded, enum dtype dt);
bool cpu_find_nonfinite(struct device *dev, struct stream *s, const void *x, int64_t n,
                        enum dtype dt);

#endif
