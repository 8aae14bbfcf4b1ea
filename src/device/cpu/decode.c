/* decode.c - the key/value cache and attention over it.
 *
 *     out[n,h] = sum over p <= positions[n] of softmax(q . k_p / sqrt(D)) v_p
 *
 * A (row, head) belongs to one thread, which goes over the positions in blocks with a running
 * maximum. Rows of one prompt that follow each other go by tiles of 64 (attention_prompt.c). fp32
 * accumulation. Test: tests/unit/test_cpu_decode.c. */
#include "device/cpu/cached.h"
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "device/cpu/math.h"
#include "device/cpu/rows.h"
#include "device/cpu/vector.h"
#include <omp.h>
#include <string.h>

struct append_args {
    struct kv_cache kv;
    const void *qkv;
    const int32_t *sequences, *positions;
    int64_t rows, width; /* width = H*D */
    enum dtype dt;
};

static void append_run(struct stream *s, const void *args)
{
    const struct append_args *a = args;
    const size_t bytes = (size_t)a->width * (a->dt == DTYPE_F32 ? 4 : 2);
    (void)s;
#pragma omp parallel for schedule(static) if (a->rows * a->width > CPU_PARALLEL_ELEMS)
    for (int64_t n = 0; n < a->rows; n++) {
        int64_t at = cache_at(&a->kv, a->sequences[n], a->positions[n], a->width);
        memcpy(element_mut(a->kv.keys, at, a->dt), element(a->qkv, (3 * n + 1) * a->width, a->dt),
               bytes);
        memcpy(element_mut(a->kv.values, at, a->dt), element(a->qkv, (3 * n + 2) * a->width, a->dt),
               bytes);
    }
}

void cpu_kv_append(struct device *dev, struct stream *s, const struct kv_cache *kv, const void *qkv,
                   const int32_t *sequences, const int32_t *positions, int64_t rows, int64_t heads,
                   int64_t head_dim, enum dtype dt)
{
    struct append_args a = {*kv, qkv, sequences, positions, rows, heads * head_dim, dt};
    (void)dev;
    stream_submit(s, append_run, &a, sizeof a);
}

enum { BLOCK = 64, DIM_MAX = 128 };

struct running {
    float max, sum;
    float out[DIM_MAX];
};

/* x . the n elements at y */
ALWAYS_INLINE float dot(const float *x, const void *y, int64_t n, enum dtype dt)
{
    const int64_t whole = n / VL * VL;
    vf lanes = {0};
    for (int64_t i = 0; i < whole; i += VL)
        lanes += vf_load(x + i) * vf_load_dt(y, i, dt);
    float sum = vf_sum(lanes), tail[VL];
    row_to_f32(tail, element(y, whole, dt), dt, n - whole);
    for (int64_t i = whole; i < n; i++)
        sum += x[i] * tail[i - whole];
    return sum;
}

/* x += p * the n elements at y */
ALWAYS_INLINE void add_scaled(float *x, float p, const void *y, int64_t n, enum dtype dt)
{
    const int64_t whole = n / VL * VL;
    for (int64_t i = 0; i < whole; i += VL)
        vf_store(x + i, vf_load(x + i) + p * vf_load_dt(y, i, dt));
    float tail[VL];
    row_to_f32(tail, element(y, whole, dt), dt, n - whole);
    for (int64_t i = whole; i < n; i++)
        x[i] += p * tail[i - whole];
}

/* Positions [first, first + n) of one row and head, n <= BLOCK. */
ALWAYS_INLINE void attend_block(const struct cached_args *a, const float *q, int32_t sequence,
                                int64_t head, int64_t first, int64_t n, struct running *r,
                                enum dtype dt)
{
    const int64_t width = a->heads * a->dim, d = a->dim;
    float score[BLOCK], top = r->max;
    int64_t at[BLOCK];
    for (int64_t j = 0; j < n; j++) {
        at[j] = cache_at(&a->kv, sequence, first + j, width) + head * d;
        score[j] = dot(q, element(a->kv.keys, at[j], dt), d, dt);
        top = score[j] > top ? score[j] : top;
    }
    const float rescale = exp_f32(r->max - top);
    for (int64_t i = 0; i < d; i++)
        r->out[i] *= rescale;
    r->sum *= rescale;
    for (int64_t j = 0; j < n; j++) {
        const float p = exp_f32(score[j] - top);
        r->sum += p;
        add_scaled(r->out, p, element(a->kv.values, at[j], dt), d, dt);
    }
    r->max = top;
}

static void attend_positions(const struct cached_args *a, const float *q, int32_t sequence,
                             int64_t head, int64_t count, struct running *r)
{
    for (int64_t p = 0; p < count; p += BLOCK) {
        const int64_t n = min_i64(BLOCK, count - p);
        if (a->dt == DTYPE_F32)
            attend_block(a, q, sequence, head, p, n, r, DTYPE_F32);
        else if (a->dt == DTYPE_BF16)
            attend_block(a, q, sequence, head, p, n, r, DTYPE_BF16);
        else
            attend_block(a, q, sequence, head, p, n, r, DTYPE_F16);
    }
}

