/* dtype.c - sizes, names and the 16-bit float conversions in plain integer arithmetic, so that
 * every machine rounds alike. Formats: IEEE 754 binary16; bfloat16 is the upper half of binary32.
 */
#include "base/dtype.h"

#include <string.h>

size_t dtype_bytes(enum dtype t)
{
    switch (t) {
    case DTYPE_U8:
        return 1;
    case DTYPE_BF16:
    case DTYPE_F16:
    case DTYPE_U16:
        return 2;
    case DTYPE_F32:
    case DTYPE_U32:
    case DTYPE_I32:
        return 4;
    case DTYPE_I64:
    case DTYPE_F64:
        return 8;
    }
    return 0;
}

const char *dtype_name(enum dtype t)
{
    switch (t) {
    case DTYPE_F32:
        return "fp32";
    case DTYPE_BF16:
        return "bf16";
    case DTYPE_F16:
        return "fp16";
    case DTYPE_U16:
        return "u16";
    case DTYPE_U32:
        return "u32";
    case DTYPE_I32:
        return "i32";
    case DTYPE_I64:
        return "i64";
    case DTYPE_F64:
        return "fp64";
    case DTYPE_U8:
        return "u8";
    }
    return "unknown";
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

uint16_t f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) /* NaN: keep the sign and payload top, force quiet */
        return (uint16_t)(u >> 16 | 0x40u);
    /* Adding half a unit, less one when the kept part is even, rounds to nearest even; a carry out
     * of the mantissa raises the exponent, up to infinity, as it should. */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

uint16_t f32_to_f16(float f)
{
    uint32_t u = bits_of(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    uint32_t a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x1ffu));
    if (a >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (a >= 0x38800000u) { /* 2^-14 and more: normal; rebias the exponent from 127 to 15 */
        uint32_t r = a - 0x38000000u;
        return (uint16_t)(sign | (r + 0xfffu + (r >> 13 & 1u)) >> 13);
    }
    if (a <= 0x33000000u) /* 2^-25 (a tie with zero) and less */
        return sign;
    /* Subnormal: the value in units of 2^-24. */
    uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126u - (a >> 23);
    uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u);
    uint32_t half = 1u << (shift - 1u);
    kept += rest > half || (rest == half && (kept & 1u));
    return (uint16_t)(sign | kept);
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = h >> 10 & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 31)
        return float_of(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0)
        return float_of(sign | (exponent + 112u) << 23 | mantissa << 13);
    /* mantissa * 2^-24 is exact in binary32. */
    return float_of(sign | bits_of((float)mantissa * 0x1p-24f));
}
