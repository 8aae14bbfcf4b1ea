/* groups.h - who shards with whom, and who replicates whom.
 *
 * W ranks, sharding degree S, R = W/S replicas. Ranks are ordered by (node, rank); S consecutive
 * ones form a shard group, which lies inside a node whenever S divides the node's ranks. Ranks with
 * the same place in their shard groups form a replica group. S = W is ZeRO-3, S = 1 is plain data
 * parallel, between is MiCS (Zhang et al., "MiCS: Near-linear Scaling for Training Gigantic Model
 * on Public Cloud", VLDB 2022). No communication here: --plan uses this file for worlds that do not
 * exist. */
#ifndef SDP_GROUPS_H
#define SDP_GROUPS_H

#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct sdp_groups {
    int world, degree, replicas;
    int index;   /* this rank's place in the order by node */
    int replica; /* its shard group: index / degree */
    int place;   /* within its shard group: index % degree */
    /* A shard group over several nodes with the same number of ranks on each gathers in two stages.
     * Place p is rank p % node_ranks of the group's node p / node_ranks. One node: 1 and degree. */
    int group_nodes, node_ranks;
    bool hierarchical; /* two-stage gathers are used */
};

/* W >= 1 and S >= 1 that divides it; else STATUS_USAGE naming both and the nearest valid degrees.
 */
enum status sdp_degree_check(int64_t world, int64_t degree, struct error *e) MUST_CHECK;
/* nodes[world]: the node of every rank; NULL = all on one. */
enum status sdp_groups_make(struct sdp_groups *g, int world, int rank, int64_t degree,
                            const int32_t *nodes, bool hierarchical, struct error *e) MUST_CHECK;

#endif
