/* bench_kernels.c - time of each operation of the device table at the shapes of one training
 * micro-step, by events, median of several runs on random data; its TFLOP/s or GB/s; and the sum
 * over the layers, which predicts the micro-step and tokens/s of the trainer.
 *
 *     bench_kernels [small|xl|smp-xl|attention|scoring|decode]...      (default: all but smp-xl)
 *
 * attention: alone, at the shapes of the peers' table. scoring: log-probabilities. decode: all
 * blocks for one token. */
#include "base/checked.h"
#include "base/philox.h"
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 9, BLOCK_BYTES = 32 << 20 };

struct model {
    const char *name;
    int64_t batch, time, channels, heads, layers, vocab, vocab_padded, accumulation;
};
static const struct model models[] = {
    {"small", 64, 1024, 768, 12, 12, 50257, 50304, 8},
    {"xl", 16, 1024, 1600, 25, 48, 50257, 50304, 8},
    {"smp-xl", 8, 2048, 1536, 24, 48, 50257, 50304, 4},
};

struct bench {
    struct device *dev;
    const struct device_ops *ops;
    struct stream *s;
    struct event *begin, *end;
    void *noise; /* BLOCK_BYTES of bf16 in (-1, 1), device */
    double micro_step_ms, step_ms;
};

static void die(const char *what, const struct error *e)
{
    fprintf(stderr, "bench_kernels: %s: %s\n", what, e->message);
    exit(4);
}

static void *take(struct bench *b, size_t bytes, bool noisy)
{
    struct error e = {0};
    void *p;
    if (b->ops->alloc(b->dev, MEMORY_DEVICE, bytes, &p, &e) != STATUS_OK)
        die("memory", &e);
    for (size_t at = 0; noisy && at < bytes; at += BLOCK_BYTES)
        b->ops->copy(b->dev, b->s, (char *)p + at, b->noise,
                     bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES);
    return p;
}

