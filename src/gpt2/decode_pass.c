#include "gpt2/decode_pass.h"

#include "base/checked.h"
#include "gpt2/carve.h"

#include <stdlib.h>

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
    p->fc = carve(v, p->max_rows * row * 4);
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
    work = (struct carver){p->memory, 0};
    carve_work(p, &work);
    io = (struct carver){p->host_memory, 0};
    carve_io(p, &io, &p->host);
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
    if (p->memory)
        ops->free(p->dev, MEMORY_DEVICE, p->memory);
    if (p->io_memory)
        ops->free(p->dev, MEMORY_DEVICE, p->io_memory);
    if (p->host_memory)
        ops->free(p->dev, MEMORY_HOST, p->host_memory);
    free(p);
}

void gpt2_pass_upload(struct gpt2_pass *p)
{
    p->dev->ops->copy(p->dev, p->stream, p->io_memory, p->host_memory, (size_t)p->input_bytes);
}

enum status gpt2_pass_download(struct gpt2_pass *p, struct error *e)
{
    p->dev->ops->copy(p->dev, p->stream, (char *)p->host_memory + p->output_offset,
                      (char *)p->io_memory + p->output_offset, (size_t)p->output_bytes);
    return p->dev->ops->stream_sync(p->dev, p->stream, e);
}

/* y[rows,out] = x[rows,in] w[in,out] + b, through GELU when aux holds the value before it. */
static void linear(struct gpt2_pass *p, int64_t rows, void *y, const void *x, const void *w,
                   const void *b, int64_t in, int64_t out, void *aux)
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
                     .gelu_aux = aux};
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

void gpt2_pass_body(struct gpt2_pass *p, int64_t rows, gpt2_attend *attend, void *arg)
{
    const struct gpt2_weights *w = p->w;
    int64_t c = w->config.channels;
    p->dev->ops->embed_forward(p->dev, p->stream, p->x, w->wte, w->wpe, p->device.tokens,
                               p->device.positions, 1, rows, c, w->dt, no_dropout);
    for (int64_t l = 0; l < w->config.layers; l++) {
        const struct gpt2_block_params *b = &w->blocks[l];
        add_norm(p, rows, l == 0 ? NULL : p->delta, b->ln1_w, b->ln1_b);
        linear(p, rows, p->qkv, p->y, b->qkv_w, b->qkv_b, c, 3 * c, NULL);
        attend(arg, p, l, p->att, p->qkv);
        linear(p, rows, p->delta, p->att, b->proj_w, b->proj_b, c, c, NULL);
        add_norm(p, rows, p->delta, b->ln2_w, b->ln2_b);
        linear(p, rows, p->gelu, p->y, b->fc_w, b->fc_b, c, 4 * c, p->fc);
        linear(p, rows, p->delta, p->gelu, b->fcproj_w, b->fcproj_b, 4 * c, c, NULL);
    }
    add_norm(p, rows, p->delta, w->lnf_w, w->lnf_b);
}

void gpt2_pass_logits(struct gpt2_pass *p, int64_t first, int64_t n)
{
    const struct gpt2_weights *w = p->w;
    p->dev->ops->gather_rows(p->dev, p->stream, p->selected, p->y, p->device.select + first, n,
                             w->config.channels, w->dt);
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
