/* test_parity.c - every kernel of the device table on the cpu backend and on every other backend
 * that has a device, on awkward shapes. `test_parity NAME` compares with backend NAME alone (so
 * `test_parity cpu` checks the test itself), `test_parity NAME PART` walks the operations whose
 * names have PART in them.
 *
 * Tolerance of an output x of root mean square r: each element within slack * (a r + b |x|), and
 * the root mean square of the difference within slack * c r. Backends differ in the order of fp32
 * sums and in how they round exp and tanh (fp32: a few 1e-6); in 16-bit dtypes an output may round
 * the other way (half a unit: bf16 3.9e-3, fp16 4.9e-4) and intermediate values may be rounded or
 * not. */
#include "parity.h"

static const struct tolerance {
    double a, b, c;
} tolerances[] = {
    [DTYPE_F32] = {2e-5, 1e-5, 4e-6},
    [DTYPE_BF16] = {3e-2, 1.6e-2, 6e-3},
    [DTYPE_F16] = {4e-3, 2e-3, 8e-4},
};

/* Rows of tensors as wide as the vocabulary. */
static int64_t min_rows(const struct parity *p)
{
    const int64_t rows = p->batch * p->time;
    return rows < 33 ? rows : 33;
}

/* --- operations
 * ------------------------------------------------------------------------------------ */

enum {
    T_A = 1,
    T_B = 2,
    BIAS = 4,
    GELU = 8,
    DGELU = 16,
    ACCUMULATE = 32,
    BIAS_GRAD = 64,
    WIDE = 128,
    AUX = 256,
};

static void op_gemm(struct parity *p)
{
    const int v = p->variant;
    const enum dtype out = v & WIDE ? DTYPE_F32 : p->dt;
    struct gemm g = {.m = p->batch * p->time, .n = 3 * p->channels, .k = p->channels};
    if (v & T_A) { /* a weight gradient: the rows are summed over */
        g.k = g.m;
        g.m = p->channels;
    }
    g.dt = p->dt;
    g.out_dt = out;
    g.transpose_a = v & T_A;
    g.transpose_b = v & T_B;
    g.accumulate = v & ACCUMULATE;
    g.a = parity_random(p, g.m * g.k, p->dt, 1, 1.0f);
    g.b = parity_random(p, g.k * g.n, p->dt, 2, 1.0f);
    g.d =
        g.accumulate ? parity_random(p, g.m * g.n, out, 3, 1.0f) : parity_blank(p, g.m * g.n, out);
    if (v & BIAS)
        g.bias = parity_random(p, g.n, p->dt, 4, 1.0f);
    g.gelu = v & GELU;
    if (v & AUX)
        g.gelu_aux = parity_blank(p, g.m * g.n, p->dt);
    if (v & DGELU)
        g.dgelu_aux = parity_random(p, g.m * g.n, p->dt, 5, 3.0f);
    if (v & BIAS_GRAD)
        g.bias_grad = parity_random(p, g.n, DTYPE_F32, 6, 1.0f);
    p->ops->gemm(p->dev, p->s, &g);
    parity_output(p, "d", g.d, g.m * g.n, out, 1);
    if (g.gelu_aux)
        parity_output(p, "gelu_aux", g.gelu_aux, g.m * g.n, p->dt, 1);
    if (g.bias_grad)
        parity_output(p, "bias_grad", g.bias_grad, g.n, DTYPE_F32, 1);
}

/* logits = x wte^T with the vocabulary of GPT-2. */
static void op_gemm_vocabulary(struct parity *p)
{
    struct gemm g = {.m = min_rows(p), .n = p->vocab_padded, .k = p->channels};
    g.dt = g.out_dt = p->dt;
    g.transpose_b = true;
    g.a = parity_random(p, g.m * g.k, p->dt, 1, 1.0f);
    g.b = parity_random(p, g.k * g.n, p->dt, 2, 1.0f);
    g.d = parity_blank(p, g.m * g.n, p->dt);
    p->ops->gemm(p->dev, p->s, &g);
    parity_output(p, "d", g.d, g.m * g.n, p->dt, 1);
}

static void op_embed_forward(struct parity *p)
{
    const int64_t n = p->batch * p->time, c = p->channels;
    void *x = parity_blank(p, n * c, p->dt);
    void *wte = parity_random(p, p->vocab_padded * c, p->dt, 1, 1.0f);
    void *wpe = parity_random(p, p->time * c, p->dt, 2, 1.0f);
    int32_t *tokens = parity_bytes(p, fx_tokens(n, 3, p->vocab), (size_t)n * 4);
    int32_t *positions =
        p->variant ? parity_bytes(p, fx_tokens(n, 4, p->time), (size_t)n * 4) : NULL;
    p->ops->embed_forward(p->dev, p->s, x, wte, wpe, tokens, positions, p->batch, p->time, c, p->dt,
                          parity_dropout(p, 0));
    parity_output(p, "x", x, n * c, p->dt, 1);
}

