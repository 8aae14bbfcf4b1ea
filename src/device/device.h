/* device.h - what the model and the engine ask of a compute device: one constant table per backend.
 *
 * Two backends: cpu (oneDNN products, OpenMP and plain C) and cuda (cuBLASLt, own kernels). Code
 * above this header never tests which one it has; tests/unit/test_parity.c walks the table and
 * compares them.
 *
 * Order. Work is put on a stream and runs in the order it was put there. The cpu backend runs the
 * compute stream inside the call; its other streams are a worker thread each, so that communication
 * really runs beside compute. Different streams are ordered by events only.
 *
 * Errors. Kernel entries return nothing, so that a forward pass reads as a list of formulas. The
 * first failure is kept in the device with the name of the operation, later work becomes a no-op,
 * and device_check (or any synchronising call) reports it. Allocation and open return their status.
 *
 * Data. Matrices are row-major. Activations, working weights and gathered units have the working
 * dtype (DTYPE_F32, DTYPE_BF16 or DTYPE_F16) passed as `dt`; accumulation is always fp32. Master
 * weights, gradients of parameters, optimizer state, statistics and losses are fp32. All counts and
 * strides are 64-bit. Pointers are device pointers unless the name says host. Buffers are 64-byte
 * aligned. Shapes use B samples, T positions, N = B*T rows, C channels, H heads, D = C/H, V
 * vocabulary, Vp = V padded.
 *
 * Thread rule: one thread drives a device, host_call functions excepted. */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include "base/dtype.h"
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;
struct stream;
struct event;
struct graph;

enum memory_kind {
    MEMORY_DEVICE, /* where kernels work */
    MEMORY_HOST,   /* host memory the device can copy from and to asynchronously (pinned) */
};

/* Dropout masks are functions of (seed, site, global sample number, element of the sample), so they
 * repeat under recomputation and do not depend on ranks or micro-batches. Element e of sample s is
 * kept when philox_uniform(philox4x32(philox_key(seed, site), e / 4, s).v[e % 4]) >= p, and scaled
 * by 1/(1-p). For attention, e = (head*T + query)*T + key. p == 0 reads nothing else. */
struct dropout {
    float p;
    uint64_t seed;
    uint64_t site;          /* which dropout of the model; see gpt2/model.h */
    const int64_t *samples; /* [B] device, global sample numbers */
};

/* d[m,n] = op(a) op(b), accumulated in fp32, then the epilogue in the order of the fields below.
 * a is [m,k] (or [k,m] when transpose_a), b is [k,n] (or [n,k] when transpose_b), dense row-major
 * unless lda/ldb/ldd (elements) are set. dt is the dtype of a and b. */
struct gemm {
    int64_t m, n, k;
    const void *a, *b;
    void *d;
    enum dtype dt;     /* of a, b, bias, aux */
    enum dtype out_dt; /* of d: dt or DTYPE_F32 */
    bool transpose_a, transpose_b;
    int64_t lda, ldb, ldd; /* 0 = dense */
    bool accumulate;       /* d += instead of d = */
    const void *bias;      /* [n] added to every row; NULL for none */
    bool gelu;             /* d = gelu_tanh(value) */
    void *gelu_aux; /* [m,n]: with gelu, keep the value before it here; NULL = it is not kept */
    const void *dgelu_aux; /* [m,n]: d = value * gelu_tanh'(aux); NULL for none */
    float *bias_grad;      /* [n] fp32 += column sums of b [k,n] (weight-gradient products); NULL */
};

/* y[r,n] = residual + gelu(norm(x[select[r]]) w + bias), each part where given: what decoding does
 * to its few rows, in one pass over w. */
struct skinny_gemm {
    int64_t rows, k,
        n; /* 1 <= rows <= the device's skinny_rows; k and n multiples of 8 (n any with fp32 y) */
    const void *x;               /* [*,k] */
    const int32_t *select;       /* [rows] device: rows of x to take; NULL = the first ones */
    const void *norm_w, *norm_b; /* [k]: layer norm of each row first; NULL for none */
    float epsilon;
    const void *w; /* [k,n], or [n,k] when transpose_w */
    bool transpose_w;
    const void *bias; /* [n]; NULL */
    bool gelu;
    const void *residual; /* [rows,n], may be y; NULL */
    void *y;              /* [rows,ldy] */
    int64_t ldy;          /* 0 = n */
    enum dtype dt;        /* of everything but y */
    enum dtype out_dt;    /* of y: dt or DTYPE_F32 */
};
#define SKINNY_ROWS 8 /* no device takes more */