static void make_noise(struct bench *b)
{
    struct error e = {0};
    uint16_t *host;
    if (b->ops->alloc(b->dev, MEMORY_HOST, BLOCK_BYTES, (void **)&host, &e) != STATUS_OK)
        die("memory", &e);
    for (size_t i = 0; i < BLOCK_BYTES / 2; i += 4) {
        struct philox4 r = philox4x32(7, i / 4, 0);
        for (size_t j = 0; j < 4; j++)
            host[i + j] = f32_to_bf16(2.0f * philox_uniform(r.v[j]) - 1.0f);
    }
    b->noise = take(b, BLOCK_BYTES, false);
    b->ops->copy(b->dev, b->s, b->noise, host, BLOCK_BYTES);
    if (b->ops->stream_sync(b->dev, b->s, &e) != STATUS_OK)
        die("copy", &e);
    b->ops->free(b->dev, MEMORY_HOST, host);
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Everything an operation may need; large enough for the largest. */
struct data {
    const struct model *m;
    int64_t n; /* rows */
    void *x, *y, *wide, *wide2, *qkv, *dqkv, *w, *b, *logits, *workspace;
    float *lse, *mean, *rstd, *dw, *db, *losses, *wte_grad, *wpe_grad, *master, *adam_m, *adam_v;
    float *scalars;
    int32_t *tokens;
    size_t workspace_bytes;
    int64_t chunk_rows, parameters;
    struct attention attention;
    const struct decode_blocks *decode;
};

typedef void operation(struct bench *b, struct data *d);

static void gemm(struct bench *b, struct gemm g)
{
    g.dt = DTYPE_BF16;
    if (!g.out_dt)
        g.out_dt = DTYPE_BF16;
    b->ops->gemm(b->dev, b->s, &g);
}
#define C d->m->channels
static void qkv_forward(struct bench *b, struct data *d)
{
    gemm(b, (struct gemm){
                .m = d->n, .n = 3 * C, .k = C, .a = d->x, .b = d->w, .d = d->qkv, .bias = d->b});
}
static void proj_forward(struct bench *b, struct data *d)
{
    gemm(b,
         (struct gemm){.m = d->n, .n = C, .k = C, .a = d->x, .b = d->w, .d = d->y, .bias = d->b});
}
static void fc_forward(struct bench *b, struct data *d)
{
    gemm(b, (struct gemm){.m = d->n,
                          .n = 4 * C,
                          .k = C,
                          .a = d->x,
                          .b = d->w,
                          .d = d->wide,
                          .bias = d->b,
                          .gelu = true,
                          .gelu_aux = d->wide2});
}
static void fcproj_forward(struct bench *b, struct data *d)
{
    gemm(b, (struct gemm){
                .m = d->n, .n = C, .k = 4 * C, .a = d->wide, .b = d->w, .d = d->y, .bias = d->b});
}
static void fcproj_input(struct bench *b, struct data *d)
{
    gemm(b, (struct gemm){.m = d->n,
                          .n = 4 * C,
                          .k = C,
                          .a = d->x,
                          .b = d->w,
                          .d = d->wide,
                          .transpose_b = true,
                          .dgelu_aux = d->wide2});
}
static void fc_input(struct bench *b, struct data *d)
{
    gemm(b, (struct gemm){.m = d->n,
                          .n = C,
                          .k = 4 * C,
                          .a = d->wide,
                          .b = d->w,
                          .d = d->y,
                          .transpose_b = true});
}
static void proj_input(struct bench *b, struct data *d)
{
    gemm(b, (struct gemm){
                .m = d->n, .n = C, .k = C, .a = d->x, .b = d->w, .d = d->y, .transpose_b = true});
}
static void qkv_input(struct bench *b, struct data *d)
{
    gemm(
        b,
        (struct gemm){
            .m = d->n, .n = C, .k = 3 * C, .a = d->qkv, .b = d->w, .d = d->y, .transpose_b = true});
}
static void weight(struct bench *b, struct data *d, int64_t in, int64_t out, const void *x,
                   const void *dy)
{
    gemm(b, (struct gemm){.m = in,
                          .n = out,
                          .k = d->n,
                          .a = x,
                          .b = dy,
                          .d = d->dw,
                          .transpose_a = true,
                          .accumulate = true,
                          .out_dt = DTYPE_F32,
                          .bias_grad = d->db});
}
static void fcproj_weight(struct bench *b, struct data *d)
{
    weight(b, d, 4 * C, C, d->wide, d->x);
}
static void fc_weight(struct bench *b, struct data *d)
{
    weight(b, d, C, 4 * C, d->x, d->wide);
}
static void proj_weight(struct bench *b, struct data *d)
{
    weight(b, d, C, C, d->x, d->y);
}
static void qkv_weight(struct bench *b, struct data *d)
{
    weight(b, d, C, 3 * C, d->x, d->qkv);
}
static void head_forward(struct bench *b, struct data *d)
{
    gemm(b, (struct gemm){.m = d->chunk_rows,
                          .n = d->m->vocab_padded,
                          .k = C,
                          .a = d->x,
                          .b = d->w,
                          .d = d->logits,
                          .transpose_b = true});
}
static void head_input(struct bench *b, struct data *d)
{
    gemm(b, (struct gemm){.m = d->chunk_rows,
                          .n = C,
                          .k = d->m->vocab_padded,
                          .a = d->logits,
                          .b = d->w,
                          .d = d->y});
}
static void head_weight(struct bench *b, struct data *d)
{
    gemm(b, (struct gemm){.m = d->m->vocab_padded,
                          .n = C,
                          .k = d->chunk_rows,
                          .a = d->logits,
                          .b = d->x,
                          .d = d->wte_grad,
                          .transpose_a = true,
                          .accumulate = true,
                          .out_dt = DTYPE_F32});
}
static void classifier(struct bench *b, struct data *d)
{
    b->ops->classifier(b->dev, b->s, d->logits, d->losses, d->tokens, d->chunk_rows, d->m->vocab,
                       d->m->vocab_padded, 1e-3f, DTYPE_BF16);
}
static const struct dropout none;
static void norm_forward(struct bench *b, struct data *d)
{
    b->ops->layernorm_forward(b->dev, b->s, d->wide, d->y, d->mean, d->rstd, d->y, d->x, d->w, d->b,
                              d->m->batch, d->m->time, C, 1e-5f, DTYPE_BF16, none);
}
static void norm_backward(struct bench *b, struct data *d)
{
    b->ops->layernorm_backward(b->dev, b->s, d->wide, NULL, d->dw, d->db, d->x, d->y, d->mean,
                               d->rstd, d->w, d->m->batch, d->m->time, C, true, DTYPE_BF16, none,
                               d->workspace, d->workspace_bytes);
}
static void attention_forward(struct bench *b, struct data *d)
{
    b->ops->attention_forward(b->dev, b->s, d->y, d->lse, d->qkv, &d->attention);
}
static void attention_backward(struct bench *b, struct data *d)
{
    b->ops->attention_backward(b->dev, b->s, d->dqkv, d->x, d->qkv, d->y, d->lse, &d->attention,
                               d->workspace, d->workspace_bytes);
}
static void embed_forward(struct bench *b, struct data *d)
{
    b->ops->embed_forward(b->dev, b->s, d->y, d->w, d->w, d->tokens, NULL, d->m->batch, d->m->time,
                          C, DTYPE_BF16, none);
}
static void embed_backward(struct bench *b, struct data *d)
{
    b->ops->embed_backward(b->dev, b->s, d->wte_grad, d->wpe_grad, d->x, d->tokens, d->m->batch,
                           d->m->time, C, d->m->vocab_padded, DTYPE_BF16, none, d->workspace,
                           d->workspace_bytes);
}
static void adamw(struct bench *b, struct data *d)
{
    static const struct adamw h = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, true, 10};
    b->ops->adamw(b->dev, b->s, d->master, d->adam_m, d->adam_v, d->master, d->logits,
                  d->parameters, DTYPE_BF16, &h, (const struct step_control *)d->scalars);
}
static void norm_squared(struct bench *b, struct data *d)
{
    b->ops->reduce_sum(b->dev, b->s, d->scalars + 8, d->master, d->parameters, true, false);
}
static void copy_ceiling(struct bench *b, struct data *d)
{
    b->ops->copy(b->dev, b->s, d->wide, d->wide2, (size_t)d->n * 8 * (size_t)C);
}
#undef C

