#include "gpt2/decode_pass.h"

#include "base/checked.h"
#include "gpt2/carve.h"

#include <stdlib.h>

enum { HEAD_ROWS = 128 }; /* from so many on log-probabilities are faster without logits */

static const struct dropout no_dropout = {0};

static void carve_io(struct gpt2_pass *p, struct carver *v, struct gpt2_pass_io *io)
{
    int64_t word = (int64_t)sizeof(int32_t);
    io->tokens = carve(v, p->max_rows * word);
    io->positions = carve(v, p->max_rows * word);
    io->sequences = carve(v, p->max_rows * word);
    io->select = carve(v, p->max_queries * word);
    io->targets = carve(v, p->max_queries * word);
    io->sampling = carve(v, p->max_queries * (int64_t)sizeof *io->sampling);
    p->input_bytes = v->used;
    p->output_offset = v->used;
    io->ids = carve(v, p->max_queries * word);
    io->logprobs = carve(v, p->max_queries * word);
    p->output_bytes = v->used - p->output_offset;
}

static void carve_work(struct gpt2_pass *p, struct carver *v)
{
    const struct gpt2_config *c = &p->w->config;
    int64_t row = c->channels * (int64_t)dtype_bytes(p->w->dt);
    p->x = carve(v, p->max_rows * row);
    p->delta = carve(v, p->max_rows * row);
    p->y = carve(v, p->max_rows * row);
    p->qkv = carve(v, p->max_rows * row * 3);
    p->att = carve(v, p->max_rows * row);
    p->gelu = carve(v, p->max_rows * row * 4);
    p->lse = carve(v, p->max_rows * c->heads * (int64_t)sizeof(float));
    p->selected = carve(v, p->logit_rows * row);
    p->logits = carve(v, p->logit_rows * gpt2_vocab_padded(c) * (int64_t)sizeof(float));
}

static enum status allocate(struct gpt2_pass *p, struct error *e)
{
    const struct device_ops *ops = p->dev->ops;
    struct carver work = {0}, io = {0};
    carve_work(p, &work);
    carve_io(p, &io, &p->host);
    TRY(ops->alloc(p->dev, MEMORY_DEVICE, (size_t)work.used, &p->memory, e));
    TRY(ops->alloc(p->dev, MEMORY_DEVICE, (size_t)io.used, &p->io_memory, e));
    TRY(ops->alloc(p->dev, MEMORY_HOST, (size_t)io.used, &p->host_memory, e));
    TRY(ops->alloc(p->dev, MEMORY_HOST, (size_t)io.used, &p->other_memory, e));
    for (int i = 0; i < 2; i++)
        TRY(ops->event_create(p->dev, &p->done[i], e));
    work = (struct carver){p->memory, 0};
    carve_work(p, &work);
    io = (struct carver){p->host_memory, 0};
    carve_io(p, &io, &p->host);
    io = (struct carver){p->other_memory, 0};
    carve_io(p, &io, &p->other_host);
    io = (struct carver){p->io_memory, 0};
    carve_io(p, &io, &p->device);
    return STATUS_OK;
}

enum status gpt2_pass_create(struct gpt2_pass **out, const struct gpt2_weights *w, int64_t max_rows,
                             int64_t max_queries, int64_t logit_rows, struct error *e)
{
    struct gpt2_pass *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return error_memory(e, sizeof *p, "a forward pass");
    p->w = w;
    p->dev = w->dev;
    p->stream = w->dev->compute;
    p->max_rows = max_rows;
    p->max_queries = max_queries;
    p->logit_rows = logit_rows;
    enum status st = allocate(p, e);
    if (st != STATUS_OK) {
        gpt2_pass_free(p);
        return st;
    }
    *out = p;
    return STATUS_OK;
}

void gpt2_pass_free(struct gpt2_pass *p)
{
    if (!p)
        return;
    const struct device_ops *ops = p->dev->ops;
    struct error ignored;
    (void)!ops->stream_sync(p->dev, p->stream, &ignored); /* a pass in vain uses what is freed */
    for (int i = 0; i < 2; i++)
        if (p->done[i])
            ops->event_free(p->dev, p->done[i]);
    if (p->memory)
        ops->free(p->dev, MEMORY_DEVICE, p->memory);
    if (p->head_memory)
        ops->free(p->dev, MEMORY_DEVICE, p->head_memory);
    if (p->io_memory)
        ops->free(p->dev, MEMORY_DEVICE, p->io_memory);
    if (p->host_memory)
        ops->free(p->dev, MEMORY_HOST, p->host_memory);
    if (p->other_memory)
        ops->free(p->dev, MEMORY_HOST, p->other_memory);
    free(p);
}

void gpt2_pass_turn(struct gpt2_pass *p)
{
    struct gpt2_pass_io io = p->host;
    void *memory = p->host_memory;
    p->host = p->other_host, p->host_memory = p->other_memory;
    p->other_host = io, p->other_memory = memory;
    p->side = !p->side;
}

