/* test_cpu_gemm.c - the cpu backend's products against their plain twin, in all layouts, epilogues
 * and dtypes, through oneDNN and through the few-row path; and that threads do not change a bit. */
#include "device/cpu/cpu.h"
#include "device_fixture.h"
#include <omp.h>

struct shape {
    int64_t m, n, k;
};

enum { BIAS = 1, GELU = 2, DGELU = 4, ACCUMULATE = 8, BIAS_GRAD = 16, WIDE = 32, AUX = 64 };

/* Fills g with data; both sides get equal copies of what is written. */
static struct gemm make(struct shape s, bool ta, bool tb, int flags, enum dtype dt, float scale)
{
    const enum dtype out = flags & WIDE ? DTYPE_F32 : dt;
    struct gemm g = {.m = s.m, .n = s.n, .k = s.k, .dt = dt, .out_dt = out};
    const int64_t a_cols = ta ? s.m : s.k, b_cols = tb ? s.k : s.n;
    g.transpose_a = ta;
    g.transpose_b = tb;
    g.lda = a_cols + 3, g.ldb = b_cols + 5, g.ldd = s.n + 7;
    g.a = fx_narrow(fx_random((ta ? s.k : s.m) * g.lda, 1, scale), dt, (ta ? s.k : s.m) * g.lda);
    g.b = fx_narrow(fx_random((tb ? s.n : s.k) * g.ldb, 2, scale), dt, (tb ? s.n : s.k) * g.ldb);
    g.d = fx_narrow(fx_random(s.m * g.ldd, 3, scale), out, s.m * g.ldd);
    g.accumulate = flags & ACCUMULATE;
    if (flags & BIAS)
        g.bias = fx_narrow(fx_random(s.n, 4, scale), dt, s.n);
    g.gelu = flags & GELU;
    if (flags & AUX)
        g.gelu_aux = fx_narrow(fx_floats(s.m * s.n), dt, s.m * s.n);
    if (flags & DGELU)
        g.dgelu_aux = fx_narrow(fx_random(s.m * s.n, 5, 3.0f), dt, s.m * s.n);
    if ((flags & BIAS_GRAD) && !tb)
        g.bias_grad = fx_random(s.n, 6, scale);
    return g;
}

static float *wide_copy(const void *x, enum dtype dt, int64_t n)
{
    float *out = fx_floats(n);
    for (int64_t i = 0; i < n; i++)
        out[i] = fx_get(x, dt, i);
    return out;
}

static void compare(struct device *dev, struct shape s, bool ta, bool tb, int flags, enum dtype dt)
{
    struct gemm got = make(s, ta, tb, flags, dt, 1.0f), want = make(s, ta, tb, flags, dt, 1.0f);
    dev->ops->gemm(dev, dev->compute, &got);
    gemm_plain(&want);
    fx_check_device(dev);
    /* fp32 sums of k products of size <= 1, then at most one rounding to the output. */
    const double sum_error = 6e-8 * (4.0 + sqrt((double)s.k)) * 4.0;
    const double rounding = got.out_dt == DTYPE_F32 ? 1e-6 : 1.01 * 2 * fx_epsilon(dt);
    const double absolute = sum_error + (dt == DTYPE_F32 ? 0 : 1e-3);
    CHECK_CLOSE(got.d, wide_copy(want.d, got.out_dt, s.m * got.ldd), got.out_dt, s.m * got.ldd,
                absolute, rounding);
    if (got.gelu_aux)
        CHECK_CLOSE(got.gelu_aux, wide_copy(want.gelu_aux, dt, s.m * s.n), dt, s.m * s.n, sum_error,
                    2 * fx_epsilon(dt) + 1e-6);
    if (got.bias_grad)
        CHECK_CLOSE(got.bias_grad, want.bias_grad, DTYPE_F32, s.n, 2e-6, 1e-6);
    fx_free_all();
}