static double measure(struct bench *b, struct data *d, operation *op)
{
    double ms[RUNS];
    struct error e = {0};
    op(b, d);
    op(b, d);
    for (int i = 0; i < RUNS; i++) {
        b->ops->event_record(b->dev, b->begin, b->s);
        op(b, d);
        b->ops->event_record(b->dev, b->end, b->s);
        if (b->ops->event_sync(b->dev, b->end, &e) != STATUS_OK)
            die("run", &e);
        ms[i] = b->ops->event_elapsed_ms(b->dev, b->begin, b->end);
    }
    qsort(ms, RUNS, sizeof *ms, by_value);
    return ms[RUNS / 2];
}

/* One line; `times` a micro-step, 0 for once a step, -1 for reference. */
static void line(struct bench *b, struct data *d, const char *name, operation *op, double times,
                 double flop, double bytes)
{
    double ms = measure(b, d, op);
    if (times > 0)
        b->micro_step_ms += ms * times;
    if (times == 0)
        b->step_ms += ms;
    printf("%-20s %9.4f ms x%-3.0f", name, ms, times);
    if (flop > 0)
        printf(" %8.1f TFLOP/s", flop / ms * 1e-9);
    else
        printf(" %8.1f GB/s   ", bytes / ms * 1e-6);
    if (times > 0)
        printf(" %9.3f ms a micro-step", ms * times);
    printf("\n");
    fflush(stdout);
}

