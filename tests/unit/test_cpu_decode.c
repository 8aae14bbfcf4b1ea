/* test_cpu_decode.c - the paged cache and attention over it against the full attention kernel and
 * float64; gathering rows; sampling against a sort in float64. */
#include "device_fixture.h"
#include <omp.h>

enum { SEQUENCES = 2, PAGE = 16 };

static void *fx_at(void *base, int64_t i, enum dtype dt)
{
    return (char *)base + (size_t)i * fx_width(dt);
}

/* Every position of two sequences through the cache, equal to causal attention over the whole. */
static void cached_equals_full(struct device *dev, int64_t t, int64_t h, int64_t d, enum dtype dt)
{
    /* Rows of a call: all; single ones; prompts' pieces that end and begin anywhere. */
    static const int64_t pieces[3][4] = {{1000, 1000, 1000, 1000}, {1, 1, 15, 1}, {16, 1, 65, 23}};
    const int64_t c = h * d, pages = (t + PAGE - 1) / PAGE, rows = SEQUENCES * t;
    int32_t *table = fx_alloc(SEQUENCES * (size_t)pages * 4);
    int32_t *seq = fx_alloc((size_t)rows * 4), *pos = fx_alloc((size_t)rows * 4);
    for (int64_t i = 0; i < SEQUENCES * pages; i++)
        table[i] =
            (int32_t)((i * 7 + 3) % (SEQUENCES * pages)); /* 7 and the count are coprime here */
    for (int64_t i = 0; i < rows; i++) {
        seq[i] = (int32_t)(i / t);
        pos[i] = (int32_t)(i % t);
    }
    const size_t cache = (size_t)(SEQUENCES * pages * PAGE * c) * fx_width(dt);
    const struct kv_cache kv = {fx_alloc(cache), fx_alloc(cache), table, pages, PAGE};
    void *qkv = fx_narrow(fx_random(rows * 3 * c, 1, 2.0f), dt, rows * 3 * c);
    void *out = fx_alloc((size_t)(rows * c) * fx_width(dt)),
         *full = fx_alloc((size_t)(rows * c) * fx_width(dt));
    const struct attention a = {SEQUENCES, t, h, d, dt, {0.0f, 0, 0, NULL}, true};
    dev->ops->kv_append(dev, dev->compute, &kv, qkv, seq, pos, rows, h, d, dt);
    dev->ops->attention_forward(dev, dev->compute, full, fx_floats(rows * h), qkv, &a);
    fx_check_device(dev);
    float *want = fx_floats(rows * c);
    for (int64_t i = 0; i < rows * c; i++)
        want[i] = fx_get(full, dt, i);
    for (int k = 0; k < 3; k++) {
        memset(out, 0xff, (size_t)(rows * c) * fx_width(dt));
        for (int64_t row = 0, turn = 0, n; row < rows; row += n, turn++) {
            n = rows - row < pieces[k][turn % 4] ? rows - row : pieces[k][turn % 4];
            dev->ops->attention_cached(dev, dev->compute, fx_at(out, row * c, dt), &kv,
                                       fx_at(qkv, row * 3 * c, dt), seq + row, pos + row, n, h, d,
                                       dt, false, NULL, 0);
        }
        fx_check_device(dev);
        CHECK_CLOSE(out, want, dt, rows * c, 2e-6, 1e-6 + 2.1 * fx_epsilon(dt));
    }
    fx_free_all();
}

