/* arena.h - all memory of a run, by purpose, allocated once before step 1.
 *
 * The same code lays memory out twice: first with an arena that only counts (sdp_arena_take returns
 * NULL), then, after sdp_arena_alloc, for real. --plan stops after the first pass, so what it
 * prints is what a run allocates. */
#ifndef SDP_ARENA_H
#define SDP_ARENA_H

#include "device/device.h"

enum sdp_memory {
    SDP_PARAMETERS,    /* fp32 master shards and working-precision shards */
    SDP_GRADIENTS,     /* fp32 gradient accumulators */
    SDP_OPTIMIZER,     /* Adam's m and v */
    SDP_GATHERED,      /* gathered units, and whole-unit gradients on their way to the owners */
    SDP_ACTIVATIONS,   /* what forward leaves for backward, and transient buffers */
    SDP_LOGITS,        /* the head: final norm, logits, losses */
    SDP_COMMUNICATION, /* wire buffers */
    SDP_DATA,          /* micro-batches on the device, scalars */
    SDP_OFFLOAD,       /* host: offloaded activations */
    SDP_STAGING,       /* host: the copy of a checkpoint being written */
    SDP_HOST,          /* host: micro-batches read ahead, readbacks */
    SDP_MEMORY_COUNT
};
extern const char *const sdp_memory_names[SDP_MEMORY_COUNT];
enum memory_kind sdp_memory_kind(enum sdp_memory m);

struct sdp_arena {
    struct device *dev; /* NULL while only counting */
    struct {
        char *base;
        int64_t used, peak; /* peak: the most that was used; the size when allocated */
    } part[SDP_MEMORY_COUNT];
};

#define SDP_ARENA_ALIGN 256
/* Zero-filled, aligned to SDP_ARENA_ALIGN; NULL while counting. */
void *sdp_arena_take(struct sdp_arena *a, enum sdp_memory m, int64_t bytes);
/* Two uses that never overlap in time share memory: note the mark, take, and go back to it. */
int64_t sdp_arena_mark(const struct sdp_arena *a, enum sdp_memory m);
void sdp_arena_rewind(struct sdp_arena *a, enum sdp_memory m, int64_t mark);
/* After counting: allocate every part and start over. */
enum status sdp_arena_alloc(struct sdp_arena *a, struct device *dev, struct error *e) MUST_CHECK;
void sdp_arena_release(struct sdp_arena *a);
int64_t sdp_arena_bytes(const struct sdp_arena *a, enum memory_kind kind);

#endif