static void data_init(struct bench *b, struct data *d, const struct model *m)
{
    int64_t n = m->batch * m->time, c = m->channels, vp = m->vocab_padded;
    size_t row = (size_t)n * (size_t)c * 2;
    memset(d, 0, sizeof *d);
    d->m = m, d->n = n;
    d->chunk_rows = min_i64(n, 16384);
    d->parameters = min_i64(m->layers * 12 * c * c + vp * c, d->chunk_rows * vp);
    d->attention = (struct attention){.batch = m->batch,
                                      .time = m->time,
                                      .heads = m->heads,
                                      .head_dim = c / m->heads,
                                      .dt = DTYPE_BF16};
    d->x = take(b, row, true), d->y = take(b, row, true);
    d->wide = take(b, 4 * row, true), d->wide2 = take(b, 4 * row, true);
    d->qkv = take(b, 3 * row, true), d->dqkv = take(b, 3 * row, true);
    d->w = take(b, (size_t)max_i64(4 * c * c, vp * c) * 2, true),
    d->b = take(b, (size_t)c * 8, true);
    d->logits = take(b, (size_t)d->chunk_rows * (size_t)vp * 2, true);
    d->lse = take(b, (size_t)(n * m->heads) * 4, false);
    d->mean = take(b, (size_t)n * 4, false), d->rstd = take(b, (size_t)n * 4, false);
    d->dw = take(b, (size_t)(4 * c * c) * 4, false), d->db = take(b, (size_t)c * 16, false);
    d->losses = take(b, (size_t)n * 4, false);
    d->wte_grad = take(b, (size_t)(vp * c) * 4, false),
    d->wpe_grad = take(b, (size_t)(m->time * c) * 4, false);
    d->master = take(b, (size_t)d->parameters * 4, false);
    d->adam_m = take(b, (size_t)d->parameters * 4, false),
    d->adam_v = take(b, (size_t)d->parameters * 4, false);
    d->scalars = take(b, 256, false);
    d->workspace_bytes = b->ops->attention_backward_workspace(&d->attention);
    size_t other = b->ops->embed_backward_workspace(m->batch, m->time, c, vp);
    d->workspace_bytes = other > d->workspace_bytes ? other : d->workspace_bytes;
    d->workspace = take(b, d->workspace_bytes + (1 << 24), false);
    d->workspace_bytes += 1 << 24;
    /* Zipf-like tokens: the k-th most frequent with probability about 1/k. */
    int32_t *host;
    struct error e = {0};
    if (b->ops->alloc(b->dev, MEMORY_HOST, (size_t)n * 4, (void **)&host, &e) != STATUS_OK)
        die("memory", &e);
    for (int64_t i = 0; i < n; i++) {
        double u = (double)philox_uniform(philox4x32(9, (uint64_t)i, 0).v[0]), rank = 1;
        for (double cut = 50257; cut > 1 && u > 0; u -= 1.0 / 16, cut /= 2)
            rank = rank * 2 > 50256 ? 50256 : rank * 2;
        host[i] = (int32_t)(philox4x32(9, (uint64_t)i, 1).v[0] % (uint32_t)rank);
    }
    d->tokens = take(b, (size_t)n * 4, false);
    b->ops->copy(b->dev, b->s, d->tokens, host, (size_t)n * 4);
    if (b->ops->stream_sync(b->dev, b->s, &e) != STATUS_OK)
        die("copy", &e);
    b->ops->free(b->dev, MEMORY_HOST, host);
}

static void data_release(struct bench *b, struct data *d)
{
    void *all[] = {d->x,      d->y,      d->wide,   d->wide2,     d->qkv,      d->dqkv,
                   d->w,      d->b,      d->logits, d->workspace, d->lse,      d->mean,
                   d->rstd,   d->dw,     d->db,     d->losses,    d->wte_grad, d->wpe_grad,
                   d->master, d->adam_m, d->adam_v, d->scalars,   d->tokens};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        b->ops->free(b->dev, MEMORY_DEVICE, all[i]);
}

