/* attention_state.cuh - what attention over the cache shares: the place of a key, and the running
 * softmax, of which a thread has some channels of a head; LANES threads share a key, and the groups
 * of a warp have different keys. */
#ifndef DEVICE_CUDA_ATTENTION_STATE_CUH
#define DEVICE_CUDA_ATTENTION_STATE_CUH

#include "device/cuda/mma.cuh"
#include "device/cuda/vector.cuh"

/* Row of the cache in which a position lies. Positions are below 2^31: 32-bit division, which is
 * several times faster. */
__device__ __forceinline__ int64_t cache_row(const int32_t *pages, int64_t page_tokens,
                                             uint32_t position)
{
    uint32_t tokens = (uint32_t)page_tokens, page = position / tokens;
    return (int64_t)pages[page] * tokens + (position - page * tokens);
}

/* Of some keys: maximum (base 2), sum, and CHANNELS channels of the output, not scaled. */
template <int CHANNELS> struct attention_state {
    float top = -INFINITY, total = 0.0f, o[CHANNELS] = {};

    /* N keys with their scores (-infinity where there is none), of which `new_top` and `top` are
     * the maximum. */
    template <typename T, int N>
    __device__ __forceinline__ void add(const float (&scores)[N],
                                        const vec<T, CHANNELS> (&values)[N], float new_top)
    {
        float f = exp2_fast(top - new_top);
        total *= f;
#pragma unroll
        for (int i = 0; i < CHANNELS; i++)
            o[i] *= f;
#pragma unroll
        for (int n = 0; n < N; n++) {
            float p = exp2_fast(scores[n] - new_top);
            total += p;
#pragma unroll
            for (int i = 0; i < CHANNELS; i++)
                o[i] += p * to_f32(values[n].v[i]);
        }
        top = new_top;
    }
    __device__ __forceinline__ void merge(float top2, float total2, const float (&o2)[CHANNELS])
    {
        float m = fmaxf(top, top2);
        if (m == -INFINITY)
            return;
        float f = exp2_fast(top - m), f2 = exp2_fast(top2 - m);
        total = total * f + total2 * f2;
#pragma unroll
        for (int i = 0; i < CHANNELS; i++)
            o[i] = o[i] * f + o2[i] * f2;
        top = m;
    }
    /* All groups of the warp, the same to each. */
    template <int LANES> __device__ __forceinline__ void merge_groups()
    {
#pragma unroll
        for (int offset = LANES; offset < 32; offset <<= 1) {
            float top2 = __shfl_xor_sync(0xffffffffu, top, offset), o2[CHANNELS];
            float total2 = __shfl_xor_sync(0xffffffffu, total, offset);
#pragma unroll
            for (int i = 0; i < CHANNELS; i++)
                o2[i] = __shfl_xor_sync(0xffffffffu, o[i], offset);
            merge(top2, total2, o2);
        }
    }
};

/* A query's product with a key, of which this thread has 8 channels; the same to each of LANES. */
template <int LANES, typename T>
__device__ __forceinline__ float attention_dot(const float (&query)[8], const vec<T, 8> &key)
{
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++)
        dot += query[i] * to_f32(key.v[i]);
#pragma unroll
    for (int offset = 1; offset < LANES; offset <<= 1)
        dot += __shfl_xor_sync(0xffffffffu, dot, offset);
    return dot;
}

#endif
