/* test_cpu_optimizer.c - AdamW and Adam against float64 over several steps, the control values of a
 * step (clipping, skipping), sums, casts, accumulation. */
#include "device_fixture.h"
#include <omp.h>

static void adam_steps(struct device *dev, bool decoupled, enum dtype dt, int64_t n)
{
    float *p = fx_random(n, 1, 1.0f), *m = fx_floats(n), *v = fx_floats(n);
    double *wp = fx_alloc((size_t)n * 8), *wm = fx_alloc((size_t)n * 8),
           *wv = fx_alloc((size_t)n * 8);
    void *working = fx_narrow(fx_random(n, 2, 9.0f), dt, n);
    const struct step_control c = {.grad_scale = 0.5f};
    for (int64_t i = 0; i < n; i++)
        wp[i] = (double)p[i];
    for (int step = 1; step <= 5; step++) {
        const struct adamw h = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, decoupled, step};
        const float *g = fx_random(n, 10 + (uint64_t)step, 1.0f);
        for (int64_t i = 0; i < n; i++) {
            const double lr = (double)1e-2f, b1 = (double)0.9f, b2 = (double)0.95f,
                         wd = (double)0.1f;
            const double grad = (double)g[i] * 0.5 + (decoupled ? 0 : wd * wp[i]);
            wm[i] = b1 * wm[i] + (1 - b1) * grad;
            wv[i] = b2 * wv[i] + (1 - b2) * grad * grad;
            wp[i] = wp[i] * (decoupled ? 1 - lr * wd : 1) -
                    lr * (wm[i] / (1 - pow(b1, step))) /
                        (sqrt(wv[i] / (1 - pow(b2, step))) + (double)1e-8f);
        }
        dev->ops->adamw(dev, dev->compute, p, m, v, g, working, n, dt, &h, &c);
    }
    CHECK_CLOSE(p, wp, DTYPE_F32, n, 1e-6, 1e-6);
    CHECK_CLOSE(m, wm, DTYPE_F32, n, 1e-7, 1e-6);
    CHECK_CLOSE(v, wv, DTYPE_F32, n, 1e-7, 1e-6);
    CHECK_CLOSE(working, p, dt, n, dt == DTYPE_F16 ? 3e-8 : 0, 1.01 * fx_epsilon(dt));
    fx_free_all();
}

static void control(struct device *dev)
{
    struct step_control c = {0};
    const float squares = 16.0f, loss = 6.0f, bad = INFINITY, nan = NAN;
    dev->ops->step_control(dev, dev->compute, &c, &squares, &loss, 0.5f, 0.25f, 0.0f);
    CHECK_NEAR(c.grad_norm, 2.0, 1e-6);
    CHECK_NEAR(c.grad_scale, 0.5, 1e-7);
    CHECK_NEAR(c.loss, 1.5, 1e-7);
    CHECK(c.skip == 0.0f);
    dev->ops->step_control(dev, dev->compute, &c, &squares, &loss, 0.5f, 0.25f, 1.0f);
    CHECK_NEAR(c.grad_norm, 2.0, 1e-6); /* before clipping */
    CHECK_NEAR(c.grad_scale, 0.25, 1e-6);
    dev->ops->step_control(dev, dev->compute, &c, &squares, &loss, 0.5f, 0.25f, 3.0f);
    CHECK_NEAR(c.grad_scale, 0.5, 1e-7);
    dev->ops->step_control(dev, dev->compute, &c, &bad, &loss, 0.5f, 0.25f, 1.0f);
    CHECK(c.skip != 0.0f);
    dev->ops->step_control(dev, dev->compute, &c, &nan, &loss, 0.5f, 0.25f, 0.0f);
    CHECK(c.skip != 0.0f);
    CHECK(isnan(c.grad_norm));
}

