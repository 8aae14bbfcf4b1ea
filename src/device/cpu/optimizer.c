/* optimizer.c - Adam and AdamW on a shard, the step's control values, sums, casts.
 *
 *     m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2
 *     AdamW: p = p (1 - lr wd) - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)
 *     Adam:  g = g + wd p first, no decay after
 *
 * Sources: Kingma and Ba, 2015; Loshchilov and Hutter, 2019. Tests:
 * tests/unit/test_cpu_optimizer.c. */
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "device/cpu/math.h"
#include "device/cpu/rows.h"
#include <omp.h>

enum { CHUNK = 4096 };

struct adamw_args {
    float *master, *m, *v;
    const float *grad;
    void *working;
    int64_t n;
    struct adamw h;
    const struct step_control *c;
    enum dtype dt;
};

/* The scalars of one step, worked out once in double. */
struct adamw_scalars {
    float keep, l2, b1, b2, one_b1, one_b2, step_size, inv_sqrt_bc2, eps, grad_scale;
};

static struct adamw_scalars adamw_prepare(const struct adamw *h, float grad_scale)
{
    double bc1 = 1.0 - pow((double)h->beta1, (double)h->step);
    double bc2 = 1.0 - pow((double)h->beta2, (double)h->step);
    struct adamw_scalars k = {
        .keep = h->decoupled ? (float)(1.0 - (double)h->lr * (double)h->weight_decay) : 1.0f,
        .l2 = h->decoupled ? 0.0f : h->weight_decay,
        .b1 = h->beta1,
        .b2 = h->beta2,
        .one_b1 = (float)(1.0 - (double)h->beta1),
        .one_b2 = (float)(1.0 - (double)h->beta2),
        .step_size = (float)((double)h->lr / bc1),
        .inv_sqrt_bc2 = (float)(1.0 / sqrt(bc2)),
        .eps = h->eps,
        .grad_scale = grad_scale,
    };
    return k;
}

static void adamw_chunk(const struct adamw_scalars k, float *restrict p, float *restrict m,
                        float *restrict v, const float *restrict grad, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * k.grad_scale + k.l2 * p[i];
        float mi = k.b1 * m[i] + k.one_b1 * g;
        float vi = k.b2 * v[i] + k.one_b2 * (g * g);
        float denominator = sqrtf(vi) * k.inv_sqrt_bc2 + k.eps;
        m[i] = mi;
        v[i] = vi;
        p[i] = p[i] * k.keep - k.step_size * (mi / denominator);
    }
}

static void adamw_run(struct stream *s, const void *args)
{
    const struct adamw_args *a = args;
    (void)s;
    if (a->c->skip != 0.0f)
        return;
    const struct adamw_scalars k = adamw_prepare(&a->h, a->c->grad_scale);
    const bool cast = a->working && a->working != (void *)a->master;
#pragma omp parallel for schedule(static) if (a->n > CPU_PARALLEL_ELEMS)
    for (int64_t at = 0; at < a->n; at += CHUNK) {
        int64_t n = min_i64(CHUNK, a->n - at);
        adamw_chunk(k, a->master + at, a->m + at, a->v + at, a->grad + at, n);
        if (cast)
            row_from_f32(element_mut(a->working, at, a->dt), a->master + at, a->dt, n);
    }
}

void cpu_adamw(struct device *dev, struct stream *s, float *master, float *m, float *v,
               const float *grad, void *working, int64_t n, enum dtype dt, const struct adamw *h,
               const struct step_control *c)
{
    struct adamw_args a = {master, m, v, grad, working, n, *h, c, dt};
    (void)dev;
    stream_submit(s, adamw_run, &a, sizeof a);
}

struct control_args {
    struct step_control *c;
    const float *norm_squared, *loss_sum;
    float unscale, loss_unscale, clip;
};

static void control_run(struct stream *s, const void *args)
{
    const struct control_args *a = args;
    const float norm = sqrtf(*a->norm_squared) * fabsf(a->unscale);
    float scale = a->unscale;
    (void)s;
    if (a->clip > 0.0f && norm > a->clip)
        scale *= a->clip / (norm + 1e-6f); /* PyTorch's clip_grad_norm_ */
    a->c->grad_scale = scale;
    a->c->skip = isfinite(norm) ? 0.0f : 1.0f;
    a->c->grad_norm = norm;
    a->c->loss = *a->loss_sum * a->loss_unscale;
}