struct attention {
    int64_t batch, time, heads, head_dim; /* head_dim a multiple of 8, at most 128 */
    enum dtype dt;
    struct dropout dropout;
    bool deterministic; /* backward gives the same bits every time */
};

struct adamw {
    float lr, beta1, beta2, eps;
    float weight_decay; /* decoupled when decoupled, else added to the gradient (Adam + L2) */
    bool decoupled;
    int64_t step; /* 1-based, for bias correction */
};

/* What the optimizer reads on the device, written by step_control: no host round trip in a step. */
struct step_control {
    float grad_scale; /* gradient multiplier: clip / (loss scale * token count) */
    float skip;       /* non-zero: a non-finite gradient was seen, leave everything alone */
    float grad_norm;  /* of the unscaled, unclipped gradient */
    float loss;       /* global mean loss of the step (copied through for one readback) */
};

/* Paged key/value cache of one layer, for decoding. Token p of sequence s is at
 * page table[s*max_pages + p/page_tokens], slot p % page_tokens. */
struct kv_cache {
    void *keys, *values;  /* [pages, page_tokens, H, D] */
    const int32_t *table; /* [sequences, max_pages] device */
    int64_t max_pages, page_tokens;
};

/* The parameters of a block, and its layer's cache. */
struct decode_block {
    const void *ln1_w, *ln1_b, *qkv_w, *qkv_b, *proj_w, *proj_b;
    const void *ln2_w, *ln2_b, *fc_w, *fc_b, *fcproj_w, *fcproj_b;
    void *keys, *values; /* as in kv_cache */
};

/* x [C] through all blocks: what decoding does for one token. The token's key and value are put in
 * the caches. */
struct decode_blocks {
    const struct decode_block *blocks; /* [layers] device */
    int64_t layers, channels, heads;
    float epsilon;
    enum dtype dt;
    void *x;
    const int32_t *table; /* as in kv_cache */
    int64_t max_pages, page_tokens;
    const int32_t *sequences, *positions; /* [1] device */
    void *workspace;                      /* decode_blocks_workspace bytes */
};

/* One row of a sampling call. */
struct sampling {
    float temperature; /* 0 = greedy */
    float top_p;       /* 1 = off */
    int32_t top_k;     /* 0 = off */
    float uniform;     /* [0,1), drawn by the caller from its counter-based generator */
};

struct device_info {
    char name[96];
    int64_t memory_bytes, free_bytes;
    double peak_flops; /* dense, working dtype bf16 for GPUs; 0 = unknown */
    int major, minor;  /* compute capability; 0 on CPU */
};

struct device_ops {
    const char *name; /* "cpu", "cuda" */
    /* Kernels and gemm read ordinary host memory of any alignment that suits the element type, so
     * that a mapped file of the working dtype serves as weights where it lies. */
    bool reads_host_memory;

    /* --- life, memory, order ------------------------------------------------------------------ */
    enum status (*open)(struct device **dev, int ordinal, struct error *e);
    void (*close)(struct device *dev);
    int (*count)(void); /* usable devices; never fails */
    void (*info)(struct device *dev, struct device_info *info);
    /* Optional: host threads a kernel may use, 1 or more, for what the calling thread submits.
     * Without the call they are as many as OMP_NUM_THREADS says, or all processors. */
    void (*set_threads)(struct device *dev, int threads);
    enum status (*alloc)(struct device *dev, enum memory_kind kind, size_t bytes, void **out,
                         struct error *e); /* zero-filled */
    void (*free)(struct device *dev, enum memory_kind kind, void *p);
    enum status (*stream_create)(struct device *dev, struct stream **s, struct error *e);
    void (*stream_free)(struct device *dev, struct stream *s);
    /* An event is recorded again and again, on one stream; who waits for it waits for the last. */
    enum status (*event_create)(struct device *dev, struct event **ev, struct error *e);
    void (*event_free)(struct device *dev, struct event *ev);
    void (*event_record)(struct device *dev, struct event *ev, struct stream *s);
    void (*stream_wait)(struct device *dev, struct stream *s, struct event *ev);
    /* Blocks the caller; reports the first failure of any earlier work. */
    enum status (*stream_sync)(struct device *dev, struct stream *s, struct error *e);
    enum status (*event_sync)(struct device *dev, struct event *ev, struct error *e);
    /* Milliseconds between two completed events; < 0 when either was never recorded. */
    double (*event_elapsed_ms)(struct device *dev, struct event *from, struct event *to);
    /* Host function in stream order. It must not call the device. */
    void (*host_call)(struct device *dev, struct stream *s, void (*fn)(void *), void *arg);
    void (*copy)(struct device *dev, struct stream *s, void *dst, const void *src, size_t bytes);
    void (*fill_zero)(struct device *dev, struct stream *s, void *dst, size_t bytes);

