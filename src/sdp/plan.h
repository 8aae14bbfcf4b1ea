/* plan.h - what a run would take, without running it: memory by purpose, communication by kind,
 * work, predicted times, and the fewest ranks that fit a device. */
#ifndef SDP_PLAN_H
#define SDP_PLAN_H

#include "sdp/sim.h"

struct sdp_plan {
    int64_t parameters;
    struct sdp_groups groups;
    int64_t memory[SDP_MEMORY_COUNT]; /* bytes of the rank with most */
    int64_t device_bytes, host_bytes;
    double model_flops; /* of a rank and step by 6N + 12LCT a token */
    struct sdp_sim_result sim;
    /* for a memory limit; 0 = none fits */
    int64_t fit_world, fit_degree; /* fewest ranks, and their degree */
    int64_t fit_degree_here;       /* smallest degree of this world */
};

/* ranks_per_node > 0; memory_limit 0 = no search. */
enum status sdp_plan_make(const struct sdp_config *c, int world, int ranks_per_node,
                          const struct device_ops *backend, const struct sdp_sim_rates *rates,
                          int64_t memory_limit, struct sdp_plan *p, struct error *e) MUST_CHECK;

#endif
