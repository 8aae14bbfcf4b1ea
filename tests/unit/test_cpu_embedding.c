/* test_cpu_embedding.c - token + position embedding and its gradient against float64: repeated
 * tokens, given positions, dropout, threads. */
#include "base/philox.h"
#include "device_fixture.h"
#include <omp.h>

enum { V = 211, VP = 256 };

struct problem {
    int64_t batch, time, n, rows;
    enum dtype dt;
    struct dropout drop;
    void *wte, *wpe, *dx;
    int32_t *tokens;
};

static struct problem make(int64_t batch, int64_t time, int64_t n, enum dtype dt, float p,
                           int64_t used)
{
    struct problem x = {.batch = batch, .time = time, .n = n, .rows = batch * time, .dt = dt};
    int64_t *samples = fx_alloc((size_t)batch * sizeof *samples);
    for (int64_t i = 0; i < batch; i++)
        samples[i] = 9 * i;
    x.drop = (struct dropout){p, 3, 0, samples};
    x.wte = fx_narrow(fx_random(VP * n, 1, 1.0f), dt, VP * n);
    x.wpe = fx_narrow(fx_random(time * n, 2, 1.0f), dt, time * n);
    x.dx = fx_narrow(fx_random(x.rows * n, 3, 1.0f), dt, x.rows * n);
    x.tokens = fx_tokens(x.rows, 4, used);
    return x;
}

static double kept(const struct problem *x, int64_t row, int64_t c)
{
    if (x->drop.p == 0.0f)
        return 1.0;
    uint64_t e = (uint64_t)(row % x->time * x->n + c);
    struct philox4 r =
        philox4x32(philox_key(3, 0), e / 4, (uint64_t)x->drop.samples[row / x->time]);
    return philox_uniform(r.v[e % 4]) >= x->drop.p ? 1.0 / (1.0 - (double)x->drop.p) : 0.0;
}

static void forward(struct device *dev, const struct problem *x, bool given_positions)
{
    void *out = fx_narrow(fx_random(x->rows * x->n, 9, 9.0f), x->dt, x->rows * x->n);
    double *want = fx_alloc((size_t)(x->rows * x->n) * 8);
    int32_t *positions = given_positions ? fx_tokens(x->rows, 5, x->time) : NULL;
    for (int64_t i = 0; i < x->rows * x->n; i++) {
        const int64_t row = i / x->n, c = i % x->n;
        const int64_t position = positions ? positions[row] : row % x->time;
        want[i] = kept(x, row, c) * ((double)fx_get(x->wte, x->dt, x->tokens[row] * x->n + c) +
                                     (double)fx_get(x->wpe, x->dt, position * x->n + c));
    }
    dev->ops->embed_forward(dev, dev->compute, out, x->wte, x->wpe, x->tokens, positions, x->batch,
                            x->time, x->n, x->dt, x->drop);
    CHECK_CLOSE(out, want, x->dt, x->rows * x->n, 2e-7, 2.1 * fx_epsilon(x->dt));
}

static void run_backward(struct device *dev, const struct problem *x, float *dwte, float *dwpe)
{
    const size_t bytes = dev->ops->embed_backward_workspace(x->batch, x->time, x->n, VP);
    dev->ops->embed_backward(dev, dev->compute, dwte, dwpe, x->dx, x->tokens, x->batch, x->time,
                             x->n, VP, x->dt, x->drop, fx_alloc(bytes), bytes);
    fx_check_device(dev);
}

static void backward(struct device *dev, const struct problem *x)
{
    float *dwte = fx_random(VP * x->n, 6, 1.0f), *dwpe = fx_random(x->time * x->n, 7, 1.0f);
    double *want = fx_alloc((size_t)(VP * x->n) * 8),
           *want_p = fx_alloc((size_t)(x->time * x->n) * 8);
    for (int64_t i = 0; i < VP * x->n; i++)
        want[i] = (double)dwte[i];
    for (int64_t i = 0; i < x->time * x->n; i++)
        want_p[i] = (double)dwpe[i];
    for (int64_t i = 0; i < x->rows * x->n; i++) {
        const int64_t row = i / x->n, c = i % x->n;
        const double g = kept(x, row, c) * (double)fx_get(x->dx, x->dt, i);
        want[x->tokens[row] * x->n + c] += g;
        want_p[row % x->time * x->n + c] += g;
    }
    run_backward(dev, x, dwte, dwpe);
    CHECK_CLOSE(dwte, want, DTYPE_F32, VP * x->n, 2e-6 * sqrt((double)x->rows), 1e-6);
    CHECK_CLOSE(dwpe, want_p, DTYPE_F32, x->time * x->n, 2e-6, 1e-6);
}

int main(void)
{
    struct device *dev = fx_open("cpu");
    const enum dtype dts[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    static const int64_t shapes[][3] = {{1, 1, 80}, {1, 17, 80}, {3, 67, 80}, {2, 9, 771}};
    CASE("forward, positions counted and given, dropout or not, three dtypes")
    for (int i = 0; i < 24; i++) {
        const int64_t *s = shapes[i % 4];
        const struct problem x = make(s[0], s[1], s[2], dts[i / 8], i % 8 < 4 ? 0.0f : 0.1f, V);
        forward(dev, &x, false);
        forward(dev, &x, true);
        fx_free_all();
    }
    CASE("backward, many tokens and few, dropout or not, three dtypes")
    for (int i = 0; i < 24; i++) {
        const int64_t *s = shapes[i % 4];
        struct problem x = make(s[0], s[1], s[2], dts[i / 8], i % 8 < 4 ? 0.0f : 0.1f, V);
        backward(dev, &x);
        x.tokens = fx_tokens(x.rows, 8, 2);
        backward(dev, &x);
        fx_free_all();
    }
    CASE("the number of threads does not change a bit")
    {
        const struct problem x = make(4, 128, 96, DTYPE_F32, 0.1f, 40);
        const int before = omp_get_max_threads();
        float *first = NULL;
        for (int t = 1; t <= 3; t++) {
            float *d = fx_floats(VP * 96 + 128 * 96);
            omp_set_num_threads(t);
            run_backward(dev, &x, d, d + VP * 96);
            first = first ? first : d;
            CHECK_SAME_BITS(d, first, (VP * 96 + 128 * 96) * 4);
        }
        omp_set_num_threads(before);
        fx_free_all();
    }
    device_close(dev);
    return tap_done();
}
