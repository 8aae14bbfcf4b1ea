#include "sdp/engine.h"

#include "base/checked.h"
#include "sdp/data.h"

#include <stdlib.h>
#include <string.h>

/* Waits measured a step; a pass of the deepest models with hundreds of micro-steps has more, and
 * the rest of those go unmeasured rather than hold thousands of events. */
#define TIMER_PAIRS_MAX 8192

void sdp_order(struct sdp_engine *x, struct event *ev, struct stream *a, struct stream *b)
{
    if (a == b)
        return;
    x->dev->ops->event_record(x->dev, ev, a);
    x->dev->ops->stream_wait(x->dev, b, ev);
}

void sdp_engine_saved_range(const struct sdp_engine *x, int64_t u, int64_t *begin, int64_t *end)
{
    const struct sdp_unit *unit = &x->layout.unit[u];
    int64_t piece = round_up_i64(ceil_div_i64(unit->shard, x->groups.replicas), SDP_ALIGN);
    int64_t from = min_i64(x->groups.replica * piece, unit->shard);
    int64_t to = min_i64(from + piece, unit->shard);
    *begin = x->groups.place * unit->shard + from;
    *end = x->groups.place * unit->shard + to;
}

/* Elements of tensors (not padding) this rank writes, times the three kinds. */
static int64_t count_staging(const struct sdp_engine *x)
{
    int64_t sum = 0;
    for (int64_t u = 0; u < x->layout.units; u++) {
        int64_t begin, end, cursor = 0;
        struct sdp_segment s;
        sdp_engine_saved_range(x, u, &begin, &end);
        while (sdp_layout_next(&x->layout, u, begin, end, &cursor, &s))
            sum += s.count;
    }
    return 3 * sum;
}

static void lay_out_shards(struct sdp_engine *x)
{
    bool alias = x->config.dt == DTYPE_F32;
    for (int64_t u = 0; u < x->layout.units; u++) {
        struct sdp_shard *s = &x->shards[u];
        s->elems = x->layout.unit[u].shard;
        s->begin = x->groups.place * s->elems;
        s->master = sdp_arena_take(&x->arena, SDP_PARAMETERS, s->elems * 4);
        s->working = s->master;
        if (!alias)
            s->working = sdp_arena_take(&x->arena, SDP_PARAMETERS,
                                        s->elems * (int64_t)dtype_bytes(x->config.dt));
        s->m = sdp_arena_take(&x->arena, SDP_OPTIMIZER, s->elems * 4);
        s->v = sdp_arena_take(&x->arena, SDP_OPTIMIZER, s->elems * 4);
        s->grad = sdp_arena_take(&x->arena, SDP_GRADIENTS, s->elems * 4);
    }
}

static void lay_out_works(struct sdp_engine *x)
{
    enum sdp_memory shared[] = {SDP_ACTIVATIONS, SDP_LOGITS, SDP_DATA};
    int64_t marks[3];
    for (int i = 0; i < 3; i++)
        marks[i] = sdp_arena_mark(&x->arena, shared[i]);
    sdp_work_lay_out(x, &x->train, true);
    if (x->config.eval_batch == 0)
        return;
    /* Validation runs between steps, when no activations are alive: it uses the same memory. */
    for (int i = 0; i < 3; i++)
        sdp_arena_rewind(&x->arena, shared[i], marks[i]);
    sdp_work_lay_out(x, &x->eval, false);
}

static void lay_out(struct sdp_engine *x)
{
    int64_t norms = x->config.param_norms ? x->tensors.count * 4 : 0;
    lay_out_shards(x);
    sdp_units_lay_out(x);
    sdp_grads_lay_out(x);
    x->scalars.sums = sdp_arena_take(&x->arena, SDP_DATA, SDP_SUMS * sizeof(float));
    x->scalars.control = sdp_arena_take(&x->arena, SDP_DATA, sizeof *x->scalars.control);
    x->scalars.param_norms = sdp_arena_take(&x->arena, SDP_DATA, norms);
    lay_out_works(x);
    x->readback = sdp_arena_take(&x->arena, SDP_HOST, sizeof *x->readback);
    x->readback_norms = sdp_arena_take(&x->arena, SDP_HOST, norms);
    x->pieces = sdp_arena_take(&x->arena, SDP_HOST,
                               (int64_t)SDP_PIECES * SDP_PIECE_ELEMS * (int64_t)sizeof(float));
    x->train_memory =
        sdp_arena_take(&x->arena, SDP_HOST,
                       sdp_data_bytes(x->config.batch, x->config.time, x->config.accumulation));
    if (x->config.eval_batch > 0)
        x->eval_memory = sdp_arena_take(
            &x->arena, SDP_HOST, sdp_data_bytes(x->config.eval_batch, x->config.eval_time, 1));
    x->staging_elems = x->config.staging ? count_staging(x) : 0;
    x->staging = sdp_arena_take(&x->arena, SDP_STAGING, x->staging_elems * 4);
}

