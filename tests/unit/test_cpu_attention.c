/* test_cpu_attention.c - tiled attention of the cpu backend against the formulas in float64 with
 * the whole T x T matrix, its gradient against finite differences, dropout, threads. */
#include "base/philox.h"
#include "device_fixture.h"
#include <omp.h>

struct problem {
    struct attention a;
    int64_t channels, elems; /* H*D, B*T*H*D */
    float *qkv, *dout;
    void *qkv_dt, *dout_dt;
};

static struct problem make(int64_t b, int64_t t, int64_t h, int64_t d, enum dtype dt, float p)
{
    struct problem x = {.a = {b, t, h, d, dt, {p, 99, 3, NULL}, true}};
    int64_t *samples = fx_alloc((size_t)b * sizeof *samples);
    for (int64_t i = 0; i < b; i++)
        samples[i] = 1000 + 3 * i;
    x.a.dropout.samples = samples;
    x.channels = h * d;
    x.elems = b * t * h * d;
    x.qkv = fx_random(3 * x.elems, 1, 2.0f);
    x.dout = fx_random(x.elems, 2, 1.0f);
    x.qkv_dt = fx_narrow(x.qkv, dt, 3 * x.elems);
    x.dout_dt = fx_narrow(x.dout, dt, x.elems);
    for (int64_t i = 0; i < 3 * x.elems; i++) /* the reference starts from what dt holds */
        x.qkv[i] = fx_get(x.qkv_dt, dt, i);
    for (int64_t i = 0; i < x.elems; i++)
        x.dout[i] = fx_get(x.dout_dt, dt, i);
    return x;
}

static double kept(const struct problem *x, int64_t b, int64_t h, int64_t q, int64_t k)
{
    const struct dropout *d = &x->a.dropout;
    if (d->p == 0.0f)
        return 1.0;
    uint64_t e = (uint64_t)((h * x->a.time + q) * x->a.time + k);
    struct philox4 r = philox4x32(philox_key(d->seed, d->site), e / 4, (uint64_t)d->samples[b]);
    return philox_uniform(r.v[e % 4]) >= d->p ? 1.0 / (1.0 - (double)d->p) : 0.0;
}

/* q, k or v of a position. */
static int64_t at(const struct problem *x, int64_t b, int64_t t, int which, int64_t h)
{
    return (((b * x->a.time + t) * 3 + which) * x->a.heads + h) * x->a.head_dim;
}

/* Row q of one head: probabilities p[0..q]; returns the log sum of exponentials. */
static double softmax_row(const struct problem *x, const float *qkv, int64_t b, int64_t h,
                          int64_t q, double *p)
{
    const int64_t d = x->a.head_dim;
    double max = -INFINITY, sum = 0;
    for (int64_t k = 0; k <= q; k++) {
        p[k] = 0;
        for (int64_t i = 0; i < d; i++)
            p[k] += (double)qkv[at(x, b, q, 0, h) + i] * (double)qkv[at(x, b, k, 1, h) + i];
        p[k] /= sqrt((double)d);
        max = fmax(max, p[k]);
    }
    for (int64_t k = 0; k <= q; k++)
        sum += exp(p[k] - max);
    for (int64_t k = 0; k <= q; k++)
        p[k] = exp(p[k] - max) / sum;
    return max + log(sum);
}

static void reference(const struct problem *x, const float *qkv, double *out, double *lse,
                      double *dqkv)
{
    const int64_t d = x->a.head_dim, t = x->a.time;
    double *p = fx_alloc((size_t)t * sizeof *p), *dp = fx_alloc((size_t)t * sizeof *dp);
    for (int64_t bh = 0; bh < x->a.batch * x->a.heads; bh++) {
        const int64_t b = bh / x->a.heads, h = bh % x->a.heads;
        for (int64_t q = 0; q < t; q++) {
            const int64_t row = ((b * t + q) * x->a.heads + h) * d;
            double dot = 0;
            lse[bh * t + q] = softmax_row(x, qkv, b, h, q, p);
            for (int64_t k = 0; k <= q; k++) {
                const double m = kept(x, b, h, q, k);
                dp[k] = 0;
                for (int64_t i = 0; i < d; i++) {
                    const double g = (double)x->dout[row + i];
                    out[row + i] += p[k] * m * (double)qkv[at(x, b, k, 2, h) + i];
                    dp[k] += m * g * (double)qkv[at(x, b, k, 2, h) + i];
                    dqkv[at(x, b, k, 2, h) + i] += p[k] * m * g;
                }
                dot += p[k] * dp[k];
            }
            for (int64_t k = 0; k <= q; k++) {
                const double ds = p[k] * (dp[k] - dot) / sqrt((double)d);
                for (int64_t i = 0; i < d; i++) {
                    dqkv[at(x, b, q, 0, h) + i] += ds * (double)qkv[at(x, b, k, 1, h) + i];
                    dqkv[at(x, b, k, 1, h) + i] += ds * (double)qkv[at(x, b, q, 0, h) + i];
                }
            }
        }
    }
}

struct result {
    void *out, *dqkv;
    float *lse;
};