static void op_embed_backward(struct parity *p)
{
    /* Variant 1 draws from 7 tokens, so that rows of dwte get long sums. */
    const int64_t n = p->batch * p->time, c = p->channels, vp = p->vocab_padded;
    float *dwte = parity_random(p, vp * c, DTYPE_F32, 1, 1.0f);
    float *dwpe = parity_random(p, p->time * c, DTYPE_F32, 2, 1.0f);
    void *dx = parity_random(p, n * c, p->dt, 5, 1.0f);
    int32_t *tokens =
        parity_bytes(p, fx_tokens(n, 3, p->variant ? 7 : p->vocab), (size_t)n * sizeof(int32_t));
    size_t bytes = p->ops->embed_backward_workspace(p->batch, p->time, c, vp);
    p->ops->embed_backward(p->dev, p->s, dwte, dwpe, dx, tokens, p->batch, p->time, c, vp, p->dt,
                           parity_dropout(p, 0), parity_alloc(p, bytes), bytes);
    parity_output(p, "dwte", dwte, vp * c, DTYPE_F32, 4);
    parity_output(p, "dwpe", dwpe, p->time * c, DTYPE_F32, 4);
}

static void op_layernorm_forward(struct parity *p)
{
    const int64_t n = p->batch * p->time, c = p->channels;
    const bool with_delta = p->variant != 0;
    void *y = parity_blank(p, n * c, p->dt);
    void *sum = with_delta ? parity_blank(p, n * c, p->dt) : NULL;
    float *mean = parity_blank(p, n, DTYPE_F32), *rstd = parity_blank(p, n, DTYPE_F32);
    void *residual = parity_random(p, n * c, p->dt, 1, 2.0f);
    void *delta = with_delta ? parity_random(p, n * c, p->dt, 2, 1.0f) : NULL;
    void *w = parity_random(p, c, p->dt, 3, 1.0f), *b = parity_random(p, c, p->dt, 4, 1.0f);
    if (p->variant == 2)
        sum = residual; /* in place */
    p->ops->layernorm_forward(p->dev, p->s, y, sum, mean, rstd, residual, delta, w, b, p->batch,
                              p->time, c, 1e-5f, p->dt, parity_dropout(p, 3));
    parity_output(p, "y", y, n * c, p->dt, 1);
    parity_output(p, "mean", mean, n, DTYPE_F32, 1);
    parity_output(p, "rstd", rstd, n, DTYPE_F32, 1);
    if (sum)
        parity_output(p, "sum", sum, n * c, p->dt, 1);
}

static void op_layernorm_backward(struct parity *p)
{
    const int64_t n = p->batch * p->time, c = p->channels;
    const bool accumulate = p->variant & 1, with_delta = p->variant & 2;
    void *x = parity_random(p, n * c, p->dt, 1, 2.0f),
         *dy = parity_random(p, n * c, p->dt, 2, 1.0f);
    void *y = parity_blank(p, n * c, p->dt);
    void *dx = accumulate ? parity_random(p, n * c, p->dt, 3, 1.0f) : parity_blank(p, n * c, p->dt);
    void *ddelta = with_delta ? parity_blank(p, n * c, p->dt) : NULL;
    void *w = parity_random(p, c, p->dt, 4, 1.0f), *b = parity_random(p, c, p->dt, 5, 1.0f);
    float *mean = parity_blank(p, n, DTYPE_F32), *rstd = parity_blank(p, n, DTYPE_F32);
    float *dw = parity_random(p, c, DTYPE_F32, 6, 1.0f),
          *db = parity_random(p, c, DTYPE_F32, 7, 1.0f);
    size_t bytes = p->ops->layernorm_backward_workspace(n, c);
    struct dropout d = parity_dropout(p, 3);
    p->ops->layernorm_forward(p->dev, p->s, y, NULL, mean, rstd, x, NULL, w, b, p->batch, p->time,
                              c, 1e-5f, p->dt, d);
    p->ops->layernorm_backward(p->dev, p->s, dx, ddelta, dw, db, dy, x, mean, rstd, w, p->batch,
                               p->time, c, accumulate, p->dt, d, parity_alloc(p, bytes), bytes);
    parity_output(p, "dx", dx, n * c, p->dt, 1);
    parity_output(p, "dweight", dw, c, DTYPE_F32, 2);
    parity_output(p, "dbias", db, c, DTYPE_F32, 2);
    if (ddelta)
        parity_output(p, "ddelta", ddelta, n * c, p->dt, 1);
}

static struct attention attention_of(struct parity *p)
{
    struct attention a = {
        p->batch,       p->time, p->heads, p->channels / p->heads, p->dt, parity_dropout(p, 2),
        p->variant == 1};
    return a;
}

static void op_attention_forward(struct parity *p)
{
    const int64_t n = p->batch * p->time, c = p->channels, rows = p->batch * p->heads * p->time;
    struct attention a = attention_of(p);
    void *qkv = parity_random(p, n * 3 * c, p->dt, 1, 2.0f), *out = parity_blank(p, n * c, p->dt);
    float *lse = parity_blank(p, rows, DTYPE_F32);
    p->ops->attention_forward(p->dev, p->s, out, lse, qkv, &a);
    /* 16-bit tensor-core products round the probabilities too. */
    parity_output(p, "out", out, n * c, p->dt, 1.5);
    parity_output(p, "lse", lse, rows, DTYPE_F32, 1);
}