static enum status make_tables(struct sdp_engine *x, int world, int rank, const int32_t *nodes,
                               struct error *e)
{
    const struct sdp_config *c = &x->config;
    TRY(sdp_groups_make(&x->groups, world, rank, c->degree, nodes, c->hierarchical, e));
    TRY(gpt2_tensors_create(&x->tensors, &c->model, e));
    TRY(sdp_layout_create(&x->layout, &x->tensors, x->groups.degree, c->threshold_elems, e));
    x->shards = calloc((size_t)x->layout.units, sizeof *x->shards);
    if (!x->shards)
        return error_memory(e, (size_t)x->layout.units * sizeof *x->shards, "the shard table");
    return STATUS_OK;
}

enum status sdp_engine_size(struct sdp_engine *x, const struct sdp_config *c, int world, int rank,
                            const int32_t *nodes, const struct device_ops *ops, struct error *e)
{
    struct device counting = {.ops = ops}; /* sizes only: nothing is opened */
    memset(x, 0, sizeof *x);
    x->config = *c;
    TRY(make_tables(x, world, rank, nodes, e));
    x->dev = &counting;
    lay_out(x);
    x->dev = NULL;
    return STATUS_OK;
}

static enum status gather_nodes(struct world *w, int32_t **nodes, struct error *e)
{
    int32_t node = w->node;
    *nodes = malloc((size_t)w->size * sizeof **nodes);
    if (!*nodes)
        return error_memory(e, (size_t)w->size * sizeof **nodes, "node numbers");
    return world_all_gather(w, &node, sizeof node, *nodes, e);
}

static enum status open_streams(struct sdp_engine *x, struct error *e)
{
    struct sdp_streams *s = &x->streams;
    struct stream **apart[] = {&s->gather, &s->scatter, &s->replica, &s->offload};
    s->compute = x->dev->compute;
    for (int i = 0; i < 4; i++) {
        *apart[i] = s->compute;
        if (x->config.overlap)
            TRY(x->dev->ops->stream_create(x->dev, apart[i], e));
    }
    return STATUS_OK;
}

static enum status open_comms(struct sdp_engine *x, struct error *e)
{
    const struct sdp_groups *g = &x->groups;
    struct sdp_comms *c = &x->comms;
    int group = g->replica, node = g->place / g->node_ranks, column = g->place % g->node_ranks;
    TRY(c->ops->create(&c->all, x->world, x->dev, 0, g->index, "all", e));
    if (g->degree > 1) {
        TRY(c->ops->create(&c->gather, x->world, x->dev, group, g->place, "gather", e));
        TRY(c->ops->create(&c->scatter, x->world, x->dev, group, g->place, "scatter", e));
    }
    if (g->hierarchical) {
        TRY(c->ops->create(&c->inter, x->world, x->dev, group * g->node_ranks + column, node,
                           "gather between nodes", e));
        TRY(c->ops->create(&c->intra, x->world, x->dev, group * g->group_nodes + node, column,
                           "gather inside a node", e));
    }
    if (g->replicas > 1)
        TRY(c->ops->create(&c->replica, x->world, x->dev, g->place, g->replica, "replica", e));
    return STATUS_OK;
}

/* Tell the engine of collectives where the large transfers happen. */
static void register_buffers(struct sdp_engine *x)
{
    const struct comm_ops *ops = x->comms.ops;
    if (!ops->register_buffer || x->groups.degree == 1)
        return;
    for (int64_t i = 0; i < x->units.count; i++)
        ops->register_buffer(x->comms.gather, x->units.slots[i].data,
                             (size_t)x->layout.streamed_max * dtype_bytes(x->config.dt));
    for (int i = 0; i < SDP_GRAD_SLOTS; i++)
        if (x->grads.slots[i].data)
            ops->register_buffer(x->comms.scatter, x->grads.slots[i].data,
                                 (size_t)x->layout.streamed_max * sizeof(float));
}