static void run_model(struct bench *b, const struct model *m)
{
    struct data data, *d = &data;
    data_init(b, d, m);
    double n = (double)d->n, c = (double)m->channels, l = (double)m->layers,
           vp = (double)m->vocab_padded;
    double chunks = n / (double)d->chunk_rows, p = 2 * n * c * c,
           head = 2 * (double)d->chunk_rows * vp * c;
    double att = 2 * n * (double)m->time * c, row = n * c * 2;
    printf("--- %s: %lld x %lld, %lld layers of %lld, %lld heads\n", m->name, (long long)m->batch,
           (long long)m->time, (long long)m->layers, (long long)m->channels, (long long)m->heads);
    b->micro_step_ms = b->step_ms = 0;
    line(b, d, "copy", copy_ceiling, -1, 0, 2 * 4 * row);
    line(b, d, "embed_forward", embed_forward, 1, 0, 2 * row);
    line(b, d, "layernorm_forward", norm_forward, 2 * l + 1, 0, 4 * row);
    line(b, d, "qkv forward", qkv_forward, l, 3 * p, 0);
    line(b, d, "attention_forward", attention_forward, l, att, 0);
    line(b, d, "proj forward", proj_forward, l, p, 0);
    line(b, d, "fc forward", fc_forward, l, 4 * p, 0);
    line(b, d, "fcproj forward", fcproj_forward, l, 4 * p, 0);
    line(b, d, "head forward", head_forward, chunks, head, 0);
    line(b, d, "classifier", classifier, chunks, 0, 2 * 2 * (double)d->chunk_rows * vp);
    line(b, d, "head input grad", head_input, chunks, head, 0);
    line(b, d, "head weight grad", head_weight, chunks, head, 0);
    line(b, d, "fcproj input grad", fcproj_input, l, 4 * p, 0);
    line(b, d, "fcproj weight grad", fcproj_weight, l, 4 * p, 0);
    line(b, d, "fc input grad", fc_input, l, 4 * p, 0);
    line(b, d, "fc weight grad", fc_weight, l, 4 * p, 0);
    line(b, d, "layernorm_backward", norm_backward, 2 * l + 1, 0, 4 * row);
    line(b, d, "proj weight grad", proj_weight, l, p, 0);
    line(b, d, "proj input grad", proj_input, l, p, 0);
    line(b, d, "attention_backward", attention_backward, l, 2.5 * att, 0);
    line(b, d, "qkv input grad", qkv_input, l, 3 * p, 0);
    line(b, d, "qkv weight grad", qkv_weight, l, 3 * p, 0);
    line(b, d, "embed_backward", embed_backward, 1, 0, 2 * row);
    line(b, d, "norm^2", norm_squared, 0, 0, 4 * (double)d->parameters);
    line(b, d, "adamw", adamw, 0, 0, 26 * (double)d->parameters);
    double step = b->micro_step_ms * (double)m->accumulation + b->step_ms;
    printf("%s: micro-step %.2f ms, step of %lld: %.1f ms, %.0f tokens/s at most\n", m->name,
           b->micro_step_ms, (long long)m->accumulation, step,
           n * (double)m->accumulation / step * 1e3);
    data_release(b, d);
}

/* Attention alone at the shapes of the peers' table. */
static void run_attention(struct bench *b)
{
    static const int64_t shapes[][4] = {{64, 1024, 12, 64}, {16, 1024, 25, 64}, {16, 2048, 24, 64},
                                        {4, 2048, 64, 112}, {4, 2048, 56, 128}, {16, 1024, 20, 80},
                                        {16, 1024, 16, 96}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct model m = {"attention",
                                shapes[i][0],
                                shapes[i][1],
                                shapes[i][2] * shapes[i][3],
                                shapes[i][2],
                                0,
                                1000,
                                1024,
                                1};
        struct data d;
        data_init(b, &d, &m);
        double flop = 2 * (double)d.n * (double)m.time * (double)m.channels;
        for (int dropout = 0; dropout < 2; dropout++) {
            d.attention.dropout =
                (struct dropout){dropout ? 0.1f : 0.0f, 1, 2, (const int64_t *)d.mean};
            double f = measure(b, &d, attention_forward), g = measure(b, &d, attention_backward);
            printf("attention %2lldx%-2lldx%lldx%-3lld dropout %.1f: forward %.3f ms %.0f TFLOP/s, "
                   "backward %.3f ms %.0f TFLOP/s\n",
                   (long long)shapes[i][0], (long long)shapes[i][2], (long long)shapes[i][1],
                   (long long)shapes[i][3], (double)d.attention.dropout.p, f, flop / f * 1e-9, g,
                   2.5 * flop / g * 1e-9);
        }
        data_release(b, &d);
    }
}

