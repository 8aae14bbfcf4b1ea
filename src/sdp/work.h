/* work.h - a pass's activations: which are kept between forward and backward, where, and when they
 * come back.
 *
 * A *kept item* is what survives from forward to backward: all activations of a block, its inputs,
 * or (with groups of blocks) the input of a group. Without offloading every item has a device slot.
 * With offloading there are horizon + 1 slots; an item whose slot is needed is copied to host
 * memory behind the next blocks' forward, and comes back when the backward pass is `horizon` items
 * above it. Neither changes any result: recomputation runs the same kernels on the same inputs. */
#ifndef SDP_WORK_H
#define SDP_WORK_H

#include "gpt2/model.h"
#include "sdp/arena.h"

struct sdp_engine;

struct sdp_saver {
    enum gpt2_keep keep; /* of a block, when group is 1 */
    int64_t group;       /* blocks recomputed together; > 1 keeps only the group's input */
    bool offload;
    int64_t horizon; /* kept items brought back ahead of their use */
};

struct sdp_work {
    struct gpt2_run run;
    struct gpt2_scratch scratch;
    struct gpt2_head head;
    int32_t *tokens, *targets; /* device [B*T] */
    int64_t *samples;          /* device [B] */
    bool training;
    struct sdp_saver saver;
    int64_t items, slot_count, item_bytes;
    char *slots;        /* device [slot_count * item_bytes] */
    char *shared;       /* device: activations that are recomputed, or of a group's blocks */
    int64_t full_bytes; /* of one block's activations */
    char *host;         /* offloaded items [items * item_bytes] */
    struct event **slot_free, **slot_loaded; /* [slot_count] */
    struct event *done;
};

/* Takes device and host memory for passes of this shape; counting or real. */
void sdp_work_lay_out(struct sdp_engine *x, struct sdp_work *w, bool training);
enum status sdp_work_open(struct sdp_engine *x, struct sdp_work *w, struct error *e) MUST_CHECK;
void sdp_work_close(struct sdp_engine *x, struct sdp_work *w);

/* Pointers of a block's activations; the memory is ready for writing (forward) or holds what was
 * kept (backward, after sdp_work_fetch). */
void sdp_work_acts(const struct sdp_engine *x, const struct sdp_work *w, int64_t layer,
                   struct gpt2_block_acts *a);
/* Forward: before the first and after the last block of a kept item. */
void sdp_work_begin_item(struct sdp_engine *x, struct sdp_work *w, int64_t item);
void sdp_work_end_item(struct sdp_engine *x, struct sdp_work *w, int64_t item);
/* Backward: the item is back on the device; its slot is no longer needed. */
void sdp_work_fetch(struct sdp_engine *x, struct sdp_work *w, int64_t item);
void sdp_work_drop(struct sdp_engine *x, struct sdp_work *w, int64_t item);

#endif
