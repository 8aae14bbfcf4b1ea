#include "sdp/grads.h"

#include "base/checked.h"
#include "sdp/engine.h"

static bool narrow(const struct sdp_engine *x)
{
    return x->config.reduce_dt != DTYPE_F32;
}

void sdp_grads_lay_out(struct sdp_engine *x)
{
    struct sdp_grads *g = &x->grads;
    int64_t last = x->layout.units - 1, largest = x->layout.streamed_max, shard = 0;
    int64_t wire_bytes = (int64_t)dtype_bytes(x->config.reduce_dt);
    for (int64_t u = 0; u < x->layout.units; u++) {
        largest = max_i64(largest, x->layout.unit[u].elems);
        shard = max_i64(shard, x->layout.unit[u].shard);
    }
    if (narrow(x) && x->groups.replicas > 1)
        g->replica_wire = sdp_arena_take(&x->arena, SDP_COMMUNICATION,
                                         min_i64(shard, x->config.bucket_elems) * wire_bytes);
    if (x->groups.degree == 1)
        return;
    for (int i = 0; i < 2; i++)
        g->held[i].data =
            sdp_arena_take(&x->arena, SDP_GATHERED, x->layout.unit[i ? last : 0].elems * 4);
    if (x->layout.streamed_max > 0)
        for (int i = 0; i < (x->config.overlap ? SDP_GRAD_SLOTS : 1); i++)
            g->slots[i].data = sdp_arena_take(&x->arena, SDP_GATHERED, x->layout.streamed_max * 4);
    if (narrow(x))
        g->wire = sdp_arena_take(&x->arena, SDP_COMMUNICATION, largest * wire_bytes);
}

enum status sdp_grads_open(struct sdp_engine *x, struct error *e)
{
    struct sdp_grads *g = &x->grads;
    struct event **events[] = {&g->slots[0].done, &g->slots[1].done, &g->held[0].done,
                               &g->held[1].done,  &g->computed,      &g->scattered,
                               &g->finished[0],   &g->finished[1]};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        TRY(x->dev->ops->event_create(x->dev, events[i], e));
    return STATUS_OK;
}

void sdp_grads_close(struct sdp_engine *x)
{
    struct sdp_grads *g = &x->grads;
    struct event *events[] = {g->slots[0].done, g->slots[1].done, g->held[0].done, g->held[1].done,
                              g->computed,      g->scattered,     g->finished[0],  g->finished[1]};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (events[i])
            x->dev->ops->event_free(x->dev, events[i]);
    *g = (struct sdp_grads){0};
}

static struct sdp_grad_slot *slot_of(struct sdp_engine *x, int64_t unit, const float *data)
{
    struct sdp_grads *g = &x->grads;
    if (sdp_layout_held(&x->layout, unit))
        return &g->held[unit != 0];
    for (int i = 0; i < SDP_GRAD_SLOTS; i++)
        if (data && g->slots[i].data == data)
            return &g->slots[i];
    struct sdp_grad_slot *s = &g->slots[g->next];
    g->next = x->config.overlap ? (g->next + 1) % SDP_GRAD_SLOTS : 0;
    return s;
}

float *sdp_grads_begin(struct sdp_engine *x, int64_t unit, bool first)
{
    struct stream *compute = x->streams.compute;
    int64_t elems = x->layout.unit[unit].elems;
    if (x->groups.degree == 1) {
        if (first)
            x->dev->ops->fill_zero(x->dev, compute, x->shards[unit].grad, (size_t)elems * 4);
        return x->shards[unit].grad;
    }
    if (elems == 0)
        return NULL;
    struct sdp_grad_slot *s = slot_of(x, unit, NULL);
    if (s->busy && x->streams.scatter != compute)
        sdp_timer_wait(&x->timer, compute, s->done);
    s->busy = false;
    x->dev->ops->fill_zero(x->dev, compute, s->data, (size_t)elems * 4);
    return s->data;
}

