#include "sdp/sim_private.h"

#include "sdp/step.h"

#include <string.h>

const char *const sdp_traffic_names[SDP_TRAFFIC_KINDS] = {"gather", "scatter", "replica", "other"};

static int count_node(const int32_t *nodes, int world, int rank)
{
    int n = 0;
    for (int r = 0; r < world; r++)
        n += !nodes || nodes[r] == nodes[rank];
    return n;
}

/* sdp_step_queue without data to read. */
static void queue(struct sdp_engine *x, struct sdp_step *s)
{
    struct sdp_batch nothing = {0};
    struct event uploaded = {0};
    sdp_step_begin(x, s);
    for (int64_t k = 0; k < x->config.accumulation; k++)
        sdp_pass_train(x, &nothing, 1.0f, k == 0, k + 1 == x->config.accumulation, &uploaded);
}

static enum status update(struct sdp_engine *x, struct sdp_step *s, struct error *e)
{
    TRY(sdp_step_reduce(x, s, e));
    sdp_step_update(x, s);
    return STATUS_OK;
}

static void count_from_zero(struct sim_device *d)
{
    d->compute_seconds = d->comm_seconds = d->flops = 0;
    memset(d->bytes, 0, sizeof d->bytes);
    memset(d->calls, 0, sizeof d->calls);
}

/* Two steps in the order of sdp_step_run; the second is counted. */
static enum status run_steps(struct sdp_engine *x, struct sim_device *d, struct sdp_step_result *r,
                             struct error *e)
{
    struct sdp_step first = {.number = 1, .adam_step = 1, .lr = 1, .loss_scale = 1, .targets = 1};
    struct sdp_step second = first;
    bool ahead = sdp_step_runs_ahead(x);
    second.number = second.adam_step = 2;
    queue(x, &first);
    TRY(update(x, &first, e));
    if (!ahead)
        TRY(sdp_step_finish(x, &first, r, e));
    count_from_zero(d);
    queue(x, &second);
    if (ahead)
        TRY(sdp_step_finish(x, &first, r, e));
    TRY(update(x, &second, e));
    return sdp_step_finish(x, &second, r, e);
}

enum status sdp_sim_run(const struct sdp_config *c, int world, int rank, const int32_t *nodes,
                        const struct device_ops *backend, const struct sdp_sim_rates *rates,
                        struct sdp_sim_result *r, struct error *e)
{
    struct sim_device d;
    struct sdp_groups groups;
    struct sdp_engine x;
    struct sdp_step_result step;
    struct world w = {.rank = rank, .size = world};
    sim_device_init(&d, backend, rates);
    TRY(sdp_groups_make(&groups, world, rank, c->degree, nodes, c->hierarchical, e));
    d.groups = &groups;
    d.node_size = count_node(nodes, world, rank);
    enum status st = sdp_engine_assemble(&x, c, &w, nodes, &d.base, &sim_comm_ops, e);
    if (st == STATUS_OK)
        st = run_steps(&x, &d, &step, e);
    sdp_engine_close(&x);
    if (st != STATUS_OK)
        return st;
    *r = (struct sdp_sim_result){.step_ms = step.device_ms,
                                 .exposed_ms = step.exposed_ms,
                                 .compute_ms = d.compute_seconds * 1e3,
                                 .comm_ms = d.comm_seconds * 1e3,
                                 .flops = d.flops};
    memcpy(r->bytes, d.bytes, sizeof r->bytes);
    memcpy(r->calls, d.calls, sizeof r->calls);
    return STATUS_OK;
}
