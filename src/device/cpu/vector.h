/* vector.h - vectors of VL floats in gcc's vector extension, so that one source serves AVX-512,
 * AVX2 and anything else: loads of any dtype, maximum, exp, sums in double. */
#ifndef DEVICE_CPU_VECTOR_H
#define DEVICE_CPU_VECTOR_H

#include "base/dtype.h"
#include <stdint.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { VL = 16 };
#elif defined(__AVX__)
enum { VL = 8 };
#else
enum { VL = 4 };
#endif
enum { VL_MAX = 16 }; /* paddings use this one, so that shapes do not depend on the build */

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef float vf_half __attribute__((vector_size(VL * 2)));
typedef double vd __attribute__((vector_size(VL * 4)));
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

ALWAYS_INLINE vf vf_select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* The greater, lane by lane; b where a is NaN. */
ALWAYS_INLINE vf vf_max(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vf_select(a > b, a, b);
#endif
}

ALWAYS_INLINE float vf_max_lane(vf v)
{
    float lane[VL], max;
    vf_store(lane, v);
    max = lane[0];
    for (int i = 1; i < VL; i++)
        max = lane[i] > max ? lane[i] : max;
    return max;
}

/* exp_f32 of math.h, lane by lane, the same bits. */
ALWAYS_INLINE vf vf_exp(vf x)
{
    const vf magic = (vf){0} + 12582912.0f, top = (vf){0} + 89.0f, bottom = (vf){0} - 105.0f;
    vf c = vf_select(x > top, top, x);
    c = vf_select(c < bottom, bottom, c);
    vf shifted = c * 1.44269504088896f + magic;
    vf n = shifted - magic;
    vf r = c - n * 0.693145751953125f;
    r = r - n * 1.42860682030941723212e-6f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    vi k = (vi)shifted - (vi)magic, half = k >> 1;
    vf a = (vf)((half + 127) << 23), b = (vf)((k - half + 127) << 23);
    return p * a * b;
}

/* A sum of many vectors, kept in double. */
struct wide_sum {
    vd low, high;
};

ALWAYS_INLINE void wide_add(struct wide_sum *s, vf v)
{
    vf_half half[2];
    memcpy(half, &v, sizeof v);
    s->low += __builtin_convertvector(half[0], vd);
    s->high += __builtin_convertvector(half[1], vd);
}

/* Squares and products are exact in double. */
ALWAYS_INLINE void wide_add_product(struct wide_sum *s, vf x, vf y)
{
    vf_half a[2], b[2];
    memcpy(a, &x, sizeof x);
    memcpy(b, &y, sizeof y);
    s->low += __builtin_convertvector(a[0], vd) * __builtin_convertvector(b[0], vd);
    s->high += __builtin_convertvector(a[1], vd) * __builtin_convertvector(b[1], vd);
}

ALWAYS_INLINE double wide_total(struct wide_sum s)
{
    double lane[VL / 2], sum = 0;
    vd both = s.low + s.high;
    memcpy(lane, &both, sizeof both);
    for (int i = 0; i < VL / 2; i++)
        sum += lane[i];
    return sum;
}

#endif
