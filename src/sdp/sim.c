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

/* The work of sdp_step_run, without data to read. */
static enum status run_step(struct sdp_engine *x, struct event *uploaded, struct sdp_step_result *r,
                            struct error *e)
{
    struct sdp_batch nothing = {0};
    struct sdp_step s = {.number = 1, .adam_step = 1, .lr = 1, .loss_scale = 1, .targets = 1};
    *r = (struct sdp_step_result){0};
    sdp_step_begin(x);
    for (int64_t k = 0; k < x->config.accumulation; k++)
        sdp_pass_train(x, &nothing, 1.0f, k == 0, k + 1 == x->config.accumulation, uploaded);
    sdp_step_reduce(x, &s);
    return sdp_step_update(x, &s, r, e);
}

static void count_from_zero(struct sim_device *d)
{
    d->compute_seconds = d->comm_seconds = d->flops = 0;
    memset(d->bytes, 0, sizeof d->bytes);
    memset(d->calls, 0, sizeof d->calls);
}

enum status sdp_sim_run(const struct sdp_config *c, int world, int rank, const int32_t *nodes,
                        const struct device_ops *backend, const struct sdp_sim_rates *rates,
                        struct sdp_sim_result *r, struct error *e)
{
    struct sim_device d;
    struct sdp_groups groups;
    struct sdp_engine x;
    struct sdp_step_result step;
    struct event uploaded = {0};
    struct world w = {.rank = rank, .size = world};
    sim_device_init(&d, backend, rates);
    TRY(sdp_groups_make(&groups, world, rank, c->degree, nodes, c->hierarchical, e));
    d.groups = &groups;
    d.node_size = count_node(nodes, world, rank);
    enum status st = sdp_engine_assemble(&x, c, &w, nodes, &d.base, &sim_comm_ops, e);
    for (int i = 0; i < 2 && st == STATUS_OK; i++) {
        count_from_zero(&d);
        st = run_step(&x, &uploaded, &step, e);
    }
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
