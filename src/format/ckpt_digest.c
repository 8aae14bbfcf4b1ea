/* ckpt_digest.c - the order-free digest of a tensor's elements. It covers every parameter at each
 * save, so the loop is one that compilers turn into vector instructions. */
#include "format/ckpt.h"

#include <string.h>

uint64_t ckpt_digest_add(uint64_t sum, int64_t first, const float *x, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        uint32_t bits;
        memcpy(&bits, &x[k], 4);
        uint64_t i = (uint64_t)(first + k);
        uint64_t z = (i << 32 | bits) + (i >> 32) * 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        sum += z ^ z >> 31;
    }
    return sum;
}
