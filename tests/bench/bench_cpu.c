/* bench_cpu.c - best time of each cpu kernel on the shapes of GPT-2 124M: `bench_cpu [ROWS [T]]`.
 * Times are of the wall clock, or of the processor when OMP_NUM_THREADS is 1, which other programs
 * on the machine disturb less. Prints GFLOP/s for products and attention, GB/s for the rest, and
 * what a whole step adds up to.
 */
#include "base/dtype.h"
#include "device/device.h"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { C = 768, H = 12, L = 12, V = 50257, VP = 50304 };

static struct device *dev;
static double step_ms;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(omp_get_max_threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *buffer(int64_t elems)
{
    struct error e = {0};
    void *p = NULL;
    if (dev->ops->alloc(dev, MEMORY_DEVICE, (size_t)elems * sizeof(float), &p, &e) != STATUS_OK) {
        fprintf(stderr, "bench_cpu: %s\n", e.message);
        exit(1);
    }
    for (int64_t i = 0; i < elems; i++)
        ((float *)p)[i] = (float)((i * 2654435761u) >> 8 & 0xFFFF) / 65536.0f - 0.5f;
    return p;
}

/* Runs `call` until 0.3 s or 30 repetitions are spent; prints and returns the best in ms. */
#define BENCH(name, times, work, unit, call)                                              \
    do {                                                                                  \
        double best_ = 1e9, spent_ = 0;                                                   \
        for (int r_ = 0; r_ < 30 && (r_ < 3 || spent_ < 0.3); r_++) {                     \
            double t_ = seconds();                                                        \
            call;                                                                         \
            t_ = seconds() - t_;                                                          \
            spent_ += t_;                                                                 \
            best_ = t_ < best_ ? t_ : best_;                                              \
        }                                                                                 \
        step_ms += best_ * 1e3 * (times);                                                 \
        printf("%-34s %9.3f ms %8.1f %s  x%-3d %8.1f ms\n", name, best_ * 1e3,            \
               (double)(work) / best_ * 1e-9, unit, (int)(times), best_ * 1e3 * (times)); \
    } while (0)

static void product(const char *name, int times, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                    enum dtype dt, int epilogue)
{
    float *a = buffer(m * k), *b = buffer(k * n), *d = buffer(m * n), *aux = buffer(m * n);
    float *bias = buffer(n);
    struct gemm g = {.m = m, .n = n, .k = k, .a = a, .b = b, .d = d, .dt = dt, .out_dt = dt};
    g.transpose_a = ta;
    g.transpose_b = tb;
    if (epilogue == 1)
        g.bias = bias;
    if (epilogue == 2) {
        g.bias = bias;
        g.gelu = true, g.gelu_aux = aux;
    }
    if (epilogue == 3)
        g.dgelu_aux = aux;
    if (epilogue == 4) {
        g.accumulate = true;
        g.out_dt = DTYPE_F32;
        g.bias_grad = bias;
    }
    if (dt != DTYPE_F32) {
        memset(a, 0x3c, (size_t)(m * k) * 2);
        memset(b, 0x3c, (size_t)(k * n) * 2);
    }
    double work =
        m <= 8 ? (double)k * (double)n * (double)dtype_bytes(dt) : 2.0 * (double)(m * n * k);
    BENCH(name, times, work, m <= 8 ? "GB/s    " : "GFLOP/s ",
          dev->ops->gemm(dev, dev->compute, &g));
    dev->ops->free(dev, MEMORY_DEVICE, a);
    dev->ops->free(dev, MEMORY_DEVICE, b);
    dev->ops->free(dev, MEMORY_DEVICE, d);
    dev->ops->free(dev, MEMORY_DEVICE, aux);
    dev->ops->free(dev, MEMORY_DEVICE, bias);
}

static void products(int64_t n)
{
    const enum dtype f = DTYPE_F32;
    product("qkv forward, bias", L, n, 3 * C, C, false, false, f, 1);
    product("proj forward, bias", L, n, C, C, false, false, f, 1);
    product("fc forward, bias, GELU", L, n, 4 * C, C, false, false, f, 2);
    product("fcproj forward, bias", L, n, C, 4 * C, false, false, f, 1);
    product("logits", 1, n, VP, C, false, true, f, 0);
    product("logits dx", 1, n, C, VP, false, false, f, 0);
    product("logits dW", 1, VP, C, n, true, false, f, 4);
    product("fcproj dx, dGELU", L, n, 4 * C, C, false, true, f, 3);
    product("fcproj dW, dbias", L, 4 * C, C, n, true, false, f, 4);
    product("fc dx", L, n, C, 4 * C, false, true, f, 0);
    product("fc dW, dbias", L, C, 4 * C, n, true, false, f, 4);
    product("proj dx", L, n, C, C, false, true, f, 0);
    product("proj dW, dbias", L, C, C, n, true, false, f, 4);
    product("qkv dx", L, n, C, 3 * C, false, true, f, 0);
    product("qkv dW, dbias", L, C, 3 * C, n, true, false, f, 4);
}

static void others(int64_t n, int64_t t)
{
    const struct dropout off = {0};
    const int64_t b = n / t, params = 124475904;
    float *x = buffer(n * C), *y = buffer(n * C), *z = buffer(n * C), *w = buffer(C),
          *w2 = buffer(C);
    float *mean = buffer(n), *rstd = buffer(n), *qkv = buffer(n * 3 * C), *dqkv = buffer(n * 3 * C);
    float *lse = buffer(n * H), *logits = buffer(n * VP), *wte = buffer((int64_t)VP * C);
    const struct attention a = {b, t, H, C / H, DTYPE_F32, off, true};
    size_t ws_bytes = dev->ops->layernorm_backward_workspace(n, C), need;
    if ((need = dev->ops->attention_backward_workspace(&a)) > ws_bytes)
        ws_bytes = need;
    if ((need = dev->ops->embed_backward_workspace(b, t, C, VP)) > ws_bytes)
        ws_bytes = need;
    void *ws = buffer((int64_t)ws_bytes / 4 + 1);
    int32_t *tokens = buffer(n);
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i * 7919 % V);
    const double row_bytes = (double)(n * C) * 4, flops = 2.0 * (double)(n * t * C);
    struct stream *s = dev->compute;
    BENCH("embed forward", 1, 2 * row_bytes, "GB/s    ",
          dev->ops->embed_forward(dev, s, x, wte, wte, tokens, NULL, b, t, C, DTYPE_F32, off));
    BENCH("layernorm forward + residual", 2 * L + 1, 4 * row_bytes, "GB/s    ",
          dev->ops->layernorm_forward(dev, s, y, z, mean, rstd, x, y, w, w2, b, t, C, 1e-5f,
                                      DTYPE_F32, off));
    BENCH("attention forward", L, flops, "GFLOP/s ",
          dev->ops->attention_forward(dev, s, y, lse, qkv, &a));
    BENCH("attention backward", L, 2.5 * flops, "GFLOP/s ",
          dev->ops->attention_backward(dev, s, dqkv, x, qkv, y, lse, &a, ws, ws_bytes));
    BENCH("layernorm backward", 2 * L + 1, 4 * row_bytes, "GB/s    ",
          dev->ops->layernorm_backward(dev, s, x, NULL, w, w2, y, z, mean, rstd, w, b, t, C, true,
                                       DTYPE_F32, off, ws, ws_bytes));
    BENCH("classifier", 1, (double)(n * VP) * 8, "GB/s    ",
          dev->ops->classifier(dev, s, logits, mean, tokens, n, V, VP, 1.0f, DTYPE_F32));
    BENCH("embed backward", 1, 4 * row_bytes, "GB/s    ",
          dev->ops->embed_backward(dev, s, wte, wte, x, tokens, b, t, C, VP, DTYPE_F32, off, ws,
                                   ws_bytes));
    float *p = buffer(params), *m = buffer(params), *v = buffer(params), *g = buffer(params);
    struct step_control c = {.grad_scale = 1e-3f};
    const struct adamw h = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, true, 10};
    BENCH("gradient norm", 1, (double)params * 4, "GB/s    ",
          dev->ops->reduce_sum(dev, s, mean, g, params, true, false));
    BENCH("adamw", 1, (double)params * 28, "GB/s    ",
          dev->ops->adamw(dev, s, p, m, v, g, p, params, DTYPE_F32, &h, &c));
    BENCH("zero gradients", 1, (double)params * 4, "GB/s    ",
          dev->ops->fill_zero(dev, s, g, (size_t)params * 4));
}

