/* carve.h - cutting one allocation into buffers. The same walk sizes and cuts: with base NULL it
 * only counts, so a size and its layout cannot disagree. */
#ifndef GPT2_CARVE_H
#define GPT2_CARVE_H

#include "base/checked.h"

#define CARVE_ALIGN 256

struct carver {
    char *base;
    int64_t used; /* bytes */
};

static inline void *carve(struct carver *v, int64_t bytes)
{
    void *p = v->base ? v->base + v->used : NULL;
    v->used += round_up_i64(bytes, CARVE_ALIGN);
    return p;
}

#endif
