/* cached.h - what decode.c and attention_prompt.c share: attention over the paged cache. */
#ifndef DEVICE_CPU_CACHED_H
#define DEVICE_CPU_CACHED_H

#include "device/device.h"

enum {
    CPU_ATTEND_TILE = 64,      /* queries a tile at most */
    CPU_ATTEND_TILE_LEAST = 16 /* rows that follow each other, from which tiles are faster */
};

struct cached_args {
    void *out; /* [rows, heads, dim] */
    struct kv_cache kv;
    const void *qkv; /* [rows, 3, heads, dim] */
    const int32_t *sequences, *positions;
    int64_t rows, heads, dim;
    enum dtype dt;
};

/* First element of a position in the cache; width = heads * dim. */
static inline int64_t cache_at(const struct kv_cache *kv, int32_t sequence, int64_t position,
                               int64_t width)
{
    int64_t page = kv->table[sequence * kv->max_pages + position / kv->page_tokens];
    return (page * kv->page_tokens + position % kv->page_tokens) * width;
}

/* One head of rows row .. row+n-1, n <= CPU_ATTEND_TILE, at consecutive positions of one sequence.
 * scratch: cpu_attend_tile_floats(dim) floats. */
void cpu_attend_tile(const struct cached_args *a, int64_t row, int64_t n, int64_t head,
                     float *scratch);
int64_t cpu_attend_tile_floats(int64_t dim);

#endif
