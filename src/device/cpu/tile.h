/* tile.h - small matrix products in registers and a step of softmax, for tiles that attention keeps
 * in cache. */
#ifndef DEVICE_CPU_TILE_H
#define DEVICE_CPU_TILE_H

#include "device/cpu/vector.h"

#if defined(__AVX512F__)
enum { TILE_ROWS = 8 };
#else
enum { TILE_ROWS = 4 };
#endif

/* c[TILE_ROWS, nv*VL] = (accumulate ? c : 0) + a b; a element (i,k) at a[i*rs + k*cs]. */
ALWAYS_INLINE void tile_block(int nv, int64_t depth, const float *a, int64_t rs, int64_t cs,
                              const float *b, int64_t ldb, float *c, int64_t ldc, _Bool accumulate)
{
    vf acc[TILE_ROWS][2];
    for (int i = 0; i < TILE_ROWS; i++)
        for (int v = 0; v < nv; v++)
            acc[i][v] = accumulate ? vf_load(c + i * ldc + v * VL) : (vf){0};
    for (int64_t k = 0; k < depth; k++) {
        vf row[2];
        for (int v = 0; v < nv; v++)
            row[v] = vf_load(b + k * ldb + v * VL);
        for (int i = 0; i < TILE_ROWS; i++)
            for (int v = 0; v < nv; v++)
                acc[i][v] += a[i * rs + k * cs] * row[v];
    }
    for (int i = 0; i < TILE_ROWS; i++)
        for (int v = 0; v < nv; v++)
            vf_store(c + i * ldc + v * VL, acc[i][v]);
}

/* c[m,n] = (accumulate ? c : 0) + a[m,depth] b[depth,n]; m a multiple of TILE_ROWS, n of VL. */
static inline void tile_product(int64_t m, int64_t n, int64_t depth, const float *a, int64_t rs,
                                int64_t cs, const float *b, int64_t ldb, float *c, int64_t ldc,
                                _Bool accumulate)
{
    for (int64_t i = 0; i < m; i += TILE_ROWS) {
        int64_t j = 0;
        for (; j + 2 * VL <= n; j += 2 * VL)
            tile_block(2, depth, a + i * rs, rs, cs, b + j, ldb, c + i * ldc + j, ldc, accumulate);
        if (j < n)
            tile_block(1, depth, a + i * rs, rs, cs, b + j, ldb, c + i * ldc + j, ldc, accumulate);
    }
}

/* One row of n scores becomes exponentials relative to the running maximum; out is rescaled to it.
 * n and padded_dim are multiples of VL. */
static inline void tile_softmax_step(float *s, int64_t n, float *max, float *sum, float *out,
                                     int64_t padded_dim)
{
    vf top = (vf){0} + *max, add = {0};
    for (int64_t j = 0; j < n; j += VL)
        top = vf_max(vf_load(s + j), top);
    const float highest = vf_max_lane(top);
    for (int64_t j = 0; j < n; j += VL) {
        vf p = vf_exp(vf_load(s + j) - highest);
        vf_store(s + j, p);
        add += p;
    }
    const float rescale = exp_f32(*max - highest);
    *sum = *sum * rescale + vf_sum(add);
    *max = highest;
    if (rescale != 1.0f)
        for (int64_t d = 0; d < padded_dim; d += VL)
            vf_store(out + d, vf_load(out + d) * rescale);
}

#endif
