/* test_cuda_kernels.c - the risky kernels of the cuda backend at the sizes where their fast paths
 * run, beyond what tests/unit/test_parity.c walks: every head dimension, both ways dQ is summed,
 * the persistent classifier, measured products, tokens that repeat, more than 2^31 elements. The
 * reference is the cpu backend in fp32 on the same rounded inputs; outputs start as NaN. The bound
 * on |got - want| / |want| (2-norms) is 2 roundings of the dtype for one pass, 4 for attention,
 * which also rounds probabilities. */
#include "parity.h"

/* Runs op on both devices (the cpu in fp32, inputs rounded to dt) and compares. */
static void compare(struct device *cpu, struct device *gpu, parity_op *op, struct parity p,
                    const char *where)
{
    static const double rounding[] = {[DTYPE_F32] = 1e-5, [DTYPE_BF16] = 3e-3, [DTYPE_F16] = 4e-4};
    struct parity want = p, got = p;
    want.dev = cpu, want.ops = cpu->ops, want.s = cpu->compute;
    got.dev = gpu, got.ops = gpu->ops, got.s = gpu->compute;
    op(&want);
    op(&got);
    for (int o = 0; o < got.count; o++) {
        const struct output *w = &want.outputs[o], *g = &got.outputs[o];
        double square = 0, difference = 0;
        for (int64_t i = 0; i < w->n; i++) {
            double d = (double)g->values[i] - (double)w->values[i];
            square += (double)w->values[i] * (double)w->values[i];
            difference += isinf(w->values[i]) && w->values[i] == g->values[i] ? 0 : d * d;
        }
        double error = sqrt(difference / (square > 0 ? square : 1));
        if (!(error <= w->slack * rounding[p.dt]))
            tap_fail_(__FILE__, __LINE__,
                      "%s, %s B=%lld T=%lld C=%lld H=%lld p=%.1f %s: relative error %.3g over %.3g",
                      where, w->name, (long long)p.batch, (long long)p.time, (long long)p.channels,
                      (long long)p.heads, (double)p.dropout, dtype_name(p.dt), error,
                      w->slack * rounding[p.dt]);
    }
    parity_release(&want);
    parity_release(&got);
    fx_free_all();
}

static struct attention attention_of(struct parity *p)
{
    struct attention a = {
        p->batch, p->time, p->heads, p->channels / p->heads, p->dt, parity_dropout(p, 2), true};
    return a;
}

static void op_attention(struct parity *p)
{
    const int64_t n = p->batch * p->time, c = p->channels, rows = p->batch * p->heads * p->time;
    struct attention a = attention_of(p);
    void *qkv = parity_random(p, n * 3 * c, p->dt, 1, 2.0f), *out = parity_blank(p, n * c, p->dt);
    void *dout = parity_random(p, n * c, p->dt, 2, 1.0f);
    void *dqkv = parity_blank(p, n * 3 * c, p->dt);
    float *lse = parity_blank(p, rows, DTYPE_F32);
    size_t bytes = p->ops->attention_backward_workspace(&a);
    void *workspace = parity_blank(p, (int64_t)bytes / 4 + 1, DTYPE_F32);
    p->ops->attention_forward(p->dev, p->s, out, lse, qkv, &a);
    parity_output(p, "out", out, n * c, p->dt, 2);
    parity_output(p, "lse", lse, rows, DTYPE_F32, 1);
    p->ops->attention_backward(p->dev, p->s, dqkv, dout, qkv, out, lse, &a, workspace, bytes);
    parity_output(p, "dqkv", dqkv, n * 3 * c, p->dt, 3);
    if (strcmp(p->ops->name, "cuda") != 0)
        return;
    void *again = parity_blank(p, n * 3 * c, p->dt);
    p->ops->attention_backward(p->dev, p->s, again, dout, qkv, out, lse, &a, workspace, bytes);
    size_t size = (size_t)(n * 3 * c) * fx_width(p->dt);
    void *first = fx_alloc(size), *second = fx_alloc(size);
    parity_move(p, dqkv, first, size, false);
    parity_move(p, again, second, size, false);
    CHECK_SAME_BITS(first, second, size);
}