static const struct shape shapes[] = {
    {1, 1, 1},     {1, 80, 17},   {1, 1003, 80}, {2, 240, 80},   {3, 33, 67},   {4, 16, 130},
    {5, 1003, 80}, {8, 240, 129}, {9, 80, 80},   {17, 240, 80},  {67, 80, 17},  {80, 203, 67},
    {64, 64, 64},  {300, 72, 40}, {530, 400, 9}, {8, 1100, 200}, {1, 4200, 73},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void all_layouts(struct device *dev, int flags, enum dtype dt)
{
    for (int i = 0; i < SHAPES; i++)
        for (int t = 0; t < 4; t++)
            compare(dev, shapes[i], t & 1, t & 2, flags, dt);
}

/* Small whole numbers: every sum is exact in fp32 in any order, so results must be equal. */
static void exact_sums(struct device *dev)
{
    for (int i = 0; i < SHAPES; i++) {
        for (int t = 0; t < 4; t++) {
            struct gemm g = make(shapes[i], t & 1, t & 2, ACCUMULATE | BIAS, DTYPE_F32, 8.0f);
            float *a = (float *)g.a, *b = (float *)g.b, *d = g.d, *bias = (float *)g.bias;
            for (int64_t j = 0; j < (g.transpose_a ? g.k : g.m) * g.lda; j++)
                a[j] = rintf(a[j]);
            for (int64_t j = 0; j < (g.transpose_b ? g.n : g.k) * g.ldb; j++)
                b[j] = rintf(b[j]);
            for (int64_t j = 0; j < g.m * g.ldd; j++)
                d[j] = rintf(d[j]);
            for (int64_t j = 0; j < g.n; j++)
                bias[j] = rintf(bias[j]);
            struct gemm want = g;
            want.d = fx_narrow(d, DTYPE_F32, g.m * g.ldd);
            gemm_plain(&want);
            dev->ops->gemm(dev, dev->compute, &g);
            CHECK_SAME_BITS(g.d, want.d, (size_t)(g.m * g.ldd) * sizeof(float));
            fx_free_all();
        }
    }
}

static void threads_do_not_matter(struct device *dev, enum dtype dt)
{
    const struct shape some[] = {{64, 64, 2048}, {130, 1000, 224}, {1, 768, 768}, {600, 96, 300}};
    const int before = omp_get_max_threads(), threads[] = {1, 2, 3};
    for (int i = 0; i < 4; i++) {
        for (int t = 0; t < 4; t++) {
            struct gemm first = make(some[i], t & 1, t & 2, BIAS, dt, 1.0f);
            const size_t bytes = (size_t)(first.m * first.ldd) * fx_width(dt);
            for (int j = 0; j < 3; j++) {
                struct gemm g = first;
                g.d =
                    j == 0 ? first.d : fx_narrow(fx_random(g.m * g.ldd, 3, 1.0f), dt, g.m * g.ldd);
                omp_set_num_threads(threads[j]);
                dev->ops->gemm(dev, dev->compute, &g);
                CHECK_SAME_BITS(g.d, first.d, bytes);
            }
            fx_free_all();
        }
    }
    omp_set_num_threads(before);
}

/* The first row of up to 8, alone and in company. */
static void rows_beside_do_not_matter(struct device *dev, enum dtype dt)
{
    const int64_t sizes[][2] = {{768, 768}, {1100, 203}, {37, 75}}; /* n, k */
    for (int i = 0; i < 3; i++) {
        for (int tb = 0; tb < 2; tb++) {
            struct shape s = {8, sizes[i][0], sizes[i][1]};
            struct gemm g = make(s, false, tb, BIAS, dt, 1.0f), one = g;
            const size_t bytes = (size_t)g.n * fx_width(dt);
            one.m = 1;
            one.d = fx_narrow(fx_random(g.ldd, 3, 1.0f), dt, g.ldd);
            dev->ops->gemm(dev, dev->compute, &one);
            for (g.m = 2; g.m <= 8; g.m++) {
                dev->ops->gemm(dev, dev->compute, &g);
                CHECK_SAME_BITS(g.d, one.d, bytes);
            }
            fx_free_all();
        }
    }
}

static void nan_stays(struct device *dev, int64_t m)
{
    struct gemm g =
        make((struct shape){m, 40, 24}, false, false, BIAS | GELU | AUX, DTYPE_F32, 1.0f);
    ((float *)g.a)[5] = NAN;
    dev->ops->gemm(dev, dev->compute, &g);
    for (int64_t j = 0; j < g.n; j++)
        CHECK(isnan(((float *)g.d)[j]));
    fx_free_all();
}

int main(void)
{
    struct device *dev = fx_open("cpu");
    const enum dtype dts[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    static char names[24][64];
    int named = 0;
    for (int i = 0; i < 3; i++) {
        const enum dtype dt = dts[i];
#define NAMED(what) (snprintf(names[named], 64, "%s: %s", dtype_name(dt), what), names[named++])
        CASE(NAMED("plain products in four layouts"))
        all_layouts(dev, 0, dt);
        CASE(NAMED("bias, accumulate"))
        all_layouts(dev, BIAS | ACCUMULATE, dt);
        CASE(NAMED("bias, GELU with its input kept"))
        all_layouts(dev, BIAS | GELU | AUX, dt);
        CASE(NAMED("bias, GELU"))
        all_layouts(dev, BIAS | GELU, dt);
        CASE(NAMED("GELU gradient"))
        all_layouts(dev, DGELU, dt);
        CASE(NAMED("weight gradient: fp32 out, accumulate, bias gradient"))
        all_layouts(dev, ACCUMULATE | BIAS_GRAD | WIDE, dt);
        CASE(NAMED("the number of threads does not change a bit"))
        threads_do_not_matter(dev, dt);
        CASE(NAMED("the rows beside it do not change a bit of a row"))
        rows_beside_do_not_matter(dev, dt);
    }
    CASE("exact sums are equal")
    exact_sums(dev);
    CASE("NaN stays visible")
    {
        nan_stays(dev, 1);
        nan_stays(dev, 33);
    }
    CASE("an empty inner dimension leaves bias and old value")
    {
        struct gemm g =
            make((struct shape){2, 3, 0}, false, false, BIAS | ACCUMULATE, DTYPE_F32, 1);
        struct gemm want = g;
        want.d = fx_narrow(g.d, DTYPE_F32, g.m * g.ldd);
        gemm_plain(&want);
        dev->ops->gemm(dev, dev->compute, &g);
        CHECK_SAME_BITS(g.d, want.d, (size_t)(g.m * g.ldd) * sizeof(float));
        fx_free_all();
    }
    CASE("a dtype combination outside the contract is refused")
    {
        struct error e = {0};
        struct gemm g = {.m = 1, .n = 1, .k = 1, .dt = DTYPE_F32, .out_dt = DTYPE_BF16};
        dev->ops->gemm(dev, dev->compute, &g);
        CHECK_INT(device_check(dev, &e), STATUS_DEVICE);
        CHECK_CONTAINS(e.message, "gemm");
    }
    device_close(dev);
    return tap_done();
}
