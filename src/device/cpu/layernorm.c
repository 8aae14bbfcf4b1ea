/* layernorm.c - fused residual + dropout + LayerNorm, forward and backward, and plain dropout.
 *
 *     y = (x - mean) * rstd * weight + bias,  x = residual + dropout(delta)
 *     dx = rstd * (g - mean(g) - xhat * mean(g * xhat)),  g = dy * weight
 *
 * A row is computed whole by one thread; means are accumulated in double. dweight and dbias are
 * sums over rows: each block of rows (their number depends on the shape only) sums its own in fp32,
 * then the blocks are added in order in double. Source: Ba, Kiros, Hinton, "Layer Normalization",
 * 2016. Test: tests/unit/test_cpu_layernorm.c. */
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "device/cpu/rows.h"
#include <math.h>
#include <omp.h>
#include <string.h>

struct forward_args {
    void *y, *sum;
    float *mean, *rstd;
    const void *residual, *delta, *weight, *bias;
    int64_t rows, time, channels;
    float eps;
    enum dtype dt;
    struct dropout dropout;
};

/* x = residual (+ dropout(delta), stored and rounded as stored); returns where x is. */
static const float *add_residual(const struct forward_args *a, int64_t row, float *x, float *tmp)
{
    const int64_t n = a->channels, at = row * n;
    if (!a->delta)
        return row_read(a->residual, at, a->dt, n, x);
    row_to_f32(x, element(a->delta, at, a->dt), a->dt, n);
    dropout_row(x, &a->dropout, row, a->time, n, tmp);
    const float *r = row_read(a->residual, at, a->dt, n, tmp);
    for (int64_t i = 0; i < n; i++)
        x[i] = r[i] + x[i];
    row_from_f32(element_mut(a->sum, at, a->dt), x, a->dt, n);
    row_round(x, a->dt, n); /* backward reads the stored value: normalise the same one */
    return x;
}

static void forward_row(const struct forward_args *a, int64_t row, const float *w, const float *b,
                        float *x_buffer, float *tmp)
{
    const int64_t n = a->channels;
    const float *x = add_residual(a, row, x_buffer, tmp);
    double mean = row_sum(x, n) / (double)n, m2 = 0;
#pragma omp simd reduction(+ : m2)
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - mean;
        m2 += d * d;
    }
    float rstd = (float)(1.0 / sqrt(m2 / (double)n + (double)a->eps)), mu = (float)mean;
    float *y = a->dt == DTYPE_F32 ? (float *)a->y + row * n : tmp;
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mu) * rstd * w[i] + b[i];
    if (a->dt != DTYPE_F32)
        row_from_f32(element_mut(a->y, row * n, a->dt), y, a->dt, n);
    if (a->mean)
        a->mean[row] = mu;
    if (a->rstd)
        a->rstd[row] = rstd;
}

static void forward_run(struct stream *s, const void *args)
{
    const struct forward_args *a = args;
    const int64_t n = a->channels, padded = round_up_i64(n, 16);
    size_t floats = (size_t)padded * (2 + 2 * (size_t)omp_get_max_threads());
    float *scratch = stream_scratch(s, "layernorm_forward", floats * sizeof(float));
    if (!scratch)
        return;
    const float *w = row_read(a->weight, 0, a->dt, n, scratch);
    const float *b = row_read(a->bias, 0, a->dt, n, scratch + padded);
    scratch += 2 * padded;
#pragma omp parallel for schedule(static) if (a->rows * n > CPU_PARALLEL_ELEMS)
    for (int64_t row = 0; row < a->rows; row++) {
        float *mine = scratch + 2 * padded * omp_get_thread_num();
        forward_row(a, row, w, b, mine, mine + padded);
    }
}

void cpu_layernorm_forward(struct device *dev, struct stream *s, void *y, void *sum, float *mean,
                           float *rstd, const void *residual, const void *delta, const void *weight,
                           const void *bias, int64_t batch, int64_t time, int64_t channels,
                           float eps, enum dtype dt, struct dropout dropout)
{
    struct forward_args a = {y,    sum,          mean, rstd,     residual, delta, weight,
                             bias, batch * time, time, channels, eps,      dt,    dropout};
    (void)dev;
    stream_submit(s, forward_run, &a, sizeof a);
}

struct backward_args {
    void *dx, *ddelta;
    float *dweight, *dbias;
    const void *dy, *x;
    const float *mean, *rstd;
    const void *weight;
    int64_t rows, time, channels;
    struct dropout dropout;
    float *partial; /* [blocks, 2, C] */
    enum dtype dt;
    bool accumulate;
};

enum { BLOCKS_MAX = 64 };

static int64_t block_rows(int64_t rows)
{
    return max_i64(8, ceil_div_i64(rows, BLOCKS_MAX));
}

size_t cpu_layernorm_backward_workspace(int64_t rows, int64_t channels)
{
    return (size_t)ceil_div_i64(rows, block_rows(rows)) * 2 * (size_t)channels * sizeof(float);
}

