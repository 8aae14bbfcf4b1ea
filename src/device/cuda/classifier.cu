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

/* 8 logits as they lie in memory. */
template <typename T> struct octet;
template <> struct octet<__nv_bfloat16> {
    __nv_bfloat162 v[4];
    __device__ __forceinline__ float2 get(int i) const
    {
        return __bfloat1622float2(v[i]);
    }
    __device__ __forceinline__ void set(int i, float x, float y)
    {
        v[i] = __floats2bfloat162_rn(x, y);
    }
};
template <> struct octet<__half> {
    __half2 v[4];
    __device__ __forceinline__ float2 get(int i) const
    {
        return __half22float2(v[i]);
    }
    __device__ __forceinline__ void set(int i, float x, float y)
    {
        v[i] = __floats2half2_rn(x, y);
    }
};

constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

/* (m, s) of a row in shared memory in base 2: m = max(x) log2(e), s = sum of 2^(x log2(e) - m),
 * over this thread's chunks. The chunk that vocab cuts is the caller's. A NaN logit makes s NaN. */
template <typename T>
__device__ __forceinline__ void row_softmax(float &m, float &s, const uint4 *row, int chunks)
{
    float top = -INFINITY;
    for (int c = threadIdx.x; c < chunks; c += THREADS) {
        uint4 raw = row[c];
        const octet<T> &x = reinterpret_cast<const octet<T> &>(raw);
        auto pair = __hmax2(__hmax2(x.v[0], x.v[1]), __hmax2(x.v[2], x.v[3]));
        octet<T> both;
        both.v[0] = pair;
        float2 f = both.get(0);
        top = fmaxf(top, fmaxf(f.x, f.y));
    }
    m = top * LOG2E;
    float shift = top > -INFINITY ? m : 0.0f, s2 = 0.0f;
    s = 0.0f;
    for (int c = threadIdx.x; c < chunks; c += THREADS) {
        uint4 raw = row[c];
        const octet<T> &x = reinterpret_cast<const octet<T> &>(raw);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 f = x.get(i);
            s += exp2_fast(fmaf(f.x, LOG2E, -shift));
            s2 += exp2_fast(fmaf(f.y, LOG2E, -shift));
        }
    }
    s += s2;
}

/* One logit more. */
__device__ __forceinline__ void add_logit(float &m, float &s, float x)
{
    float y = x * LOG2E, top = fmaxf(m, y);
    if (top > -INFINITY)
        s = s * exp2_fast(m - top) + exp2_fast(y - top);
    m = top;
}

/* The same over the block, to every thread, in a fixed order. scratch: reusable after the next
 * barrier. */
__device__ __forceinline__ void block_softmax2(float &m, float &s, float (*scratch)[32])
{
    int lane = threadIdx.x % 32;
    float top = warp_max(m);
    s = warp_sum(m > -INFINITY ? s * exp2_fast(m - top) : s);
    if (lane == 0)
        scratch[0][threadIdx.x / 32] = top, scratch[1][threadIdx.x / 32] = s;
    __syncthreads();
    float m2 = scratch[0][lane];
    m = warp_max(m2);
    s = warp_sum(m2 > -INFINITY ? scratch[1][lane] * exp2_fast(m2 - m) : scratch[1][lane]);
}

/* logits[rows,Vp] bf16 or fp16, 16-byte aligned, Vp % 8 == 0 -> (softmax - onehot) grad_scale.
 * A persistent block takes every gridDim-th row; the next row is copied to shared memory while this
 * one is worked on, so each logit is read from memory once and written once. A thread reads from
 * shared memory only what it copied itself (the cut chunk belongs to its owner too), so the copies
 * need no barrier. fp32 sums in a fixed order: deterministic. Milakov and Gimelshein 2018. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    classifier_kernel(T *logits, float *losses, const int32_t *targets, int64_t rows, int vocab,
                      int vocab_padded, float grad_scale)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    __shared__ float scratch[2][2][32];
    const int chunks = vocab_padded / 8, whole = vocab / 8; /* chunk `whole` is cut, or padding */
    const bool owns_cut = vocab % 8 != 0 && (int)threadIdx.x == whole % THREADS;
    int parity = 0;

    auto prefetch = [&](int64_t row, int buffer) {
        if (row < rows)
            for (int c = threadIdx.x; c < chunks; c += THREADS)
                copy_async16((uint4 *)shared_bytes + buffer * chunks + c,
                             logits + row * vocab_padded + c * 8, true);
        copy_async_commit();
    };
    prefetch(blockIdx.x, 0);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x, parity ^= 1) {
        const uint4 *x = (const uint4 *)shared_bytes + parity * chunks;
        const T *elements = (const T *)x;
        uint4 *out = (uint4 *)(logits + row * vocab_padded);
        int target = targets[row];
        float m, s;
        prefetch(row + gridDim.x, parity ^ 1);
        copy_async_wait<1>();

        row_softmax<T>(m, s, x, whole);
        if (owns_cut)
            for (int i = whole * 8; i < vocab; i++)
                add_logit(m, s, to_f32(elements[i]));
        block_softmax2(m, s, scratch[parity]);
        bool owns_target = target >= 0 && (int)threadIdx.x == target / 8 % THREADS;
        float at_target = owns_target ? to_f32(elements[target]) : 0.0f;
        if (owns_target)
            losses[row] = logf(s) + m * LN2 - at_target;
        if (target < 0 && threadIdx.x == 0)
            losses[row] = 0.0f;
        if (grad_scale == 0.0f)
            continue;

        float scale = target < 0 ? 0.0f : grad_scale / s;
        for (int c = threadIdx.x; c < whole; c += THREADS) {
            uint4 raw = x[c];
            octet<T> &v = reinterpret_cast<octet<T> &>(raw);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 f = v.get(i);
                v.set(i, exp2_fast(fmaf(f.x, LOG2E, -m)) * scale,
                      exp2_fast(fmaf(f.y, LOG2E, -m)) * scale);
            }
            __stcs(out + c, target < 0 ? make_uint4(0, 0, 0, 0) : raw);
        }
        /* The cut chunk and the padding, then the target: by the threads that own them. */
        for (int c = threadIdx.x; c < chunks; c += THREADS)
            if (c >= whole)
                for (int i = 8 * c; i < 8 * c + 8; i++)
                    ((T *)out)[i] =
                        from_f32<T>(i < vocab && target >= 0
                                        ? exp2_fast(fmaf(to_f32(elements[i]), LOG2E, -m)) * scale
                                        : 0.0f);
        if (owns_target)
            ((T *)out)[target] =
                from_f32<T>(exp2_fast(fmaf(at_target, LOG2E, -m)) * scale - grad_scale);
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
    constexpr int N = 8;
    bool aligned = vocab_padded % N == 0 && (uintptr_t)logits % 16 == 0;
    int64_t whole = aligned ? vocab / N * N : 0;
#pragma unroll 4
    for (int64_t c = (int64_t)threadIdx.x * N; c < whole; c += (int64_t)blockDim.x * N) {
        float v[N];
        load_vec(v, x + c);
        add_logits(v, m, s);
    }
    for (int64_t c = whole + threadIdx.x; c < vocab; c += blockDim.x) {
        float v[1] = {to_f32(x[c])};
        add_logits(v, m, s);
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
            logits, losses, targets, rows, (int)vocab, (int)vocab_padded, grad_scale);
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
