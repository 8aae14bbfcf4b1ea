/* tile.h - small matrix products in registers, for tiles that attention and decoding keep in cache.
 *
 * gcc's vector extension, so that one source serves AVX-512, AVX2 and anything else. */
#ifndef DEVICE_CPU_TILE_H
#define DEVICE_CPU_TILE_H

#include "base/dtype.h"
#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { VL = 16, TILE_ROWS = 8 };
#elif defined(__AVX__)
enum { VL = 8, TILE_ROWS = 4 };
#else
enum { VL = 4, TILE_ROWS = 4 };
#endif
enum { VL_MAX = 16 }; /* paddings use this one, so that shapes do not depend on the build */

typedef float vf __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

ALWAYS_INLINE void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

/* Lanes added pairwise, always in the same order. */
ALWAYS_INLINE float vf_sum(vf v)
{
    float lane[VL];
    vf_store(lane, v);
    for (int width = VL / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

/* VL elements of any working dtype. */
ALWAYS_INLINE vf vf_load_dt(const void *base, int64_t i, enum dtype dt)
{
    if (dt == DTYPE_F32)
        return vf_load((const float *)base + i);
    vh h;
    memcpy(&h, (const uint16_t *)base + i, sizeof h);
    if (dt == DTYPE_BF16)
        return (vf)(__builtin_convertvector(h, vu) << 16);
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__AVX__) && defined(__F16C__)
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    vf v;
    for (int lane = 0; lane < VL; lane++)
        v[lane] = f16_to_f32(h[lane]);
    return v;
#endif
}

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

#endif
