#include "gpt2/model.h"

#include "base/checked.h"

/* The dropout of one place in the model; p = 0 outside training. */
static struct dropout dropout_at(const struct gpt2_run *run, float p, uint64_t site)
{
    struct dropout d = {
        .p = run->training ? p : 0.0f, .seed = run->seed, .site = site, .samples = run->samples};
    return d;
}

static struct dropout embedding_dropout(const struct gpt2_run *run)
{
    return dropout_at(run, run->config->embd_pdrop, GPT2_SITE_EMBEDDING);
}

struct dropout gpt2_dropout(const struct gpt2_run *run, int64_t layer, enum gpt2_block_site site)
{
    float p = site == GPT2_SITE_ATTENTION ? run->config->attn_pdrop : run->config->resid_pdrop;
    return dropout_at(run, p, 1 + (uint64_t)layer * GPT2_SITES_PER_BLOCK + (uint64_t)site);
}

static const struct dropout no_dropout = {0};

/* Dropout of the delta that block `layer` receives: the one its predecessor's MLP left. */
static struct dropout incoming_dropout(const struct gpt2_run *run, int64_t layer)
{
    return layer == 0 ? no_dropout : gpt2_dropout(run, layer - 1, GPT2_SITE_MLP_OUT);
}

static struct attention attention_of(const struct gpt2_run *run, int64_t layer)
{
    struct attention a = {
        .batch = run->batch,
        .time = run->time,
        .heads = run->config->heads,
        .head_dim = run->config->channels / run->config->heads,
        .dt = run->dt,
        .dropout = gpt2_dropout(run, layer, GPT2_SITE_ATTENTION),
        .deterministic = run->deterministic,
    };
    return a;
}

/* Where in a pass an operation stands; its name and results go to the run's probe. */
struct place {
    const struct gpt2_run *run;
    const char *pass;
    int64_t layer;
};

static void wrote(const struct place *at, const char *operation, const char *what, const void *data,
                  int64_t rows, int64_t columns, enum dtype dt)
{
    const struct gpt2_probe *probe = at->run->probe;
    struct gpt2_written w = {at->pass, at->layer, operation, what, data, rows, columns, dt};
    if (probe && data && rows > 0)
        probe->look(probe->context, &w);
}

/* A result [N,columns] of the working dtype. */
static void wrote_rows(const struct place *at, const char *operation, const char *what,
                       const void *data, int64_t columns)
{
    wrote(at, operation, what, data, at->run->batch * at->run->time, columns, at->run->dt);
}

/* y[N,out] = x[N,in] w[in,out] + b, optionally through GELU keeping the value before it. */
static void linear(const struct place *at, const char *name, void *y, const void *x, const void *w,
                   const void *b, int64_t in, int64_t out, void *gelu_aux)
{
    const struct gpt2_run *run = at->run;
    struct gemm g = {.m = run->batch * run->time,
                     .n = out,
                     .k = in,
                     .a = x,
                     .b = w,
                     .d = y,
                     .dt = run->dt,
                     .out_dt = run->dt,
                     .bias = b,
                     .gelu = gelu_aux != NULL,
                     .gelu_aux = gelu_aux};
    run->dev->ops->gemm(run->dev, run->stream, &g);
    wrote_rows(at, name, "output before GELU", gelu_aux, out);
    wrote_rows(at, name, "output", y, out);
}

/* dx[N,in] = dy[N,out] w^T, times GELU' where dgelu_aux is the value before GELU. */
static void linear_input_grad(const struct place *at, const char *name, void *dx, const void *dy,
                              const void *w, int64_t in, int64_t out, const void *dgelu_aux)
{
    const struct gpt2_run *run = at->run;
    struct gemm g = {.m = run->batch * run->time,
                     .n = in,
                     .k = out,
                     .a = dy,
                     .b = w,
                     .d = dx,
                     .dt = run->dt,
                     .out_dt = run->dt,
                     .transpose_b = true,
                     .dgelu_aux = dgelu_aux};
    run->dev->ops->gemm(run->dev, run->stream, &g);
    wrote_rows(at, name, "input gradient", dx, in);
}