void gpt2_pass_chain(struct gpt2_pass *p, int64_t rows)
{
    p->dev->ops->copy(p->dev, p->stream, p->device.tokens, p->device.ids,
                      (size_t)rows * sizeof *p->device.tokens);
}

void gpt2_pass_upload(struct gpt2_pass *p)
{
    p->dev->ops->copy(p->dev, p->stream, p->io_memory, p->host_memory, (size_t)p->input_bytes);
}

void gpt2_pass_download(struct gpt2_pass *p)
{
    p->dev->ops->copy(p->dev, p->stream, (char *)p->host_memory + p->output_offset,
                      (char *)p->io_memory + p->output_offset, (size_t)p->output_bytes);
}

void gpt2_pass_mark(struct gpt2_pass *p)
{
    p->dev->ops->event_record(p->dev, p->done[p->side], p->stream);
}

enum status gpt2_pass_wait(struct gpt2_pass *p, int side, struct error *e)
{
    return p->dev->ops->event_sync(p->dev, p->done[side], e);
}

/* y[rows,out] = x[rows,in] w[in,out] + b, through GELU when asked. */
static void linear(struct gpt2_pass *p, int64_t rows, void *y, const void *x, const void *w,
                   const void *b, int64_t in, int64_t out, bool gelu)
{
    struct gemm g = {.m = rows,
                     .n = out,
                     .k = in,
                     .a = x,
                     .b = w,
                     .d = y,
                     .dt = p->w->dt,
                     .out_dt = p->w->dt,
                     .bias = b,
                     .gelu = gelu};
    p->dev->ops->gemm(p->dev, p->stream, &g);
}

/* x += delta (NULL for none), y = LN(x). */
static void add_norm(struct gpt2_pass *p, int64_t rows, const void *delta, const void *w,
                     const void *b)
{
    const struct gpt2_config *c = &p->w->config;
    p->dev->ops->layernorm_forward(p->dev, p->stream, p->y, p->x, NULL, NULL, p->x, delta, w, b, 1,
                                   rows, c->channels, c->epsilon, p->w->dt, no_dropout);
}

static bool has_skinny(const struct gpt2_pass *p, int64_t rows)
{
    return rows <= p->dev->skinny_rows;
}

/* The product of few rows with what all of them here have in common. */
static struct skinny_gemm skinny(const struct gpt2_pass *p, int64_t rows, const void *x,
                                 const void *w, const void *bias, int64_t k, int64_t n)
{
    return (struct skinny_gemm){.rows = rows,
                                .k = k,
                                .n = n,
                                .x = x,
                                .epsilon = p->w->config.epsilon,
                                .w = w,
                                .bias = bias,
                                .dt = p->w->dt,
                                .out_dt = p->w->dt};
}

/* A block in five launches: the norms and residual sums belong to the products. */
static void skinny_block(struct gpt2_pass *p, int64_t rows, int64_t layer, gpt2_attend *attend,
                         void *arg)
{
    const struct device_ops *ops = p->dev->ops;
    const struct gpt2_block_params *b = &p->w->blocks[layer];
    int64_t c = p->w->config.channels;
    struct skinny_gemm qkv = skinny(p, rows, p->x, b->qkv_w, b->qkv_b, c, 3 * c);
    struct skinny_gemm proj = skinny(p, rows, p->att, b->proj_w, b->proj_b, c, c);
    struct skinny_gemm fc = skinny(p, rows, p->x, b->fc_w, b->fc_b, c, 4 * c);
    struct skinny_gemm fcproj = skinny(p, rows, p->gelu, b->fcproj_w, b->fcproj_b, 4 * c, c);
    qkv.norm_w = b->ln1_w, qkv.norm_b = b->ln1_b, qkv.y = p->qkv;
    fc.norm_w = b->ln2_w, fc.norm_b = b->ln2_b, fc.y = p->gelu, fc.gelu = true;
    proj.y = fcproj.y = p->x;
    proj.residual = fcproj.residual = p->x;
    ops->skinny_gemm(p->dev, p->stream, &qkv);
    attend(arg, p, layer, p->att, p->qkv);
    ops->skinny_gemm(p->dev, p->stream, &proj);
    ops->skinny_gemm(p->dev, p->stream, &fc);
    ops->skinny_gemm(p->dev, p->stream, &fcproj);
}

static void block(struct gpt2_pass *p, int64_t rows, int64_t layer, gpt2_attend *attend, void *arg)
{
    const struct gpt2_block_params *b = &p->w->blocks[layer];
    int64_t c = p->w->config.channels;
    add_norm(p, rows, layer == 0 ? NULL : p->delta, b->ln1_w, b->ln1_b);
    linear(p, rows, p->qkv, p->y, b->qkv_w, b->qkv_b, c, 3 * c, false);
    attend(arg, p, layer, p->att, p->qkv);
    linear(p, rows, p->delta, p->att, b->proj_w, b->proj_b, c, c, false);
    add_norm(p, rows, p->delta, b->ln2_w, b->ln2_b);
    linear(p, rows, p->gelu, p->y, b->fc_w, b->fc_b, c, 4 * c, true);
    linear(p, rows, p->delta, p->gelu, b->fcproj_w, b->fcproj_b, 4 * c, c, false);
}

