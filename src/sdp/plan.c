#include "sdp/plan.h"

#include "base/checked.h"

#include <stdlib.h>

/* No search goes beyond this many ranks. */
#define WORLD_LIMIT 65536

/* Device bytes of a rank with this degree; ranks beyond the shard group change only host memory. */
static enum status device_bytes(const struct sdp_config *c, int64_t degree,
                                const struct device_ops *backend, int64_t *bytes, struct error *e)
{
    struct sdp_engine x;
    struct sdp_config sized = *c;
    sized.degree = degree;
    enum status st = sdp_engine_size(&x, &sized, (int)degree, 0, NULL, backend, e);
    *bytes = sdp_arena_bytes(&x.arena, MEMORY_DEVICE);
    x.dev = NULL;
    sdp_engine_close(&x);
    return st;
}

/* Memory falls with the degree but for a few bytes of padding, so the first one that fits is the
 * smallest; between powers of two it is looked for by halving. */
static enum status smallest_degree(const struct sdp_config *c, const struct device_ops *backend,
                                   int64_t limit, int64_t *degree, struct error *e)
{
    int64_t low = 0, high = 1, bytes;
    *degree = 0;
    for (;; high *= 2) {
        if (high > WORLD_LIMIT)
            return STATUS_OK; /* what is not sharded does not fit */
        TRY(device_bytes(c, high, backend, &bytes, e));
        if (bytes <= limit)
            break;
        low = high;
    }
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        TRY(device_bytes(c, middle, backend, &bytes, e));
        if (bytes <= limit)
            high = middle;
        else
            low = middle;
    }
    *degree = high;
    return STATUS_OK;
}

static enum status fit(const struct sdp_config *c, int world, const struct device_ops *backend,
                       int64_t limit, struct sdp_plan *p, struct error *e)
{
    TRY(smallest_degree(c, backend, limit, &p->fit_degree, e));
    p->fit_world = p->fit_degree; /* one shard group */
    for (int64_t s = max_i64(1, p->fit_degree); p->fit_degree > 0 && s <= world; s++) {
        int64_t bytes;
        if (world % s != 0)
            continue;
        TRY(device_bytes(c, s, backend, &bytes, e));
        if (bytes <= limit) {
            p->fit_degree_here = s;
            break;
        }
    }
    return STATUS_OK;
}

enum status sdp_plan_make(const struct sdp_config *c, int world, int ranks_per_node,
                          const struct device_ops *backend, const struct sdp_sim_rates *rates,
                          int64_t memory_limit, struct sdp_plan *p, struct error *e)
{
    struct sdp_engine x;
    enum status st;
    int32_t *nodes = malloc((size_t)world * sizeof *nodes);
    *p = (struct sdp_plan){.parameters = gpt2_parameters(&c->model)};
    if (!nodes)
        return error_memory(e, (size_t)world * sizeof *nodes, "node numbers");
    for (int r = 0; r < world; r++)
        nodes[r] = r / ranks_per_node;
    st = sdp_engine_size(&x, c, world, 0, nodes, backend, e);
    x.dev = NULL;
    p->groups = x.groups;
    for (int m = 0; m < SDP_MEMORY_COUNT; m++)
        p->memory[m] = x.arena.part[m].peak;
    p->device_bytes = sdp_arena_bytes(&x.arena, MEMORY_DEVICE);
    p->host_bytes = sdp_arena_bytes(&x.arena, MEMORY_HOST);
    sdp_engine_close(&x);
    TRY_OUT(st);
    p->model_flops = gpt2_train_flops_per_token(&c->model, c->time) *
                     (double)(c->batch * c->time * c->accumulation);
    TRY_OUT(sdp_sim_run(c, world, 0, nodes, backend, rates, &p->sim, e));
    if (memory_limit > 0)
        TRY_OUT(fit(c, world, backend, memory_limit, p, e));
out:
    free(nodes);
    return st;
}