static void op_attention_backward(struct parity *p)
{
    const int64_t n = p->batch * p->time, c = p->channels, rows = p->batch * p->heads * p->time;
    struct attention a = attention_of(p);
    void *qkv = parity_random(p, n * 3 * c, p->dt, 1, 2.0f), *out = parity_blank(p, n * c, p->dt);
    void *dout = parity_random(p, n * c, p->dt, 2, 1.0f);
    void *dqkv = parity_blank(p, n * 3 * c, p->dt);
    float *lse = parity_blank(p, rows, DTYPE_F32);
    size_t bytes = p->ops->attention_backward_workspace(&a);
    p->ops->attention_forward(p->dev, p->s, out, lse, qkv, &a);
    p->ops->attention_backward(p->dev, p->s, dqkv, dout, qkv, out, lse, &a, parity_alloc(p, bytes),
                               bytes);
    parity_output(p, "dqkv", dqkv, n * 3 * c, p->dt, 2);
}

static void op_classifier(struct parity *p)
{
    const int64_t rows = min_rows(p), v = p->vocab, vp = p->vocab_padded;
    const float scale = p->variant ? 0.0f : 0.125f;
    void *logits = parity_random(p, rows * vp, p->dt, 1, 5.0f);
    float *losses = parity_blank(p, rows, DTYPE_F32);
    int32_t *t = fx_tokens(rows, 2, v);
    t[rows / 2] = -1;
    t[rows - 1] = (int32_t)v - 1;
    p->ops->classifier(p->dev, p->s, logits, losses, parity_bytes(p, t, (size_t)rows * 4), rows, v,
                       vp, scale, p->dt);
    parity_output(p, "losses", losses, rows, DTYPE_F32, 1);
    if (scale != 0.0f)
        parity_output(p, "dlogits", logits, rows * vp, p->dt, 1);
}

static void op_token_logprobs(struct parity *p)
{
    const int64_t rows = min_rows(p), v = p->vocab, vp = p->vocab_padded;
    void *logits = parity_random(p, rows * vp, p->dt, 1, 5.0f);
    float *out = parity_blank(p, rows, DTYPE_F32);
    int32_t *t = fx_tokens(rows, 2, v);
    t[0] = -1;
    p->ops->token_logprobs(p->dev, p->s, out, logits, parity_bytes(p, t, (size_t)rows * 4), rows, v,
                           vp, p->dt);
    parity_output(p, "logprobs", out, rows, DTYPE_F32, 1);
}

/* Variant 1: more than a tile of rows, with tokens beyond a tile. */
static void op_head_logprobs(struct parity *p)
{
    const int64_t rows = p->variant ? 150 : min_rows(p), c = p->channels, v = p->vocab;
    const int64_t vp = p->vocab_padded;
    void *x = parity_random(p, rows * c, p->dt, 1, 1.0f);
    void *wte = parity_random(p, vp * c, p->dt, 2, 0.2f);
    float *out = parity_blank(p, rows, DTYPE_F32);
    int32_t *t = fx_tokens(rows, 2, v);
    t[0] = -1;
    t[rows - 1] = (int32_t)v - 1;
    const int32_t *targets = parity_bytes(p, t, (size_t)rows * 4);
    size_t bytes = 0;
    if (p->ops->head_logprobs)
        bytes = p->ops->head_logprobs_workspace(p->dev, rows, c, v, p->dt);
    if (bytes > 0) {
        void *workspace = parity_blank(p, (int64_t)bytes / 4, DTYPE_F32);
        p->ops->head_logprobs(p->dev, p->s, out, x, wte, targets, rows, c, v, p->dt, workspace);
    } else {
        float *logits = parity_blank(p, rows * vp, DTYPE_F32);
        struct gemm g = {.m = rows,
                         .n = vp,
                         .k = c,
                         .a = x,
                         .b = wte,
                         .d = logits,
                         .dt = p->dt,
                         .out_dt = DTYPE_F32,
                         .transpose_b = true};
        p->ops->gemm(p->dev, p->s, &g);
        p->ops->token_logprobs(p->dev, p->s, out, logits, targets, rows, v, vp, DTYPE_F32);
    }
    parity_output(p, "logprobs", out, rows, DTYPE_F32, 1);
}

static void op_bias_backward(struct parity *p)
{
    const int64_t n = p->batch * p->time, c = p->channels;
    float *db = parity_random(p, c, DTYPE_F32, 1, 1.0f);
    void *dy = parity_random(p, n * c, p->dt, 2, 1.0f);
    size_t bytes = p->ops->bias_backward_workspace(n, c);
    p->ops->bias_backward(p->dev, p->s, db, dy, n, c, p->dt, parity_alloc(p, bytes), bytes);
    parity_output(p, "dbias", db, c, DTYPE_F32, 2);
}

static void op_dropout_backward(struct parity *p)
{
    const int64_t n = p->batch * p->time * p->channels;
    void *src = parity_random(p, n, p->dt, 1, 1.0f);
    void *dst = p->variant ? src : parity_blank(p, n, p->dt);
    p->ops->dropout_backward(p->dev, p->s, dst, src, p->batch, p->time, p->channels, p->dt,
                             parity_dropout(p, 4));
    parity_output(p, "dst", dst, n, p->dt, 1);
}

