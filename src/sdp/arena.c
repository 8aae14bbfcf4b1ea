#include "sdp/arena.h"

#include "base/checked.h"

const char *const sdp_memory_names[SDP_MEMORY_COUNT] = {
    "parameters",    "gradients", "optimizer", "gathered", "activations", "logits",
    "communication", "data",      "offload",   "staging",  "host",
};

enum memory_kind sdp_memory_kind(enum sdp_memory m)
{
    return m == SDP_OFFLOAD || m == SDP_STAGING || m == SDP_HOST ? MEMORY_HOST : MEMORY_DEVICE;
}

void *sdp_arena_take(struct sdp_arena *a, enum sdp_memory m, int64_t bytes)
{
    char *p = a->part[m].base ? a->part[m].base + a->part[m].used : NULL;
    a->part[m].used += round_up_i64(bytes, SDP_ARENA_ALIGN);
    a->part[m].peak = max_i64(a->part[m].peak, a->part[m].used);
    return p;
}

int64_t sdp_arena_mark(const struct sdp_arena *a, enum sdp_memory m)
{
    return a->part[m].used;
}

void sdp_arena_rewind(struct sdp_arena *a, enum sdp_memory m, int64_t mark)
{
    a->part[m].used = mark;
}

enum status sdp_arena_alloc(struct sdp_arena *a, struct device *dev, struct error *e)
{
    a->dev = dev;
    for (int m = 0; m < SDP_MEMORY_COUNT; m++) {
        void *p = NULL;
        a->part[m].used = 0;
        if (a->part[m].peak == 0)
            continue;
        if (dev->ops->alloc(dev, sdp_memory_kind((enum sdp_memory)m), (size_t)a->part[m].peak, &p,
                            e) != STATUS_OK)
            return error_context(e, "allocating %.1f MiB of %s memory for %s",
                                 (double)a->part[m].peak / 1048576.0, dev->ops->name,
                                 sdp_memory_names[m]);
        a->part[m].base = p;
    }
    return STATUS_OK;
}

void sdp_arena_release(struct sdp_arena *a)
{
    if (!a->dev)
        return;
    for (int m = 0; m < SDP_MEMORY_COUNT; m++)
        if (a->part[m].base)
            a->dev->ops->free(a->dev, sdp_memory_kind((enum sdp_memory)m), a->part[m].base);
    *a = (struct sdp_arena){0};
}

int64_t sdp_arena_bytes(const struct sdp_arena *a, enum memory_kind kind)
{
    int64_t sum = 0;
    for (int m = 0; m < SDP_MEMORY_COUNT; m++)
        if (sdp_memory_kind((enum sdp_memory)m) == kind)
            sum += a->part[m].peak;
    return sum;
}
