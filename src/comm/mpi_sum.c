/* mpi_sum.c - blocks small enough for the first-level cache; plain loops that the compiler
 * vectorises. */
#include "comm/mpi_sum.h"

#include <string.h>

enum { BLOCK_ELEMS = 2048 };

/* bf16_to_f32 of base/dtype.h, here so that the loop vectorises. */
static void widen(float *to, const uint16_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)from[i] << 16;
        memcpy(&to[i], &u, sizeof u);
    }
}

static void narrow(uint16_t *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = f32_to_bf16(from[i]);
}

static void combine(float *acc, const float *x, int64_t n, enum comm_reduce op)
{
    if (op == COMM_SUM)
        for (int64_t i = 0; i < n; i++)
            acc[i] += x[i];
    else
        for (int64_t i = 0; i < n; i++)
            acc[i] = x[i] > acc[i] || x[i] != x[i] ? x[i] : acc[i];
}

void reduce_in_order(void *out, const void *const *parts, int n, int64_t count, enum dtype dt,
                     enum comm_reduce op)
{
    float acc[BLOCK_ELEMS], wide[BLOCK_ELEMS];
    for (int64_t at = 0; at < count; at += BLOCK_ELEMS) {
        int64_t m = count - at < BLOCK_ELEMS ? count - at : BLOCK_ELEMS;
        for (int r = 0; r < n; r++) {
            float *to = r == 0 ? acc : wide;
            const float *x = to;
            if (dt == DTYPE_BF16)
                widen(to, (const uint16_t *)parts[r] + at, m);
            else if (r == 0)
                memcpy(acc, (const float *)parts[r] + at, (size_t)m * sizeof *acc);
            else
                x = (const float *)parts[r] + at;
            if (r > 0)
                combine(acc, x, m, op);
        }
        if (dt == DTYPE_BF16)
            narrow((uint16_t *)out + at, acc, m);
        else
            memcpy((float *)out + at, acc, (size_t)m * sizeof *acc);
    }
}
