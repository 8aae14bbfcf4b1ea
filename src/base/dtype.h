/* dtype.h - element types that files, devices and collectives share. The values are stored in
 * files. */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32 = 1,
    DTYPE_BF16 = 2,
    DTYPE_F16 = 3,
    DTYPE_U16 = 4,
    DTYPE_U32 = 5,
    DTYPE_I32 = 6,
    DTYPE_I64 = 7,
    DTYPE_F64 = 8,
    DTYPE_U8 = 9,
};

size_t dtype_bytes(enum dtype t);     /* 0 for an unknown value */
const char *dtype_name(enum dtype t); /* "fp32", "bf16", "fp16", "u16", ...; "unknown" */
/* Round to nearest even; NaN stays NaN. */
uint16_t f32_to_bf16(float f);
float bf16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
float f16_to_f32(uint16_t h);

#endif