static struct result run(struct device *dev, const struct problem *x)
{
    const enum dtype dt = x->a.dt;
    const size_t workspace = dev->ops->attention_backward_workspace(&x->a);
    struct result r = {fx_narrow(fx_random(x->elems, 8, 1e9f), dt, x->elems),
                       fx_narrow(fx_random(3 * x->elems, 9, 1e9f), dt, 3 * x->elems),
                       fx_floats(x->a.batch * x->a.heads * x->a.time)};
    dev->ops->attention_forward(dev, dev->compute, r.out, r.lse, x->qkv_dt, &x->a);
    dev->ops->attention_backward(dev, dev->compute, r.dqkv, x->dout_dt, x->qkv_dt, r.out, r.lse,
                                 &x->a, fx_alloc(workspace), workspace);
    fx_check_device(dev);
    return r;
}

static void compare(struct device *dev, int64_t b, int64_t t, int64_t h, int64_t d, enum dtype dt,
                    float p)
{
    const struct problem x = make(b, t, h, d, dt, p);
    const struct result r = run(dev, &x);
    double *out = fx_alloc((size_t)x.elems * 8), *dqkv = fx_alloc((size_t)x.elems * 24);
    double *lse = fx_alloc((size_t)(b * h * t) * 8);
    reference(&x, x.qkv, out, lse, dqkv);
    /* fp32 sums over D and over keys; in 16 bits the stored out also enters the gradient. */
    const double eps = fx_epsilon(dt);
    CHECK_CLOSE(r.out, out, dt, x.elems, 3e-6, 1e-6 + 1.01 * eps);
    CHECK_CLOSE(r.lse, lse, DTYPE_F32, b * h * t, 2e-6, 1e-6);
    CHECK_CLOSE(r.dqkv, dqkv, dt, 3 * x.elems, dt == DTYPE_F32 ? 2e-5 : 6 * eps, 1e-5 + 1.01 * eps);
    fx_free_all();
}

static const int64_t dims[] = {8, 64, 80, 112, 128};
static const int64_t times[] = {1, 17, 67, 128};

static void all_shapes(struct device *dev, enum dtype dt, float p)
{
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 4; j++)
            compare(dev, 1 + j % 2, times[j], 2, dims[i], dt, p);
    compare(dev, 1, 330, 1, 8, dt, p);
}

/* The gradient of sum(out * dout) in one element of qkv, by the reference's own forward in float64.
 */
static void finite_differences(void)
{
    struct problem x = make(1, 19, 2, 16, DTYPE_F32, 0.2f);
    const size_t n = (size_t)x.elems * 8;
    double *dqkv = fx_alloc(3 * n), *lse = fx_alloc(38 * 8), *ignored = fx_alloc(3 * n);
    double *base = fx_alloc(n);
    reference(&x, x.qkv, base, lse, dqkv);
    for (int i = 0; i < 24; i++) {
        const int64_t e = (int64_t)i * 1009 % (3 * x.elems);
        double sum[2] = {0, 0};
        const float old = x.qkv[e], step = 1.0f / 512;
        for (int side = 0; side < 2; side++) {
            double *out = fx_alloc(n);
            x.qkv[e] = old + (side ? step : -step);
            reference(&x, x.qkv, out, lse, ignored);
            for (int64_t j = 0; j < x.elems; j++)
                sum[side] += out[j] * (double)x.dout[j];
        }
        x.qkv[e] = old;
        CHECK_NEAR((sum[1] - sum[0]) / (2.0 / 512), dqkv[e], 1e-4);
    }
    fx_free_all();
}

int main(void)
{
    struct device *dev = fx_open("cpu");
    CASE("fp32, head dimensions 8 to 128, T 1 to 330")
    all_shapes(dev, DTYPE_F32, 0.0f);
    CASE("fp32 with dropout")
    all_shapes(dev, DTYPE_F32, 0.1f);
    CASE("bf16")
    all_shapes(dev, DTYPE_BF16, 0.0f);
    CASE("fp16 with dropout")
    all_shapes(dev, DTYPE_F16, 0.3f);
    CASE("the reference gradient agrees with finite differences")
    finite_differences();
    CASE("the number of threads does not change a bit")
    {
        const struct problem x = make(2, 300, 3, 64, DTYPE_F32, 0.1f);
        const int before = omp_get_max_threads();
        omp_set_num_threads(1);
        const struct result one = run(dev, &x);
        for (int threads = 2; threads <= 3; threads++) {
            omp_set_num_threads(threads);
            const struct result r = run(dev, &x);
            CHECK_SAME_BITS(r.out, one.out, (size_t)x.elems * 4);
            CHECK_SAME_BITS(r.dqkv, one.dqkv, (size_t)x.elems * 12);
        }
        omp_set_num_threads(before);
        fx_free_all();
    }
    CASE("NaN in a key reaches every later query, and no earlier one")
    {
        struct problem x = make(1, 70, 1, 64, DTYPE_F32, 0.0f);
        ((float *)x.qkv_dt)[at(&x, 0, 65, 1, 0)] = NAN;
        const struct result r = run(dev, &x);
        for (int64_t t = 0; t < 70; t++)
            CHECK(isnan(((float *)r.out)[t * 64]) == (t >= 65));
        fx_free_all();
    }
    CASE("a head dimension outside the contract is refused")
    {
        struct error e = {0};
        struct problem x = make(1, 2, 1, 12, DTYPE_F32, 0.0f);
        dev->ops->attention_forward(dev, dev->compute, x.qkv_dt, x.dout, x.qkv_dt, &x.a);
        CHECK_INT(device_check(dev, &e), STATUS_DEVICE);
        CHECK_CONTAINS(e.message, "multiple of 8");
        fx_free_all();
    }
    device_close(dev);
    return tap_done();
}
