#include "sdp/step.h"

#include "base/checked.h"

#include <math.h>

/* fp16 gradients need the mean's magnitude times the scale; others are normalised afterwards. */
static float head_scale(const struct sdp_engine *x, const struct sdp_step *s)
{
    return x->config.dt == DTYPE_F16 ? (float)(s->loss_scale / (double)s->targets) : 1.0f;
}

static float gradient_unscale(const struct sdp_engine *x, const struct sdp_step *s)
{
    return x->config.dt == DTYPE_F16 ? (float)(1.0 / s->loss_scale)
                                     : (float)(1.0 / (double)s->targets);
}

/* The squared norm of all gradients: every element once, so replicas beyond the first add nothing.
 */
static void sum_squares(struct sdp_engine *x)
{
    struct stream *s = x->streams.compute;
    float *norm = &x->scalars.sums[SDP_SUM_NORM];
    if (x->groups.replica != 0) {
        x->dev->ops->fill_zero(x->dev, s, norm, sizeof *norm);
        return;
    }
    for (int64_t u = 0; u < x->layout.units; u++)
        x->dev->ops->reduce_sum(x->dev, s, norm, x->shards[u].grad, x->shards[u].elems, true,
                                u > 0);
}

static void reduce_sums(struct sdp_engine *x, float *sums, int64_t n)
{
    struct stream *s = x->streams.compute;
    if (x->groups.world == 1)
        return;
    sdp_timer_begin(&x->timer, s);
    x->comms.ops->all_reduce(x->comms.all, s, sums, n, DTYPE_F32, COMM_SUM);
    sdp_timer_end(&x->timer, s);
}

/* A bank that is not in use by the step that may be under way. */
static int next_bank(const struct sdp_engine *x)
{
    return (x->bank + 1) % SDP_BANKS;
}

void sdp_step_clock(struct sdp_engine *x)
{
    x->dev->ops->event_record(x->dev, x->step_ended[x->bank], x->streams.compute);
}

bool sdp_step_runs_ahead(const struct sdp_engine *x)
{
    /* To find a value that is not finite, the host waits after every operation anyway. */
    return x->config.dt != DTYPE_F16 && !x->nonfinite.on;
}

void sdp_step_begin(struct sdp_engine *x, struct sdp_step *s)
{
    s->bank = x->bank = next_bank(x);
    sdp_timer_reset(&x->timer, s->bank);
    x->dev->ops->event_record(x->dev, x->step_begun[s->bank], x->streams.compute);
}

enum status sdp_step_queue(struct sdp_engine *x, struct sdp_data *data, struct sdp_step *s,
                           struct error *e)
{
    int64_t n = x->config.accumulation;
    world_note_step(x->world, s->number);
    sdp_step_begin(x, s);
    for (int64_t k = 0; k < n; k++) {
        struct sdp_data_slot *slot;
        TRY(sdp_data_next(data, &slot, e));
        s->digest += slot->digest;
        x->nonfinite.step = s->number;
        x->nonfinite.micro_step = k + 1;
        sdp_pass_train(x, &slot->batch, head_scale(x, s), k == 0, k + 1 == n, slot->uploaded);
        sdp_data_done(data, slot);
        if (x->nonfinite.on)
            TRY(device_check(x->dev, e));
    }
    s->taken = data->taken;
    s->stage = SDP_STEP_QUEUED;
    return STATUS_OK;
}

