/* vector.h - vectors of VL floats in gcc's vector extension, so that one source serves AVX-512,
 * AVX2 and anything else: loads of any dtype, maximum, exp, GELU, sums in double. */
#ifndef DEVICE_CPU_VECTOR_H
#define DEVICE_CPU_VECTOR_H

#include "base/dtype.h"
#include "device/cpu/math.h"
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

/* The two halves of a vector. */
ALWAYS_INLINE vf_half vf_low(vf v)
{
#if defined(__AVX512DQ__)
    return (vf_half)_mm512_castps512_ps256((__m512)v);
#else
    vf_half half;
    memcpy(&half, &v, sizeof half);
    return half;
#endif
}

ALWAYS_INLINE vf_half vf_high(vf v)
{
#if defined(__AVX512DQ__)
    return (vf_half)_mm512_extractf32x8_ps((__m512)v, 1);
#else
    vf_half half;
    memcpy(&half, (const char *)&v + sizeof half, sizeof half);
    return half;
#endif
}

/* Lanes added pairwise by halves, always in the same order. */
ALWAYS_INLINE float vf_sum(vf v)
{
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float lane[VL];
    vf_store(lane, v);
    for (int width = VL / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
#endif
}

/* VL elements of any working dtype. */
ALWAYS_INLINE vf vf_load_dt(const void *base, int64_t i, enum dtype dt)
{
    if (dt == DTYPE_F32)
        return vf_load((const float *)base + i);
    vh h;
    memcpy(&h, (const uint16_t *)base + i, sizeof h);
#if defined(__AVX512F__)
    if (dt == DTYPE_BF16)
        return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__AVX2__) && defined(__F16C__)
    if (dt == DTYPE_BF16)
        return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    vf v;
    for (int lane = 0; lane < VL; lane++)
        v[lane] = dt == DTYPE_BF16 ? load_bf16(h[lane]) : load_f16(h[lane]);
    return v;
#endif
}

ALWAYS_INLINE vf vf_select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* The greater, lane by lane; b where either is NaN. */
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

/* The lesser, lane by lane; b where either is NaN. */
ALWAYS_INLINE vf vf_min(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vf_select(a < b, a, b);
#endif
}

ALWAYS_INLINE float vf_max_lane(vf v)
{
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float lane[VL], max;
    vf_store(lane, v);
    max = lane[0];
    for (int i = 1; i < VL; i++)
        max = lane[i] > max ? lane[i] : max;
    return max;
#endif
}

/* exp_f32 of math.h, lane by lane, the same bits. */
ALWAYS_INLINE vf vf_exp(vf x)
{
    const vf magic = (vf){0} + 12582912.0f, top = (vf){0} + 89.0f, bottom = (vf){0} - 105.0f;
    vf c = vf_max(bottom, vf_min(top, x)); /* x last: a NaN passes */
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

/* gelu_f32 and gelu_grad_f32 of math.h. */
ALWAYS_INLINE vf vf_gelu(vf x)
{
    vf u2 = GELU_2A * (x + GELU_B * x * x * x);
    return x / (1.0f + vf_exp(-u2));
}

ALWAYS_INLINE vf vf_gelu_grad(vf x)
{
    vf u2 = GELU_2A * (x + GELU_B * x * x * x);
    vf t = vf_exp(vf_min(-u2, u2)); /* of the small side, so that nothing overflows */
    vf q = 1.0f / (1.0f + t);
    vf s = vf_select(u2 < 0.0f, t * q, q);
    vf slope = GELU_2A * (1.0f + 3.0f * GELU_B * x * x);
    return s + x * (t * q * q) * slope;
}

/* Half a vector as doubles; gcc 12 splits __builtin_convertvector into smaller pieces. */
ALWAYS_INLINE vd vd_widen(vf_half v)
{
#if defined(__AVX512F__)
    return (vd)_mm512_cvtps_pd((__m256)v);
#elif defined(__AVX__)
    return (vd)_mm256_cvtps_pd((__m128)v);
#else
    return __builtin_convertvector(v, vd);
#endif
}

/* A sum of many vectors, kept in double. */
struct wide_sum {
    vd low, high;
};

ALWAYS_INLINE void wide_add(struct wide_sum *s, vf v)
{
    s->low += vd_widen(vf_low(v));
    s->high += vd_widen(vf_high(v));
}

/* Squares and products are exact in double. */
ALWAYS_INLINE void wide_add_product(struct wide_sum *s, vf x, vf y)
{
    s->low += vd_widen(vf_low(x)) * vd_widen(vf_low(y));
    s->high += vd_widen(vf_high(x)) * vd_widen(vf_high(y));
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