/* Log-probabilities of 16 texts of 1024 tokens by logits of 1024 rows at a time, and without. */
enum { SCORED_ROWS = 16384, LOGIT_ROWS = 1024 };

static void logits_and_logprobs(struct bench *b, struct data *d)
{
    const struct model *m = d->m;
    for (int64_t first = 0; first < SCORED_ROWS; first += LOGIT_ROWS) {
        gemm(b, (struct gemm){.m = LOGIT_ROWS,
                              .n = m->vocab_padded,
                              .k = m->channels,
                              .a = (char *)d->x + first * m->channels * 2,
                              .b = d->w,
                              .d = d->logits,
                              .transpose_b = true,
                              .out_dt = DTYPE_F32});
        b->ops->token_logprobs(b->dev, b->s, d->losses + first, d->logits, d->tokens + first,
                               LOGIT_ROWS, m->vocab, m->vocab_padded, DTYPE_F32);
    }
}

static void head_logprobs(struct bench *b, struct data *d)
{
    b->ops->head_logprobs(b->dev, b->s, d->losses, d->x, d->w, d->tokens, SCORED_ROWS,
                          d->m->channels, d->m->vocab, DTYPE_BF16, d->workspace);
}

static void run_scoring(struct bench *b)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct data d;
        if (models[i].batch * models[i].time < SCORED_ROWS)
            continue;
        data_init(b, &d, &models[i]);
        double flop = 2.0 * SCORED_ROWS * (double)(models[i].channels * models[i].vocab_padded);
        double ms = measure(b, &d, logits_and_logprobs);
        printf("scoring %-8s logits, then log-probabilities %.3f ms, %.0f TFLOP/s\n",
               models[i].name, ms, flop / ms * 1e-9);
        size_t bytes =
            b->ops->head_logprobs
                ? b->ops->head_logprobs_workspace(b->dev, SCORED_ROWS, models[i].channels,
                                                  models[i].vocab, DTYPE_BF16)
                : 0;
        if (bytes > 0) {
            b->ops->free(b->dev, MEMORY_DEVICE, d.workspace);
            d.workspace = take(b, bytes, false);
            ms = measure(b, &d, head_logprobs);
            printf("scoring %-8s without logits %.3f ms, %.0f TFLOP/s\n", models[i].name, ms,
                   flop / ms * 1e-9);
        }
        data_release(b, &d);
    }
}

static void decode_blocks(struct bench *b, struct data *d)
{
    b->ops->decode_blocks(b->dev, b->s, d->decode);
}

/* All blocks of a model for one token at a position of its cache. */
static void run_decode_at(struct bench *b, struct decode_blocks *d, int32_t position)
{
    struct error e = {0};
    const int32_t host[2] = {0, position};
    int32_t *device = take(b, sizeof host, false);
    struct data data = {.decode = d};
    double layer = 12 * (double)(d->channels * d->channels);
    uint16_t x[4] = {0};
    b->ops->copy(b->dev, b->s, device, host, sizeof host);
    d->sequences = device, d->positions = device + 1;
    double ms = measure(b, &data, decode_blocks);
    b->ops->copy(b->dev, b->s, d->x, b->noise, (size_t)d->channels * 2);
    decode_blocks(b, &data);
    b->ops->copy(b->dev, b->s, x, d->x, sizeof x);
    if (b->ops->stream_sync(b->dev, b->s, &e) != STATUS_OK)
        die("decode", &e);
    printf("decode %2lldx%-4lld position %4d: %7.1f us, weights %.0f GB/s; first of x %.7g %.7g\n",
           (long long)d->layers, (long long)d->channels, (int)position, ms * 1e3,
           2 * layer * (double)d->layers / ms * 1e-6, (double)bf16_to_f32(x[0]),
           (double)bf16_to_f32(x[1]));
    b->ops->free(b->dev, MEMORY_DEVICE, device);
}