enum status sdp_step_reduce(struct sdp_engine *x, struct sdp_step *s, struct error *e)
{
    struct stream *compute = x->streams.compute;
    sdp_grads_finish(x);
    sdp_nonfinite_gradients(x);
    sum_squares(x);
    x->readback->flags[0] = s->stop;
    x->readback->flags[1] = s->written;
    x->dev->ops->copy(x->dev, compute, &x->scalars.sums[SDP_SUM_STOP], x->readback->flags,
                      sizeof x->readback->flags);
    reduce_sums(x, x->scalars.sums, SDP_SUMS);
    x->dev->ops->step_control(x->dev, compute, x->scalars.control, &x->scalars.sums[SDP_SUM_NORM],
                              &x->scalars.sums[SDP_SUM_LOSS], gradient_unscale(x, s),
                              (float)(1.0 / (double)s->targets), x->config.clip);
    s->stage = SDP_STEP_REDUCED;
    return x->nonfinite.on ? device_check(x->dev, e) : STATUS_OK;
}

static void update_range(struct sdp_engine *x, const struct sdp_step *s, int64_t unit,
                         int64_t begin, int64_t end, bool decay)
{
    const struct sdp_config *c = &x->config;
    const struct sdp_shard *p = &x->shards[unit];
    struct adamw h = {.lr = (float)s->lr,
                      .beta1 = c->beta1,
                      .beta2 = c->beta2,
                      .eps = c->eps,
                      .weight_decay = decay ? c->weight_decay : 0.0f,
                      .decoupled = c->decoupled,
                      .step = s->adam_step};
    if (begin >= end)
        return;
    char *working = (char *)p->working + (size_t)begin * dtype_bytes(c->dt);
    x->dev->ops->adamw(x->dev, x->streams.compute, p->master + begin, p->m + begin, p->v + begin,
                       p->grad + begin, working, end - begin, c->dt, &h, x->scalars.control);
}

void sdp_step_update(struct sdp_engine *x, struct sdp_step *s)
{
    struct stream *compute = x->streams.compute;
    for (int64_t u = 0; u < x->layout.units; u++) {
        const struct sdp_shard *p = &x->shards[u];
        int64_t decay = x->layout.unit[u].decay - p->begin; /* in this shard */
        decay = max_i64(0, min_i64(decay, p->elems));
        update_range(x, s, u, 0, decay, true);
        update_range(x, s, u, decay, p->elems, false);
    }
    sdp_units_invalidate(x);
    x->dev->ops->copy(x->dev, compute, &x->readback->control, x->scalars.control,
                      sizeof x->readback->control);
    x->dev->ops->copy(x->dev, compute, x->readback->sums, x->scalars.sums,
                      sizeof x->readback->sums);
    x->dev->ops->event_record(x->dev, x->step_ended[s->bank], compute);
    s->bytes_sent = sdp_engine_bytes_sent(x);
}

/* One readback serves two steps: the second writes it after the host has read the first's. */
enum status sdp_step_finish(struct sdp_engine *x, const struct sdp_step *s,
                            struct sdp_step_result *r, struct error *e)
{
    const struct device_ops *ops = x->dev->ops;
    struct event *ended = x->step_ended[s->bank], *before = x->step_ended[!s->bank];
    *r = (struct sdp_step_result){.digest = s->digest, .bytes_sent = s->bytes_sent};
    enum status st = ops->event_sync(x->dev, ended, e);
    struct error device_error = *e;
    TRY(sdp_engine_check(x, e)); /* a failed collective explains more than what it led to */
    if (st != STATUS_OK) {
        *e = device_error;
        return st;
    }
    r->loss = x->readback->control.loss;
    r->grad_norm = x->readback->control.grad_norm;
    r->stop = x->readback->sums[SDP_SUM_STOP] > 0;
    r->written = x->readback->sums[SDP_SUM_WRITTEN] >= (float)x->groups.world;
    r->skipped = x->readback->control.skip != 0.0f;
    r->exposed_ms = sdp_timer_total_ms(&x->timer, s->bank);
    r->device_ms = ops->event_elapsed_ms(x->dev, x->step_begun[s->bank], ended);
    r->interval_ms = ops->event_elapsed_ms(x->dev, before, ended);
    return STATUS_OK;
}

