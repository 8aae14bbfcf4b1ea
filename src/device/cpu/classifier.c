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

static float row_max(const float *x, int64_t n)
{
    float max = -INFINITY;
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static double sum_exp(const float *x, int64_t n, float max)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += (double)exp_f32(x[i] - max);
    return sum;
}

/* out may be x. */
static void softmax_gradient(float *out, const float *x, int64_t n, float max, double sum,
                             float scale)
{
    const float factor = (float)((double)scale / sum);
    for (int64_t i = 0; i < n; i++)
        out[i] = exp_f32(x[i] - max) * factor;
}

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
    const float max = row_max(x, v);
    const double sum = sum_exp(x, v, max);
    a->losses[row] = (float)(log(sum) + (double)max - (double)x[target]);
    if (a->grad_scale == 0.0f)
        return;
    softmax_gradient(x, x, v, max, sum, a->grad_scale);
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
            (float)((double)x[target] - (double)max - log(sum_exp(x, a->vocab, max)));
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

enum { COLUMN_BLOCK = 64 };

/* A block of columns belongs to one thread, which goes down all rows. */
static void column_block(float *dst, const void *src, int64_t rows, int64_t n, int64_t ld,
                         enum dtype dt)
{
    double sum[COLUMN_BLOCK] = {0};
    float buffer[COLUMN_BLOCK];
    for (int64_t r = 0; r < rows; r++) {
        const float *x = row_read(src, r * ld, dt, n, buffer);
        if (n == COLUMN_BLOCK) {
            for (int64_t i = 0; i < COLUMN_BLOCK; i++)
                sum[i] += (double)x[i];
        } else {
            for (int64_t i = 0; i < n; i++)
                sum[i] += (double)x[i];
        }
    }
    for (int64_t i = 0; i < n; i++)
        dst[i] = (float)((double)dst[i] + sum[i]);
}

void column_sums(float *dst, const void *src, int64_t rows, int64_t columns, int64_t ld,
                 enum dtype dt)
{
#pragma omp parallel for schedule(static) if (rows * columns > CPU_PARALLEL_ELEMS)
    for (int64_t c = 0; c < columns; c += COLUMN_BLOCK)
        column_block(dst + c, element(src, c, dt), rows, min_i64(COLUMN_BLOCK, columns - c), ld,
                     dt);
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
    (void)s;
    column_sums(a->dbias, a->dy, a->rows, a->channels, a->channels, a->dt);
}

void cpu_bias_backward(struct device *dev, struct stream *s, float *dbias, const void *dy,
                       int64_t rows, int64_t channels, enum dtype dt, void *workspace,
                       size_t workspace_bytes)
{
    struct bias_args a = {dbias, dy, rows, channels, dt};
    (void)dev, (void)workspace, (void)workspace_bytes; /* sums stay in registers */
    stream_submit(s, bias_run, &a, sizeof a);
}

size_t cpu_bias_backward_workspace(int64_t rows, int64_t channels)
{
    (void)rows, (void)channels;
    return 0;
}