void cpu_step_control(struct device *dev, struct stream *s, struct step_control *c,
                      const float *norm_squared, const float *loss_sum, float unscale,
                      float loss_unscale, float clip)
{
    struct control_args a = {c, norm_squared, loss_sum, unscale, loss_unscale, clip};
    (void)dev;
    stream_submit(s, control_run, &a, sizeof a);
}

struct reduce_args {
    float *sum;
    const float *x;
    int64_t n;
    bool squares, accumulate;
};

static void reduce_run(struct stream *s, const void *args)
{
    const struct reduce_args *a = args;
    const int64_t chunks = ceil_div_i64(a->n, CHUNK);
    double total = a->accumulate ? (double)*a->sum : 0.0;
    double *partial = stream_scratch(s, "reduce_sum", (size_t)max_i64(chunks, 1) * sizeof(double));
    if (!partial)
        return;
#pragma omp parallel for schedule(static) if (a->n > CPU_PARALLEL_ELEMS)
    for (int64_t c = 0; c < chunks; c++) {
        const float *x = a->x + c * CHUNK;
        int64_t n = min_i64(CHUNK, a->n - c * CHUNK);
        partial[c] = a->squares ? row_dot(x, x, n) : row_sum(x, n);
    }
    for (int64_t c = 0; c < chunks; c++)
        total += partial[c];
    *a->sum = (float)total;
}

void cpu_reduce_sum(struct device *dev, struct stream *s, float *sum, const float *x, int64_t n,
                    bool squares, bool accumulate)
{
    struct reduce_args a = {sum, x, n, squares, accumulate};
    (void)dev;
    stream_submit(s, reduce_run, &a, sizeof a);
}

struct cast_args {
    void *dst;
    const void *src;
    int64_t n;
    float scale;
    enum dtype dst_dt, src_dt;
};

static void cast_run(struct stream *s, const void *args)
{
    const struct cast_args *a = args;
    (void)s;
#pragma omp parallel for schedule(static) if (a->n > CPU_PARALLEL_ELEMS)
    for (int64_t at = 0; at < a->n; at += CHUNK) {
        float buffer[CHUNK];
        int64_t n = min_i64(CHUNK, a->n - at);
        const float *x = row_read(a->src, at, a->src_dt, n, buffer);
        row_from_f32(element_mut(a->dst, at, a->dst_dt), x, a->dst_dt, n);
    }
}

void cpu_cast(struct device *dev, struct stream *s, void *dst, enum dtype dst_dt, const void *src,
              enum dtype src_dt, int64_t n)
{
    struct cast_args a = {dst, src, n, 1.0f, dst_dt, src_dt};
    (void)dev;
    stream_submit(s, cast_run, &a, sizeof a);
}

static void accumulate_run(struct stream *s, const void *args)
{
    const struct cast_args *a = args;
    (void)s;
#pragma omp parallel for schedule(static) if (a->n > CPU_PARALLEL_ELEMS)
    for (int64_t at = 0; at < a->n; at += CHUNK) {
        float buffer[CHUNK];
        int64_t n = min_i64(CHUNK, a->n - at);
        const float *x = row_read(a->src, at, a->src_dt, n, buffer);
        float *dst = (float *)a->dst + at;
        for (int64_t i = 0; i < n; i++)
            dst[i] += x[i] * a->scale;
    }
}

void cpu_accumulate(struct device *dev, struct stream *s, float *dst, const void *src,
                    enum dtype src_dt, int64_t n, float scale)
{
    struct cast_args a = {dst, src, n, scale, DTYPE_F32, src_dt};
    (void)dev;
    stream_submit(s, accumulate_run, &a, sizeof a);
}

bool cpu_find_nonfinite(struct device *dev, struct stream *s, const void *x, int64_t n,
                        enum dtype dt)
{
    struct error e = {0};
    int found = 0;
    if (cpu_stream_sync(dev, s, &e) != STATUS_OK)
        return false; /* the device's own failure is what has to be reported */
#pragma omp parallel for schedule(static) reduction(| : found) if (n > CPU_PARALLEL_ELEMS)
    for (int64_t at = 0; at < n; at += CHUNK) {
        float buffer[CHUNK];
        int64_t piece = min_i64(CHUNK, n - at);
        const float *f = row_read(x, at, dt, piece, buffer);
        for (int64_t i = 0; i < piece; i++)
            found |= (bits_of_float(f[i]) & 0x7F800000u) == 0x7F800000u;
    }
    return found;
}
