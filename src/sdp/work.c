#include "sdp/work.h"

#include "base/checked.h"
#include "sdp/engine.h"

#include <stdlib.h>

static int64_t item_of(const struct sdp_work *w, int64_t layer)
{
    return layer / w->saver.group;
}

/* Bytes of one kept item and of the shared piece. */
static void size_items(const struct gpt2_config *c, const struct gpt2_run *r, struct sdp_work *w,
                       int64_t *shared)
{
    int64_t none;
    gpt2_block_acts_bytes(c, r->batch, r->time, r->dt, GPT2_KEEP_ALL, &w->full_bytes, &none);
    w->full_bytes = round_up_i64(w->full_bytes, SDP_ARENA_ALIGN);
    if (w->saver.group > 1) {
        w->item_bytes = r->batch * r->time * c->channels * (int64_t)dtype_bytes(r->dt);
        *shared = w->saver.group * w->full_bytes;
    } else {
        gpt2_block_acts_bytes(c, r->batch, r->time, r->dt, w->saver.keep, &w->item_bytes, shared);
    }
    w->item_bytes = round_up_i64(w->item_bytes, SDP_ARENA_ALIGN);
}

static void choose_shape(struct sdp_engine *x, struct sdp_work *w, bool training)
{
    const struct sdp_config *c = &x->config;
    w->training = training;
    w->run = (struct gpt2_run){.dev = x->dev,
                               .stream = x->dev->compute,
                               .config = &c->model,
                               .batch = training ? c->batch : c->eval_batch,
                               .time = training ? c->time : c->eval_time,
                               .dt = c->dt,
                               .training = training,
                               .deterministic = c->deterministic,
                               .seed = c->seed};
    w->saver = c->saver;
    if (!training) /* a forward pass needs one block at a time */
        w->saver = (struct sdp_saver){.keep = GPT2_KEEP_INPUT, .group = 1};
    w->items = ceil_div_i64(c->model.layers, w->saver.group);
    w->slot_count = training ? w->items : 1;
    if (w->saver.offload)
        w->slot_count = min_i64(w->items, max_i64(w->saver.horizon, 1) + 1);
}

static bool residual_dropout(const struct sdp_config *c)
{
    return c->model.resid_pdrop > 0;
}

void sdp_work_lay_out(struct sdp_engine *x, struct sdp_work *w, bool training)
{
    const struct sdp_config *c = &x->config;
    int64_t shared;
    choose_shape(x, w, training);
    struct gpt2_run *r = &w->run;
    int64_t rows = r->batch * r->time;
    size_items(&c->model, r, w, &shared);
    w->slots = sdp_arena_take(&x->arena, SDP_ACTIVATIONS, w->slot_count * w->item_bytes);
    w->shared = sdp_arena_take(&x->arena, SDP_ACTIVATIONS, shared);
    if (w->slot_count < w->items && training)
        w->host =
            sdp_arena_take(&x->arena, SDP_OFFLOAD, (w->items - w->slot_count) * w->item_bytes);
    bool dropout = training && residual_dropout(c);
    void *p = sdp_arena_take(
        &x->arena, SDP_ACTIVATIONS,
        gpt2_scratch_bytes(x->dev, &c->model, r->batch, r->time, r->dt, !training, dropout));
    if (p)
        gpt2_bind_scratch(x->dev, &c->model, r->batch, r->time, r->dt, !training, dropout, p,
                          &w->scratch);
    int64_t row_bytes = gpt2_vocab_padded(&c->model) * (int64_t)dtype_bytes(r->dt);
    int64_t chunk = max_i64(1, min_i64(rows, c->logits_bytes / row_bytes));
    p = sdp_arena_take(&x->arena, SDP_LOGITS,
                       gpt2_head_bytes(&c->model, r->batch, r->time, r->dt, chunk));
    if (p)
        gpt2_bind_head(&c->model, r->batch, r->time, r->dt, chunk, p, &w->head);
    w->tokens = sdp_arena_take(&x->arena, SDP_DATA, rows * 4);
    w->targets = sdp_arena_take(&x->arena, SDP_DATA, rows * 4);
    w->samples = sdp_arena_take(&x->arena, SDP_DATA, r->batch * 8);
    w->head.targets = w->targets;
    w->run.samples = w->samples;
}

