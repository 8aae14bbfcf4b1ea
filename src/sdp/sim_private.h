/* sim_private.h - what the files of the simulation share. */
#ifndef SDP_SIM_PRIVATE_H
#define SDP_SIM_PRIVATE_H

#include "sdp/sim.h"

struct stream {
    double now; /* seconds */
};
struct event {
    double at;
};

struct sim_device {
    struct device base;
    struct device_ops ops; /* ours, with the backend's workspace functions */
    struct sdp_sim_rates rates;
    struct stream compute;
    const struct sdp_groups *groups;
    int node_size;       /* ranks on this rank's node */
    double link_free[2]; /* inside the node; to other nodes */
    double compute_seconds, comm_seconds, flops;
    int64_t bytes[SDP_TRAFFIC_KINDS], calls[SDP_TRAFFIC_KINDS];
    uintptr_t next_address; /* of device memory that does not exist */
};

static inline struct sim_device *sim_of(struct device *dev)
{
    return (struct sim_device *)dev;
}

/* sim_device.c */
void sim_device_init(struct sim_device *d, const struct device_ops *backend,
                     const struct sdp_sim_rates *rates);
/* sim_comm.c */
extern const struct comm_ops sim_comm_ops;

#endif
