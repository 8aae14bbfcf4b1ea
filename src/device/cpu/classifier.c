/* classifier.c - cross-entropy with its gradient in place, log-probabilities, bias gradients.
 *
 *     loss = log(sum exp(l - max)) + max - l[target],  dl = (softmax(l) - onehot(target)) * scale
 *
 * One thread a row, the sum of exponentials in double. A NaN anywhere in a row makes its loss NaN.
 * Test: tests/unit/test_cpu_classifier.c. */
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "device/cpu/math.h"
#include "device/cpu/rows.h"
#include <omp.h>

struct classifier_args {
    void *logits;
    float *losses;
    const int32_t *targets;
    int64_t rows, vocab, vocab_padded;
    float grad_scale;
    enum dtype dt;
};

static void classifier_row(const struct classifier_args *a, int64_t row, float *buffer)
{
    const int64_t v = a->vocab, vp = a->vocab_padded, at = row * vp;
    const int32_t target = a->targets[row];
    float *x = a->dt == DTYPE_F32 ? (float *)a->logits + at : buffer;
    if (target < 0) {
        a->losses[row] = 0.0f;
        memset(element_mut(a->logits, at, a->dt), 0, (size_t)vp * (a->dt == DTYPE_F32 ? 4 : 2));
        return;
    }
    if (a->dt != DTYPE_F32)
        row_to_f32(x, element(a->logits, at, a->dt), a->dt, v);
    const float max = row_max(x, v), logit = x[target];
    const double sum = row_sum_exp(x, x, v, max);
    a->losses[row] = (float)(log(sum) + (double)max - (double)logit);
    if (a->grad_scale == 0.0f)
        return;
    const float factor = (float)((double)a->grad_scale / sum);
    for (int64_t i = 0; i < v; i++)
        x[i] *= factor;
    x[target] -= a->grad_scale;
    memset(x + v, 0, (size_t)(vp - v) * sizeof *x);
    if (a->dt != DTYPE_F32)
        row_from_f32(element_mut(a->logits, at, a->dt), x, a->dt, vp);
}

static void classifier_run(struct stream *s, const void *args)
{
    const struct classifier_args *a = args;
    const int64_t padded = round_up_i64(a->vocab_padded, 16);
    float *scratch = NULL;
    if (a->dt != DTYPE_F32) {
        size_t floats = (size_t)padded * (size_t)omp_get_max_threads();
        scratch = stream_scratch(s, "classifier", floats * sizeof(float));
        if (!scratch)
            return;
    }
#pragma omp parallel for schedule(static) if (a->rows * a->vocab > CPU_PARALLEL_ELEMS)
    for (int64_t row = 0; row < a->rows; row++)
        classifier_row(a, row, scratch ? scratch + padded * omp_get_thread_num() : NULL);
}

void cpu_classifier(struct device *dev, struct stream *s, void *logits, float *losses,
                    const int32_t *targets, int64_t rows, int64_t vocab, int64_t vocab_padded,
                    float grad_scale, enum dtype dt)
{
    struct classifier_args a = {logits, losses, targets, rows, vocab, vocab_padded, grad_scale, dt};
    (void)dev;
    stream_submit(s, classifier_run, &a, sizeof a);
}

struct logprobs_args {
    float *logprobs;
    const void *logits;
    const int32_t *targets;
    int64_t rows, vocab, vocab_padded;
    enum dtype dt;
};

static void logprobs_run(struct stream *s, const void *args)
{
    const struct logprobs_args *a = args;
    const int64_t padded = round_up_i64(a->vocab_padded, 16);
    size_t floats = (size_t)padded * (size_t)omp_get_max_threads();
    float *scratch = stream_scratch(s, "token_logprobs", floats * sizeof(float));
    if (!scratch)
        return;
#pragma omp parallel for schedule(static) if (a->rows * a->vocab > CPU_PARALLEL_ELEMS)
    for (int64_t row = 0; row < a->rows; row++) {
        float *buffer = scratch + padded * omp_get_thread_num();
        const float *x = row_read(a->logits, row * a->vocab_padded, a->dt, a->vocab, buffer);
        const int32_t target = a->targets[row];
        a->logprobs[row] = 0.0f;
        if (target < 0)
            continue;
        const float max = row_max(x, a->vocab);
        a->logprobs[row] =
            (float)((double)x[target] - (double)max - log(row_sum_exp(NULL, x, a->vocab, max)));
    }
}