struct entry {
    double x;
    int32_t id;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->x != y->x ? (x->x > y->x ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

/* Is `id` what the rule of sample.c chooses? Cumulative sums are compared within 1e-6. */
static bool sampled_right(const float *x, int64_t v, struct sampling s, int32_t id)
{
    struct entry *e = fx_alloc((size_t)v * sizeof *e);
    double *p = fx_alloc((size_t)v * 8), total = 0, cut = 0, sum = 0;
    int64_t keep = s.top_k > 0 && s.top_k < v ? s.top_k : v, kept = 0;
    for (int64_t i = 0; i < v; i++)
        e[i] = (struct entry){(double)x[i], (int32_t)i};
    qsort(e, (size_t)v, sizeof *e, by_logit);
    if (s.temperature == 0.0f)
        return id == e[0].id;
    for (int64_t i = 0; i < keep; i++)
        total += exp((e[i].x - e[0].x) / (double)s.temperature);
    while (kept < keep && (kept == 0 || cut < (double)s.top_p * total)) {
        p[e[kept].id] = exp((e[kept].x - e[0].x) / (double)s.temperature);
        cut += p[e[kept++].id];
    }
    for (int64_t i = 0; i < id; i++)
        sum += p[i];
    const double u = (double)s.uniform * cut, slack = 1e-6 * cut;
    return p[id] > 0 && sum <= u + slack && u <= sum + p[id] + slack;
}

static void sampling_rules(struct device *dev, int64_t v, int64_t vp, enum dtype dt)
{
    enum { ROWS = 48 };
    float *x = fx_random(ROWS * vp, 5, 1.0f), *logprobs = fx_floats(ROWS);
    struct sampling *s = fx_alloc(ROWS * sizeof *s);
    int32_t *ids = fx_alloc(ROWS * sizeof *ids);
    static const float ps[] = {1.0f, 0.9f, 0.5f, 0.01f};
    static const int32_t ks[] = {0, 1, 5, 40};
    for (int64_t i = 0; i < ROWS * vp; i++)
        x[i] = i % vp >= v ? 1e4f : rintf(64.0f * x[i] * x[i] * x[i]) / 4.0f; /* with many ties */
    for (int i = 0; i < ROWS; i++)
        s[i] = (struct sampling){i % 3 ? 0.5f * (float)(i % 3) : 0.0f, ps[i % 4], ks[i / 4 % 4],
                                 (float)((i * 37) % 64) / 64.0f};
    void *logits = fx_narrow(x, dt, ROWS * vp);
    dev->ops->sample(dev, dev->compute, ids, logprobs, logits, s, ROWS, v, vp, dt);
    for (int r = 0; r < ROWS; r++) {
        const float *row = x + r * vp;
        double sum = 0;
        for (int64_t i = 0; i < v; i++)
            sum += exp((double)row[i]);
        CHECK(ids[r] >= 0 && ids[r] < v);
        CHECK_NEAR(logprobs[r], (double)row[ids[r]] - log(sum), 1e-5);
        if (!sampled_right(row, v, s[r], ids[r]))
            tap_fail_(__FILE__, __LINE__,
                      "row %d: temperature %g top_p %g top_k %d uniform %g gave %d", r,
                      (double)s[r].temperature, (double)s[r].top_p, s[r].top_k,
                      (double)s[r].uniform, ids[r]);
    }
    fx_free_all();
}

int main(void)
{
    struct device *dev = fx_open("cpu");
    const enum dtype dts[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    static const int64_t dims[] = {8, 64, 80, 112, 128};
    CASE("attention over a paged cache equals causal attention, three dtypes")
    for (int i = 0; i < 15; i++) {
        cached_equals_full(dev, 1, 2, dims[i % 5], dts[i / 5]);
        cached_equals_full(dev, 67, 2, dims[i % 5], dts[i / 5]);
        cached_equals_full(dev, 130, 1, dims[i % 5], dts[i / 5]);
    }
    CASE("rows are gathered as they are")
    {
        const int32_t rows[] = {3, 0, 3, 2};
        const float *src = fx_random(4 * 80, 1, 1.0f);
        float *dst = fx_floats(4 * 80);
        dev->ops->gather_rows(dev, dev->compute, dst, src, rows, 4, 80, DTYPE_F32);
        for (int i = 0; i < 4; i++)
            CHECK_SAME_BITS(dst + 80 * i, src + 80 * rows[i], 320);
        fx_free_all();
    }
    CASE("sampling follows temperature, top-k, top-p, ties by lowest id; padding is never chosen")
    {
        sampling_rules(dev, 50, 64, DTYPE_F32);
        sampling_rules(dev, 1003, 1024, DTYPE_F32);
        sampling_rules(dev, 1003, 1024, DTYPE_F16);
    }
    CASE("greedy takes the lowest id among equals; NaN shows in the log-probability")
    {
        float x[64] = {0}, logprob[2];
        const struct sampling s[1] = {{0.0f, 1.0f, 0, 0.0f}};
        int32_t id[1];
        x[9] = x[17] = 2.0f;
        dev->ops->sample(dev, dev->compute, id, logprob, x, s, 1, 50, 64, DTYPE_F32);
        CHECK_INT(id[0], 9);
        CHECK(isfinite(logprob[0]));
        x[30] = NAN;
        dev->ops->sample(dev, dev->compute, id, logprob, x, s, 1, 50, 64, DTYPE_F32);
        CHECK(isnan(logprob[0]));
    }
    device_close(dev);
    return tap_done();
}