static void op_reduce_sum(struct parity *p)
{
    const int64_t n = p->batch * p->time * p->channels + 3;
    float *x = parity_random(p, n, DTYPE_F32, 1, 1.0f), *sum = parity_random(p, 4, DTYPE_F32, 2, 1);
    p->ops->reduce_sum(p->dev, p->s, sum, x, n, true, false);
    p->ops->reduce_sum(p->dev, p->s, sum + 1, x, n, true, true);
    p->ops->reduce_sum(p->dev, p->s, sum + 3, x, 0, true, false);
    parity_output(p, "sums", sum, 4, DTYPE_F32, 1);
}

static void op_optimizer(struct parity *p)
{
    const int64_t n = p->batch * p->time * p->channels + 5;
    float *master = parity_random(p, n, DTYPE_F32, 1, 1.0f),
          *m = parity_random(p, n, DTYPE_F32, 2, 0.1f);
    float *grad = parity_random(p, n, DTYPE_F32, 3, 1.0f), *norm = parity_blank(p, 1, DTYPE_F32);
    float *v = parity_blank(p, n, DTYPE_F32), *loss = parity_random(p, 1, DTYPE_F32, 4, 3.0f);
    float *squares = fx_random(n, 5, 0.1f);
    for (int64_t i = 0; i < n; i++)
        squares[i] *= squares[i];
    parity_move(p, v, squares, (size_t)n * sizeof(float), true);
    void *working = parity_blank(p, n, p->dt);
    struct step_control *c = parity_alloc(p, sizeof *c);
    struct adamw h = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, p->variant != 1, 7};
    if (p->variant == 2) { /* a gradient that overflowed: everything must stay as it was */
        float infinity = INFINITY;
        parity_move(p, grad + 3, &infinity, sizeof infinity, true);
        p->ops->cast(p->dev, p->s, working, p->dt, master, DTYPE_F32, n);
    }
    p->ops->reduce_sum(p->dev, p->s, norm, grad, n, true, false);
    p->ops->step_control(p->dev, p->s, c, norm, loss, 1.0f / 64.0f, 0.5f, 0.25f);
    p->ops->adamw(p->dev, p->s, master, m, v, grad, working, n, p->dt, &h, c);
    parity_output(p, "master", master, n, DTYPE_F32, 1);
    parity_output(p, "m", m, n, DTYPE_F32, 1);
    parity_output(p, "v", v, n, DTYPE_F32, 1);
    parity_output(p, "working", working, n, p->dt, 1);
    if (p->variant != 2)
        parity_output(p, "control", c, 4, DTYPE_F32, 1);
}

static void op_cast(struct parity *p)
{
    const int64_t n = p->batch * p->time * p->channels + 1;
    void *x = parity_random(p, n, DTYPE_F32, 1, 100.0f), *narrow = parity_blank(p, n, p->dt);
    void *wide = parity_blank(p, n, DTYPE_F32);
    float *sum = parity_random(p, n, DTYPE_F32, 2, 1.0f);
    p->ops->cast(p->dev, p->s, narrow, p->dt, x, DTYPE_F32, n);
    p->ops->cast(p->dev, p->s, wide, DTYPE_F32, narrow, p->dt, n);
    p->ops->accumulate(p->dev, p->s, sum, narrow, p->dt, n, 0.5f);
    parity_output(p, "narrow", narrow, n, p->dt, 0);
    parity_output(p, "wide", wide, n, DTYPE_F32, 0);
    parity_output(p, "sum", sum, n, DTYPE_F32, 1);
}

static void op_decode(struct parity *p)
{
    enum { SEQUENCES = 3, PAGE = 16 };
    const int64_t c = p->channels, d = c / p->heads, pages = (p->time + PAGE - 1) / PAGE;
    const int64_t rows = SEQUENCES * p->time;
    int32_t *table = fx_alloc(SEQUENCES * (size_t)pages * 4), *seq = fx_alloc((size_t)rows * 4);
    int32_t *pos = fx_alloc((size_t)rows * 4);
    for (int64_t i = 0; i < SEQUENCES * pages; i++)
        table[i] = (int32_t)(SEQUENCES * pages - 1 - i); /* pages of a sequence are not in order */
    for (int64_t i = 0; i < rows; i++) {
        seq[i] = (int32_t)(i % SEQUENCES);
        pos[i] = (int32_t)(i / SEQUENCES);
    }
    struct kv_cache kv = {.keys = parity_alloc(p, (size_t)(SEQUENCES * pages * PAGE * c) * 4),
                          .values = parity_alloc(p, (size_t)(SEQUENCES * pages * PAGE * c) * 4),
                          .table = parity_bytes(p, table, SEQUENCES * (size_t)pages * 4),
                          .max_pages = pages,
                          .page_tokens = PAGE};
    void *qkv = parity_random(p, rows * 3 * c, p->dt, 1, 2.0f),
         *out = parity_blank(p, rows * c, p->dt);
    int32_t *dseq = parity_bytes(p, seq, (size_t)rows * 4),
            *dpos = parity_bytes(p, pos, (size_t)rows * 4);
    /* Variant 1: the newest token of each sequence alone, which brings its own key and value. */
    const int64_t before = p->variant ? rows - SEQUENCES : rows, n = p->variant ? SEQUENCES : rows;
    const int64_t at = rows - n;
    const void *newest = (const char *)qkv + (size_t)(at * 3 * c) * fx_width(p->dt);
    size_t bytes = p->ops->attention_cached_workspace(n, p->time, p->heads, d);
    p->ops->kv_append(p->dev, p->s, &kv, qkv, dseq, dpos, before, p->heads, d, p->dt);
    p->ops->attention_cached(p->dev, p->s, out, &kv, newest, dseq + at, dpos + at, n, p->heads, d,
                             p->dt, p->variant == 1, parity_alloc(p, bytes), bytes);
    parity_output(p, "out", out, n * c, p->dt, 1.5);
    parity_output(p, "keys", kv.keys, SEQUENCES * pages * PAGE * c, p->dt, 0);
    parity_output(p, "values", kv.values, SEQUENCES * pages * PAGE * c, p->dt, 0);
}

