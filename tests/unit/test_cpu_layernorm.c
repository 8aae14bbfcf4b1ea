/* test_cpu_layernorm.c - residual + dropout + LayerNorm and its gradient against float64; the
 * dropout mask itself: what philox says, repeatable, the right share kept. */
#include "base/philox.h"
#include "device_fixture.h"
#include <omp.h>

struct problem {
    int64_t batch, time, n, rows; /* n = channels */
    enum dtype dt;
    struct dropout drop;
    float *residual, *delta, *w, *b, *dy, *dx0; /* what dt holds, as fp32 */
    void *residual_dt, *delta_dt, *w_dt, *b_dt, *dy_dt, *dx0_dt;
};

static float *hold(void **narrow, int64_t n, enum dtype dt, uint64_t seed, float scale)
{
    float *x = fx_random(n, seed, scale);
    *narrow = fx_narrow(x, dt, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = fx_get(*narrow, dt, i);
    return x;
}

static struct problem make(int64_t batch, int64_t time, int64_t n, enum dtype dt, float p)
{
    struct problem x = {.batch = batch, .time = time, .n = n, .rows = batch * time, .dt = dt};
    x.drop = (struct dropout){p, 7, 11, NULL};
    int64_t *samples = fx_alloc((size_t)batch * sizeof *samples);
    for (int64_t i = 0; i < batch; i++)
        samples[i] = 40 + i;
    x.drop.samples = samples;
    x.residual = hold(&x.residual_dt, x.rows * n, dt, 1, 3.0f);
    x.delta = hold(&x.delta_dt, x.rows * n, dt, 2, 1.0f);
    x.w = hold(&x.w_dt, n, dt, 3, 1.0f);
    x.b = hold(&x.b_dt, n, dt, 4, 1.0f);
    x.dy = hold(&x.dy_dt, x.rows * n, dt, 5, 1.0f);
    x.dx0 = hold(&x.dx0_dt, x.rows * n, dt, 6, 1.0f);
    return x;
}

static double kept(const struct problem *x, int64_t row, int64_t c)
{
    if (x->drop.p == 0.0f)
        return 1.0;
    uint64_t e = (uint64_t)(row % x->time * x->n + c);
    struct philox4 r = philox4x32(philox_key(x->drop.seed, x->drop.site), e / 4,
                                  (uint64_t)x->drop.samples[row / x->time]);
    return philox_uniform(r.v[e % 4]) >= x->drop.p ? 1.0 / (1.0 - (double)x->drop.p) : 0.0;
}

static void forward(struct device *dev, int64_t batch, int64_t time, int64_t n, enum dtype dt,
                    float p, bool with_delta, bool in_place)
{
    struct problem x = make(batch, time, n, dt, p);
    void *y = fx_narrow(fx_random(x.rows * n, 8, 9.0f), dt, x.rows * n);
    void *sum =
        in_place ? x.residual_dt : fx_narrow(fx_random(x.rows * n, 9, 9.0f), dt, x.rows * n);
    float *mean = fx_floats(x.rows), *rstd = fx_floats(x.rows);
    double *want = fx_alloc((size_t)(x.rows * n) * 8),
           *want_sum = fx_alloc((size_t)(x.rows * n) * 8);
    dev->ops->layernorm_forward(dev, dev->compute, y, with_delta ? sum : NULL, mean, rstd,
                                x.residual_dt, with_delta ? x.delta_dt : NULL, x.w_dt, x.b_dt,
                                batch, time, n, 1e-5f, dt, x.drop);
    fx_check_device(dev);
    for (int64_t r = 0; r < x.rows; r++) {
        double m = 0, v = 0, *s = want_sum + r * n;
        for (int64_t c = 0; c < n; c++) {
            s[c] = (double)x.residual[r * n + c];
            if (with_delta)
                s[c] += kept(&x, r, c) * (double)x.delta[r * n + c];
        }
        if (with_delta)
            CHECK_CLOSE((char *)sum + (size_t)(r * n) * fx_width(dt), s, dt, n, 1e-6,
                        1.1 * fx_epsilon(dt));
        for (int64_t c = 0; c < n; c++) {
            if (with_delta)
                s[c] = (double)fx_get(sum, dt, r * n + c); /* normalised as stored */
            m += s[c] / (double)n;
        }
        for (int64_t c = 0; c < n; c++)
            v += (s[c] - m) * (s[c] - m) / (double)n;
        const double rs = 1 / sqrt(v + 1e-5);
        CHECK_NEAR(mean[r], m, 1e-6);
        CHECK_NEAR(rstd[r], rs, 1e-6 * rs);
        for (int64_t c = 0; c < n; c++)
            want[r * n + c] = (s[c] - m) * rs * (double)x.w[c] + (double)x.b[c];
    }
    CHECK_CLOSE(y, want, dt, x.rows * n, 2e-6, 1.1 * fx_epsilon(dt));
    fx_free_all();
}

/* dx, and dweight, dbias on top of what was there. */
static void reference(const struct problem *x, bool accumulate, double *dx, double *dw, double *db)
{
    const int64_t n = x->n;
    for (int64_t r = 0; r < x->rows; r++) {
        double m = 0, v = 0, g1 = 0, g2 = 0;
        for (int64_t c = 0; c < n; c++)
            m += (double)x->residual[r * n + c] / (double)n;
        for (int64_t c = 0; c < n; c++)
            v += pow((double)x->residual[r * n + c] - m, 2) / (double)n;
        const double rs = 1 / sqrt(v + 1e-5);
        for (int64_t c = 0; c < n; c++) {
            double xhat = ((double)x->residual[r * n + c] - m) * rs, dy = (double)x->dy[r * n + c];
            g1 += dy * (double)x->w[c] / (double)n;
            g2 += dy * (double)x->w[c] * xhat / (double)n;
            dw[c] += dy * xhat;
            db[c] += dy;
        }
        for (int64_t c = 0; c < n; c++) {
            double xhat = ((double)x->residual[r * n + c] - m) * rs;
            dx[r * n + c] = (accumulate ? (double)x->dx0[r * n + c] : 0) +
                            rs * ((double)x->dy[r * n + c] * (double)x->w[c] - g1 - xhat * g2);
        }
    }
}

struct result {
    void *dx, *ddelta;
    float *dw, *db;
};

static struct result backward(struct device *dev, const struct problem *x, bool accumulate,
                              bool delta)
{
    const int64_t n = x->n, all = x->rows * n;
    struct result r = {fx_narrow(accumulate ? x->dx0 : fx_random(all, 8, 9.0f), x->dt, all), NULL,
                       fx_random(n, 10, 1.0f), fx_random(n, 11, 1.0f)};
    void *y = fx_narrow(x->dy, x->dt, all);
    float *mean = fx_floats(x->rows), *rstd = fx_floats(x->rows);
    const size_t workspace = dev->ops->layernorm_backward_workspace(x->rows, n);
    if (delta)
        r.ddelta = fx_narrow(fx_random(all, 9, 9.0f), x->dt, all);
    dev->ops->layernorm_forward(dev, dev->compute, y, NULL, mean, rstd, x->residual_dt, NULL,
                                x->w_dt, x->b_dt, x->batch, x->time, n, 1e-5f, x->dt, x->drop);
    dev->ops->layernorm_backward(dev, dev->compute, r.dx, r.ddelta, r.dw, r.db, x->dy_dt,
                                 x->residual_dt, mean, rstd, x->w_dt, x->batch, x->time, n,
                                 accumulate, x->dt, x->drop, fx_alloc(workspace), workspace);
    fx_check_device(dev);
    return r;
}

static void compare_backward(struct device *dev, int64_t batch, int64_t time, int64_t n,
                             enum dtype dt, float p, bool accumulate, bool delta)
{
    const struct problem x = make(batch, time, n, dt, p);
    const struct result r = backward(dev, &x, accumulate, delta);
    double *dx = fx_alloc((size_t)(x.rows * n) * 8), *dd = fx_alloc((size_t)(x.rows * n) * 8);
    double *dw = fx_alloc((size_t)n * 8), *db = fx_alloc((size_t)n * 8);
    const float *dw0 = fx_random(n, 10, 1.0f), *db0 = fx_random(n, 11, 1.0f);
    for (int64_t c = 0; c < n; c++) {
        dw[c] = (double)dw0[c];
        db[c] = (double)db0[c];
    }
    reference(&x, accumulate, dx, dw, db);
    CHECK_CLOSE(r.dx, dx, dt, x.rows * n, 3e-6, 1e-6 + 1.1 * fx_epsilon(dt));
    CHECK_CLOSE(r.dw, dw, DTYPE_F32, n, 4e-6 * sqrt((double)x.rows), 1e-6);
    CHECK_CLOSE(r.db, db, DTYPE_F32, n, 1e-6 * sqrt((double)x.rows), 1e-6);
    if (delta) {
        for (int64_t i = 0; i < x.rows * n; i++)
            dd[i] = (double)fx_get(r.dx, dt, i) * kept(&x, i / n, i % n);
        CHECK_CLOSE(r.ddelta, dd, dt, x.rows * n, 1e-6, 1.1 * fx_epsilon(dt));
    }
    fx_free_all();
}

/* The mean of the mask is 1 and the share kept is 1-p, within 5 standard deviations. */
static void mask_statistics(struct device *dev)
{
    enum { N = 64 * 1000 };
    const int64_t sample = 12345678901;
    const struct dropout d = {0.1f, 42, 5, &sample};
    float *ones = fx_floats(N), *got = fx_floats(N), *again = fx_floats(N);
    double sum = 0;
    int64_t zero = 0;
    for (int i = 0; i < N; i++)
        ones[i] = 1.0f;
    dev->ops->dropout_backward(dev, dev->compute, got, ones, 1, 64, 1000, DTYPE_F32, d);
    dev->ops->dropout_backward(dev, dev->compute, again, ones, 1, 64, 1000, DTYPE_F32, d);
    CHECK_SAME_BITS(got, again, N * sizeof(float));
    for (uint64_t i = 0; i < N; i++) {
        struct philox4 r = philox4x32(philox_key(42, 5), i / 4, (uint64_t)sample);
        float want = philox_uniform(r.v[i % 4]) >= 0.1f ? 1.0f / 0.9f : 0.0f;
        CHECK_NEAR(got[i], want, 1e-6);
        sum += (double)got[i];
        zero += got[i] == 0.0f;
    }
    CHECK_NEAR((double)zero / N, 0.1, 5 * sqrt(0.09 / N));
    CHECK_NEAR(sum / N, 1.0, 5 * sqrt(0.09 / N) / 0.9);
    fx_free_all();
}

int main(void)
{
    struct device *dev = fx_open("cpu");
    const enum dtype dts[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    static const int64_t shapes[][3] = {
        {1, 1, 80}, {1, 17, 80}, {2, 67, 80}, {3, 5, 771}, {1, 1, 8}};
    CASE("forward: with and without delta, in place, with dropout, three dtypes")
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 5; i++) {
            const int64_t *s = shapes[i];
            forward(dev, s[0], s[1], s[2], dts[d], 0.0f, false, false);
            forward(dev, s[0], s[1], s[2], dts[d], 0.0f, true, true);
            forward(dev, s[0], s[1], s[2], dts[d], 0.2f, true, false);
        }
    CASE("backward: accumulating or not, with the gradient of delta, three dtypes")
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 5; i++) {
            const int64_t *s = shapes[i];
            compare_backward(dev, s[0], s[1], s[2], dts[d], 0.0f, false, false);
            compare_backward(dev, s[0], s[1], s[2], dts[d], 0.0f, true, true);
            compare_backward(dev, s[0], s[1], s[2], dts[d], 0.3f, false, true);
        }
    CASE("a large mean does not spoil the variance")
    {
        struct problem x = make(1, 3, 512, DTYPE_F32, 0.0f);
        float *y = fx_floats(3 * 512), *mean = fx_floats(3), *rstd = fx_floats(3);
        for (int i = 0; i < 3 * 512; i++)
            ((float *)x.residual_dt)[i] = 4096.0f + (i % 2 ? 0.5f : -0.5f);
        dev->ops->layernorm_forward(dev, dev->compute, y, NULL, mean, rstd, x.residual_dt, NULL,
                                    x.w_dt, x.b_dt, 1, 3, 512, 1e-5f, DTYPE_F32, x.drop);
        CHECK_NEAR(rstd[1], 1 / sqrt(0.25 + 1e-5), 1e-6);
        fx_free_all();
    }
    CASE("the number of threads does not change a bit")
    {
        const struct problem x = make(4, 256, 768, DTYPE_F32, 0.1f);
        const int before = omp_get_max_threads();
        omp_set_num_threads(1);
        const struct result one = backward(dev, &x, false, true);
        for (int t = 2; t <= 3; t++) {
            omp_set_num_threads(t);
            const struct result r = backward(dev, &x, false, true);
            CHECK_SAME_BITS(r.dx, one.dx, (size_t)(x.rows * x.n) * 4);
            CHECK_SAME_BITS(r.ddelta, one.ddelta, (size_t)(x.rows * x.n) * 4);
            CHECK_SAME_BITS(r.dw, one.dw, (size_t)x.n * 4);
            CHECK_SAME_BITS(r.db, one.db, (size_t)x.n * 4);
        }
        omp_set_num_threads(before);
        fx_free_all();
    }
    CASE("dropout keeps what philox says, repeatably, and 1 on average")
    mask_statistics(dev);
    CASE("NaN makes its row NaN and no other")
    {
        struct problem x = make(1, 4, 80, DTYPE_F32, 0.0f);
        float *y = fx_floats(4 * 80);
        ((float *)x.residual_dt)[2 * 80 + 7] = NAN;
        dev->ops->layernorm_forward(dev, dev->compute, y, NULL, NULL, NULL, x.residual_dt, NULL,
                                    x.w_dt, x.b_dt, 1, 4, 80, 1e-5f, DTYPE_F32, x.drop);
        for (int i = 0; i < 4 * 80; i++)
            CHECK(isnan(y[i]) == (i / 80 == 2));
        fx_free_all();
    }
    CASE("a workspace too small is refused")
    {
        struct error e = {0};
        const struct problem x = make(1, 2, 8, DTYPE_F32, 0.0f);
        dev->ops->layernorm_backward(dev, dev->compute, x.dx0_dt, NULL, x.w, x.b, x.dy_dt,
                                     x.residual_dt, x.w, x.b, x.w_dt, 1, 2, 8, false, DTYPE_F32,
                                     x.drop, NULL, 0);
        CHECK_INT(device_check(dev, &e), STATUS_DEVICE);
        CHECK_CONTAINS(e.message, "workspace of 0 bytes");
        fx_free_all();
    }
    device_close(dev);
    return tap_done();
}
