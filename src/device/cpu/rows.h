/* rows.h - rows of any working dtype as fp32, and dropout masks of rows. */
#ifndef DEVICE_CPU_ROWS_H
#define DEVICE_CPU_ROWS_H

#include "device/device.h"

/* Address of element i. */
static inline const void *element(const void *base, int64_t i, enum dtype dt)
{
    return (const char *)base + i * (dt == DTYPE_F32 ? 4 : 2);
}
static inline void *element_mut(void *base, int64_t i, enum dtype dt)
{
    return (char *)base + i * (dt == DTYPE_F32 ? 4 : 2);
}

void row_to_f32(float *dst, const void *src, enum dtype dt, int64_t n);
void row_from_f32(void *dst, const float *src, enum dtype dt, int64_t n);
/* n values starting at element i: in place for fp32, else converted into buffer. */
const float *row_read(const void *base, int64_t i, enum dtype dt, int64_t n, float *buffer);
/* Values rounded to what dt can hold, still fp32. */
void row_round(float *row, enum dtype dt, int64_t n);

/* The sum of n values and the dot product of two rows, accumulated in double. */
double row_sum(const float *x, int64_t n);
double row_dot(const float *x, const float *y, int64_t n);
/* The greatest value, NaN passed over; -infinity when there is none. */
float row_max(const float *x, int64_t n);
/* The sum of exp(x - max) in double; the terms go to out (may be x) unless it is NULL. */
double row_sum_exp(float *out, const float *x, int64_t n, float max);

/* mask[i] = 1/(1-p) when element first+i of `sample` is kept, else 0. */
void dropout_mask(float *mask, const struct dropout *d, int64_t sample, int64_t first, int64_t n);
/* row[i] *= mask for row `row` of [B,T,C] tensors; nothing when p == 0. buffer holds n values. */
void dropout_row(float *row, const struct dropout *d, int64_t row_index, int64_t time, int64_t n,
                 float *buffer);

#endif