static void test_attention(struct device *cpu, struct device *gpu, enum dtype dt)
{
    static const int64_t times[] = {1, 17, 64, 130, 257};
    struct parity p = {.dt = dt, .batch = 1, .heads = 2};
    for (int64_t dim = 8; dim <= 128; dim += 8)
        for (int t = 0; t < 5; t++) {
            p.time = times[t], p.channels = dim * p.heads, p.dropout = t % 2 ? 0.1f : 0.0f;
            compare(cpu, gpu, op_attention, p, "attention");
        }
    for (int64_t dim = 64; dim <= 128; dim += 16) {
        p.time = 1023, p.channels = dim * p.heads, p.dropout = 0.0f;
        compare(cpu, gpu, op_attention, p, "long attention");
        p.time = 1024, p.dropout = 0.2f;
        compare(cpu, gpu, op_attention, p, "long attention");
    }
    /* So many heads that each has one slice for dQ. */
    p.batch = 44, p.heads = 6, p.time = 200, p.dropout = 0.0f;
    for (int64_t dim = 64; dim <= 128; dim += 48) {
        p.channels = dim * p.heads;
        compare(cpu, gpu, op_attention, p, "attention of many heads");
    }
    /* More keys and values than the forward kernel for compute capability 9.0 takes at once: an odd
     * number of heads in two sections. */
    p.batch = 3, p.heads = 11, p.time = 1024, p.channels = 128 * p.heads;
    compare(cpu, gpu, op_attention, p, "attention of two sections");
}

static void op_classifier(struct parity *p)
{
    const int64_t rows = p->batch * p->time, v = p->vocab, vp = p->vocab_padded;
    void *logits = parity_random(p, rows * vp, p->dt, 1, 5.0f);
    float *losses = parity_blank(p, rows, DTYPE_F32);
    int32_t *t = fx_tokens(rows, 2, v);
    t[rows / 2] = -1;
    t[rows - 1] = (int32_t)v - 1;
    p->ops->classifier(p->dev, p->s, logits, losses, parity_bytes(p, t, (size_t)rows * 4), rows, v,
                       vp, 0.125f, p->dt);
    parity_output(p, "losses", losses, rows, DTYPE_F32, 1);
    parity_output(p, "dlogits", logits, rows * vp, p->dt, 1);
}

static void op_layernorm(struct parity *p)
{
    const int64_t n = p->batch * p->time, c = p->channels;
    void *x = parity_random(p, n * c, p->dt, 1, 2.0f),
         *delta = parity_random(p, n * c, p->dt, 2, 1);
    void *w = parity_random(p, c, p->dt, 3, 1.0f), *b = parity_random(p, c, p->dt, 4, 1.0f);
    void *dy = parity_random(p, n * c, p->dt, 5, 1.0f), *dx = parity_random(p, n * c, p->dt, 6, 1);
    void *y = parity_blank(p, n * c, p->dt), *sum = parity_blank(p, n * c, p->dt);
    void *ddelta = parity_blank(p, n * c, p->dt);
    float *mean = parity_blank(p, n, DTYPE_F32), *rstd = parity_blank(p, n, DTYPE_F32);
    float *dw = parity_random(p, c, DTYPE_F32, 7, 1), *db = parity_random(p, c, DTYPE_F32, 8, 1);
    size_t bytes = p->ops->layernorm_backward_workspace(n, c);
    struct dropout d = parity_dropout(p, 3);
    p->ops->layernorm_forward(p->dev, p->s, y, sum, mean, rstd, x, delta, w, b, p->batch, p->time,
                              c, 1e-5f, p->dt, d);
    p->ops->layernorm_backward(p->dev, p->s, dx, ddelta, dw, db, dy, sum, mean, rstd, w, p->batch,
                               p->time, c, true, p->dt, d, parity_alloc(p, bytes), bytes);
    parity_output(p, "y", y, n * c, p->dt, 1);
    parity_output(p, "sum", sum, n * c, p->dt, 1);
    parity_output(p, "dx", dx, n * c, p->dt, 1);
    parity_output(p, "ddelta", ddelta, n * c, p->dt, 1);
    parity_output(p, "dweight", dw, c, DTYPE_F32, 1);
    parity_output(p, "dbias", db, c, DTYPE_F32, 1);
}

