/* sample.c - choosing the next token of each row.
 *
 * Tokens are ordered by (logit descending, id ascending). top_k keeps the first k of that order;
 * top_p then keeps the shortest beginning whose probability (within what top_k kept) reaches top_p.
 * The token is the first, in order of id, whose cumulative probability among those kept exceeds
 * uniform * (their sum). Temperature 0 takes the first of the order. What is kept is always a
 * beginning of the order, so one (logit, id) bound describes it; the bound is found through a
 * histogram of logits, sorting only the bin it falls into. Test: tests/unit/test_cpu_decode.c. */
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "device/cpu/math.h"
#include "device/cpu/rows.h"
#include <omp.h>
#include <stdlib.h>

struct sample_args {
    int32_t *ids;
    float *logprobs;
    const void *logits;
    const struct sampling *params;
    int64_t rows, vocab, vocab_padded;
    enum dtype dt;
};

struct candidate {
    float logit;
    int32_t id;
};

/* Kept: everything up to and including this place in the order. */
struct bound {
    float logit;
    int32_t id;
};

static bool is_kept(const struct bound *b, float logit, int64_t id)
{
    return logit > b->logit || (logit == b->logit && id <= b->id);
}

static int compare(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

enum { BINS = 1024 };

/* 32 bins a unit of (max - logit) / temperature; the last takes everything below. */
static int bin_of(float logit, float max, float inverse_temperature)
{
    float d = (max - logit) * inverse_temperature * 32.0f;
    return d < (float)(BINS - 1) ? (int)d : BINS - 1;
}

/* Moves *b up to where the weights (1 each for top-k, probabilities for top-p) reach `want`. */
static void tighten(struct bound *b, const float *x, int64_t n, float max, float inverse,
                    double want, bool by_count, struct candidate *candidates)
{
    double mass[BINS] = {0}, sum = 0;
    int64_t count = 0;
    int bin = 0;
    for (int64_t i = 0; i < n; i++)
        if (is_kept(b, x[i], i))
            mass[bin_of(x[i], max, inverse)] +=
                by_count ? 1.0 : (double)exp_f32((x[i] - max) * inverse);
    if (!by_count) {
        double total = 0;
        for (int i = 0; i < BINS; i++)
            total += mass[i];
        want *= total;
    }
    while (bin < BINS - 1 && sum + mass[bin] < want)
        sum += mass[bin++];
    for (int64_t i = 0; i < n; i++)
        if (is_kept(b, x[i], i) && bin_of(x[i], max, inverse) == bin)
            candidates[count++] = (struct candidate){x[i], (int32_t)i};
    qsort(candidates, (size_t)count, sizeof *candidates, compare);
    for (int64_t i = 0; i < count; i++) {
        *b = (struct bound){candidates[i].logit, candidates[i].id};
        sum += by_count ? 1.0 : (double)exp_f32((candidates[i].logit - max) * inverse);
        if (sum >= want)
            break;
    }
}

static int32_t draw(const struct bound *b, const float *x, int64_t n, float max, float inverse,
                    float uniform)
{
    double total = 0, sum = 0;
    int32_t last = 0;
    for (int64_t i = 0; i < n; i++)
        if (is_kept(b, x[i], i))
            total += (double)exp_f32((x[i] - max) * inverse);
    for (int64_t i = 0; i < n; i++) {
        if (!is_kept(b, x[i], i))
            continue;
        last = (int32_t)i;
        sum += (double)exp_f32((x[i] - max) * inverse);
        if (sum > (double)uniform * total)
            break;
    }
    return last;
}

static int32_t choose(const struct sampling *p, const float *x, int64_t n, float max,
                      int32_t greedy, struct candidate *candidates)
{
    struct bound all = {-INFINITY, INT32_MAX};
    if (p->temperature <= 0.0f)
        return greedy;
    const float inverse = 1.0f / p->temperature;
    if (p->top_k > 0 && p->top_k < n)
        tighten(&all, x, n, max, inverse, (double)p->top_k, true, candidates);
    if (p->top_p < 1.0f)
        tighten(&all, x, n, max, inverse, (double)p->top_p, false, candidates);
    return draw(&all, x, n, max, inverse, p->uniform);
}

static void sample_row(const struct sample_args *a, int64_t row, float *buffer,
                       struct candidate *candidates)
{
    const int64_t n = a->vocab;
    const float *x = row_read(a->logits, row * a->vocab_padded, a->dt, n, buffer);
    float max = -INFINITY;
    int32_t greedy = 0;
    double sum;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] > max) {
            max = x[i];
            greedy = (int32_t)i;
        }
    }
    sum = row_sum_exp(NULL, x, n, max);
    int32_t id = choose(&a->params[row], x, n, max, greedy, candidates);
    a->ids[row] = id;
    a->logprobs[row] = (float)((double)x[id] - (double)max - log(sum));
}

static void sample_run(struct stream *s, const void *args)
{
    const struct sample_args *a = args;
    const size_t floats = (size_t)round_up_i64(a->vocab, 16);
    const size_t bytes = floats * (sizeof(float) + sizeof(struct candidate));
    char *scratch = stream_scratch(s, "sample", bytes * (size_t)omp_get_max_threads());
    if (!scratch)
        return;
#pragma omp parallel for schedule(dynamic, 1) if (a->rows > 1)
    for (int64_t row = 0; row < a->rows; row++) {
        char *mine = scratch + bytes * (size_t)omp_get_thread_num();
        sample_row(a, row, (float *)mine, (struct candidate *)(mine + floats * sizeof(float)));
    }
}

void cpu_sample(struct device *dev, struct stream *s, int32_t *ids, float *logprobs,
                const void *logits, const struct sampling *params, int64_t rows, int64_t vocab,
                int64_t vocab_padded, enum dtype dt)
{
    struct sample_args a = {ids, logprobs, logits, params, rows, vocab, vocab_padded, dt};
    (void)dev;
    stream_submit(s, sample_run, &a, sizeof a);
}
