#include "sdp/pass.h"

#include "base/checked.h"

/* Units gathered ahead of the one in use, when the ring has room. */
#define PREFETCH_UNITS 2

/* A block's memory for bind: its own unit, and the last one, where small tensors stay. */
struct block_memory {
    const struct sdp_engine *x;
    int64_t layer;
    const void *unit, *small;
    size_t elem_bytes;
};

static void *place_tensor(const void *context, int64_t tensor)
{
    const struct block_memory *m = context;
    const struct sdp_layout *l = &m->x->layout;
    const char *base = l->tensor_unit[tensor] == m->layer + 1 ? m->unit : m->small;
    return (char *)base + (size_t)l->tensor_offset[tensor] * m->elem_bytes;
}

static void bind_params(const struct sdp_engine *x, int64_t layer, const void *unit,
                        const void *small, struct gpt2_block_params *p)
{
    struct block_memory m = {x, layer, unit, small, dtype_bytes(x->config.dt)};
    gpt2_bind_block(&x->tensors, layer, place_tensor, &m, p);
}

static void bind_grads(const struct sdp_engine *x, int64_t layer, float *unit, float *small,
                       struct gpt2_block_grads *g)
{
    struct block_memory m = {x, layer, unit, small, sizeof(float)};
    gpt2_bind_block_grads(&x->tensors, layer, place_tensor, &m, g);
}

/* What a pass holds from its start to its end. */
struct pass {
    struct sdp_engine *x;
    struct sdp_work *w;
    int64_t layers, last_unit;
    const void *unit0, *small; /* held weights */
    float *grad0, *grad_small; /* held gradients; NULL in validation */
};

static void upload(struct pass *p, const struct sdp_batch *b, struct event *uploaded)
{
    struct sdp_engine *x = p->x;
    const struct gpt2_run *r = &p->w->run;
    size_t rows = (size_t)(r->batch * r->time);
    x->dev->ops->copy(x->dev, r->stream, p->w->tokens, b->tokens, rows * sizeof *b->tokens);
    x->dev->ops->copy(x->dev, r->stream, p->w->targets, b->targets, rows * sizeof *b->targets);
    x->dev->ops->copy(x->dev, r->stream, p->w->samples, b->samples,
                      (size_t)r->batch * sizeof *b->samples);
    x->dev->ops->event_record(x->dev, uploaded, r->stream);
}

/* Blocks [first, end) forward; the first takes its input from acts.x when fresh, else from the pair
 * that block first - 1 left. */
static void forward_blocks(struct pass *p, int64_t first, int64_t end, bool fresh)
{
    struct sdp_engine *x = p->x;
    struct gpt2_block_acts a = {0};
    const void *residual = NULL;
    int64_t ahead = min_i64(PREFETCH_UNITS, x->units.count - 1);
    x->units.forward = true;
    for (int64_t l = first; l < end; l++) {
        struct gpt2_block_params params;
        const void *unit = sdp_units_acquire(x, l + 1);
        for (int64_t next = l + 2; next <= min_i64(end, l + 1 + ahead); next++)
            sdp_units_prefetch(x, next);
        if (p->w->training)
            sdp_nonfinite_weights(x, l + 1, unit);
        bind_params(x, l, unit, p->small, &params);
        sdp_work_acts(x, p->w, l, &a);
        if (fresh && l == first)
            gpt2_block_forward(&p->w->run, l, &params, &a, &p->w->scratch, a.x, NULL);
        else
            gpt2_block_forward(&p->w->run, l, &params, &a, &p->w->scratch, residual,
                               p->w->scratch.delta);
        residual = a.x_mid;
        sdp_units_release(x, l + 1);
        bool ends_item = (l + 1) % p->w->saver.group == 0 || l + 1 == p->layers;
        if (ends_item && p->w->training && first == 0 && end == p->layers) {
            sdp_work_end_item(x, p->w, l / p->w->saver.group);
            if (l + 1 < p->layers)
                sdp_work_begin_item(x, p->w, l / p->w->saver.group + 1);
        }
    }
}

static void forward(struct pass *p)
{
    struct sdp_engine *x = p->x;
    struct gpt2_block_acts a;
    sdp_units_prefetch(x, 0);
    sdp_units_prefetch(x, p->last_unit);
    sdp_units_prefetch(x, 1);
    p->unit0 = sdp_units_acquire(x, 0);
    p->small = sdp_units_acquire(x, p->last_unit);
    if (p->w->training) {
        sdp_nonfinite_weights(x, 0, p->unit0);
        sdp_nonfinite_weights(x, p->last_unit, p->small);
    }
    sdp_work_acts(x, p->w, 0, &a);
    gpt2_embed_forward(&p->w->run, &x->tensors, p->unit0, p->w->tokens, a.x);
    forward_blocks(p, 0, p->layers, true);
}

