/* attention.cuh - what the forward and backward attention kernels share. */
#ifndef DEVICE_CUDA_ATTENTION_CUH
#define DEVICE_CUDA_ATTENTION_CUH

#include "device/cuda/kernels.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/vector.cuh"

struct attention_args {
    int64_t batch, time, heads, head_dim;
    float scale;      /* 1/sqrt(D) */
    float scale_log2; /* scale * log2(e): exponentials are powers of two */
    dropout_mask mask;
};
static inline attention_args attention_args_of(const struct attention &a)
{
    float scale = 1.0f / sqrtf((float)a.head_dim);
    return {a.batch,
            a.time,
            a.heads,
            a.head_dim,
            scale,
            scale * 1.4426950408889634f,
            dropout_mask_of(a.dropout)};
}

/* Runs the statement with T (16-bit), DP (head dimension padded to one that is built) and DROP. */
#define WITH_ATTENTION(a, ...)             \
    do {                                   \
        if ((a)->dt == DTYPE_BF16) {       \
            using T = __nv_bfloat16;       \
            WITH_HEAD_DIM(a, __VA_ARGS__); \
        } else {                           \
            using T = __half;              \
            WITH_HEAD_DIM(a, __VA_ARGS__); \
        }                                  \
    } while (0)
#define WITH_HEAD_DIM(a, ...)              \
    do {                                   \
        if ((a)->head_dim <= 64) {         \
            constexpr int DP = 64;         \
            WITH_DROP(a, __VA_ARGS__);     \
        } else if ((a)->head_dim <= 80) {  \
            constexpr int DP = 80;         \
            WITH_DROP(a, __VA_ARGS__);     \
        } else if ((a)->head_dim <= 96) {  \
            constexpr int DP = 96;         \
            WITH_DROP(a, __VA_ARGS__);     \
        } else if ((a)->head_dim <= 112) { \
            constexpr int DP = 112;        \
            WITH_DROP(a, __VA_ARGS__);     \
        } else {                           \
            constexpr int DP = 128;        \
            WITH_DROP(a, __VA_ARGS__);     \
        }                                  \
    } while (0)
#define WITH_DROP(a, ...)                \
    do {                                 \
        if ((a)->dropout.p > 0.0f) {     \
            constexpr bool DROP = true;  \
            __VA_ARGS__;                 \
        } else {                         \
            constexpr bool DROP = false; \
            __VA_ARGS__;                 \
        }                                \
    } while (0)

/* ROWS rows of D elements, from row0 on, to a tile with DP+8 elements a row: the odd number of
 * 16-byte units keeps fragment loads free of bank conflicts. Rows past `time` and columns past D
 * become 0. */
template <int DP, int ROWS, int THREADS, typename T>
__device__ __forceinline__ void load_tile(T *tile, const T *from, int row0, int time,
                                          int64_t stride, int64_t head_dim)
{
    constexpr int UNITS = DP / 8;
#pragma unroll
    for (int first = 0; first < ROWS * UNITS; first += THREADS) {
        int i = first + threadIdx.x, r = i / UNITS, c = i % UNITS * 8;
        if (ROWS * UNITS % THREADS != 0 && i >= ROWS * UNITS)
            break;
        bool valid = row0 + r < time && c < head_dim;
        copy_async16(tile + r * (DP + 8) + c, valid ? from + (row0 + r) * stride + c : from, valid);
    }
}

/* The warp's ROWS rows of a tile to global memory, 16 bytes a lane. */
template <int DP, int ROWS, typename T>
__device__ __forceinline__ void store_warp_rows(T *to, const T *tile, int row0, int time,
                                                int64_t stride, int64_t head_dim)
{
    constexpr int UNITS = DP / 8;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = lane; i < ROWS * UNITS; i += 32) {
        int r = i / UNITS, c = i % UNITS * 8;
        if (row0 + r < time && c < head_dim)
            *(uint4 *)(to + (row0 + r) * stride + c) = *(const uint4 *)(tile + r * (DP + 8) + c);
    }
}

/* s, scores of 8J keys from k0 on in accumulator layout, = -infinity where the key comes after the
 * query; row is of the thread's upper row. */
template <int J> __device__ __forceinline__ void mask_scores(float (&s)[J][4], int k0, int row)
{
    int col = k0 + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (col + 8 * j + e % 2 > row + e / 2 * 8)
                s[j][e] = -INFINITY;
}

/* Scores become probabilities under the new maximum `top`; `old` is what the sums so far are worth
 * under it. */
template <int J>
__device__ __forceinline__ void softmax(float (&s)[J][4], float (&top)[2], float (&total)[2],
                                        float (&old)[2], float scale_log2)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = top[r], sum = 0.0f;
#pragma unroll
        for (int j = 0; j < J; j++)
            m = fmaxf(m, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        float shift = m * scale_log2;
        old[r] = exp2_fast((top[r] - m) * scale_log2);
        top[r] = m;
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; e++) {
                s[j][e] = exp2_fast(s[j][e] * scale_log2 - shift);
                sum += s[j][e];
            }
        total[r] = total[r] * old[r] + sum;
    }
}

/* Two neighbouring 16x8 accumulators as one 16x16 operand a. */
template <typename T>
__device__ __forceinline__ void accumulator_to_a(uint32_t (&a)[4], const float (&left)[4],
                                                 const float (&right)[4])
{
    a[0] = pack<T>(left[0], left[1]);
    a[1] = pack<T>(left[2], left[3]);
    a[2] = pack<T>(right[0], right[1]);
    a[3] = pack<T>(right[2], right[3]);
}

/* Bit i: element 4*quad + i of the sample is kept. */
__device__ __forceinline__ uint32_t keep_bits(const dropout_mask &m, uint64_t quad, uint64_t sample)
{
    philox4 r = philox4x32(m.key, quad, sample);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bits |= (uint32_t)((r.v[i] >> 8) >= m.threshold) << i;
    return bits;
}
__device__ __forceinline__ bool keep_one(const dropout_mask &m, uint64_t element, uint64_t sample)
{
    return keep_bits(m, element / 4, sample) >> (element % 4) & 1;
}

#endif