/* Where a backend has no such product, its parts one after the other. */
static void skinny_parts(struct parity *p, const struct skinny_gemm *g)
{
    const size_t width = fx_width(p->dt);
    const void *x = g->x;
    if (g->select) {
        void *taken = parity_alloc(p, (size_t)(g->rows * g->k) * width);
        p->ops->gather_rows(p->dev, p->s, taken, x, g->select, g->rows, g->k, p->dt);
        x = taken;
    }
    if (g->norm_w) {
        void *normal = parity_alloc(p, (size_t)(g->rows * g->k) * width);
        p->ops->layernorm_forward(p->dev, p->s, normal, NULL, NULL, NULL, x, NULL, g->norm_w,
                                  g->norm_b, 1, g->rows, g->k, g->epsilon, p->dt,
                                  (struct dropout){0});
        x = normal;
    }
    void *value = parity_alloc(p, (size_t)(g->rows * g->n) * width);
    struct gemm m = {.m = g->rows, .n = g->n, .k = g->k, .a = x, .b = g->w};
    m.d = g->residual ? value : g->y;
    m.dt = p->dt, m.out_dt = g->out_dt, m.transpose_b = g->transpose_w, m.ldd = g->ldy;
    m.bias = g->bias;
    m.gelu = g->gelu;
    p->ops->gemm(p->dev, p->s, &m);
    if (g->residual) /* the sum that a layer norm leaves */
        p->ops->layernorm_forward(p->dev, p->s, value, g->y, NULL, NULL, g->residual, value,
                                  g->bias, g->bias, 1, g->rows, g->n, g->epsilon, p->dt,
                                  (struct dropout){0});
}

/* Variants: a norm and GELU; a residual, in place; the vocabulary, with chosen rows. */
static void op_skinny(struct parity *p)
{
    const int64_t rows = p->batch * p->time < SKINNY_ROWS ? p->batch * p->time : SKINNY_ROWS;
    const int64_t k = p->variant == 1 ? 4 * p->channels : p->channels;
    struct skinny_gemm g = {.rows = rows, .k = k, .epsilon = 1e-5f, .dt = p->dt, .out_dt = p->dt};
    g.n = p->variant == 0 ? 4 * p->channels : p->variant == 1 ? p->channels : 1003;
    g.x = parity_random(p, rows * k, p->dt, 1, 1.0f);
    g.w = parity_random(p, k * g.n, p->dt, 2, 0.25f);
    if (p->variant != 2)
        g.bias = parity_random(p, g.n, p->dt, 3, 1.0f);
    if (p->variant != 1) {
        g.norm_w = parity_random(p, k, p->dt, 4, 1.0f);
        g.norm_b = parity_random(p, k, p->dt, 5, 1.0f);
    }
    g.gelu = p->variant == 0;
    if (p->variant == 1)
        g.residual = g.y = parity_random(p, rows * g.n, p->dt, 6, 1.0f);
    else if (p->variant == 0)
        g.y = parity_blank(p, rows * g.n, p->dt);
    if (p->variant == 2) {
        g.select = parity_bytes(p, fx_tokens(rows, 7, rows), (size_t)rows * sizeof(int32_t));
        g.transpose_w = true, g.out_dt = DTYPE_F32, g.ldy = 1024;
        g.y = parity_alloc(p, (size_t)(rows * g.ldy) * sizeof(float));
    }
    if (p->dev->skinny_rows)
        p->ops->skinny_gemm(p->dev, p->s, &g);
    else
        skinny_parts(p, &g);
    parity_output(p, "y", g.y, rows * (g.ldy ? g.ldy : g.n), g.out_dt, p->variant == 2 ? 4 : 2);
}

static void op_gather_rows(struct parity *p)
{
    const int64_t n = p->batch * p->time, c = p->channels;
    void *src = parity_random(p, n * c, p->dt, 1, 1.0f), *dst = parity_blank(p, 19 * c, p->dt);
    int32_t *rows = parity_bytes(p, fx_tokens(19, 2, n), 19 * sizeof(int32_t));
    p->ops->gather_rows(p->dev, p->s, dst, src, rows, 19, c, p->dt);
    parity_output(p, "dst", dst, 19 * c, p->dt, 0);
}