void cpu_token_logprobs(struct device *dev, struct stream *s, float *logprobs, const void *logits,
                        const int32_t *targets, int64_t rows, int64_t vocab, int64_t vocab_padded,
                        enum dtype dt)
{
    struct logprobs_args a = {logprobs, logits, targets, rows, vocab, vocab_padded, dt};
    (void)dev;
    stream_submit(s, logprobs_run, &a, sizeof a);
}

/* --- column sums ---------------------------------------------------------------------------- */

enum { SUM_ROWS = 8, SUM_BLOCKS = 16 };

/* sum[c] += the rows' values: eight rows are added pairwise in fp32, the rest is double. */
static void add_eight(double *restrict sum, const float *const r[SUM_ROWS], int64_t n)
{
    for (int64_t c = 0; c < n; c++) {
        float s = ((r[0][c] + r[1][c]) + (r[2][c] + r[3][c])) +
                  ((r[4][c] + r[5][c]) + (r[6][c] + r[7][c]));
        sum[c] += (double)s;
    }
}

static void add_one(double *restrict sum, const float *restrict r, int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        sum[c] += (double)r[c];
}

/* Columns [c, c+n) of rows [first, end), n <= 256. */
static void sum_block(double *sum, const void *src, int64_t first, int64_t end, int64_t c,
                      int64_t n, int64_t ld, enum dtype dt)
{
    float buffers[SUM_ROWS][256];
    const float *r[SUM_ROWS];
    int64_t row = first;
    for (; row + SUM_ROWS <= end; row += SUM_ROWS) {
        for (int i = 0; i < SUM_ROWS; i++)
            r[i] = row_read(src, (row + i) * ld + c, dt, n, buffers[i]);
        add_eight(sum, r, n);
    }
    for (; row < end; row++)
        add_one(sum, row_read(src, row * ld + c, dt, n, buffers[0]), n);
}

void column_sums(struct stream *s, float *dst, const void *src, int64_t rows, int64_t columns,
                 int64_t ld, enum dtype dt)
{
    const int64_t per_block = round_up_i64(max_i64(32, ceil_div_i64(rows, SUM_BLOCKS)), SUM_ROWS);
    const int64_t blocks = ceil_div_i64(rows, per_block), width = round_up_i64(columns, 8);
    double *sums = stream_scratch(s, "column_sums", (size_t)(blocks * width) * sizeof(double));
    if (!sums)
        return;
#pragma omp parallel if (rows * columns > CPU_PARALLEL_ELEMS)
    {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            double *sum = sums + b * width;
            const int64_t end = min_i64((b + 1) * per_block, rows);
            memset(sum, 0, (size_t)width * sizeof *sum);
            for (int64_t first = b * per_block; first < end; first += SUM_ROWS)
                for (int64_t c = 0; c < columns; c += 256)
                    sum_block(sum + c, src, first, min_i64(first + SUM_ROWS, end), c,
                              min_i64(256, columns - c), ld, dt);
        }
#pragma omp for schedule(static)
        for (int64_t c0 = 0; c0 < columns; c0 += 64) {
            for (int64_t c = c0; c < min_i64(c0 + 64, columns); c++) {
                double sum = (double)dst[c];
                for (int64_t b = 0; b < blocks; b++)
                    sum += sums[b * width + c];
                dst[c] = (float)sum;
            }
        }
    }
}

struct bias_args {
    float *dbias;
    const void *dy;
    int64_t rows, channels;
    enum dtype dt;
};

static void bias_run(struct stream *s, const void *args)
{
    const struct bias_args *a = args;
    column_sums(s, a->dbias, a->dy, a->rows, a->channels, a->channels, a->dt);
}

void cpu_bias_backward(struct device *dev, struct stream *s, float *dbias, const void *dy,
                       int64_t rows, int64_t channels, enum dtype dt, void *workspace,
                       size_t workspace_bytes)
{
    struct bias_args a = {dbias, dy, rows, channels, dt};
    (void)dev, (void)workspace, (void)workspace_bytes; /* the stream's scratch serves */
    stream_submit(s, bias_run, &a, sizeof a);
}

size_t cpu_bias_backward_workspace(int64_t rows, int64_t channels)
{
    (void)rows, (void)channels;
    return 0;
}
