/* sim_comm.c - collectives that only take time on links. */
#include "sdp/sim_private.h"

#include <stdlib.h>
#include <string.h>

struct sim_comm {
    struct comm base;
    enum sdp_traffic kind;
    int local; /* members on this rank's node, this rank included */
};

static enum status sim_usable(const struct world *w, const struct device *dev, struct error *e)
{
    (void)w, (void)dev, (void)e;
    return STATUS_OK;
}

/* Size and spread of a group follow from its name: the engine makes the same ones every time. */
static enum status sim_create(struct comm **out, struct world *w, struct device *dev, int color,
                              int key, const char *name, struct error *e)
{
    struct sim_device *d = sim_of(dev);
    const struct sdp_groups *g = d->groups;
    struct sim_comm *c = calloc(1, sizeof *c);
    (void)color;
    if (!c)
        return error_memory(e, sizeof *c, "a simulated communicator");
    c->base.ops = &sim_comm_ops;
    c->base.world = w;
    c->base.dev = dev;
    c->base.rank = key;
    c->kind = SDP_TRAFFIC_GATHER;
    c->base.size = g->degree;
    c->local = g->node_ranks;
    if (strcmp(name, "all") == 0) {
        c->kind = SDP_TRAFFIC_OTHER;
        c->base.size = g->world;
        c->local = d->node_size;
    } else if (strcmp(name, "scatter") == 0) {
        c->kind = SDP_TRAFFIC_SCATTER;
    } else if (strcmp(name, "gather between nodes") == 0) {
        c->base.size = g->group_nodes;
        c->local = 1;
    } else if (strcmp(name, "gather inside a node") == 0) {
        c->base.size = g->node_ranks;
    } else if (strcmp(name, "replica") == 0) {
        int groups_a_node =
            d->node_size / g->node_ranks; /* shard groups with a part on this node */
        c->kind = SDP_TRAFFIC_REPLICA;
        c->base.size = g->replicas;
        c->local = groups_a_node > g->replicas ? g->replicas
                   : groups_a_node > 0         ? groups_a_node
                                               : 1;
    }
    *out = &c->base;
    return STATUS_OK;
}

static void sim_free_comm(struct comm *c)
{
    free(c);
}

/* Time of one round without a byte. In a ring the last part to arrive has come through all members
 * but one: it crossed as many borders between nodes as there are nodes, or one less where every hop
 * is one. Otherwise all messages are under way at once. */
static double latency_us(const struct sim_comm *c, const struct sdp_sim_rates *r)
{
    int hops = c->base.size - 1, nodes = c->base.size / c->local;
    if (!r->ring) {
        double near = c->local > 1 ? r->node_latency_us : 0;
        double far = nodes > 1 ? r->network_latency_us : 0;
        return near > far ? near : far;
    }
    int borders = nodes == 1 ? 0 : c->local > 1 ? nodes : hops;
    return borders * r->network_latency_us + (hops - borders) * r->node_latency_us;
}

/* A rank sends `bytes` of its own to each of the others (or passes as much on, in a ring). The
 * node's ranks do so at the same time and share its link to other nodes. */
static void transfer(struct comm *head, struct stream *s, double bytes, int rounds)
{
    struct sim_comm *c = (struct sim_comm *)head;
    struct sim_device *d = sim_of(head->dev);
    int others = head->size - 1, remote = head->size - c->local, near = c->local - 1;
    double inside, outside;
    if (others <= 0)
        return;
    if (d->rates.ring) { /* one rank a node hands everything to the next node */
        inside = near > 0 ? others * bytes : 0;
        outside = remote > 0 ? (double)others * bytes * d->node_size / c->local : 0;
    } else {
        inside = near * bytes;
        outside = (double)remote * bytes * d->node_size;
    }
    double in_time = inside / (d->rates.node_gbs * 1e9);
    double out_time = outside / (d->rates.network_gbs * 1e9);
    double seconds =
        rounds * (latency_us(c, &d->rates) * 1e-6 + (in_time > out_time ? in_time : out_time));
    bool out = remote > 0;
    double start = s->now > d->link_free[out] ? s->now : d->link_free[out];
    s->now = d->link_free[out] = start + seconds;
    d->comm_seconds += seconds;
    d->bytes[c->kind] += (int64_t)(rounds * others * bytes);
    d->calls[c->kind]++;
    head->bytes_sent += (int64_t)(rounds * others * bytes);
    head->calls++;
}

static void sim_all_gather(struct comm *c, struct stream *s, void *recv, const void *send,
                           size_t bytes)
{
    (void)recv, (void)send;
    transfer(c, s, (double)bytes, 1);
}

static void sim_reduce_scatter(struct comm *c, struct stream *s, void *recv, const void *send,
                               int64_t count, enum dtype dt)
{
    (void)recv, (void)send;
    transfer(c, s, (double)count * (double)dtype_bytes(dt), 1);
}

static void sim_all_reduce(struct comm *c, struct stream *s, void *buf, int64_t count,
                           enum dtype dt, enum comm_reduce op)
{
    (void)buf, (void)op;
    transfer(c, s, (double)count * (double)dtype_bytes(dt) / c->size, 2);
}

static void sim_broadcast(struct comm *c, struct stream *s, void *buf, size_t bytes, int root)
{
    (void)buf, (void)root;
    transfer(c, s, (double)bytes / c->size, 1);
}

static enum status sim_check(struct comm *c, struct error *e)
{
    (void)c, (void)e;
    return STATUS_OK;
}

const struct comm_ops sim_comm_ops = {
    .name = "sim",
    .usable = sim_usable,
    .create = sim_create,
    .free = sim_free_comm,
    .all_gather = sim_all_gather,
    .reduce_scatter = sim_reduce_scatter,
    .all_reduce = sim_all_reduce,
    .broadcast = sim_broadcast,
    .check = sim_check,
};