    /* --- training ------------------------------------------------------------------------------
     */
    void (*gemm)(struct device *dev, struct stream *s, const struct gemm *g);

    /* x[N,C] = dropout(wte[token] + wpe[position]). tokens [N] int32; positions [N] int32 or NULL
     * for n % T. wte [Vp,C], wpe [>=T,C]. */
    void (*embed_forward)(struct device *dev, struct stream *s, void *x, const void *wte,
                          const void *wpe, const int32_t *tokens, const int32_t *positions,
                          int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                          struct dropout dropout);
    /* dwte[Vp,C] += , dwpe[T,C] += (fp32), deterministic. dx [N,C] is the gradient after dropout.
     */
    void (*embed_backward)(struct device *dev, struct stream *s, float *dwte, float *dwpe,
                           const void *dx, const int32_t *tokens, int64_t batch, int64_t time,
                           int64_t channels, int64_t vocab_padded, enum dtype dt,
                           struct dropout dropout, void *workspace, size_t workspace_bytes);
    /* Bytes of device workspace embed_backward needs. */
    size_t (*embed_backward_workspace)(int64_t batch, int64_t time, int64_t channels,
                                       int64_t vocab_padded);

    /* sum = residual + dropout(delta); y = (sum - mean) * rstd * weight + bias.
     * delta NULL: sum is not written and residual is normalised as it is. sum may equal residual.
     * y, sum, residual, delta [N,C] dt; weight, bias [C] dt; mean, rstd [N] fp32 (both may be
     * NULL). */
    void (*layernorm_forward)(struct device *dev, struct stream *s, void *y, void *sum, float *mean,
                              float *rstd, const void *residual, const void *delta,
                              const void *weight, const void *bias, int64_t batch, int64_t time,
                              int64_t channels, float eps, enum dtype dt, struct dropout dropout);
    /* dx[N,C] = (accumulate ? dx : 0) + d(x) of y = layernorm(x); dweight, dbias [C] fp32 +=. When
     * ddelta is not NULL, ddelta[N,C] = dropout mask applied to the finished dx: the gradient of
     * the delta that was added to make x. Deterministic. */
    void (*layernorm_backward)(struct device *dev, struct stream *s, void *dx, void *ddelta,
                               float *dweight, float *dbias, const void *dy, const void *x,
                               const float *mean, const float *rstd, const void *weight,
                               int64_t batch, int64_t time, int64_t channels, bool accumulate,
                               enum dtype dt, struct dropout dropout, void *workspace,
                               size_t workspace_bytes);
    size_t (*layernorm_backward_workspace)(int64_t rows, int64_t channels);

    /* Causal attention: out[B,T,H,D] = softmax(q k^T / sqrt(D)) v with qkv [B,T,3,H,D];
     * lse[B,H,T] fp32 = log sum exp of the scaled scores. Never materialises T x T. */
    void (*attention_forward)(struct device *dev, struct stream *s, void *out, float *lse,
                              const void *qkv, const struct attention *a);
    /* dqkv [B,T,3,H,D] = ; workspace fp32. */
    void (*attention_backward)(struct device *dev, struct stream *s, void *dqkv, const void *dout,
                               const void *qkv, const void *out, const float *lse,
                               const struct attention *a, void *workspace, size_t workspace_bytes);
    size_t (*attention_backward_workspace)(const struct attention *a);

