/* test_cpu_classifier.c - cross-entropy with its gradient, log-probabilities and bias gradients
 * against float64; padding, ignored targets, extreme logits, NaN. */
#include "device_fixture.h"
#include <omp.h>

static double log_sum_exp(const float *x, int64_t n)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

struct problem {
    int64_t rows, v, vp;
    enum dtype dt;
    float *x;     /* as dt holds it */
    void *logits; /* padding is 1e4: nothing may read it as a logit */
    int32_t *targets;
};

static struct problem make(int64_t rows, int64_t v, int64_t vp, enum dtype dt, float scale)
{
    struct problem p = {.rows = rows, .v = v, .vp = vp, .dt = dt};
    p.x = fx_random(rows * vp, 1, scale);
    for (int64_t i = 0; i < rows * vp; i++)
        p.x[i] = i % vp >= v ? 1e4f : p.x[i];
    p.logits = fx_narrow(p.x, dt, rows * vp);
    for (int64_t i = 0; i < rows * vp; i++)
        p.x[i] = fx_get(p.logits, dt, i);
    p.targets = fx_tokens(rows, 2, v);
    if (rows > 2)
        p.targets[1] = -1;
    return p;
}

static void compare(struct device *dev, int64_t rows, int64_t v, int64_t vp, enum dtype dt,
                    float scale)
{
    const struct problem p = make(rows, v, vp, dt, scale);
    const float grad = 0.25f;
    float *losses = fx_floats(rows), *only = fx_floats(rows), *logprobs = fx_floats(rows);
    double *want = fx_alloc((size_t)rows * 8), *dx = fx_alloc((size_t)(rows * vp) * 8);
    void *copy = fx_narrow(p.x, dt, rows * vp);
    for (int64_t r = 0; r < rows; r++) {
        const int32_t t = p.targets[r];
        if (t < 0)
            continue;
        const double lse = log_sum_exp(p.x + r * vp, v);
        want[r] = lse - (double)p.x[r * vp + t];
        for (int64_t i = 0; i < v; i++)
            dx[r * vp + i] = (exp((double)p.x[r * vp + i] - lse) - (i == t)) * (double)grad;
    }
    dev->ops->token_logprobs(dev, dev->compute, logprobs, p.logits, p.targets, rows, v, vp, dt);
    dev->ops->classifier(dev, dev->compute, copy, only, p.targets, rows, v, vp, 0.0f, dt);
    dev->ops->classifier(dev, dev->compute, p.logits, losses, p.targets, rows, v, vp, grad, dt);
    fx_check_device(dev);
    CHECK_CLOSE(losses, want, DTYPE_F32, rows, 2e-7, 2e-7);
    CHECK_CLOSE(only, want, DTYPE_F32, rows, 2e-7, 2e-7);
    for (int64_t r = 0; r < rows; r++)
        want[r] = -want[r];
    CHECK_CLOSE(logprobs, want, DTYPE_F32, rows, 2e-7, 2e-7);
    CHECK_CLOSE(p.logits, dx, dt, rows * vp, dt == DTYPE_F16 ? 3e-8 : 2e-8,
                1e-6 + 1.01 * fx_epsilon(dt));
    fx_free_all();
}

static void bias(struct device *dev, int64_t rows, int64_t n, enum dtype dt)
{
    float *x = fx_random(rows * n, 1, 1.0f), *db = fx_random(n, 2, 1.0f);
    void *dy = fx_narrow(x, dt, rows * n);
    double *want = fx_alloc((size_t)n * 8);
    for (int64_t c = 0; c < n; c++) {
        want[c] = (double)db[c];
        for (int64_t r = 0; r < rows; r++)
            want[c] += (double)fx_get(dy, dt, r * n + c);
    }
    const size_t bytes = dev->ops->bias_backward_workspace(rows, n);
    dev->ops->bias_backward(dev, dev->compute, db, dy, rows, n, dt, fx_alloc(bytes), bytes);
    /* eight rows at a time are added in fp32, those sums in double */
    CHECK_CLOSE(db, want, DTYPE_F32, n, 1e-7 * (1.0 + sqrt((double)rows)), 1e-7);
    fx_free_all();
}

int main(void)
{
    struct device *dev = fx_open("cpu");
    const enum dtype dts[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    CASE("loss, gradient, log-probabilities: V 1003 in 1024, V 50257 in 50304, three dtypes")
    for (int d = 0; d < 3; d++) {
        compare(dev, 1, 1003, 1024, dts[d], 5.0f);
        compare(dev, 17, 1003, 1024, dts[d], 5.0f);
        compare(dev, 67, 80, 80, dts[d], 1.0f);
        compare(dev, 3, 50257, 50304, dts[d], 10.0f);
    }
    CASE("logits of +-1000 neither overflow nor vanish")
    compare(dev, 9, 300, 320, DTYPE_F32, 1000.0f);
    CASE("NaN makes the loss of its row NaN and no other")
    {
        const struct problem p = make(3, 100, 128, DTYPE_F32, 2.0f);
        float losses[3];
        ((float *)p.logits)[2 * 128 + 50] = NAN;
        dev->ops->classifier(dev, dev->compute, p.logits, losses, p.targets, 3, 100, 128, 1.0f,
                             DTYPE_F32);
        CHECK(isfinite(losses[0]) && losses[1] == 0.0f && isnan(losses[2]));
        fx_free_all();
    }
    CASE("bias gradients, any number of columns, three dtypes")
    for (int d = 0; d < 3; d++) {
        bias(dev, 1, 80, dts[d]);
        bias(dev, 67, 1003, dts[d]);
        bias(dev, 1025, 63, dts[d]);
    }
    CASE("the number of threads does not change a bit")
    {
        const int before = omp_get_max_threads();
        float *first = NULL;
        for (int t = 1; t <= 3; t++) {
            const struct problem p = make(67, 1003, 1024, DTYPE_F32, 5.0f);
            float *losses = fx_floats(67), *db = fx_floats(1024);
            omp_set_num_threads(t);
            dev->ops->classifier(dev, dev->compute, p.logits, losses, p.targets, 67, 1003, 1024,
                                 1.0f, DTYPE_F32);
            dev->ops->bias_backward(dev, dev->compute, db, p.logits, 67, 1024, DTYPE_F32, NULL, 0);
            float *all = fx_floats(67 * 1024 + 67 + 1024);
            memcpy(all, p.logits, 67 * 1024 * 4);
            memcpy(all + 67 * 1024, losses, 67 * 4);
            memcpy(all + 67 * 1024 + 67, db, 1024 * 4);
            first = first ? first : all;
            CHECK_SAME_BITS(all, first, (67 * 1024 + 67 + 1024) * 4);
        }
        omp_set_num_threads(before);
        fx_free_all();
    }
    device_close(dev);
    return tap_done();
}
