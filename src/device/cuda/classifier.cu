/* classifier.cu - softmax cross-entropy over the vocabulary with its gradient in place.
 * CPU twins: src/device/cpu. Tests: tests/unit/test_parity.c, tests/gpu/test_cuda_kernels.c. */
#include "device/cuda/kernels.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/vector.cuh"

enum { THREADS = 1024 };

/* (max, sum of exp(x - max)) of two disjoint sets of numbers; the empty set is (-inf, 0). */
__device__ __forceinline__ void merge_softmax(float &m, float &s, float m2, float s2)
{
    float top = fmaxf(m, m2);
    if (top == -INFINITY)
        return;
    s = s * __expf(m - top) + s2 * __expf(m2 - top);
    m = top;
}
/* The same over the block, to every thread. scratch reusable after the next barrier. */
__device__ __forceinline__ void block_softmax(float &m, float &s, float (*scratch)[32])
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        merge_softmax(m, s, __shfl_xor_sync(0xffffffffu, m, o), __shfl_xor_sync(0xffffffffu, s, o));
    if (lane == 0)
        scratch[0][threadIdx.x / 32] = m, scratch[1][threadIdx.x / 32] = s;
    __syncthreads();
    m = lane < blockDim.x / 32 ? scratch[0][lane] : -INFINITY;
    s = lane < blockDim.x / 32 ? scratch[1][lane] : 0.0f;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        merge_softmax(m, s, __shfl_xor_sync(0xffffffffu, m, o), __shfl_xor_sync(0xffffffffu, s, o));
}

/* logits[rows,Vp] bf16 or fp16, 16-byte aligned, Vp % 8 == 0 -> (softmax - onehot) grad_scale.
 * A persistent block takes every gridDim-th row; the next row is copied to shared memory while this
 * one is worked on, so each logit is read from memory once and written once. A thread reads from
 * shared memory only what it copied itself: the copies need no barrier. fp32 sums in a fixed order:
 * deterministic. Milakov and Gimelshein 2018, algorithm 3. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    classifier_kernel(T *logits, float *losses, const int32_t *targets, int64_t rows, int64_t vocab,
                      int64_t vocab_padded, float grad_scale)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    __shared__ float scratch[2][2][32];
    T *buffer[2] = {(T *)shared_bytes, (T *)shared_bytes + vocab_padded};
    int chunks = (int)(vocab_padded / 8), parity = 0;

    for (int c = threadIdx.x; c < chunks; c += THREADS)
        copy_async16(buffer[0] + c * 8, logits + (int64_t)blockIdx.x * vocab_padded + c * 8, true);
    copy_async_commit();
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x, parity ^= 1) {
        const T *x = buffer[parity];
        T *out = logits + row * vocab_padded;
        int target = targets[row];
        if (row + gridDim.x < rows)
            for (int c = threadIdx.x; c < chunks; c += THREADS)
                copy_async16(buffer[parity ^ 1] + c * 8,
                             out + (int64_t)gridDim.x * vocab_padded + c * 8, true);
        copy_async_commit();
        copy_async_wait<1>();

        float m = -INFINITY, s = 0.0f;
        for (int c = threadIdx.x; c < chunks; c += THREADS) {
            float v[8], top = -INFINITY;
            load_vec(v, x + c * 8);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = c * 8 + i < vocab ? v[i] : -INFINITY;
                top = fmaxf(top, v[i]);
            }
            if (top > m) {
                s *= __expf(m - top);
                m = top;
            }
            if (m > -INFINITY)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    s += __expf(v[i] - m);
        }
        block_softmax(m, s, scratch[parity]);

        if (target < 0 && threadIdx.x == 0)
            losses[row] = 0.0f;
        if (target >= 0 && threadIdx.x == target / 8 % THREADS)
            losses[row] = logf(s) + m - to_f32(x[target]);
        if (grad_scale == 0.0f)
            continue;
        float scale = target < 0 ? 0.0f : grad_scale / s;
        for (int c = threadIdx.x; c < chunks; c += THREADS) {
            float v[8];
            load_vec(v, x + c * 8);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = c * 8 + i < vocab && target >= 0 ? __expf(v[i] - m) * scale : 0.0f;
                v[i] -= c * 8 + i == target ? grad_scale : 0.0f;
            }
            store_vec(out + c * 8, v);
        }
    }
}

/* Any dtype, any Vp: one block a row, read twice. logits NULL'd by grad_scale 0: losses only.
 * sign 1: losses = -log p (the classifier); sign -1: log p (token_logprobs). */