/* buffers: 4 rows of C. */
static void backward_row(const struct backward_args *a, int64_t row, const float *w, float *dw,
                         float *db, float *buffers, int64_t padded)
{
    const int64_t n = a->channels, at = row * n;
    const float *dy = row_read(a->dy, at, a->dt, n, buffers);
    const float *x = row_read(a->x, at, a->dt, n, buffers + padded);
    float *out = buffers + 2 * padded, *mask = buffers + 3 * padded;
    const float mu = a->mean[row], rstd = a->rstd[row];
    double sum_g = 0, sum_gx = 0;
#pragma omp simd reduction(+ : sum_g, sum_gx)
    for (int64_t i = 0; i < n; i++) {
        float xhat = (x[i] - mu) * rstd, g = dy[i] * w[i];
        sum_g += (double)g;
        sum_gx += (double)(g * xhat);
        dw[i] += dy[i] * xhat;
        db[i] += dy[i];
    }
    const float mean_g = (float)(sum_g / (double)n), mean_gx = (float)(sum_gx / (double)n);
    if (a->accumulate)
        row_to_f32(out, element(a->dx, at, a->dt), a->dt, n);
    else
        memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        float xhat = (x[i] - mu) * rstd;
        out[i] += rstd * (dy[i] * w[i] - mean_g - xhat * mean_gx);
    }
    row_from_f32(element_mut(a->dx, at, a->dt), out, a->dt, n);
    if (a->ddelta) {
        row_round(out, a->dt, n);
        dropout_row(out, &a->dropout, row, a->time, n, mask);
        row_from_f32(element_mut(a->ddelta, at, a->dt), out, a->dt, n);
    }
}

/* dst[i] += the blocks' sums of column i, in order. */
static void add_partials(float *dst, const float *partial, int64_t blocks, int64_t stride,
                         int64_t n)
{
#pragma omp parallel for simd schedule(static) if (blocks * n > CPU_PARALLEL_ELEMS)
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t b = 0; b < blocks; b++)
            sum += (double)partial[b * stride + i];
        dst[i] = (float)((double)dst[i] + sum);
    }
}

static void backward_run(struct stream *s, const void *args)
{
    const struct backward_args *a = args;
    const int64_t n = a->channels, padded = round_up_i64(n, 16);
    const int64_t per_block = block_rows(a->rows), blocks = ceil_div_i64(a->rows, per_block);
    size_t floats = (size_t)padded * (1 + 4 * (size_t)omp_get_max_threads());
    float *scratch = stream_scratch(s, "layernorm_backward", floats * sizeof(float));
    if (!scratch)
        return;
    const float *w = row_read(a->weight, 0, a->dt, n, scratch);
    scratch += padded;
#pragma omp parallel for schedule(static) if (a->rows * n > CPU_PARALLEL_ELEMS)
    for (int64_t b = 0; b < blocks; b++) {
        float *mine = scratch + 4 * padded * omp_get_thread_num();
        float *dw = a->partial + 2 * n * b, *db = dw + n;
        memset(dw, 0, 2 * (size_t)n * sizeof *dw);
        for (int64_t row = b * per_block; row < min_i64((b + 1) * per_block, a->rows); row++)
            backward_row(a, row, w, dw, db, mine, padded);
    }
    add_partials(a->dweight, a->partial, blocks, 2 * n, n);
    add_partials(a->dbias, a->partial + n, blocks, 2 * n, n);
}

void cpu_layernorm_backward(struct device *dev, struct stream *s, void *dx, void *ddelta,
                            float *dweight, float *dbias, const void *dy, const void *x,
                            const float *mean, const float *rstd, const void *weight, int64_t batch,
                            int64_t time, int64_t channels, bool accumulate, enum dtype dt,
                            struct dropout dropout, void *workspace, size_t workspace_bytes)
{
    struct backward_args a = {dx,      ddelta,    dweight, dbias,        dy,   x,
                              mean,    rstd,      weight,  batch * time, time, channels,
                              dropout, workspace, dt,      accumulate};
    if (workspace_bytes < cpu_layernorm_backward_workspace(batch * time, channels)) {
        device_fail(dev, "layernorm_backward", "workspace of %zu bytes, needs %zu", workspace_bytes,
                    cpu_layernorm_backward_workspace(batch * time, channels));
        return;
    }
    stream_submit(s, backward_run, &a, sizeof a);
}

struct dropout_args {
    void *dst;
    const void *src;
    int64_t rows, time, channels;
    enum dtype dt;
    struct dropout dropout;
};

static void dropout_run(struct stream *s, const void *args)
{
    const struct dropout_args *a = args;
    const int64_t n = a->channels, padded = round_up_i64(n, 16);
    size_t floats = (size_t)padded * 2 * (size_t)omp_get_max_threads();
    float *scratch = stream_scratch(s, "dropout_backward", floats * sizeof(float));
    if (!scratch)
        return;
#pragma omp parallel for schedule(static) if (a->rows * n > CPU_PARALLEL_ELEMS)
    for (int64_t row = 0; row < a->rows; row++) {
        float *mine = scratch + 2 * padded * omp_get_thread_num();
        row_to_f32(mine, element(a->src, row * n, a->dt), a->dt, n);
        dropout_row(mine, &a->dropout, row, a->time, n, mine + padded);
        row_from_f32(element_mut(a->dst, row * n, a->dt), mine, a->dt, n);
    }
}

void cpu_dropout_backward(struct device *dev, struct stream *s, void *dst, const void *src,
                          int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                          struct dropout dropout)
{
    struct dropout_args a = {dst, src, batch * time, time, channels, dt, dropout};
    (void)dev;
    if (dropout.p != 0.0f || dst != src)
        stream_submit(s, dropout_run, &a, sizeof a);
}