/* The layers share their weights; the copies that the kernel reads are their own. */
static void run_decode(struct bench *b)
{
    enum { TOKENS = 1024, PAGE = 16, LAYERS = 48 };
    static const int64_t shapes[][3] = {
        {12, 768, 12}, {24, 1024, 16}, {36, 1280, 20}, {48, 1600, 25}};
    struct error e = {0};
    int32_t pages[TOKENS / PAGE];
    for (int i = 0; i < TOKENS / PAGE; i++)
        pages[i] = i;
    int32_t *table = take(b, sizeof pages, false);
    b->ops->copy(b->dev, b->s, table, pages, sizeof pages);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int64_t layers = shapes[i][0], c = shapes[i][1], heads = shapes[i][2];
        size_t bytes = b->ops->decode_blocks
                           ? b->ops->decode_blocks_workspace(b->dev, layers, c, heads, DTYPE_BF16)
                           : 0;
        if (bytes == 0) {
            printf("decode %2lldx%-4lld: not on this device\n", (long long)layers, (long long)c);
            continue;
        }
        size_t cache = (size_t)(TOKENS * c) * 2;
        char *caches = take(b, 2 * cache * (size_t)layers, true);
        struct decode_block blocks[LAYERS], *device = take(b, sizeof blocks, false);
        for (int l = 0; l < layers; l++) {
            const void **tensors = &blocks[l].ln1_w;
            for (size_t t = 0; t < offsetof(struct decode_block, keys) / sizeof *tensors; t++)
                tensors[t] = b->noise;
            blocks[l].keys = caches + cache * (size_t)(2 * l);
            blocks[l].values = caches + cache * (size_t)(2 * l + 1);
        }
        b->ops->copy(b->dev, b->s, device, blocks, sizeof blocks);
        struct decode_blocks d = {.blocks = device,
                                  .layers = layers,
                                  .channels = c,
                                  .heads = heads,
                                  .epsilon = 1e-5f,
                                  .dt = DTYPE_BF16,
                                  .x = take(b, (size_t)c * 2, true),
                                  .table = table,
                                  .max_pages = TOKENS / PAGE,
                                  .page_tokens = PAGE,
                                  .workspace = take(b, bytes, false)};
        b->ops->decode_blocks_prepare(b->dev, b->s, &d);
        if (b->ops->stream_sync(b->dev, b->s, &e) != STATUS_OK)
            die("decode", &e);
        run_decode_at(b, &d, 100);
        run_decode_at(b, &d, TOKENS - 1);
        void *all[] = {caches, device, d.x, d.workspace};
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            b->ops->free(b->dev, MEMORY_DEVICE, all[k]);
    }
    b->ops->free(b->dev, MEMORY_DEVICE, table);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct error e = {0};
    struct device_info info;
    const char *defaults[] = {"small", "xl", "attention", "scoring", "decode"};
    const int default_count = (int)(sizeof defaults / sizeof defaults[0]);
    if (device_open(&b.dev, "cuda", 0, &e) != STATUS_OK) {
        printf("bench_kernels: skipped: %s\n", e.message);
        return 0;
    }
    b.ops = b.dev->ops, b.s = b.dev->compute;
    if (b.ops->event_create(b.dev, &b.begin, &e) != STATUS_OK ||
        b.ops->event_create(b.dev, &b.end, &e) != STATUS_OK)
        die("events", &e);
    b.ops->info(b.dev, &info);
    printf("%s\n", info.name);
    make_noise(&b);
    int count = argc > 1 ? argc - 1 : default_count;
    for (int i = 0; i < count; i++) {
        const char *want = argc > 1 ? argv[i + 1] : defaults[i];
        if (strcmp(want, "attention") == 0)
            run_attention(&b);
        if (strcmp(want, "scoring") == 0)
            run_scoring(&b);
        if (strcmp(want, "decode") == 0)
            run_decode(&b);
        for (size_t k = 0; k < sizeof models / sizeof models[0]; k++)
            if (strcmp(models[k].name, want) == 0)
                run_model(&b, &models[k]);
    }
    b.ops->free(b.dev, MEMORY_DEVICE, b.noise);
    b.ops->event_free(b.dev, b.begin), b.ops->event_free(b.dev, b.end);
    device_close(b.dev);
    return 0;
}