/* dw[in,out] += x^T dy; db[out] += column sums of dy. */
static void linear_weight_grad(const struct place *at, const char *name, float *dw, float *db,
                               const void *x, const void *dy, int64_t in, int64_t out)
{
    const struct gpt2_run *run = at->run;
    struct gemm g = {.m = in,
                     .n = out,
                     .k = run->batch * run->time,
                     .a = x,
                     .b = dy,
                     .d = dw,
                     .dt = run->dt,
                     .out_dt = DTYPE_F32,
                     .transpose_a = true,
                     .accumulate = true,
                     .bias_grad = db};
    run->dev->ops->gemm(run->dev, run->stream, &g);
    wrote(at, name, "weight gradient", dw, in, out, DTYPE_F32);
    wrote(at, name, "bias gradient", db, 1, out, DTYPE_F32);
}

/* y = LN(sum), sum = residual + dropout(delta). */
static void add_norm(const struct place *at, const char *name, void *y, void *sum, float *mean,
                     float *rstd, const void *residual, const void *delta, const void *w,
                     const void *b, struct dropout dropout)
{
    const struct gpt2_run *run = at->run;
    run->dev->ops->layernorm_forward(run->dev, run->stream, y, sum, mean, rstd, residual, delta, w,
                                     b, run->batch, run->time, run->config->channels,
                                     run->config->epsilon, run->dt, dropout);
    wrote_rows(at, name, "input sum", delta ? sum : NULL, run->config->channels);
    wrote_rows(at, name, "output", y, run->config->channels);
}

/* s->dx += gradient through the norm; s->ddelta = its masked copy for the delta that made x. */
static void norm_backward(const struct place *at, const char *name, struct gpt2_scratch *s,
                          float *dw, float *db, const void *x, const float *mean, const float *rstd,
                          const void *w, bool accumulate, struct dropout dropout)
{
    const struct gpt2_run *run = at->run;
    int64_t c = run->config->channels;
    void *ddelta = s->ddelta == s->dx ? NULL : s->ddelta;
    run->dev->ops->layernorm_backward(run->dev, run->stream, s->dx, ddelta, dw, db, s->dc, x, mean,
                                      rstd, w, run->batch, run->time, c, accumulate, run->dt,
                                      dropout, s->workspace, s->workspace_bytes);
    wrote_rows(at, name, "input gradient", s->dx, c);
    wrote(at, name, "weight gradient", dw, 1, c, DTYPE_F32);
    wrote(at, name, "bias gradient", db, 1, c, DTYPE_F32);
}

static void attend(const struct place *at, const struct gpt2_block_acts *a)
{
    const struct gpt2_run *run = at->run;
    struct attention att = attention_of(run, at->layer);
    run->dev->ops->attention_forward(run->dev, run->stream, a->att, a->lse, a->qkv, &att);
    wrote_rows(at, "attention", "output", a->att, run->config->channels);
}

void gpt2_embed_forward(const struct gpt2_run *run, const struct gpt2_tensors *t, const void *unit0,
                        const int32_t *tokens, void *x)
{
    struct place at = {run, "forward", -1};
    run->dev->ops->embed_forward(run->dev, run->stream, x, gpt2_wte(t, unit0, run->dt),
                                 gpt2_wpe(t, unit0, run->dt), tokens, NULL, run->batch, run->time,
                                 run->config->channels, run->dt, embedding_dropout(run));
    wrote_rows(&at, "wte + wpe", "output", x, run->config->channels);
}

void gpt2_block_forward(const struct gpt2_run *run, int64_t layer,
                        const struct gpt2_block_params *p, struct gpt2_block_acts *a,
                        struct gpt2_scratch *s, const void *residual, const void *delta)
{
    int64_t c = run->config->channels;
    struct place at = {run, "forward", layer};

    add_norm(&at, "ln_1", a->ln1, a->x, a->ln1_mean, a->ln1_rstd, residual, delta, p->ln1_w,
             p->ln1_b, incoming_dropout(run, layer));
    linear(&at, "attn.c_attn", a->qkv, a->ln1, p->qkv_w, p->qkv_b, c, 3 * c, NULL);
    attend(&at, a);
    linear(&at, "attn.c_proj", s->delta, a->att, p->proj_w, p->proj_b, c, c, NULL);

    add_norm(&at, "ln_2", a->ln2, a->x_mid, a->ln2_mean, a->ln2_rstd, a->x, s->delta, p->ln2_w,
             p->ln2_b, gpt2_dropout(run, layer, GPT2_SITE_ATTENTION_OUT));
    linear(&at, "mlp.c_fc", a->gelu, a->ln2, p->fc_w, p->fc_b, c, 4 * c, a->fc);
    linear(&at, "mlp.c_proj", s->delta, a->gelu, p->fcproj_w, p->fcproj_b, 4 * c, c, NULL);
}