enum status sdp_step_run(struct sdp_engine *x, struct sdp_data *data, struct sdp_step *s,
                         struct sdp_step *next, struct sdp_step_result *r, struct error *e)
{
    if (s->stage == SDP_STEP_NEW)
        TRY(sdp_step_queue(x, data, s, e));
    if (s->stage == SDP_STEP_QUEUED)
        TRY(sdp_step_reduce(x, s, e));
    sdp_step_update(x, s);
    if (next)
        TRY(sdp_step_queue(x, data, next, e));
    world_note_step(x->world, s->number); /* waited for now, also when the device is beyond it */
    TRY(sdp_step_finish(x, s, r, e));
    world_note_step(x->world, next ? next->number : s->number);
    sdp_data_uploaded(data, s->taken);
    return STATUS_OK;
}

enum status sdp_step_discard(struct sdp_engine *x, struct sdp_step *s, struct error *e)
{
    sdp_grads_finish(x);
    s->stage = SDP_STEP_NEW;
    s->digest = 0;
    return sdp_engine_sync(x, e);
}

enum status sdp_validate(struct sdp_engine *x, struct shard_set *set, int64_t batches, double *loss,
                         int64_t *samples, struct error *e)
{
    struct sdp_data data;
    struct sdp_data_plan plan = {.batch = x->config.eval_batch,
                                 .time = x->config.eval_time,
                                 .accumulation = 1,
                                 .world = x->groups.world,
                                 .rank = x->groups.index};
    int64_t each = plan.batch * plan.world, all = (int64_t)shard_set_samples(set);
    int64_t rounds = min_i64(batches, ceil_div_i64(all, each));
    plan.step_samples = each;
    plan.limit = *samples = min_i64(rounds * each, all);
    TRY(sdp_data_open(&data, &plan, set, x->dev, x->eval_memory, e));
    enum status st = STATUS_OK;
    sdp_timer_reset(&x->timer, next_bank(x));
    for (int64_t i = 0; i < rounds && st == STATUS_OK; i++) {
        struct sdp_data_slot *slot;
        st = sdp_data_next(&data, &slot, e);
        if (st == STATUS_OK) {
            sdp_pass_eval(x, &slot->batch, i == 0, slot->uploaded);
            sdp_data_done(&data, slot);
        }
    }
    if (st == STATUS_OK) {
        reduce_sums(x, x->scalars.sums, 1);
        x->dev->ops->copy(x->dev, x->streams.compute, x->readback->sums, x->scalars.sums,
                          sizeof x->readback->sums);
        st = sdp_engine_sync(x, e);
    }
    sdp_data_close(&data);
    *loss = (double)x->readback->sums[SDP_SUM_LOSS] /
            (double)max_i64(1, *samples * (x->config.eval_time - 1));
    return st;
}

enum status sdp_param_norms(struct sdp_engine *x, double *norms, struct error *e)
{
    struct stream *s = x->streams.compute;
    float *sums = x->scalars.param_norms;
    size_t bytes = (size_t)x->tensors.count * sizeof *sums;
    x->dev->ops->fill_zero(x->dev, s, sums, bytes);
    for (int64_t u = 0; u < x->layout.units && x->groups.replica == 0; u++) {
        const struct sdp_shard *p = &x->shards[u];
        struct sdp_segment g;
        int64_t cursor = 0;
        while (sdp_layout_next(&x->layout, u, p->begin, p->begin + p->elems, &cursor, &g))
            x->dev->ops->reduce_sum(x->dev, s, &sums[g.tensor], p->master + (g.at - p->begin),
                                    g.count, true, true);
    }
    reduce_sums(x, sums, x->tensors.count);
    x->dev->ops->copy(x->dev, s, x->readback_norms, sums, bytes);
    TRY(sdp_engine_sync(x, e));
    for (int64_t i = 0; i < x->tensors.count; i++)
        norms[i] = sqrt((double)x->readback_norms[i]);
    return STATUS_OK;
}
