/* math.h - what the kernels' inner loops need: conversions, exp, GELU. Branch-free, so that loops
 * over them vectorise; every function lets NaN through. */
#ifndef DEVICE_CPU_MATH_H
#define DEVICE_CPU_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float load_bf16(uint16_t h)
{
    return float_of_bits((uint32_t)h << 16);
}

/* Round to nearest even; a NaN keeps its sign and becomes quiet. */
static inline uint16_t store_bf16(float f)
{
    uint32_t bits = bits_of_float(f);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

static inline float load_f16(uint16_t h)
{
    _Float16 f;
    memcpy(&f, &h, sizeof f);
    return (float)f;
}

static inline uint16_t store_f16(float f)
{
    _Float16 h = (_Float16)f;
    uint16_t bits;
    memcpy(&bits, &h, sizeof bits);
    return bits;
}

/* e^x: x = n ln2 + r with |r| <= ln2/2, e^r by a polynomial, 2^n in two exact factors so that
 * results in the subnormal range come out right too. Error at most 1.3 units in the last place. */
static inline float exp_f32(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float c = x > 89.0f ? 89.0f : x;
    c = c < -105.0f ? -105.0f : c;
    float shifted = c * 1.44269504088896f + magic;
    float n = shifted - magic;
    float r = c - n * 0.693145751953125f;
    r = r - n * 1.42860682030941723212e-6f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    int32_t k = (int32_t)(bits_of_float(shifted) - bits_of_float(magic));
    int32_t half = k >> 1;
    float a = float_of_bits((uint32_t)(half + 127) << 23);
    float b = float_of_bits((uint32_t)(k - half + 127) << 23);
    return p * a * b;
}

/* GELU by tanh: x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). */
#define GELU_2A 1.5957691216057308f /* 2 sqrt(2/pi) */
#define GELU_B 0.044715f

static inline float gelu_f32(float x)
{
    float u2 = GELU_2A * (x + GELU_B * x * x * x);
    return x / (1.0f + exp_f32(-u2));
}

/* d gelu / dx = s + x s (1 - s) d(2u)/dx with s = sigmoid(2u). */
static inline float gelu_grad_f32(float x)
{
    float u2 = GELU_2A * (x + GELU_B * x * x * x);
    float t = exp_f32(-fabsf(u2)); /* of the small side, so that nothing overflows */
    float q = 1.0f / (1.0f + t);
    float s = u2 < 0.0f ? t * q : q;
    float slope = GELU_2A * (1.0f + 3.0f * GELU_B * x * x);
    return s + x * (t * q * q) * slope;
}

#endif
