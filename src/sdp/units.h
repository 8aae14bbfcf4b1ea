/* units.h - gathered weights: which units are whole on this rank right now, and in which buffer.
 *
 * Held units have buffers of their own and are gathered once a step. Streamed units share a ring of
 * slots: the slot whose unit is needed again last is given away (the order of use is known: units
 * 1..L forward, L..1 backward), so the turn from forward to backward gathers nothing twice, and a
 * ring as long as the model gathers each unit once a step. A gather runs on the gather stream after
 * the optimizer wrote the shards and after compute released the slot; compute waits for the
 * gather's event, so stale weights cannot be read. With degree 1 a unit is the working shard itself
 * and none of this happens. */
#ifndef SDP_UNITS_H
#define SDP_UNITS_H

#include "device/device.h"

struct sdp_engine;

struct sdp_slot {
    void *data;
    int64_t unit;         /* -1 = empty */
    int64_t version;      /* of the weights in it */
    bool in_use, waiting; /* bound by compute; gathered but not yet used */
    struct event *ready, *released;
};

struct sdp_units {
    struct sdp_slot *slots; /* [count] of streamed units */
    int64_t count;
    struct sdp_slot held[2]; /* unit 0 and the last */
    int64_t version;         /* counts optimizer steps; slots of older versions are stale */
    struct event *weights_ready;
    void *stage;  /* hierarchical gathers: one shard of every node */
    bool forward; /* direction of the pass, for choosing slots */
};

/* Memory for slots; counting or real. */
void sdp_units_lay_out(struct sdp_engine *x);
enum status sdp_units_open(struct sdp_engine *x, struct error *e) MUST_CHECK;
void sdp_units_close(struct sdp_engine *x);

/* Start gathering `unit` if it is not here and a slot is free; never required. */
void sdp_units_prefetch(struct sdp_engine *x, int64_t unit);
/* The whole unit in the working dtype, valid on the compute stream until released. */
const void *sdp_units_acquire(struct sdp_engine *x, int64_t unit);
void sdp_units_release(struct sdp_engine *x, int64_t unit);
/* The optimizer has written new shards on the compute stream: everything gathered is stale. */
void sdp_units_invalidate(struct sdp_engine *x);
/* Slots in the ring for a configuration: at least 1, at most one a streamed unit. */
int64_t sdp_units_count(const struct sdp_engine *x);

#endif
