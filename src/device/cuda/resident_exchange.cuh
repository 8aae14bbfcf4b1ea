/* resident_exchange.cuh - what the blocks of resident.cu tell each other, and when.
 *
 * An ordered barrier would make a block wait until its results have arrived, then count itself,
 * then the others see the sum, then ask for the results: four ways to the L2 cache. Here every word
 * carries, beside its value, the tag of its time, so a reader sees by itself whether it is there.
 * Results and count are sent at once, without order; the count only keeps readers from asking too
 * early and too often. A word is written again when all blocks have counted themselves behind its
 * reading, so that a tag of 16 bits is enough: what was there before is one older.
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
/* 2 values at `first` and 4 at `second`, both aligned to 16 bytes. */
__device__ __forceinline__ void receive2_4(const wide_word *first, const wide_word *second,
                                           unsigned tag, float2 &a, float2 &low, float2 &high)
{
    uint4 u, v, w;
    do
        u = load_relaxed(first), v = load_relaxed(second), w = load_relaxed(second + 2);
    while (u.y != tag || u.w != tag || v.y != tag || v.w != tag || w.y != tag || w.w != tag);
    a = make_float2(__uint_as_float(u.x), __uint_as_float(u.z));
    low = make_float2(__uint_as_float(v.x), __uint_as_float(v.z));
    high = make_float2(__uint_as_float(w.x), __uint_as_float(w.z));
}

/* --- counts --------------------------------------------------------------------------------------
 */
constexpr int COUNTS = 8; /* so that the blocks do not all add to one */

struct counts {
    struct {
        unsigned value, unused[31];
    } of[COUNTS]; /* zero between calls */
    unsigned done;
    unsigned time; /* the last tag in use */
    unsigned unused[30];
};

/* By one thread. */
__device__ __forceinline__ void add_count(counts *c)
{
    asm volatile(
        "red.relaxed.gpu.global.add.u32 [%0], 1;\n" ::"l"(&c->of[blockIdx.x % COUNTS].value)
        : "memory");
}
/* What one warp waits for: lane i for count i. */
struct awaited {
    unsigned all = 0;
    /* Until the first `blocks` blocks have counted themselves once more. */
    __device__ __forceinline__ void wait(const counts *c, int blocks)
    {
        int lane = (int)threadIdx.x % 32;
        if (lane < COUNTS) {
            all += (unsigned)(blocks - lane + COUNTS - 1) / COUNTS;
            while (load_relaxed_one(&c->of[lane].value) < all)
                ;
        }
        __syncwarp();
    }
};
} // namespace resident

#endif
