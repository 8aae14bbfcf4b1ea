#include "sdp/units.h"

#include "base/checked.h"
#include "sdp/engine.h"

#include <assert.h>
#include <stdlib.h>

static int64_t elem_bytes(const struct sdp_engine *x)
{
    return (int64_t)dtype_bytes(x->config.dt);
}

int64_t sdp_units_count(const struct sdp_engine *x)
{
    int64_t streamed = x->layout.units - 2, largest = x->layout.streamed_max;
    if (x->groups.degree == 1 || largest == 0)
        return 0;
    int64_t n = min_i64(x->config.unit_buffers, x->config.max_live_elems / largest);
    return max_i64(min_i64(n, streamed), x->config.overlap ? min_i64(2, streamed) : 1);
}

void sdp_units_lay_out(struct sdp_engine *x)
{
    struct sdp_units *u = &x->units;
    int64_t last = x->layout.units - 1;
    u->count = sdp_units_count(x);
    if (x->groups.degree == 1)
        return;
    for (int i = 0; i < 2; i++)
        u->held[i].data = sdp_arena_take(&x->arena, SDP_GATHERED,
                                         x->layout.unit[i ? last : 0].elems * elem_bytes(x));
    for (int64_t i = 0; i < u->count; i++) {
        void *p = sdp_arena_take(&x->arena, SDP_GATHERED, x->layout.streamed_max * elem_bytes(x));
        if (u->slots)
            u->slots[i].data = p;
    }
    if (x->groups.hierarchical) {
        int64_t largest = max_i64(x->layout.streamed_max,
                                  max_i64(x->layout.unit[0].elems, x->layout.unit[last].elems));
        u->stage =
            sdp_arena_take(&x->arena, SDP_COMMUNICATION,
                           largest / x->groups.degree * x->groups.group_nodes * elem_bytes(x));
    }
}

static enum status open_slot(struct sdp_engine *x, struct sdp_slot *s, struct error *e)
{
    s->unit = -1;
    TRY(x->dev->ops->event_create(x->dev, &s->ready, e));
    return x->dev->ops->event_create(x->dev, &s->released, e);
}

enum status sdp_units_open(struct sdp_engine *x, struct error *e)
{
    struct sdp_units *u = &x->units;
    TRY(x->dev->ops->event_create(x->dev, &u->weights_ready, e));
    u->slots = calloc((size_t)max_i64(sdp_units_count(x), 1), sizeof *u->slots);
    if (!u->slots)
        return error_memory(e, sizeof *u->slots, "unit slots");
    for (int i = 0; i < 2; i++)
        TRY(open_slot(x, &u->held[i], e));
    for (int64_t i = 0; i < sdp_units_count(x); i++)
        TRY(open_slot(x, &u->slots[i], e));
    return STATUS_OK;
}

static void close_slot(struct sdp_engine *x, struct sdp_slot *s)
{
    if (s->ready)
        x->dev->ops->event_free(x->dev, s->ready);
    if (s->released)
        x->dev->ops->event_free(x->dev, s->released);
}

void sdp_units_close(struct sdp_engine *x)
{
    struct sdp_units *u = &x->units;
    for (int i = 0; i < 2; i++)
        close_slot(x, &u->held[i]);
    for (int64_t i = 0; u->slots && i < u->count; i++)
        close_slot(x, &u->slots[i]);
    if (u->weights_ready)
        x->dev->ops->event_free(x->dev, u->weights_ready);
    free(u->slots);
    *u = (struct sdp_units){0};
}

/* How many uses lie between now, at `current`, and the next use of `unit`. */
static int64_t next_use(const struct sdp_engine *x, int64_t current, int64_t unit)
{
    int64_t last = x->layout.units - 2; /* the last streamed unit */
    if (x->units.forward)
        return unit > current ? unit - current : (last - current) + (last - unit) + 1;
    return unit < current ? current - unit : (current - 1) + (unit - 1) + 1;
}

/* The slot to give away for `unit`: empty or stale, else needed last; NULL when all are busy. */
static struct sdp_slot *choose_slot(struct sdp_engine *x, int64_t unit)
{
    struct sdp_units *u = &x->units;
    struct sdp_slot *best = NULL;
    int64_t furthest = -1;
    for (int64_t i = 0; i < u->count; i++) {
        struct sdp_slot *s = &u->slots[i];
        if (s->in_use || s->waiting)
            continue;
        bool stale = s->unit < 0 || s->version != u->version;
        int64_t distance = stale ? INT64_MAX : next_use(x, unit, s->unit);
        if (distance > furthest) {
            furthest = distance;
            best = s;
        }
    }
    return best;
}