static enum status open_events(struct sdp_engine *x, struct error *e)
{
    int64_t waits = x->config.accumulation * (8 * x->layout.units + 16);
    for (int i = 0; i < SDP_BANKS; i++) {
        TRY(x->dev->ops->event_create(x->dev, &x->step_begun[i], e));
        TRY(x->dev->ops->event_create(x->dev, &x->step_ended[i], e));
    }
    return sdp_timer_open(&x->timer, x->dev, min_i64(waits, TIMER_PAIRS_MAX), e);
}

enum status sdp_engine_assemble(struct sdp_engine *x, const struct sdp_config *c, struct world *w,
                                const int32_t *nodes, struct device *dev,
                                const struct comm_ops *comm, struct error *e)
{
    memset(x, 0, sizeof *x);
    x->config = *c;
    x->world = w;
    x->dev = dev;
    x->comms.ops = comm;
    TRY(make_tables(x, w->size, w->rank, nodes, e));
    TRY(open_streams(x, e));
    TRY(open_comms(x, e));
    TRY(sdp_units_open(x, e));
    TRY(sdp_grads_open(x, e));
    TRY(open_events(x, e));
    lay_out(x); /* counts */
    TRY(sdp_arena_alloc(&x->arena, dev, e));
    lay_out(x); /* places */
    TRY(sdp_work_open(x, &x->train, e));
    if (c->eval_batch > 0)
        TRY(sdp_work_open(x, &x->eval, e));
    register_buffers(x);
    return sdp_nonfinite_open(x, e);
}

enum status sdp_engine_open(struct sdp_engine *x, const struct sdp_config *c, struct world *w,
                            struct device *dev, const struct comm_ops *comm, struct error *e)
{
    int32_t *nodes = NULL;
    memset(x, 0, sizeof *x);
    enum status st = gather_nodes(w, &nodes, e);
    if (st == STATUS_OK)
        st = sdp_engine_assemble(x, c, w, nodes, dev, comm, e);
    free(nodes);
    return st;
}

static void free_event(struct sdp_engine *x, struct event *ev)
{
    if (ev)
        x->dev->ops->event_free(x->dev, ev);
}

void sdp_engine_close(struct sdp_engine *x)
{
    struct sdp_streams *s = &x->streams;
    struct stream *apart[] = {s->gather, s->scatter, s->replica, s->offload};
    struct sdp_comms *c = &x->comms;
    struct comm *comms[] = {c->all, c->gather, c->scatter, c->inter, c->intra, c->replica};
    if (x->dev) {
        for (int i = 0; i < 4; i++)
            if (apart[i] && apart[i] != s->compute)
                x->dev->ops->stream_free(x->dev, apart[i]);
        for (int i = 0; i < 6; i++)
            if (comms[i])
                c->ops->free(comms[i]);
        sdp_work_close(x, &x->train);
        sdp_work_close(x, &x->eval);
        sdp_units_close(x);
        sdp_grads_close(x);
        if (x->timer.dev)
            sdp_timer_close(&x->timer);
        for (int i = 0; i < SDP_BANKS; i++) {
            free_event(x, x->step_begun[i]);
            free_event(x, x->step_ended[i]);
        }
        sdp_arena_release(&x->arena);
    }
    sdp_layout_release(&x->layout);
    gpt2_tensors_release(&x->tensors);
    free(x->shards);
    memset(x, 0, sizeof *x);
}

enum status sdp_engine_check(struct sdp_engine *x, struct error *e)
{
    const struct sdp_comms *c = &x->comms;
    struct comm *comms[] = {c->gather, c->scatter, c->inter, c->intra, c->replica, c->all};
    for (int i = 0; i < 6; i++)
        if (comms[i])
            TRY(c->ops->check(comms[i], e));
    return device_check(x->dev, e);
}

enum status sdp_engine_sync(struct sdp_engine *x, struct error *e)
{
    const struct sdp_streams *s = &x->streams;
    struct stream *all[] = {s->gather, s->scatter, s->replica, s->offload, s->compute};
    for (int i = 0; i < 5; i++) {
        if (x->dev->ops->stream_sync(x->dev, all[i], e) != STATUS_OK) {
            struct error first = *e; /* a communicator knows better what happened */
            if (sdp_engine_check(x, e) == STATUS_OK)
                *e = first;
            return e->status;
        }
    }
    return sdp_engine_check(x, e);
}

int64_t sdp_engine_bytes_sent(const struct sdp_engine *x)
{
    const struct sdp_comms *c = &x->comms;
    struct comm *comms[] = {c->gather, c->scatter, c->inter, c->intra, c->replica, c->all};
    int64_t sum = 0;
    for (int i = 0; i < 6; i++)
        sum += comms[i] ? comms[i]->bytes_sent : 0;
    return sum;
}
