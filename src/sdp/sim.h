/* sim.h - a step without a machine: the real schedule, run on a device and collectives that only
 * keep time.
 *
 * Every stream has a clock. A kernel advances its stream's by the larger of operations over the
 * device's rate and bytes over its memory bandwidth; events carry times between streams; a
 * collective starts when its stream and its link are free, and takes the slowest of what a rank
 * sends inside its node and what its node's ranks send to other nodes, and the latency of each hop
 * that follows another: all hops of a way round a ring, one where everyone sends to everyone. So
 * what --plan prints is what the engine would do: the same gathers, the same waits, the same bytes.
 * Not modelled: ranks that differ, launch overhead, and contention other than for links. */
#ifndef SDP_SIM_H
#define SDP_SIM_H

#include "sdp/engine.h"

struct sdp_sim_rates {
    double tflops;             /* of products and attention, per rank */
    double memory_gbs;         /* device memory, read plus written */
    double host_gbs;           /* between device and host memory */
    double node_gbs;           /* what a rank sends inside its node */
    double network_gbs;        /* what a node sends to other nodes */
    double node_latency_us;    /* of a message inside a node */
    double network_latency_us; /* of a message between nodes */
    bool ring; /* collectives pass data on (NCCL); else everyone sends to everyone (MPI) */
};

enum sdp_traffic {
    SDP_TRAFFIC_GATHER,
    SDP_TRAFFIC_SCATTER,
    SDP_TRAFFIC_REPLICA,
    SDP_TRAFFIC_OTHER,
    SDP_TRAFFIC_KINDS
};
extern const char *const sdp_traffic_names[SDP_TRAFFIC_KINDS];

struct sdp_sim_result {
    double step_ms, exposed_ms;
    double compute_ms;                /* the compute stream at work */
    double comm_ms;                   /* all collectives, end to end */
    double flops;                     /* executed by a rank in a step, recomputation included */
    int64_t bytes[SDP_TRAFFIC_KINDS]; /* sent by a rank in a step */
    int64_t calls[SDP_TRAFFIC_KINDS];
};

/* One step of `rank` of a world, after a first one that filled the buffers. backend: whose kernels'
 * workspaces are counted; nodes as in groups.h. */
enum status sdp_sim_run(const struct sdp_config *c, int world, int rank, const int32_t *nodes,
                        const struct device_ops *backend, const struct sdp_sim_rates *rates,
                        struct sdp_sim_result *r, struct error *e) MUST_CHECK;

#endif