static void attend(const struct cached_args *a, int64_t n, int64_t head)
{
    const int64_t d = a->dim, count = (int64_t)a->positions[n] + 1;
    const float scale = 1.0f / sqrtf((float)d);
    struct running r = {.max = -INFINITY};
    float q[DIM_MAX];
    row_to_f32(q, element(a->qkv, (3 * n * a->heads + head) * d, a->dt), a->dt, d);
    for (int64_t i = 0; i < d; i++)
        q[i] *= scale;
    attend_positions(a, q, a->sequences[n], head, count, &r);
    for (int64_t i = 0; i < d; i++)
        r.out[i] /= r.sum;
    row_from_f32(element_mut(a->out, (n * a->heads + head) * d, a->dt), r.out, a->dt, d);
}

/* Rows that one call of attend or of cpu_attend_tile takes. */
struct part {
    int64_t row, count;
};

/* A piece of a prompt, cut into tiles; every other row by itself. Returns the number of parts. */
static int64_t cut_parts(const struct cached_args *a, struct part *parts)
{
    int64_t n = 0;
    for (int64_t row = 0, end; row < a->rows; row = end) {
        for (end = row + 1; end < a->rows && a->sequences[end] == a->sequences[row] &&
                            a->positions[end] == a->positions[end - 1] + 1;)
            end++;
        const int64_t step = end - row < CPU_ATTEND_TILE_LEAST ? 1 : CPU_ATTEND_TILE;
        for (int64_t i = row; i < end; i += step)
            parts[n++] = (struct part){i, min_i64(step, end - i)};
    }
    return n;
}

static void cached_run(struct stream *s, const void *args)
{
    const struct cached_args *a = args;
    const int64_t floats = cpu_attend_tile_floats(a->dim), threads = omp_get_max_threads();
    const size_t list = (size_t)round_up_i64(a->rows * (int64_t)sizeof(struct part), 64);
    char *scratch =
        stream_scratch(s, "attention_cached", list + (size_t)(floats * threads) * sizeof(float));
    if (!scratch)
        return;
    struct part *parts = (struct part *)scratch;
    float *tiles = (float *)(scratch + list);
    const int64_t items = cut_parts(a, parts) * a->heads;
#pragma omp parallel for schedule(dynamic, 1) if (items > 1)
    for (int64_t i = items - 1; i >= 0; i--) { /* late rows, which see most, first */
        const struct part *p = &parts[i / a->heads];
        if (p->count == 1)
            attend(a, p->row, i % a->heads);
        else
            cpu_attend_tile(a, p->row, p->count, i % a->heads,
                            tiles + floats * omp_get_thread_num());
    }
}

void cpu_attention_cached(struct device *dev, struct stream *s, void *out,
                          const struct kv_cache *kv, const void *qkv, const int32_t *sequences,
                          const int32_t *positions, int64_t rows, int64_t heads, int64_t head_dim,
                          enum dtype dt, bool append, void *workspace, size_t workspace_bytes)
{
    struct cached_args a = {out, *kv, qkv, sequences, positions, rows, heads, head_dim, dt};
    (void)workspace, (void)workspace_bytes; /* running sums fit on the stack */
    if (head_dim < 8 || head_dim > DIM_MAX || head_dim % 8 != 0) {
        device_fail(dev, "attention_cached", "head dimension %lld is not a multiple of 8 up to 128",
                    (long long)head_dim);
        return;
    }
    if (append)
        cpu_kv_append(dev, s, kv, qkv, sequences, positions, rows, heads, head_dim, dt);
    stream_submit(s, cached_run, &a, sizeof a);
}

size_t cpu_attention_cached_workspace(int64_t rows, int64_t max_positions, int64_t heads,
                                      int64_t head_dim)
{
    (void)rows, (void)max_positions, (void)heads, (void)head_dim;
    return 0;
}

struct gather_args {
    void *dst;
    const void *src;
    const int32_t *rows;
    int64_t n, channels;
    enum dtype dt;
};

static void gather_run(struct stream *s, const void *args)
{
    const struct gather_args *a = args;
    const size_t bytes = (size_t)a->channels * (a->dt == DTYPE_F32 ? 4 : 2);
    (void)s;
#pragma omp parallel for schedule(static) if (a->n * a->channels > CPU_PARALLEL_ELEMS)
    for (int64_t i = 0; i < a->n; i++)
        memcpy(element_mut(a->dst, i * a->channels, a->dt),
               element(a->src, a->rows[i] * a->channels, a->dt), bytes);
}

void cpu_gather_rows(struct device *dev, struct stream *s, void *dst, const void *src,
                     const int32_t *rows, int64_t n, int64_t channels, enum dtype dt)
{
    struct gather_args a = {dst, src, rows, n, channels, dt};
    (void)dev;
    stream_submit(s, gather_run, &a, sizeof a);
}