void gpt2_pass_set_resident(struct gpt2_pass *p, const struct decode_blocks *d)
{
    p->resident = *d;
    p->resident.x = p->x;
    p->resident.sequences = p->device.sequences;
    p->resident.positions = p->device.positions;
}

void gpt2_pass_body(struct gpt2_pass *p, int64_t rows, gpt2_attend *attend, void *arg)
{
    const struct gpt2_weights *w = p->w;
    p->skinny = has_skinny(p, rows);
    p->dev->ops->embed_forward(p->dev, p->stream, p->x, w->wte, w->wpe, p->device.tokens,
                               p->device.positions, 1, rows, w->config.channels, w->dt, no_dropout);
    if (rows == 1 && p->resident.blocks) {
        p->dev->ops->decode_blocks(p->dev, p->stream, &p->resident);
        return;
    }
    for (int64_t l = 0; l < w->config.layers; l++)
        (p->skinny ? skinny_block : block)(p, rows, l, attend, arg);
    if (!p->skinny)
        add_norm(p, rows, p->delta, w->lnf_w, w->lnf_b);
}

/* Logits of at most skinny_rows queries into row `at`. */
static void skinny_logits(struct gpt2_pass *p, int64_t first, int64_t at, int64_t n)
{
    const struct gpt2_weights *w = p->w;
    int64_t padded = gpt2_vocab_padded(&w->config);
    struct skinny_gemm g =
        skinny(p, n, p->skinny ? p->x : p->y, w->wte, NULL, w->config.channels, w->wte_rows);
    if (p->skinny)
        g.norm_w = w->lnf_w, g.norm_b = w->lnf_b;
    g.select = p->device.select + first + at;
    g.transpose_w = true;
    g.y = p->logits + at * padded;
    g.ldy = padded;
    g.out_dt = DTYPE_F32;
    p->dev->ops->skinny_gemm(p->dev, p->stream, &g);
}

/* to [n,C] = the rows of queries first .. first+n-1, behind the final norm. */
static void select_rows(struct gpt2_pass *p, void *to, int64_t first, int64_t n)
{
    p->dev->ops->gather_rows(p->dev, p->stream, to, p->y, p->device.select + first, n,
                             p->w->config.channels, p->w->dt);
}

void gpt2_pass_logits(struct gpt2_pass *p, int64_t first, int64_t n)
{
    const struct gpt2_weights *w = p->w;
    if (p->skinny || has_skinny(p, n)) {
        for (int64_t at = 0; at < n; at += p->dev->skinny_rows)
            skinny_logits(p, first, at, min_i64(n - at, p->dev->skinny_rows));
        return;
    }
    select_rows(p, p->selected, first, n);
    struct gemm g = {.m = n,
                     .n = w->wte_rows,
                     .k = w->config.channels,
                     .a = p->selected,
                     .b = w->wte,
                     .d = p->logits,
                     .dt = w->dt,
                     .out_dt = DTYPE_F32,
                     .transpose_b = true,
                     .ldd = gpt2_vocab_padded(&w->config)};
    p->dev->ops->gemm(p->dev, p->stream, &g);
}

/* Where head_memory has the rows of queries, and behind them the workspace. */
static size_t selected_bytes(const struct gpt2_pass *p)
{
    size_t row = (size_t)p->w->config.channels * dtype_bytes(p->w->dt);
    return (row * (size_t)p->max_queries + 255) / 256 * 256;
}

enum status gpt2_pass_keep_no_logits(struct gpt2_pass *p, struct error *e)
{
    const struct gpt2_config *c = &p->w->config;
    const struct device_ops *ops = p->dev->ops;
    size_t workspace = 0;
    if (ops->head_logprobs)
        workspace =
            ops->head_logprobs_workspace(p->dev, p->max_queries, c->channels, c->vocab, p->w->dt);
    if (workspace == 0)
        return STATUS_OK;
    return ops->alloc(p->dev, MEMORY_DEVICE, selected_bytes(p) + workspace, &p->head_memory, e);
}

void gpt2_pass_logprobs(struct gpt2_pass *p, int64_t n)
{
    const struct gpt2_config *c = &p->w->config;
    const struct device_ops *ops = p->dev->ops;
    if (p->head_memory && n >= HEAD_ROWS && !p->skinny) {
        select_rows(p, p->head_memory, 0, n);
        ops->head_logprobs(p->dev, p->stream, p->device.logprobs, p->head_memory, p->w->wte,
                           p->device.targets, n, c->channels, c->vocab, p->w->dt,
                           (char *)p->head_memory + selected_bytes(p));
        return;
    }
    for (int64_t first = 0; first < n; first += p->logit_rows) {
        int64_t rows = min_i64(p->logit_rows, n - first);
        gpt2_pass_logits(p, first, rows);
        ops->token_logprobs(p->dev, p->stream, p->device.logprobs + first, p->logits,
                            p->device.targets + first, rows, c->vocab, gpt2_vocab_padded(c),
                            DTYPE_F32);
    }
}
