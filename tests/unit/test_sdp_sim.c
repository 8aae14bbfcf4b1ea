/* The plan's times of communication, where they can be counted by hand: links and devices without
 * limits, so that only the latency of hops is left. */
#include "sdp/sim.h"

#include <stdlib.h>

#include "tap.h"

enum { PER_NODE = 4, NODE_US = 3, NETWORK_US = 50 };

static struct error e;

static struct sdp_config small_config(int64_t degree)
{
    return (struct sdp_config){
        .model = {.layers = 4,
                  .heads = 2,
                  .channels = 32,
                  .context = 16,
                  .vocab = 64,
                  .epsilon = 1e-5f,
                  .eot = -1},
        .degree = degree,
        .batch = 1,
        .time = 16,
        .accumulation = 2,
        .dt = DTYPE_F32,
        .reduce_dt = DTYPE_F32,
        .hierarchical = true,
        .unit_buffers = 3,
        .max_live_elems = INT64_MAX,
        .bucket_elems = 1 << 20,
        .saver = {.keep = GPT2_KEEP_ALL, .group = 1, .horizon = 1},
        .logits_bytes = 1 << 20,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .clip = 1.0f,
    };
}

static const struct device_ops *cpu_ops(void)
{
    for (int i = 0; device_backends[i]; i++)
        if (strcmp(device_backends[i]->name, "cpu") == 0)
            return device_backends[i];
    return NULL;
}

static struct sdp_sim_result simulate(const struct sdp_config *c, int world, bool ring)
{
    struct sdp_sim_rates rates = {.tflops = 1e12,
                                  .memory_gbs = 1e15,
                                  .host_gbs = 1e15,
                                  .node_gbs = 1e15,
                                  .network_gbs = 1e15,
                                  .node_latency_us = NODE_US,
                                  .network_latency_us = NETWORK_US,
                                  .ring = ring};
    struct sdp_sim_result r = {0};
    int32_t nodes[64];
    for (int i = 0; i < world; i++)
        nodes[i] = i / PER_NODE;
    if (sdp_sim_run(c, world, 0, nodes, cpu_ops(), &rates, &r, &e) != STATUS_OK)
        tap_fail_(__FILE__, __LINE__, "%s", e.message);
    return r;
}

/* What a step's collectives take when a gather, a scatter, a replica reduction and a sum over all
 * ranks take so many microseconds each. */
static void check_ms(const struct sdp_sim_result *r, double gather, double scatter, double replica,
                     double other)
{
    double want = (double)r->calls[SDP_TRAFFIC_GATHER] * gather +
                  (double)r->calls[SDP_TRAFFIC_SCATTER] * scatter +
                  (double)r->calls[SDP_TRAFFIC_REPLICA] * replica +
                  (double)r->calls[SDP_TRAFFIC_OTHER] * other;
    CHECK_INT(r->calls[SDP_TRAFFIC_OTHER], 1);
    CHECK_NEAR(r->comm_ms, want * 1e-3, 1e-6 * want);
    CHECK_NEAR(r->exposed_ms, r->comm_ms, 1e-3 * r->comm_ms); /* nothing overlaps */
}

int main(void)
{
    struct sdp_config c;
    struct sdp_sim_result r;

    CASE("a ring in a node: a part passes all members but one, there and back to be summed")
    {
        c = small_config(4);
        r = simulate(&c, 4, true);
        CHECK(r.calls[SDP_TRAFFIC_GATHER] > 0 && r.calls[SDP_TRAFFIC_SCATTER] > 0);
        check_ms(&r, 3 * NODE_US, 3 * NODE_US, 0, 2 * 3 * NODE_US);
    }
    CASE("a ring over two nodes crosses both borders; replicas one a node cross one")
    {
        c = small_config(8);
        c.hierarchical = false;
        r = simulate(&c, 8, true);
        double around = 2 * NETWORK_US + 5 * NODE_US;
        check_ms(&r, around, around, 0, 2 * around);
        c = small_config(4);
        r = simulate(&c, 8, true);
        CHECK(r.calls[SDP_TRAFFIC_REPLICA] > 0);
        check_ms(&r, 3 * NODE_US, 3 * NODE_US, 2 * NETWORK_US, 2 * around);
    }
    CASE("a gather in stages: a ring between three nodes, then one inside for each of them")
    {
        c = small_config(12);
        r = simulate(&c, 12, true);
        CHECK_INT(r.calls[SDP_TRAFFIC_GATHER] % 4, 0);
        double around = 3 * NETWORK_US + 8 * NODE_US;
        check_ms(&r, (2 * NETWORK_US + 3 * 3 * NODE_US) / 4.0, around, 0, 2 * around);
    }
    CASE("everyone to everyone: one message, the slower of the two kinds, and two to sum")
    {
        c = small_config(4);
        r = simulate(&c, 4, false);
        check_ms(&r, NODE_US, NODE_US, 0, 2 * NODE_US);
        r = simulate(&c, 8, false);
        check_ms(&r, NODE_US, NODE_US, 2 * NETWORK_US, 2 * NETWORK_US);
    }
    CASE("one rank sends nothing")
    {
        c = small_config(1);
        r = simulate(&c, 1, true);
        CHECK(r.comm_ms == 0 && r.exposed_ms == 0);
    }
    return tap_done();
}
