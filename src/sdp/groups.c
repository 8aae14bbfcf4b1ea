#include "sdp/groups.h"

#include <stdlib.h>
#include <string.h>

/* Nearest divisors of world below and above degree; 0 where there is none. */
static void nearest_degrees(int64_t world, int64_t degree, int64_t *below, int64_t *above)
{
    *below = *above = 0;
    for (int64_t d = 1; d <= world; d++) {
        if (world % d != 0)
            continue;
        if (d < degree)
            *below = d;
        if (d > degree && *above == 0)
            *above = d;
    }
}

enum status sdp_degree_check(int64_t world, int64_t degree, struct error *e)
{
    int64_t below, above;
    if (world >= 1 && degree >= 1 && world % degree == 0)
        return STATUS_OK;
    nearest_degrees(world, degree, &below, &above);
    if (below && above)
        return error_set(e, STATUS_USAGE,
                         "sharded-data-parallel-degree %lld does not divide %lld ranks (%lld ranks "
                         "are left over); nearest valid degrees: %lld and %lld",
                         (long long)degree, (long long)world,
                         (long long)(degree > 0 ? world % degree : 0), (long long)below,
                         (long long)above);
    return error_set(e, STATUS_USAGE,
                     "sharded-data-parallel-degree %lld does not fit %lld rank%s; nearest valid "
                     "degree: %lld",
                     (long long)degree, (long long)world, world == 1 ? "" : "s",
                     (long long)(below ? below : above));
}

/* order[i] = the rank with index i: by node, then by rank. Nodes are numbered densely from 0. */
static void order_by_node(int world, const int32_t *nodes, int *order)
{
    int n = 0;
    for (int32_t node = 0; n < world; node++)
        for (int r = 0; r < world; r++)
            if (nodes[r] == node)
                order[n++] = r;
}

/* Nodes of the shard group that starts at order[first]; *even when each has the same number of
 * ranks. */
static int count_nodes(const int *order, const int32_t *nodes, int first, int degree, bool *even)
{
    int count = 0, run = 0, each = 0;
    *even = true;
    for (int i = 0; i < degree; i++) {
        run++;
        bool ends = i + 1 == degree || nodes[order[first + i]] != nodes[order[first + i + 1]];
        if (!ends)
            continue;
        if (count > 0 && run != each)
            *even = false;
        each = run;
        run = 0;
        count++;
    }
    return count;
}

enum status sdp_groups_make(struct sdp_groups *g, int world, int rank, int64_t degree,
                            const int32_t *nodes, bool hierarchical, struct error *e)
{
    TRY(sdp_degree_check(world, degree, e));
    *g = (struct sdp_groups){.world = world, .degree = (int)degree};
    g->replicas = world / g->degree;
    g->index = rank;
    g->group_nodes = 1;
    g->node_ranks = g->degree;
    if (nodes) {
        int *order = malloc((size_t)world * sizeof *order);
        bool even, all_even = true;
        int across = 1;
        if (!order)
            return error_memory(e, (size_t)world * sizeof *order, "the order of ranks");
        order_by_node(world, nodes, order);
        for (int i = 0; i < world; i++)
            if (order[i] == rank)
                g->index = i;
        /* Every group must agree on the number of stages, or their collectives would not match. */
        for (int r = 0; r < g->replicas; r++) {
            int n = count_nodes(order, nodes, r * g->degree, g->degree, &even);
            all_even = all_even && even && (r == 0 || n == across);
            across = n;
        }
        if (all_even) {
            g->group_nodes = across;
            g->node_ranks = g->degree / across;
        }
        free(order);
    }
    g->replica = g->index / g->degree;
    g->place = g->index % g->degree;
    g->hierarchical = hierarchical && g->group_nodes > 1 && g->node_ranks > 1;
    return STATUS_OK;
}