    /* Cross-entropy and its gradient in place. logits [rows,Vp] dt becomes d(logits) =
     * (softmax - onehot) * grad_scale with padded columns [V,Vp) zero; losses[rows] fp32 = negative
     * log-likelihood (0 where target < 0, whose d(logits) is 0 too). grad_scale 0: losses only,
     * logits left undefined. */
    void (*classifier)(struct device *dev, struct stream *s, void *logits, float *losses,
                       const int32_t *targets, int64_t rows, int64_t vocab, int64_t vocab_padded,
                       float grad_scale, enum dtype dt);
    /* dbias[C] += column sums of dy[N,C] (where no product computes it). */
    void (*bias_backward)(struct device *dev, struct stream *s, float *dbias, const void *dy,
                          int64_t rows, int64_t channels, enum dtype dt, void *workspace,
                          size_t workspace_bytes);
    size_t (*bias_backward_workspace)(int64_t rows, int64_t channels);
    /* dx[N,C] *= mask/(1-p) (out of place when dst != src). */
    void (*dropout_backward)(struct device *dev, struct stream *s, void *dst, const void *src,
                             int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                             struct dropout dropout);

    /* --- optimizer and reductions ---------------------------------------------------------------
     */
    /* *sum (fp32 device scalar) = (accumulate ? *sum : 0) + sum of x[i] (or x[i]^2). Deterministic.
     */
    void (*reduce_sum)(struct device *dev, struct stream *s, float *sum, const float *x, int64_t n,
                       bool squares, bool accumulate);
    /* c = control from *norm_squared (of raw gradients), *loss_sum and the scalars; see
     * step_control. gradient = raw * unscale; norm = sqrt(norm_squared) * |unscale|; clip 0 = off.
     */
    void (*step_control)(struct device *dev, struct stream *s, struct step_control *c,
                         const float *norm_squared, const float *loss_sum, float unscale,
                         float loss_unscale, float clip);
    /* One shard: master, m, v, grad [n] fp32; working [n] dt receives the cast master (NULL: not
     * wanted; may alias master when dt is fp32). Reads *c on the device. */
    void (*adamw)(struct device *dev, struct stream *s, float *master, float *m, float *v,
                  const float *grad, void *working, int64_t n, enum dtype dt, const struct adamw *h,
                  const struct step_control *c);
    void (*cast)(struct device *dev, struct stream *s, void *dst, enum dtype dst_dt,
                 const void *src, enum dtype src_dt, int64_t n);
    /* dst[i] += src[i] * scale; dst fp32, src of src_dt. */
    void (*accumulate)(struct device *dev, struct stream *s, float *dst, const void *src,
                       enum dtype src_dt, int64_t n, float scale);

    /* --- inference ------------------------------------------------------------------------------
     */
    /* Put the k and v of qkv[N,3,H,D] row n at position positions[n] of sequence sequences[n]. */
    void (*kv_append)(struct device *dev, struct stream *s, const struct kv_cache *kv,
                      const void *qkv, const int32_t *sequences, const int32_t *positions,
                      int64_t rows, int64_t heads, int64_t head_dim, enum dtype dt);
    /* out[N,H,D]: row n attends to cache positions 0..positions[n] of its sequence. They were
     * appended before; with `append` the row's own is put there by this call, and no two rows may
     * be of one sequence. */
    void (*attention_cached)(struct device *dev, struct stream *s, void *out,
                             const struct kv_cache *kv, const void *qkv, const int32_t *sequences,
                             const int32_t *positions, int64_t rows, int64_t heads,
                             int64_t head_dim, enum dtype dt, bool append, void *workspace,
                             size_t workspace_bytes);
    size_t (*attention_cached_workspace)(int64_t rows, int64_t max_positions, int64_t heads,
                                         int64_t head_dim);
    /* dst[i,:] = src[rows[i],:], rows [n] int32 device. */
    void (*gather_rows)(struct device *dev, struct stream *s, void *dst, const void *src,
                        const int32_t *rows, int64_t n, int64_t channels, enum dtype dt);
    /* ids[r], logprobs[r] (log softmax at temperature 1 of the chosen id) from logits[rows,Vp] dt.
     * Columns >= V never chosen. Ties go to the lowest id. params [rows] device. */
    void (*sample)(struct device *dev, struct stream *s, int32_t *ids, float *logprobs,
                   const void *logits, const struct sampling *params, int64_t rows, int64_t vocab,
                   int64_t vocab_padded, enum dtype dt);
    /* logprobs[r] = log softmax(logits[r])[targets[r]] (0 where target < 0). */
    void (*token_logprobs)(struct device *dev, struct stream *s, float *logprobs,
                           const void *logits, const int32_t *targets, int64_t rows, int64_t vocab,
                           int64_t vocab_padded, enum dtype dt);

