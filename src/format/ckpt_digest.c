/* ckpt_digest.c - the order-free digest of a tensor's elements. It covers every parameter at each
 * save, so the inner loop is one that compilers turn into vector instructions. */
#include "base/checked.h"
#include "format/ckpt.h"

#include <string.h>

/* Elements whose indices differ in the lower 32 bits only: `high` is what the upper ones add. */
static uint64_t add_run(uint64_t sum, uint32_t low, uint64_t high, const float *x, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) {
        uint32_t bits;
        memcpy(&bits, &x[k], 4);
        uint64_t z = ((uint64_t)(low + k) << 32 | bits) + high;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        sum += z ^ z >> 31;
    }
    return sum;
}

uint64_t ckpt_digest_add(uint64_t sum, int64_t first, const float *x, int64_t n)
{
    while (n > 0) {
        int64_t left = (1ll << 32) - (first & UINT32_MAX),
                take = min_i64(n, min_i64(left, 1 << 30));
        sum = add_run(sum, (uint32_t)first, (uint64_t)(first >> 32) * 0x9E3779B97F4A7C15ull, x,
                      (uint32_t)take);
        first += take;
        x += take;
        n -= take;
    }
    return sum;
}