static struct sdp_slot *find_slot(struct sdp_engine *x, int64_t unit)
{
    struct sdp_units *u = &x->units;
    if (sdp_layout_held(&x->layout, unit)) {
        struct sdp_slot *s = &u->held[unit != 0];
        return s->unit == unit && s->version == u->version ? s : NULL;
    }
    for (int64_t i = 0; i < u->count; i++)
        if (u->slots[i].unit == unit && u->slots[i].version == u->version)
            return &u->slots[i];
    return NULL;
}

/* Two stages: between nodes on this rank's column of shards, then inside the node, a node's shards
 * at a time so that every element lands where the flat gather puts it. */
static void gather_by_stages(struct sdp_engine *x, char *data, const void *shard, size_t bytes)
{
    const struct sdp_groups *g = &x->groups;
    const struct comm_ops *ops = x->comms.ops;
    struct stream *s = x->streams.gather;
    int column = g->place % g->node_ranks;
    ops->all_gather(x->comms.inter, s, x->units.stage, shard, bytes);
    for (int node = 0; node < g->group_nodes; node++) {
        char *part = data + (size_t)node * (size_t)g->node_ranks * bytes;
        char *mine = part + (size_t)column * bytes;
        x->dev->ops->copy(x->dev, s, mine, (char *)x->units.stage + (size_t)node * bytes, bytes);
        ops->all_gather(x->comms.intra, s, part, mine, bytes);
    }
}

static void gather(struct sdp_engine *x, struct sdp_slot *slot, int64_t unit)
{
    struct stream *s = x->streams.gather;
    const struct sdp_shard *shard = &x->shards[unit];
    size_t bytes = (size_t)(shard->elems * elem_bytes(x));
    bool apart = s != x->streams.compute;
    if (x->layout.unit[unit].elems > 0) {
        if (apart) {
            x->dev->ops->stream_wait(x->dev, s, x->units.weights_ready);
            x->dev->ops->stream_wait(x->dev, s, slot->released);
        } else {
            sdp_timer_begin(&x->timer, s);
        }
        if (x->groups.hierarchical)
            gather_by_stages(x, slot->data, shard->working, bytes);
        else
            x->comms.ops->all_gather(x->comms.gather, s, slot->data, shard->working, bytes);
        if (!apart)
            sdp_timer_end(&x->timer, s);
    }
    x->dev->ops->event_record(x->dev, slot->ready, s);
    slot->unit = unit;
    slot->version = x->units.version;
    slot->waiting = true;
}

void sdp_units_prefetch(struct sdp_engine *x, int64_t unit)
{
    if (x->groups.degree == 1 || unit < 0 || unit >= x->layout.units || find_slot(x, unit))
        return;
    struct sdp_slot *slot =
        sdp_layout_held(&x->layout, unit) ? &x->units.held[unit != 0] : choose_slot(x, unit);
    if (slot && !slot->in_use)
        gather(x, slot, unit);
}

const void *sdp_units_acquire(struct sdp_engine *x, int64_t unit)
{
    if (x->groups.degree == 1)
        return x->shards[unit].working;
    if (x->layout.unit[unit].elems == 0)
        return NULL; /* all its tensors are held */
    sdp_units_prefetch(x, unit);
    struct sdp_slot *slot = find_slot(x, unit);
    assert(slot && slot->version == x->units.version); /* at least one slot is never in use here */
    if (slot->waiting && x->streams.gather != x->streams.compute)
        sdp_timer_wait(&x->timer, x->streams.compute, slot->ready);
    slot->waiting = false;
    slot->in_use = true;
    return slot->data;
}

void sdp_units_release(struct sdp_engine *x, int64_t unit)
{
    if (x->groups.degree == 1 || x->layout.unit[unit].elems == 0)
        return;
    struct sdp_slot *slot = find_slot(x, unit);
    assert(slot && slot->in_use);
    x->dev->ops->event_record(x->dev, slot->released, x->streams.compute);
    slot->in_use = false;
}

void sdp_units_invalidate(struct sdp_engine *x)
{
    struct sdp_units *u = &x->units;
    u->version++;
    for (int64_t i = 0; i < u->count; i++)
        u->slots[i].waiting = false;
    x->dev->ops->event_record(x->dev, u->weights_ready, x->streams.compute);
}