/* Few tokens carry the probability, so that an edge of the cumulative sum is not hit by chance. */
static void op_sample(struct parity *p)
{
    static const struct sampling settings[] = {
        {0.0f, 1.0f, 0, 0.5f},  {1.0f, 1.0f, 1, 0.7f},    {0.7f, 1.0f, 0, 0.31f},
        {0.7f, 1.0f, 5, 0.62f}, {0.9f, 0.5f, 0, 0.17f},   {1.1f, 0.9f, 20, 0.83f},
        {0.3f, 0.1f, 0, 0.99f}, {1.0f, 1.0f, 50, 0.001f},
    };
    enum { ROWS = 8 };
    const int64_t v = p->vocab, vp = p->vocab_padded;
    float *x = fx_random(ROWS * vp, 1, 1.0f);
    for (int64_t i = 0; i < ROWS * vp; i++)
        x[i] = i % vp >= v ? 1e4f : 30.0f * x[i] * x[i] * x[i]; /* padding must never win */
    void *logits =
        parity_bytes(p, fx_narrow(x, p->dt, ROWS * vp), (size_t)(ROWS * vp) * fx_width(p->dt));
    int32_t *ids = parity_alloc(p, ROWS * sizeof *ids);
    float *logprobs = parity_blank(p, ROWS, DTYPE_F32);
    p->ops->sample(p->dev, p->s, ids, logprobs, logits, parity_bytes(p, settings, sizeof settings),
                   ROWS, v, vp, p->dt);
    parity_output(p, "ids", ids, ROWS, DTYPE_I32, 0);
    parity_output(p, "logprobs", logprobs, ROWS, DTYPE_F32, 1);
}

static void op_find_nonfinite(struct parity *p)
{
    const int64_t n = p->batch * p->time * p->channels;
    float found[2] = {0, 0};
    void *x = parity_random(p, n, p->dt, 1, 1.0f);
    if (p->ops->find_nonfinite) {
        found[0] = p->ops->find_nonfinite(p->dev, p->s, x, n, p->dt);
        void *bad = parity_blank(p, 1, p->dt);
        p->ops->copy(p->dev, p->s, (char *)x + (size_t)(n - 1) * fx_width(p->dt), bad,
                     fx_width(p->dt));
        found[1] = p->ops->find_nonfinite(p->dev, p->s, x, n, p->dt);
        CHECK(found[0] == 0.0f && found[1] == 1.0f);
    }
}

/* The blocks one after the other by the separate entries. */
static void decode_parts(struct parity *p, const struct decode_blocks *d,
                         const struct decode_block *blocks)
{
    const int64_t c = d->channels, head_dim = c / d->heads;
    void *qkv = parity_blank(p, 3 * c, p->dt), *att = parity_blank(p, c, p->dt);
    void *hidden = parity_blank(p, 4 * c, p->dt);
    size_t bytes =
        p->ops->attention_cached_workspace(1, d->max_pages * d->page_tokens, d->heads, head_dim);
    void *workspace = parity_alloc(p, bytes);
    struct skinny_gemm g = {.rows = 1, .epsilon = d->epsilon, .dt = p->dt, .out_dt = p->dt};
    for (int64_t l = 0; l < d->layers; l++) {
        const struct decode_block *b = &blocks[l];
        struct kv_cache kv = {b->keys, b->values, d->table, d->max_pages, d->page_tokens};
        struct skinny_gemm first = g, proj = g, fc = g, fcproj = g;
        first.k = fc.k = proj.k = proj.n = fcproj.n = c;
        first.n = 3 * c, fc.n = fcproj.k = 4 * c;
        first.x = fc.x = d->x, first.y = qkv, fc.y = hidden, fc.gelu = true;
        first.norm_w = b->ln1_w, first.norm_b = b->ln1_b, first.w = b->qkv_w, first.bias = b->qkv_b;
        fc.norm_w = b->ln2_w, fc.norm_b = b->ln2_b, fc.w = b->fc_w, fc.bias = b->fc_b;
        proj.x = att, proj.w = b->proj_w, proj.bias = b->proj_b;
        fcproj.x = hidden, fcproj.w = b->fcproj_w, fcproj.bias = b->fcproj_b;
        proj.residual = fcproj.residual = d->x;
        proj.y = fcproj.y = d->x;
        skinny_parts(p, &first);
        p->ops->kv_append(p->dev, p->s, &kv, qkv, d->sequences, d->positions, 1, d->heads, head_dim,
                          p->dt);
        p->ops->attention_cached(p->dev, p->s, att, &kv, qkv, d->sequences, d->positions, 1,
                                 d->heads, head_dim, p->dt, false, workspace, bytes);
        skinny_parts(p, &proj);
        skinny_parts(p, &fc);
        skinny_parts(p, &fcproj);
    }
}

/* Two blocks for the token at position T-1 of the second of two sequences, twice: the counters of
 * the first call must be as they were. */