static void decode(enum dtype dt)
{
    const double before = step_ms;
    for (int64_t m = 1; m <= 16; m *= 2) {
        char name[48];
        step_ms = 0;
        printf("-- decode, %s, batch %d\n", dtype_name(dt), (int)m);
        snprintf(name, sizeof name, "qkv %s m=%d", dtype_name(dt), (int)m);
        product(name, L, m, 3 * C, C, false, false, dt, 1);
        product("proj", L, m, C, C, false, false, dt, 1);
        product("fc", L, m, 4 * C, C, false, false, dt, 1);
        product("fcproj", L, m, C, 4 * C, false, false, dt, 1);
        product("logits", 1, m, VP, C, false, true, dt, 0);
        printf("   products of one step: %.2f ms\n", step_ms);
    }
    step_ms = before;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    const int64_t rows = argc > 1 ? strtoll(argv[1], NULL, 10) : 1024;
    const int64_t t = argc > 2 ? strtoll(argv[2], NULL, 10) : rows / 4;
    if (rows < 1 || t < 1 || rows % t != 0) {
        fprintf(stderr, "bench_cpu: %lld rows are not a multiple of T = %lld\n", (long long)rows,
                (long long)t);
        return 2;
    }
    if (device_open(&dev, "cpu", 0, &e) != STATUS_OK) {
        fprintf(stderr, "bench_cpu: %s\n", e.message);
        return e.status;
    }
    products(rows);
    printf("-- products: %.1f ms\n", step_ms);
    others(rows, t);
    printf("-- step of %lld tokens: %.1f ms, %.0f tokens/s\n", (long long)rows, step_ms,
           (double)rows / step_ms * 1e3);
    decode(DTYPE_F32);
    decode(DTYPE_BF16);
    decode(DTYPE_F16);
    device_close(dev);
    return 0;
}
