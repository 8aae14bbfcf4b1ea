/* vector.cuh - what the kernels share: conversions between the working dtypes and fp32, 16-byte
 * accesses, reductions over warps and blocks, sums of exponentials, GELU, and dropout masks. */
#ifndef DEVICE_CUDA_VECTOR_CUH
#define DEVICE_CUDA_VECTOR_CUH

#include "base/philox.h"
#include "device/device.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* Shape of launches: grids are one-dimensional and their size fits 31 bits, checked in ops.c. */
#define GRID(n) dim3((unsigned)(n))

/* Runs `body` with T the element type of dtype `dt`. */
#define WITH_TYPE(dt, ...)               \
    do {                                 \
        if ((dt) == DTYPE_F32) {         \
            using T = float;             \
            __VA_ARGS__;                 \
        } else if ((dt) == DTYPE_BF16) { \
            using T = __nv_bfloat16;     \
            __VA_ARGS__;                 \
        } else {                         \
            using T = __half;            \
            __VA_ARGS__;                 \
        }                                \
    } while (0)

__device__ __forceinline__ float to_f32(float x)
{
    return x;
}
__device__ __forceinline__ float to_f32(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
__device__ __forceinline__ float to_f32(__half x)
{
    return __half2float(x);
}
template <typename T> __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ __half from_f32<__half>(float x)
{
    return __float2half_rn(x);
}

/* N consecutive elements, moved with 16-byte accesses when they fill one (or two). */
template <typename T, int N> struct alignas(sizeof(T) * N >= 16 ? 16 : sizeof(T) * N) vec {
    T v[N];
};
template <typename T, int N>
__device__ __forceinline__ void load_vec(float (&out)[N], const T *__restrict__ p)
{
    vec<T, N> r = *reinterpret_cast<const vec<T, N> *>(p);
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] = to_f32(r.v[i]);
}
template <typename T, int N>
__device__ __forceinline__ void store_vec(T *__restrict__ p, const float (&in)[N])
{
    vec<T, N> r;
#pragma unroll
    for (int i = 0; i < N; i++)
        r.v[i] = from_f32<T>(in[i]);
    *reinterpret_cast<vec<T, N> *>(p) = r;
}

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}
__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}
/* Over all threads of the block, the same value to each. scratch: 32 floats, reusable after the
 * next barrier; the two calls of one pass need two scratches. blockDim a multiple of 32. */
__device__ __forceinline__ float block_sum(float x, float *scratch)
{
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0f);
}
__device__ __forceinline__ float block_max(float x, float *scratch)
{
    x = warp_max(x);
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : -INFINITY);
}

/* Maximum m and sum s of exp(x - m) of a thread's logits, with N more. A NaN stays visible. */
template <int N> __device__ __forceinline__ void add_logits(const float (&v)[N], float &m, float &s)
{
    float top = m;
#pragma unroll
    for (int i = 0; i < N; i++)
        top = fmaxf(top, v[i]);
    if (top > m) {
        s *= expf(m - top);
        m = top;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        s += m > -INFINITY ? expf(v[i] - m) : 0.0f;
        s = isnan(v[i]) ? v[i] : s;
    }
}

/* GELU, tanh form: x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3). */
__device__ __forceinline__ float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

/* struct dropout with what every element needs computed once on the host. An element is kept when
 * the upper 24 bits of its word are >= threshold, which is philox_uniform(word) >= p exactly. */
struct dropout_mask {
    uint32_t threshold; /* 0: no dropout */
    float scale;
    uint64_t key;
    const int64_t *samples;
};
static inline dropout_mask dropout_mask_of(const struct dropout &d)
{
    dropout_mask m = {0, 1.0f, 0, d.samples};
    if (d.p > 0.0f) {
        double exact = (double)d.p * 16777216.0;
        m.threshold = (uint32_t)exact + ((double)(uint32_t)exact < exact);
        m.scale = 1.0f / (1.0f - d.p);
        m.key = philox_key(d.seed, d.site);
    }
    return m;
}
/* Multiplies N consecutive elements, the first being element e of sample `sample`, by mask/(1-p).
 * When N is a multiple of 4, so is e. */
template <int N>
__device__ __forceinline__ void dropout_apply(float (&x)[N], const dropout_mask &m, uint64_t sample,
                                              uint64_t e)
{
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            philox4 r = philox4x32(m.key, e / 4 + i, sample);
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[4 * i + j] = (r.v[j] >> 8) >= m.threshold ? x[4 * i + j] * m.scale : 0.0f;
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            philox4 r = philox4x32(m.key, (e + i) / 4, sample);
            unsigned w = (unsigned)((e + i) % 4);
            uint32_t bits = w == 0 ? r.v[0] : w == 1 ? r.v[1] : w == 2 ? r.v[2] : r.v[3];
            x[i] = (bits >> 8) >= m.threshold ? x[i] * m.scale : 0.0f;
        }
    }
}

#endif
