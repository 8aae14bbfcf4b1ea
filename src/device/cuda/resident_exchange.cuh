/* resident_exchange.cuh - what the blocks of resident.cu tell each other, and when.
 *
 * A barrier would make a block wait until its results have arrived, then count itself, then the
 * others see the sum, then ask for the results: four ways to the L2 cache. Here every word carries,
 * beside its value, the tag of its time, so a reader asks for it until it is there; nothing is
 * ordered by anything else.
 *
 * A word may be written again when all have read it. Every block has a column of each product, so
 * what it gives to the next product says that it has read all of its own input; who has received
 * one product's results of all blocks knows it of all of them. Between two writings of a word lie
 * at least four products, so a tag of 16 bits is enough: what was there before is one older.
 * Source: PTX ISA, "Memory Consistency Model" (relaxed accesses). */
#ifndef DEVICE_CUDA_RESIDENT_EXCHANGE_CUH
#define DEVICE_CUDA_RESIDENT_EXCHANGE_CUH

#include "device/cuda/vector.cuh"

namespace resident
{
/* --- words: a 16-bit element and its tag, or an fp32 value and its tag ---------------------------
 */
using word = uint32_t;
using wide_word = uint2;

__device__ __forceinline__ uint4 load_relaxed(const void *p)
{
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint32_t load_relaxed_one(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
    return v;
}

template <typename T> __device__ __forceinline__ void send(word *to, T value, unsigned tag)
{
    union {
        T value;
        unsigned short bits;
    } u;
    u.value = value;
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;\n" ::"l"(to), "r"(tag << 16 | u.bits)
                 : "memory");
}
__device__ __forceinline__ void send(wide_word *to, float value, unsigned tag)
{
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};\n" ::"l"(to),
                 "r"(__float_as_uint(value)), "r"(tag)
                 : "memory");
}

/* Which of 8 words have other tags: 0 in the upper half when none. */
__device__ __forceinline__ unsigned others(uint4 a, uint4 b, unsigned tag)
{
    tag <<= 16;
    return (a.x ^ tag) | (a.y ^ tag) | (a.z ^ tag) | (a.w ^ tag) | (b.x ^ tag) | (b.y ^ tag) |
           (b.z ^ tag) | (b.w ^ tag);
}
__device__ __forceinline__ uint4 values_of(uint4 a, uint4 b)
{
    return make_uint4(__byte_perm(a.x, a.y, 0x5410), __byte_perm(a.z, a.w, 0x5410),
                      __byte_perm(b.x, b.y, 0x5410), __byte_perm(b.z, b.w, 0x5410));
}
/* 8 elements from each of N places, as soon as all are there, in the time of one. */
template <int N>
__device__ __forceinline__ void receive8(const word *const (&from)[N], unsigned tag, uint4 (&to)[N])
{
    uint4 a[N], b[N];
    unsigned missing;
    do {
        missing = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            a[i] = load_relaxed(from[i]), b[i] = load_relaxed(from[i] + 4);
#pragma unroll
        for (int i = 0; i < N; i++)
            missing |= others(a[i], b[i], tag);
    } while (missing >> 16);
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] = values_of(a[i], b[i]);
}
__device__ __forceinline__ uint4 receive8(const word *from, unsigned tag)
{
    uint4 to[1];
    receive8({from}, tag, to);
    return to[0];
}
template <typename T> __device__ __forceinline__ T value_of(word w)
{
    union {
        T value;
        unsigned short bits;
    } u;
    u.bits = (unsigned short)w;
    return u.value;
}
/* 2 values at `first` and 8 at `second`, both aligned to 16 bytes. */
__device__ __forceinline__ float2 receive2_8(const wide_word *first, const wide_word *second,
                                             unsigned tag, float (&to)[8])
{
    uint4 u, v[4];
    bool missing;
    do {
        u = load_relaxed(first);
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = load_relaxed(second + 2 * i);
        missing = u.y != tag || u.w != tag;
#pragma unroll
        for (int i = 0; i < 4; i++)
            missing |= v[i].y != tag || v[i].w != tag;
    } while (missing);
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[2 * i] = __uint_as_float(v[i].x), to[2 * i + 1] = __uint_as_float(v[i].z);
    return make_float2(__uint_as_float(u.x), __uint_as_float(u.z));
}

/* --- time, and a count ---------------------------------------------------------------------------
 * A block asks for up to 28 KB of words from FC at a time: too early and too often, that is in the
 * way of the weights. A count of the blocks that have sent theirs tells when to begin. It says
 * nothing about the words, and comes and goes without order too.
 */
constexpr int COUNTS = 8; /* so that the blocks do not all add to one */

struct progress {
    unsigned done; /* blocks of this call */
    unsigned time; /* the last tag in use */
    unsigned unused[30];
    struct {
        unsigned value, unused[31];
    } of[COUNTS]; /* zero between calls */
};

/* By one thread. */
__device__ __forceinline__ void add_count(progress *p)
{
    asm volatile(
        "red.relaxed.gpu.global.add.u32 [%0], 1;\n" ::"l"(&p->of[blockIdx.x % COUNTS].value)
        : "memory");
}
/* What one warp waits for: lane i for count i. */
struct awaited {
    unsigned all = 0;
    /* Until all blocks have counted themselves once more. */
    __device__ __forceinline__ void wait(const progress *p)
    {
        int lane = (int)threadIdx.x % 32;
        if (lane < COUNTS) {
            all += (unsigned)((int)gridDim.x - lane + COUNTS - 1) / COUNTS;
            while (load_relaxed_one(&p->of[lane].value) < all)
                ;
        }
        __syncwarp();
    }
};
} // namespace resident

#endif