    /* --- optional (NULL where a backend has none) ------------------------------------------------
     */
    /* token_logprobs of logits[rows,V] = x[rows,C] wte[V,C]^T, without keeping them. */
    void (*head_logprobs)(struct device *dev, struct stream *s, float *logprobs, const void *x,
                          const void *wte, const int32_t *targets, int64_t rows, int64_t channels,
                          int64_t vocab, enum dtype dt, void *workspace);
    /* Bytes it needs; 0 for a shape, dtype or GPU that it is not built for. */
    size_t (*head_logprobs_workspace)(struct device *dev, int64_t rows, int64_t channels,
                                      int64_t vocab, enum dtype dt);
    /* For devices with skinny_rows. A row's result does not depend on the others. */
    void (*skinny_gemm)(struct device *dev, struct stream *s, const struct skinny_gemm *g);
    /* Equal, but for rounding, to the separate entries. NULL where the device has no such entry. */
    void (*decode_blocks)(struct device *dev, struct stream *s, const struct decode_blocks *d);
    /* Once, before it: a copy of the weights, in the order in which it reads them, is put into the
     * workspace. */
    void (*decode_blocks_prepare)(struct device *dev, struct stream *s,
                                  const struct decode_blocks *d);
    /* Bytes it needs, that copy included; 0 for a shape, dtype or GPU that it is not built for. */
    size_t (*decode_blocks_workspace)(struct device *dev, int64_t layers, int64_t channels,
                                      int64_t heads, enum dtype dt);
    /* What is put on s between begin and end (kernels, products, copies) is not run but kept, with
     * its pointers, and graph_launch runs it all at once, any number of times. Products must have
     * been run before. end returns NULL after a failure, which is recorded. */
    void (*graph_begin)(struct device *dev, struct stream *s);
    struct graph *(*graph_end)(struct device *dev, struct stream *s);
    void (*graph_launch)(struct device *dev, struct stream *s, struct graph *g);
    void (*graph_free)(struct device *dev, struct graph *g);
    /* Name of the first operation since the last call that wrote a non-finite value; debugging. */
    bool (*find_nonfinite)(struct device *dev, struct stream *s, const void *x, int64_t n,
                           enum dtype dt);
    /* The backend's own stream (a cudaStream_t), for an engine that queues work itself; nccl needs
     * it. */
    void *(*native_stream)(struct device *dev, struct stream *s);
};

/* Common head of every backend's struct device. */
struct device {
    const struct device_ops *ops;
    struct stream *compute;     /* the compute stream, made by open */
    struct error error;         /* first failure; status STATUS_OK while healthy */
    int64_t allocated_bytes[2]; /* live bytes by enum memory_kind */
    int64_t peak_bytes[2];
    int64_t
        skinny_rows; /* the most that skinny_gemm takes; 0 where the separate entries are better */
};

/* Every backend built in; cuda is present only when built with it. NULL-terminated. */
extern const struct device_ops *const device_backends[];

/* "auto" takes cuda when it is built in and a GPU is present, else cpu; any other name never falls
 * back. ordinal < 0 means 0. Free with device_close. */
enum status device_open(struct device **dev, const char *name, int ordinal,
                        struct error *e) MUST_CHECK;
void device_close(struct device *dev);
/* The device's first recorded failure, as STATUS_DEVICE. Does not synchronise. */
enum status device_check(struct device *dev, struct error *e) MUST_CHECK;
/* For backends: record a failure if it is the first. */
void device_fail(struct device *dev, const char *operation, const char *fmt, ...) PRINTF_LIKE(3, 4);

#endif