static void op_decode_blocks(struct parity *p)
{
    enum { LAYERS = 2, PAGE = 16, TENSORS = 12 };
    const int64_t c = p->channels, pages = (p->time + PAGE - 1) / PAGE + 1;
    const int64_t sizes[TENSORS] = {c, c, 3 * c * c, 3 * c, c * c,     c,
                                    c, c, 4 * c * c, 4 * c, 4 * c * c, c};
    const float wide = 1.0f / sqrtf((float)c);
    const float scales[TENSORS] = {1, 1, wide, 1, wide, 1, 1, 1, wide, 1, wide / 2, 1};
    struct decode_block blocks[LAYERS];
    int32_t *table = fx_alloc((size_t)(2 * pages) * sizeof *table);
    int32_t sequence = 1, positions[2] = {(int32_t)p->time - 1, (int32_t)p->time};
    for (int64_t i = 0; i < 2 * pages; i++)
        table[i] = (int32_t)(2 * pages - 1 - i);
    const size_t cache = (size_t)(2 * pages * PAGE * c);
    for (int l = 0; l < LAYERS; l++) {
        const void **tensors = &blocks[l].ln1_w;
        for (int i = 0; i < TENSORS; i++)
            tensors[i] = parity_random(p, sizes[i], p->dt, (uint64_t)(20 * l + i), scales[i]);
        blocks[l].keys = parity_random(p, (int64_t)cache, p->dt, (uint64_t)(100 + l), 1.0f);
        blocks[l].values = parity_random(p, (int64_t)cache, p->dt, (uint64_t)(200 + l), 1.0f);
    }
    struct decode_blocks d = {.layers = LAYERS, .channels = c, .heads = p->heads, .dt = p->dt};
    d.blocks = parity_bytes(p, blocks, sizeof blocks);
    d.epsilon = 1e-5f;
    d.table = parity_bytes(p, table, (size_t)(2 * pages) * sizeof *table);
    d.max_pages = pages, d.page_tokens = PAGE;
    d.sequences = parity_bytes(p, &sequence, sizeof sequence);
    size_t bytes = 0;
    if (p->ops->decode_blocks)
        bytes = p->ops->decode_blocks_workspace(p->dev, LAYERS, c, p->heads, p->dt);
    if (bytes > 0) {
        d.workspace = parity_blank(p, (int64_t)bytes / 4, DTYPE_F32);
        p->ops->decode_blocks_prepare(p->dev, p->s, &d);
    }
    for (int i = 0; i < 2; i++) {
        d.x = parity_random(p, c, p->dt, (uint64_t)(300 + i), 1.0f);
        d.positions = parity_bytes(p, &positions[i], sizeof positions[i]);
        if (bytes > 0)
            p->ops->decode_blocks(p->dev, p->s, &d);
        else
            decode_parts(p, &d, blocks);
        parity_output(p, i ? "x of the second" : "x", d.x, c, p->dt, 4);
    }
    parity_output(p, "keys", blocks[LAYERS - 1].keys, (int64_t)cache, p->dt, 4);
    parity_output(p, "values", blocks[LAYERS - 1].values, (int64_t)cache, p->dt, 4);
}

/* The same with a head a multiprocessor, all of whose keys are one block's, at a size of its own.
 */
static void op_many_heads(struct parity *p)
{
    const int64_t time = p->time, channels = p->channels, heads = p->heads;
    p->time = 300, p->channels = 1056, p->heads = 132;
    op_decode_blocks(p);
    p->time = time, p->channels = channels, p->heads = heads;
}

/* --- the walk
 * -------------------------------------------------------------------------------------- */

enum { MAX_VARIANTS = 7 };

struct walk {
    const char *name;
    parity_op *run;
    int variants[MAX_VARIANTS]; /* ends with -1, unless full */
    bool vocabulary;            /* large: once per dtype is enough */
};

static const struct walk walks[] = {
    {"gemm",
     op_gemm,
     {0, T_B, BIAS | ACCUMULATE, BIAS | GELU, BIAS | GELU | AUX, T_B | DGELU,
      T_A | ACCUMULATE | BIAS_GRAD | WIDE},
     false},
    {"gemm with the vocabulary", op_gemm_vocabulary, {0, -1}, true},
    {"embed_forward", op_embed_forward, {0, 1, -1}, true},
    {"embed_backward", op_embed_backward, {0, 1, -1}, true},
    {"layernorm_forward", op_layernorm_forward, {0, 1, 2, -1}, false},
    {"layernorm_backward", op_layernorm_backward, {0, 1, 2, 3, -1}, false},
    {"attention_forward", op_attention_forward, {0, -1}, false},
    {"attention_backward", op_attention_backward, {0, 1, -1}, false},
    {"classifier", op_classifier, {0, 1, -1}, true},
    {"token_logprobs", op_token_logprobs, {0, -1}, true},
    {"head_logprobs", op_head_logprobs, {0, 1, -1}, true},
    {"bias_backward", op_bias_backward, {0, -1}, false},
    {"dropout_backward", op_dropout_backward, {0, 1, -1}, false},
    {"reduce_sum", op_reduce_sum, {0, -1}, false},
    {"adamw and step_control", op_optimizer, {0, 1, 2, -1}, false},
    {"cast and accumulate", op_cast, {0, -1}, false},
    {"kv_append and attention_cached", op_decode, {0, 1, -1}, false},
    {"skinny_gemm", op_skinny, {0, 1, 2, -1}, false},
    {"decode_blocks", op_decode_blocks, {0, -1}, false},
    {"one token of many heads", op_many_heads, {0, -1}, true},
    {"gather_rows", op_gather_rows, {0, -1}, false},
    {"sample", op_sample, {0, -1}, true},
    {"find_nonfinite", op_find_nonfinite, {0, -1}, false},
};