void gpt2_block_recompute(const struct gpt2_run *run, int64_t layer,
                          const struct gpt2_block_params *p, struct gpt2_block_acts *a,
                          struct gpt2_scratch *s, enum gpt2_keep keep)
{
    int64_t c = run->config->channels;
    struct place at = {run, "recompute", layer};

    if (keep == GPT2_KEEP_ALL)
        return;
    add_norm(&at, "ln_1", a->ln1, NULL, a->ln1_mean, a->ln1_rstd, a->x, NULL, p->ln1_w, p->ln1_b,
             no_dropout);
    linear(&at, "attn.c_attn", a->qkv, a->ln1, p->qkv_w, p->qkv_b, c, 3 * c, NULL);
    attend(&at, a);
    if (keep == GPT2_KEEP_INPUT) { /* x_mid is gone too */
        linear(&at, "attn.c_proj", s->delta, a->att, p->proj_w, p->proj_b, c, c, NULL);
        add_norm(&at, "ln_2", a->ln2, a->x_mid, a->ln2_mean, a->ln2_rstd, a->x, s->delta, p->ln2_w,
                 p->ln2_b, gpt2_dropout(run, layer, GPT2_SITE_ATTENTION_OUT));
    } else {
        add_norm(&at, "ln_2", a->ln2, NULL, a->ln2_mean, a->ln2_rstd, a->x_mid, NULL, p->ln2_w,
                 p->ln2_b, no_dropout);
    }
    linear(&at, "mlp.c_fc", a->gelu, a->ln2, p->fc_w, p->fc_b, c, 4 * c, a->fc);
}

void gpt2_block_backward(const struct gpt2_run *run, int64_t layer,
                         const struct gpt2_block_params *p, const struct gpt2_block_grads *g,
                         struct gpt2_block_acts *a, struct gpt2_scratch *s)
{
    int64_t c = run->config->channels;
    struct attention att = attention_of(run, layer);
    struct place at = {run, "backward", layer};

    /* MLP: s->ddelta is the gradient of its output. */
    linear_input_grad(&at, "mlp.c_proj", s->dwide, s->ddelta, p->fcproj_w, 4 * c, c, a->fc);
    linear_weight_grad(&at, "mlp.c_proj", g->fcproj_w, g->fcproj_b, a->gelu, s->ddelta, 4 * c, c);
    linear_input_grad(&at, "mlp.c_fc", s->dc, s->dwide, p->fc_w, c, 4 * c, NULL);
    linear_weight_grad(&at, "mlp.c_fc", g->fc_w, g->fc_b, a->ln2, s->dwide, c, 4 * c);
    norm_backward(&at, "ln_2", s, g->ln2_w, g->ln2_b, a->x_mid, a->ln2_mean, a->ln2_rstd, p->ln2_w,
                  true, gpt2_dropout(run, layer, GPT2_SITE_ATTENTION_OUT));

    /* Attention. */
    linear_weight_grad(&at, "attn.c_proj", g->proj_w, g->proj_b, a->att, s->ddelta, c, c);
    linear_input_grad(&at, "attn.c_proj", s->dc, s->ddelta, p->proj_w, c, c, NULL);
    run->dev->ops->attention_backward(run->dev, run->stream, s->dwide, s->dc, a->qkv, a->att,
                                      a->lse, &att, s->workspace, s->workspace_bytes);
    wrote_rows(&at, "attention", "input gradient", s->dwide, 3 * c);
    linear_input_grad(&at, "attn.c_attn", s->dc, s->dwide, p->qkv_w, c, 3 * c, NULL);
    linear_weight_grad(&at, "attn.c_attn", g->qkv_w, g->qkv_b, a->ln1, s->dwide, c, 3 * c);
    norm_backward(&at, "ln_1", s, g->ln1_w, g->ln1_b, a->x, a->ln1_mean, a->ln1_rstd, p->ln1_w,
                  true, incoming_dropout(run, layer));
}

void gpt2_logits(const struct gpt2_run *run, const void *wte, const void *y, int64_t rows,
                 void *logits)
{
    struct gemm g = {.m = rows,
                     .n = gpt2_vocab_padded(run->config),
                     .k = run->config->channels,
                     .a = y,
                     .b = wte,
                     .d = logits,
                     .dt = run->dt,
                     .out_dt = run->dt,
                     .transpose_b = true};
    run->dev->ops->gemm(run->dev, run->stream, &g);
}