template <typename T>
__global__ void classifier_plain(T *gradient, const T *logits, float *losses,
                                 const int32_t *targets, int64_t vocab, int64_t vocab_padded,
                                 float grad_scale, float sign)
{
    __shared__ float scratch[2][32];
    int64_t row = blockIdx.x;
    const T *x = logits + row * vocab_padded;
    int target = targets[row];
    float m = -INFINITY, s = 0.0f;
    for (int64_t c = threadIdx.x; c < vocab; c += blockDim.x) {
        float v = to_f32(x[c]);
        if (v > m) {
            s *= expf(m - v);
            m = v;
        }
        s += m > -INFINITY ? expf(v - m) : 0.0f;
        s = isnan(v) ? v : s; /* a NaN stays visible */
    }
    block_softmax(m, s, scratch);
    if (threadIdx.x == 0)
        losses[row] = target < 0 ? 0.0f : sign * (logf(s) + m - to_f32(x[target]));
    if (!gradient || grad_scale == 0.0f)
        return;
    __syncthreads(); /* the loss is read before its logit is overwritten */
    for (int64_t c = threadIdx.x; c < vocab_padded; c += blockDim.x) {
        float p = 0.0f;
        if (c < vocab && target >= 0)
            p = expf(to_f32(x[c]) - m) / s - (c == target ? 1.0f : 0.0f);
        gradient[row * vocab_padded + c] = from_f32<T>(p * grad_scale);
    }
}

template <typename T>
static cudaError_t classifier_launch(cudaStream_t s, T *logits, float *losses,
                                     const int32_t *targets, int64_t rows, int64_t vocab,
                                     int64_t vocab_padded, float grad_scale)
{
    size_t shared = 2 * (size_t)vocab_padded * sizeof(T);
    int device = 0, multiprocessors = 1, limit = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    bool fits = sizeof(T) == 2 && vocab_padded % 8 == 0 && (uintptr_t)logits % 16 == 0 &&
                shared + 4096 <= (size_t)limit && rows >= 2 * multiprocessors;
    if (!fits) {
        classifier_plain<T><<<GRID(rows), 512, 0, s>>>(logits, logits, losses, targets, vocab,
                                                       vocab_padded, grad_scale, 1.0f);
        return cudaGetLastError();
    }
    if constexpr (sizeof(T) == 2) {
        cudaError_t e = cudaFuncSetAttribute(
            classifier_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (e)
            return e;
        classifier_kernel<T><<<GRID(multiprocessors), THREADS, shared, s>>>(
            logits, losses, targets, rows, vocab, vocab_padded, grad_scale);
    }
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_classifier(cudaStream_t s, void *logits, float *losses,
                                       const int32_t *targets, int64_t rows, int64_t vocab,
                                       int64_t vocab_padded, float grad_scale, enum dtype dt)
{
    WITH_TYPE(dt, return classifier_launch(s, (T *)logits, losses, targets, rows, vocab,
                                           vocab_padded, grad_scale));
}

extern "C" cudaError_t cuda_token_logprobs(cudaStream_t s, float *logprobs, const void *logits,
                                           const int32_t *targets, int64_t rows, int64_t vocab,
                                           int64_t vocab_padded, enum dtype dt)
{
    WITH_TYPE(dt,
              (classifier_plain<T><<<GRID(rows), 512, 0, s>>>(
                  NULL, (const T *)logits, logprobs, targets, vocab, vocab_padded, 0.0f, -1.0f)));
    return cudaGetLastError();
}