static void sums(struct device *dev, int64_t n)
{
    const float *x = fx_random(n, 1, 1.0f);
    double plain = 0, squares = 0;
    float sum = 3.0f;
    for (int64_t i = 0; i < n; i++) {
        plain += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    dev->ops->reduce_sum(dev, dev->compute, &sum, x, n, false, true);
    CHECK_NEAR(sum, 3.0 + plain, 2e-7 * (3.0 + fabs(plain)));
    dev->ops->reduce_sum(dev, dev->compute, &sum, x, n, true, false);
    CHECK_NEAR(sum, squares, 1e-7 * squares);
    fx_free_all();
}

static void casts(struct device *dev, enum dtype dt, int64_t n)
{
    float *x = fx_random(n, 1, 300.0f), *wide = fx_floats(n), *sum = fx_random(n, 2, 1.0f);
    const float special[] = {0.0f,  -0.0f,   INFINITY, -INFINITY,   65504.0f,    65520.0f,
                             1e-8f, 6.0e-8f, 3.4e38f,  1.00390625f, 1.01171875f, 6.1e-5f};
    for (int64_t i = 0; i < n && i < 12; i++)
        x[i] = special[i];
    void *narrow = fx_alloc((size_t)n * fx_width(dt)), *want = fx_narrow(x, dt, n);
    dev->ops->cast(dev, dev->compute, narrow, dt, x, DTYPE_F32, n);
    CHECK_SAME_BITS(narrow, want, (size_t)n * fx_width(dt));
    dev->ops->cast(dev, dev->compute, wide, DTYPE_F32, narrow, dt, n);
    for (int64_t i = 0; i < n; i++)
        CHECK(wide[i] == fx_get(want, dt, i));
    x[0] = NAN;
    dev->ops->cast(dev, dev->compute, narrow, dt, x, DTYPE_F32, n);
    CHECK(isnan(fx_get(narrow, dt, 0)));
    double *expected = fx_alloc((size_t)n * 8);
    for (int64_t i = 0; i < n; i++)
        expected[i] = (double)sum[i] + (i < 12 ? 0.0 : 0.25 * (double)fx_get(narrow, dt, i));
    dev->ops->accumulate(dev, dev->compute, sum + (n < 12 ? n : 12),
                         (char *)narrow + (n < 12 ? n : 12) * (int64_t)fx_width(dt), dt,
                         n < 12 ? 0 : n - 12, 0.25f);
    CHECK_CLOSE(sum, expected, DTYPE_F32, n, 1e-5, 1e-6);
    fx_free_all();
}

int main(void)
{
    struct device *dev = fx_open("cpu");
    const enum dtype dts[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    CASE("AdamW and Adam over five steps, working copy in three dtypes")
    for (int d = 0; d < 3; d++) {
        adam_steps(dev, true, dts[d], 1);
        adam_steps(dev, true, dts[d], 70001);
        adam_steps(dev, false, dts[d], 1003);
    }
    CASE("a skipped step leaves everything alone")
    {
        float p = 1.0f, m = 2.0f, v = 3.0f, g = NAN;
        const struct step_control c = {.grad_scale = 1.0f, .skip = 1.0f};
        const struct adamw h = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, true, 1};
        dev->ops->adamw(dev, dev->compute, &p, &m, &v, &g, &p, 1, DTYPE_F32, &h, &c);
        CHECK(p == 1.0f && m == 2.0f && v == 3.0f);
    }
    CASE("control values: norm, clipping, loss, skipping")
    control(dev);
    CASE("sums of few and many elements, exact to a rounding")
    {
        sums(dev, 1);
        sums(dev, 4097);
        sums(dev, 1000003);
        float zero = 5.0f;
        dev->ops->reduce_sum(dev, dev->compute, &zero, NULL, 0, false, false);
        CHECK(zero == 0.0f);
    }
    CASE("casts round to nearest even, keep NaN and infinity; accumulation scales")
    {
        casts(dev, DTYPE_F32, 100);
        casts(dev, DTYPE_BF16, 1);
        casts(dev, DTYPE_BF16, 20001);
        casts(dev, DTYPE_F16, 20001);
    }
    CASE("a non-finite element is found wherever it is")
    {
        float *x = fx_random(50000, 1, 1.0f);
        CHECK(!dev->ops->find_nonfinite(dev, dev->compute, x, 50000, DTYPE_F32));
        x[49999] = INFINITY;
        CHECK(dev->ops->find_nonfinite(dev, dev->compute, x, 50000, DTYPE_F32));
        CHECK(!dev->ops->find_nonfinite(dev, dev->compute, x, 49999, DTYPE_F32));
        CHECK(dev->ops->find_nonfinite(dev, dev->compute, fx_narrow(x, DTYPE_F16, 50000), 50000,
                                       DTYPE_F16));
        fx_free_all();
    }
    CASE("the number of threads does not change a bit")
    {
        const float *x = fx_random(1000003, 1, 1.0f);
        const int before = omp_get_max_threads();
        float first = 0, sum;
        for (int t = 1; t <= 3; t++) {
            omp_set_num_threads(t);
            dev->ops->reduce_sum(dev, dev->compute, &sum, x, 1000003, true, false);
            first = t == 1 ? sum : first;
            CHECK_SAME_BITS(&sum, &first, sizeof sum);
        }
        omp_set_num_threads(before);
        fx_free_all();
    }
    device_close(dev);
    return tap_done();
}