/* dy rows = d(logits) wte; d_wte += d(logits)^T y, for one chunk of rows. */
static void head_chunk_backward(const struct gpt2_run *run, const struct gpt2_head *h,
                                const char *y, char *dy, int64_t rows)
{
    struct place at = {run, "backward", run->config->layers};
    int64_t c = run->config->channels, vp = gpt2_vocab_padded(run->config);
    struct gemm input = {.m = rows,
                         .n = c,
                         .k = vp,
                         .a = h->logits,
                         .b = h->wte,
                         .d = dy,
                         .dt = run->dt,
                         .out_dt = run->dt};
    struct gemm weight = {.m = vp,
                          .n = c,
                          .k = rows,
                          .a = h->logits,
                          .b = y,
                          .d = h->d_wte,
                          .dt = run->dt,
                          .out_dt = DTYPE_F32,
                          .transpose_a = true,
                          .accumulate = true};
    wrote(&at, "cross-entropy", "logits' gradient", h->logits, rows, vp, run->dt);
    run->dev->ops->gemm(run->dev, run->stream, &input);
    wrote(&at, "lm_head", "input gradient", dy, rows, c, run->dt);
    run->dev->ops->gemm(run->dev, run->stream, &weight);
    wrote(&at, "lm_head", "weight gradient", h->d_wte, vp, c, DTYPE_F32);
}

void gpt2_head_run(const struct gpt2_run *run, const struct gpt2_head *h, struct gpt2_scratch *s,
                   const void *residual, const void *delta, float grad_scale)
{
    const struct gpt2_config *config = run->config;
    int64_t rows = run->batch * run->time;
    int64_t row_bytes = config->channels * (int64_t)dtype_bytes(run->dt);
    struct dropout incoming = gpt2_dropout(run, config->layers - 1, GPT2_SITE_MLP_OUT);
    struct place at = {run, "forward", config->layers};
    struct place back = {run, "backward", config->layers};

    add_norm(&at, "ln_f", h->y, h->x, h->mean, h->rstd, residual, delta, h->lnf_w, h->lnf_b,
             incoming);
    for (int64_t first = 0; first < rows; first += h->chunk_rows) {
        int64_t n = min_i64(h->chunk_rows, rows - first);
        const char *y = (const char *)h->y + first * row_bytes;
        gpt2_logits(run, h->wte, y, n, h->logits);
        wrote(&at, "lm_head", "logits", h->logits, n, gpt2_vocab_padded(config), run->dt);
        run->dev->ops->classifier(run->dev, run->stream, h->logits, h->losses + first,
                                  h->targets + first, n, config->vocab, gpt2_vocab_padded(config),
                                  h->d_wte ? grad_scale : 0.0f, run->dt);
        wrote(&at, "cross-entropy", "loss", h->losses + first, n, 1, DTYPE_F32);
        if (h->d_wte)
            head_chunk_backward(run, h, y, (char *)s->dc + first * row_bytes, n);
    }
    if (h->d_wte)
        norm_backward(&back, "ln_f", s, h->d_lnf_w, h->d_lnf_b, h->x, h->mean, h->rstd, h->lnf_w,
                      false, incoming);
}

void gpt2_embed_backward(const struct gpt2_run *run, const struct gpt2_tensors *t,
                         float *unit0_grad, const int32_t *tokens, struct gpt2_scratch *s)
{
    struct place at = {run, "backward", -1};
    int64_t c = run->config->channels;
    float *d_wte = (float *)gpt2_wte(t, unit0_grad, DTYPE_F32);
    float *d_wpe = (float *)gpt2_wpe(t, unit0_grad, DTYPE_F32);
    run->dev->ops->embed_backward(run->dev, run->stream, d_wte, d_wpe, s->dx, tokens, run->batch,
                                  run->time, run->config->channels, gpt2_vocab_padded(run->config),
                                  run->dt, embedding_dropout(run), s->workspace,
                                  s->workspace_bytes);
    wrote(&at, "wte", "weight gradient", d_wte, run->config->vocab, c, DTYPE_F32);
    wrote(&at, "wpe", "weight gradient", d_wpe, run->time, c, DTYPE_F32);
}