enum status sdp_work_open(struct sdp_engine *x, struct sdp_work *w, struct error *e)
{
    w->slot_free = calloc((size_t)w->slot_count, sizeof *w->slot_free);
    w->slot_loaded = calloc((size_t)w->slot_count, sizeof *w->slot_loaded);
    if (!w->slot_free || !w->slot_loaded)
        return error_memory(e, (size_t)w->slot_count * 16, "activation slots");
    TRY(x->dev->ops->event_create(x->dev, &w->done, e));
    for (int64_t i = 0; w->host && i < w->slot_count; i++) {
        TRY(x->dev->ops->event_create(x->dev, &w->slot_free[i], e));
        TRY(x->dev->ops->event_create(x->dev, &w->slot_loaded[i], e));
    }
    return STATUS_OK;
}

void sdp_work_close(struct sdp_engine *x, struct sdp_work *w)
{
    for (int64_t i = 0; i < w->slot_count; i++) {
        if (w->slot_free && w->slot_free[i])
            x->dev->ops->event_free(x->dev, w->slot_free[i]);
        if (w->slot_loaded && w->slot_loaded[i])
            x->dev->ops->event_free(x->dev, w->slot_loaded[i]);
    }
    if (w->done)
        x->dev->ops->event_free(x->dev, w->done);
    free(w->slot_free);
    free(w->slot_loaded);
    *w = (struct sdp_work){0};
}

static char *slot_at(const struct sdp_work *w, int64_t item)
{
    return w->slots + item % w->slot_count * w->item_bytes;
}

void sdp_work_acts(const struct sdp_engine *x, const struct sdp_work *w, int64_t layer,
                   struct gpt2_block_acts *a)
{
    const struct gpt2_run *r = &w->run;
    const struct gpt2_config *c = &x->config.model;
    if (w->saver.group == 1) {
        gpt2_bind_block_acts(c, r->batch, r->time, r->dt, w->saver.keep,
                             slot_at(w, item_of(w, layer)), w->shared, a);
        return;
    }
    int64_t within = layer % w->saver.group;
    gpt2_bind_block_acts(c, r->batch, r->time, r->dt, GPT2_KEEP_ALL,
                         w->shared + within * w->full_bytes, NULL, a);
    if (within == 0)
        a->x = slot_at(w, item_of(w, layer));
}

/* An item that a later item of the same pass overwrites; it lies in host memory meanwhile. */
static bool leaves(const struct sdp_work *w, int64_t item)
{
    return w->host && item + w->slot_count < w->items;
}

void sdp_work_begin_item(struct sdp_engine *x, struct sdp_work *w, int64_t item)
{
    if (w->host && item >= w->slot_count)
        x->dev->ops->stream_wait(x->dev, x->streams.compute, w->slot_free[item % w->slot_count]);
}

void sdp_work_end_item(struct sdp_engine *x, struct sdp_work *w, int64_t item)
{
    struct stream *s = x->streams.offload;
    if (!leaves(w, item))
        return;
    sdp_order(x, w->done, x->streams.compute, s);
    x->dev->ops->copy(x->dev, s, w->host + item * w->item_bytes, slot_at(w, item),
                      (size_t)w->item_bytes);
    x->dev->ops->event_record(x->dev, w->slot_free[item % w->slot_count], s);
}

void sdp_work_fetch(struct sdp_engine *x, struct sdp_work *w, int64_t item)
{
    if (leaves(w, item))
        x->dev->ops->stream_wait(x->dev, x->streams.compute, w->slot_loaded[item % w->slot_count]);
}

void sdp_work_drop(struct sdp_engine *x, struct sdp_work *w, int64_t item)
{
    struct stream *s = x->streams.offload;
    int64_t next = item - w->slot_count; /* the item that had this slot before */
    if (!w->host || next < 0)
        return;
    sdp_order(x, w->done, x->streams.compute, s);
    x->dev->ops->copy(x->dev, s, slot_at(w, next), w->host + next * w->item_bytes,
                      (size_t)w->item_bytes);
    x->dev->ops->event_record(x->dev, w->slot_loaded[next % w->slot_count], s);
}