/* variant 0: all rows one token; 1: two tokens; 2: few; 3: any. */
static void op_embedding(struct parity *p)
{
    const int64_t n = p->batch * p->time, c = p->channels, vp = 1024;
    static const int64_t below[] = {1, 2, 7, 1000};
    int32_t *t = fx_tokens(n, 2, below[p->variant]);
    void *tokens = parity_bytes(p, t, (size_t)n * 4), *dx = parity_random(p, n * c, p->dt, 3, 1.0f);
    float *dwte = parity_random(p, vp * c, DTYPE_F32, 4, 1.0f);
    float *dwpe = parity_random(p, p->time * c, DTYPE_F32, 5, 1.0f);
    size_t bytes = p->ops->embed_backward_workspace(p->batch, p->time, c, vp);
    p->ops->embed_backward(p->dev, p->s, dwte, dwpe, dx, tokens, p->batch, p->time, c, vp, p->dt,
                           parity_dropout(p, 1), parity_alloc(p, bytes), bytes);
    parity_output(p, "dwte", dwte, vp * c, DTYPE_F32, 1);
    parity_output(p, "dwpe", dwpe, p->time * c, DTYPE_F32, 1);
}

/* variant: 0 plain, 1 bias, 2 bias and GELU, 3 GELU', 4 weight gradient with bias gradient,
 * 5 as 2, the value before GELU not kept. */
static void op_gemm(struct parity *p)
{
    const int64_t m = p->batch, n = p->time, k = p->channels, v = p->variant;
    void *a = parity_random(p, m * k, p->dt, 1, 1.0f), *b = parity_random(p, k * n, p->dt, 2, 0.1f);
    void *aux = v == 3 ? parity_random(p, m * n, p->dt, 3, 3.0f) : parity_blank(p, m * n, p->dt);
    enum dtype out_dt = v == 4 ? DTYPE_F32 : p->dt;
    void *d = v == 4 ? parity_random(p, m * n, DTYPE_F32, 4, 1.0f) : parity_blank(p, m * n, out_dt);
    float *db = parity_random(p, n, DTYPE_F32, 5, 1.0f);
    struct gemm g = {.m = m, .n = n, .k = k, .a = a, .b = b, .d = d, .dt = p->dt, .out_dt = out_dt};
    g.transpose_a = v == 4, g.accumulate = v == 4, g.transpose_b = v == 3;
    g.bias = v == 1 || v == 2 || v == 5 ? parity_random(p, n, p->dt, 6, 1.0f) : NULL;
    g.gelu = v == 2 || v == 5, g.gelu_aux = v == 2 ? aux : NULL;
    g.dgelu_aux = v == 3 ? aux : NULL;
    g.bias_grad = v == 4 ? db : NULL;
    p->ops->gemm(p->dev, p->s, &g);
    parity_output(p, "d", d, m * n, out_dt, 1);
    if (v == 2)
        parity_output(p, "aux", aux, m * n, p->dt, 1);
    if (v == 4)
        parity_output(p, "bias_grad", db, n, DTYPE_F32, 1);
}

static void test_others(struct device *cpu, struct device *gpu, enum dtype dt)
{
    static const int64_t widths[] = {768, 1024, 1600, 4096, 7168, 8200, 33};
    struct parity p = {.dt = dt, .batch = 3, .time = 200, .vocab = 50257, .vocab_padded = 50304};
    compare(cpu, gpu, op_classifier, p, "classifier");
    for (int i = 0; i < 7; i++) {
        p.channels = widths[i], p.time = 300, p.dropout = i % 2 ? 0.1f : 0.0f;
        compare(cpu, gpu, op_layernorm, p, "layernorm");
    }
    p.channels = 96;
    for (p.variant = 0; p.variant < 4; p.variant++)
        compare(cpu, gpu, op_embedding, p, "embedding");
    p.batch = 1024, p.time = 768, p.channels = 1024; /* m, n, k: measured when met */
    for (p.variant = 0; p.variant < 6; p.variant++)
        compare(cpu, gpu, op_gemm, p, "gemm");
}