struct shape {
    int64_t batch, time, channels, heads;
    float dropout;
};

static const struct shape shapes[] = {
    {1, 1, 80, 1, 0.0f},    {1, 17, 80, 10, 0.1f},  {2, 67, 128, 2, 0.1f},
    {1, 130, 224, 2, 0.0f}, {1, 129, 192, 2, 0.0f}, {3, 64, 256, 2, 0.2f},
    {1, 1023, 80, 1, 0.1f}, {1, 33, 40, 5, 0.0f}, /* fewer columns than a GPU has multiprocessors */
    {1, 300, 192, 3, 0.0f},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void compare_output(const struct output *want, const struct output *got,
                           const struct parity *p, const char *where)
{
    const struct tolerance *t = &tolerances[p->dt];
    double square = 0, difference = 0, rms;
    int64_t bad = 0, first = -1;
    for (int64_t i = 0; i < want->n; i++)
        square += (double)want->values[i] * (double)want->values[i];
    rms = sqrt(square / (double)want->n);
    for (int64_t i = 0; i < want->n; i++) {
        const double w = (double)want->values[i], g = (double)got->values[i];
        if (isinf(w) && w == g)
            continue;
        difference += (w - g) * (w - g);
        if (!(fabs(w - g) <= want->slack * (t->a * rms + t->b * fabs(w)))) {
            first = bad++ == 0 ? i : first;
        }
    }
    difference = sqrt(difference / (double)want->n);
    if (bad > 0)
        tap_fail_(__FILE__, __LINE__, "%s %s: %lld of %lld differ, first [%lld]: cpu %.9g, %s %.9g",
                  where, want->name, (long long)bad, (long long)want->n, (long long)first,
                  (double)want->values[first], p->ops->name, (double)got->values[first]);
    if (want->slack > 0 && !(difference <= want->slack * t->c * rms + 1e-30))
        tap_fail_(__FILE__, __LINE__, "%s %s: rms difference %.3g of rms %.3g", where, want->name,
                  difference, rms);
}

static struct parity run_one(struct device *dev, const struct walk *w, int variant, enum dtype dt,
                             const struct shape *s)
{
    struct parity p = {.dev = dev, .ops = dev->ops, .s = dev->compute, .dt = dt, .batch = s->batch};
    p.time = s->time, p.channels = s->channels, p.heads = s->heads, p.dropout = s->dropout;
    p.vocab = 50257, p.vocab_padded = 50304, p.variant = variant;
    w->run(&p);
    parity_release(&p);
    return p;
}

static void compare_devices(struct device *cpu, struct device *other, const struct walk *w,
                            enum dtype dt)
{
    char where[96];
    for (int i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        if (w->vocabulary && i != 1 && i != 2)
            continue;
        for (int v = 0; v < MAX_VARIANTS && w->variants[v] >= 0; v++) {
            struct parity want = run_one(cpu, w, w->variants[v], dt, s);
            struct parity got = run_one(other, w, w->variants[v], dt, s);
            snprintf(where, sizeof where, "B=%lld T=%lld C=%lld H=%lld variant %d",
                     (long long)s->batch, (long long)s->time, (long long)s->channels,
                     (long long)s->heads, w->variants[v]);
            CHECK_INT(got.count, want.count);
            for (int o = 0; o < want.count; o++)
                compare_output(&want.outputs[o], &got.outputs[o], &got, where);
            fx_free_all();
        }
    }
}

/* part NULL: all; else the operations whose names have it in them. */
static void walk_table(struct device *cpu, struct device *other, const char *part)
{
    static char names[96][96];
    const enum dtype dts[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    int named = 0;
    for (size_t i = 0; i < sizeof walks / sizeof *walks; i++) {
        if (part && !strstr(walks[i].name, part))
            continue;
        for (int d = 0; d < 3; d++) {
            char *name = names[named++ % 96];
            snprintf(name, sizeof *names, "cpu and %s agree: %s, %s", other->ops->name,
                     walks[i].name, dtype_name(dts[d]));
            CASE(name)
            compare_devices(cpu, other, &walks[i], dts[d]);
        }
    }
}

int main(int argc, char **argv)
{
    struct device *cpu = fx_open("cpu");
    int compared = 0;
    for (int i = 0; device_backends[i]; i++) {
        const struct device_ops *ops = device_backends[i];
        const bool wanted = argc > 1 ? strcmp(ops->name, argv[1]) == 0 : ops != cpu->ops;
        if (!wanted || ops->count() <= 0)
            continue;
        struct device *other = fx_open(ops->name);
        walk_table(cpu, other, argc > 2 ? argv[2] : NULL);
        device_close(other);
        compared++;
    }
    if (compared == 0)
        CASE("cpu and another backend agree")
    SKIP("no other backend has a device here");
    device_close(cpu);
    return tap_done();
}