/* Loss, and with gradients bound the gradient of the last block's output. */
static void head(struct pass *p, float grad_scale, bool first)
{
    struct sdp_engine *x = p->x;
    struct gpt2_head *h = &p->w->head;
    const int64_t *offset = x->layout.tensor_offset;
    int64_t lnf_w = x->tensors.count - 2, lnf_b = x->tensors.count - 1;
    size_t b = dtype_bytes(x->config.dt);
    struct gpt2_block_acts a;
    h->wte = gpt2_wte(&x->tensors, p->unit0, x->config.dt);
    h->lnf_w = (const char *)p->small + (size_t)offset[lnf_w] * b;
    h->lnf_b = (const char *)p->small + (size_t)offset[lnf_b] * b;
    h->d_wte = p->grad0 ? (float *)gpt2_wte(&x->tensors, p->grad0, DTYPE_F32) : NULL;
    h->d_lnf_w = p->grad_small ? p->grad_small + offset[lnf_w] : NULL;
    h->d_lnf_b = p->grad_small ? p->grad_small + offset[lnf_b] : NULL;
    sdp_work_acts(x, p->w, p->layers - 1, &a);
    gpt2_head_run(&p->w->run, h, &p->w->scratch, a.x_mid, p->w->scratch.delta, grad_scale);
    x->dev->ops->reduce_sum(x->dev, p->w->run.stream, &x->scalars.sums[SDP_SUM_LOSS], h->losses,
                            p->w->run.batch * p->w->run.time, false, !first);
}

static void backward_block(struct pass *p, int64_t l, bool first, bool last)
{
    struct sdp_engine *x = p->x;
    struct sdp_work *w = p->w;
    struct gpt2_block_params params;
    struct gpt2_block_grads grads;
    struct gpt2_block_acts a;
    const void *unit = sdp_units_acquire(x, l + 1);
    int64_t ahead = min_i64(PREFETCH_UNITS, x->units.count - 1);
    for (int64_t next = l; next >= 1 && next >= l + 1 - ahead; next--)
        sdp_units_prefetch(x, next);
    float *grad = sdp_grads_begin(x, l + 1, first);
    bind_params(x, l, unit, p->small, &params);
    bind_grads(x, l, grad, p->grad_small, &grads);
    sdp_work_acts(x, w, l, &a);
    /* What the last block's forward left in the shared piece is still there. */
    if (w->saver.group == 1 && l + 1 < p->layers)
        gpt2_block_recompute(&w->run, l, &params, &a, &w->scratch, w->saver.keep);
    gpt2_block_backward(&w->run, l, &params, &grads, &a, &w->scratch);
    sdp_grads_end(x, l + 1, grad, first, last);
    sdp_units_release(x, l + 1);
}

static void backward(struct pass *p, bool first, bool last)
{
    struct sdp_engine *x = p->x;
    struct sdp_work *w = p->w;
    for (int64_t item = w->items - 1; item >= 0; item--) {
        int64_t begin = item * w->saver.group;
        int64_t end = min_i64(begin + w->saver.group, p->layers);
        sdp_work_fetch(x, w, item);
        if (w->saver.group > 1 && item + 1 < w->items)
            forward_blocks(p, begin, end, true);
        x->units.forward = false;
        for (int64_t l = end - 1; l >= begin; l--)
            backward_block(p, l, first, last);
        sdp_work_drop(x, w, item);
    }
    sdp_grads_end(x, p->last_unit, p->grad_small, first, last);
    gpt2_embed_backward(&w->run, &x->tensors, p->grad0, w->tokens, &w->scratch);
    sdp_grads_end(x, 0, p->grad0, first, last);
}

static void finish(struct pass *p)
{
    sdp_units_release(p->x, 0);
    sdp_units_release(p->x, p->last_unit);
}

void sdp_pass_train(struct sdp_engine *x, const struct sdp_batch *batch, float grad_scale,
                    bool first, bool last, struct event *uploaded)
{
    struct pass p = {
        .x = x, .w = &x->train, .layers = x->config.model.layers, .last_unit = x->layout.units - 1};
    upload(&p, batch, uploaded);
    forward(&p);
    p.grad0 = sdp_grads_begin(x, 0, first);
    p.grad_small = sdp_grads_begin(x, p.last_unit, first);
    head(&p, grad_scale, first);
    backward(&p, first, last);
    finish(&p);
}

void sdp_pass_eval(struct sdp_engine *x, const struct sdp_batch *batch, bool first,
                   struct event *uploaded)
{
    struct pass p = {
        .x = x, .w = &x->eval, .layers = x->config.model.layers, .last_unit = x->layout.units - 1};
    upload(&p, batch, uploaded);
    forward(&p);
    head(&p, 0.0f, first);
    finish(&p);
}