/* Elements past 2^31 in one call: the last ones are like the first. */
static void test_large(struct device *gpu)
{
    const int64_t n = ((int64_t)1 << 31) + 4096, rows = 43000, vp = 50304;
    struct parity p = {.dev = gpu, .ops = gpu->ops, .s = gpu->compute, .dt = DTYPE_BF16};
    struct device_info info;
    gpu->ops->info(gpu, &info);
    if (info.free_bytes < 20000000000) {
        SKIP("needs 20 GB of free GPU memory");
        return;
    }
    float host[4096], back[4096];
    uint16_t first[512], last[512];
    float *x = parity_alloc(&p, (size_t)n * 4);
    uint16_t *y = parity_alloc(&p, (size_t)n * 2);
    for (int i = 0; i < 4096; i++)
        host[i] = (float)i;
    parity_move(&p, x + n - 4096, host, sizeof host, true);
    gpu->ops->cast(gpu, p.s, y, DTYPE_BF16, x, DTYPE_F32, n);
    gpu->ops->accumulate(gpu, p.s, x, y, DTYPE_BF16, n, 1.0f);
    parity_move(&p, x + n - 4096, back, sizeof back, false);
    for (int i = 0; i < 4096; i++)
        if (back[i] != host[i] + bf16_to_f32(f32_to_bf16(host[i]))) {
            tap_fail_(__FILE__, __LINE__, "element %lld: got %g", (long long)(n - 4096 + i),
                      (double)back[i]);
            break;
        }
    parity_release(&p);

    uint16_t *logits = parity_alloc(&p, (size_t)(rows * vp) * 2);
    float *losses = parity_alloc(&p, (size_t)rows * 4), ends[2];
    int32_t *targets = parity_alloc(&p, (size_t)rows * 4);
    void *row = fx_narrow(fx_random(vp, 3, 4.0f), DTYPE_BF16, vp);
    parity_move(&p, logits, row, (size_t)vp * 2, true);
    parity_move(&p, logits + (rows - 1) * vp, row, (size_t)vp * 2, true);
    gpu->ops->classifier(gpu, p.s, logits, losses, targets, rows, 50257, vp, 1000.0f, DTYPE_BF16);
    parity_move(&p, losses, &ends[0], 4, false);
    parity_move(&p, losses + rows - 1, &ends[1], 4, false);
    parity_move(&p, logits, first, sizeof first, false);
    parity_move(&p, logits + (rows - 1) * vp, last, sizeof last, false);
    CHECK(ends[0] > 0 && ends[0] == ends[1]);
    CHECK_SAME_BITS(first, last, sizeof first);
    parity_release(&p);
    fx_free_all();
}

int main(int argc, char **argv)
{
    static const char *const names[] = {
        [DTYPE_F32] = "fp32", [DTYPE_BF16] = "bf16", [DTYPE_F16] = "fp16"};
    static char name[2][3][64];
    const bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0; /* for compute-sanitizer */
    extern const struct device_ops cuda_device_ops;
    if (cuda_device_ops.count() <= 0) {
        CASE("the cuda backend's kernels")
        SKIP("no GPU here");
        return tap_done();
    }
    struct device *cpu = fx_open("cpu"), *gpu = fx_open("cuda");
    for (int d = DTYPE_F32; d <= DTYPE_F16; d++) {
        snprintf(name[0][d - 1], 64, "attention, every head dimension, %s", names[d]);
        CASE(name[0][d - 1])
        {
            if (quick) {
                struct parity p = {.dt = (enum dtype)d, .batch = 1, .heads = 2, .time = 200};
                p.channels = 128, p.dropout = 0.1f;
                compare(cpu, gpu, op_attention, p, "attention");
                p.channels = 224, p.time = 67;
                compare(cpu, gpu, op_attention, p, "attention");
            } else {
                test_attention(cpu, gpu, (enum dtype)d);
            }
        }
        if (quick)
            continue;
        snprintf(name[1][d - 1], 64, "classifier, norms, embeddings, products, %s", names[d]);
        CASE(name[1][d - 1]) test_others(cpu, gpu, (enum dtype)d);
    }
    if (!quick)
        CASE("more than 2^31 elements") test_large(gpu);
    fx_check_device(gpu);
    device_close(gpu);
    device_close(cpu);
    return tap_done();
}