/* The accumulator across replicas, in pieces of at most a bucket. */
static void reduce_replicas(struct sdp_engine *x, int64_t unit, struct stream *after)
{
    struct stream *s = x->streams.replica;
    const struct sdp_shard *shard = &x->shards[unit];
    bool apart = s != x->streams.compute;
    if (x->groups.replicas == 1)
        return;
    sdp_order(x, x->grads.scattered, after, s);
    if (!apart)
        sdp_timer_begin(&x->timer, s);
    for (int64_t at = 0; at < shard->elems; at += x->config.bucket_elems) {
        int64_t n = min_i64(x->config.bucket_elems, shard->elems - at);
        float *part = shard->grad + at;
        if (narrow(x)) {
            void *wire = x->grads.replica_wire;
            x->dev->ops->cast(x->dev, s, wire, x->config.reduce_dt, part, DTYPE_F32, n);
            x->comms.ops->all_reduce(x->comms.replica, s, wire, n, x->config.reduce_dt, COMM_SUM);
            x->dev->ops->cast(x->dev, s, part, DTYPE_F32, wire, x->config.reduce_dt, n);
        } else {
            x->comms.ops->all_reduce(x->comms.replica, s, part, n, DTYPE_F32, COMM_SUM);
        }
    }
    if (!apart)
        sdp_timer_end(&x->timer, s);
}

/* data, the whole unit's gradient, becomes this rank's part of the group's sum in the accumulator.
 */
static void scatter(struct sdp_engine *x, int64_t unit, float *data, bool first)
{
    struct stream *s = x->streams.scatter;
    const struct sdp_shard *shard = &x->shards[unit];
    int64_t n = shard->elems, place = x->groups.place;
    enum dtype dt = x->config.reduce_dt;
    void *send = data, *recv = data + place * n;
    if (narrow(x)) {
        x->dev->ops->cast(x->dev, s, x->grads.wire, dt, data, DTYPE_F32, n * x->groups.degree);
        send = x->grads.wire;
        recv = (char *)send + (size_t)(place * n) * dtype_bytes(dt);
    } else if (first) {
        recv = shard->grad;
    }
    x->comms.ops->reduce_scatter(x->comms.scatter, s, recv, send, n, dt);
    if (recv == shard->grad)
        return;
    if (first)
        x->dev->ops->cast(x->dev, s, shard->grad, DTYPE_F32, recv, dt, n);
    else
        x->dev->ops->accumulate(x->dev, s, shard->grad, recv, dt, n, 1.0f);
}

void sdp_grads_end(struct sdp_engine *x, int64_t unit, float *data, bool first, bool last)
{
    struct stream *s = x->streams.scatter;
    if (x->groups.degree == 1) {
        if (last)
            reduce_replicas(x, unit, x->streams.compute);
        return;
    }
    if (x->layout.unit[unit].elems == 0)
        return;
    bool apart = s != x->streams.compute;
    sdp_order(x, x->grads.computed, x->streams.compute, s);
    if (!apart)
        sdp_timer_begin(&x->timer, s);
    scatter(x, unit, data, first);
    if (!apart)
        sdp_timer_end(&x->timer, s);
    struct sdp_grad_slot *slot = slot_of(x, unit, data);
    x->dev->ops->event_record(x->dev, slot->done, s);
    slot->busy = true;
    if (last)
        reduce_replicas(x, unit, s);
}

void sdp_grads_finish(struct sdp_engine *x)
{
    struct stream *compute = x->streams.compute;
    struct stream *from[] = {x->streams.scatter, x->streams.replica};
    for (int i = 0; i < 2; i++) {
        if (from[i] == compute)
            continue;
        x->dev->ops->event_record(x->dev, x->grads.finished[i], from[i]);
        sdp_timer_wait(&x->timer, compute, x->grads.finished[i]);
    }
    /* Everything scattered so far has been waited for. */
    for (int i = 0; i < 2; i++)
        x->grads.slots[i].busy = x->grads.held[i].busy = false;
}
