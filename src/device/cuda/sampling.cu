/* sampling.cu - choosing the next token of each row.
 *
 * The order, the meaning of top-k, top-p and uniform and the choice are those of
 * src/device/cpu/sample.c. Here a (logit, id) pair is one 64-bit key that sorts like the order, and
 * the bound of what is kept is found by radix descent, eight bits a pass, without sorting. Weights
 * are probabilities relative to the greatest in 2^-40 fixed point: integer sums do not depend on
 * the order of addition, so the choice is deterministic. Test: tests/unit/test_parity.c. */
#include "device/cuda/kernels.h"
#include "device/cuda/vector.cuh"

namespace
{
constexpr int THREADS = 512;
typedef unsigned long long u64;

struct row_state {
    u64 histogram[256], prefix, need, total;
    u64 sums[THREADS / 32];
    float scratch[2][32];
    int32_t chosen;
};

/* Sorts ascending as (logit ascending, id descending). NaN is least. */
__device__ __forceinline__ u64 key_of(float x, int64_t id)
{
    uint32_t bits = __float_as_uint(x);
    bits = isnan(x) ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)bits << 32 | (0xffffffffu - (uint32_t)id);
}
__device__ __forceinline__ u64 weight_of(float x, float max, float inverse_temperature)
{
    return (u64)(exp2f((x - max) * inverse_temperature * 1.4426950408889634f) * 1099511627776.0f);
}
__device__ __forceinline__ u64 warp_sum_u64(u64 x)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}
/* Sum over the block, valid after the call in r.total. */
__device__ void block_total(row_state &r, u64 x)
{
    x = warp_sum_u64(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        r.sums[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        u64 t = 0;
        for (int w = 0; w < THREADS / 32; w++)
            t += r.sums[w];
        r.total = t;
    }
    __syncthreads();
}

/* The key at which the weights of keys >= bound, added from the greatest key down, reach `need`
 * (1 <= need <= their total). by_count: every weight is 1. */
template <typename T>
__device__ u64 tighten(row_state &r, const T *x, int64_t vocab, u64 bound, u64 need, bool by_count,
                       float max, float inverse)
{
    __syncthreads();
    if (threadIdx.x == 0)
        r.prefix = 0, r.need = need;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += THREADS)
            r.histogram[i] = 0;
        __syncthreads();
        u64 prefix = r.prefix;
        for (int64_t i = threadIdx.x; i < vocab; i += THREADS) {
            float v = to_f32(x[i]);
            u64 key = key_of(v, i);
            if (key >= bound && (shift == 56 || key >> (shift + 8) == prefix >> (shift + 8)))
                atomicAdd(&r.histogram[key >> shift & 255],
                          by_count ? 1ull : weight_of(v, max, inverse));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int bin = 255;
            u64 left = r.need;
            while (bin > 0 && r.histogram[bin] < left)
                left -= r.histogram[bin--];
            r.need = left;
            r.prefix = prefix | (u64)bin << shift;
        }
        __syncthreads();
    }
    return r.prefix;
}

/* The first id, in order of id, at which the weights of keys >= bound exceed uniform * total. A
 * thread owns a contiguous range of ids. */
template <typename T>
__device__ int32_t draw(row_state &r, const T *x, int64_t vocab, u64 bound, float uniform,
                        float max, float inverse)
{
    int64_t per_thread = (vocab + THREADS - 1) / THREADS, first = threadIdx.x * per_thread;
    int64_t last = min(first + per_thread, vocab);
    int lane = threadIdx.x % 32;
    u64 own = 0;
    int32_t last_kept = -1;
    for (int64_t i = first; i < last; i++) {
        float v = to_f32(x[i]);
        if (key_of(v, i) >= bound) {
            own += weight_of(v, max, inverse);
            last_kept = (int32_t)i;
        }
    }
    if (threadIdx.x == 0)
        r.chosen = 0;
    block_total(r, own); /* leaves each warp's sum in r.sums */
    u64 before = own;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        u64 other = __shfl_up_sync(0xffffffffu, before, o);
        before += lane >= o ? other : 0;
    }
    before -= own;
    for (int w = 0; w < (int)threadIdx.x / 32; w++)
        before += r.sums[w];
    double want = (double)uniform * (double)r.total;
    if (own && (double)before <= want && (double)(before + own) > want) {
        u64 sum = before;
        int32_t id = last_kept;
        for (int64_t i = first; i < last; i++) {
            float v = to_f32(x[i]);
            if (key_of(v, i) < bound)
                continue;
            sum += weight_of(v, max, inverse);
            if ((double)sum > want) {
                id = (int32_t)i;
                break;
            }
        }
        r.chosen = id; /* ranges do not overlap: one thread writes */
    }
    __syncthreads();
    return r.chosen;
}

/* This thread's share of a row in one read of it: *best its greatest key; returns the sum of
 * exp(x - greatest x). */
template <typename T>
__device__ float scan_row(const T *x, int64_t vocab, int64_t vocab_padded, u64 *best)
{
    constexpr int N = 8;
    float sum = 0.0f, max = -INFINITY;
    bool aligned = vocab_padded % N == 0; /* as the row's address then is */
    int64_t whole = aligned ? vocab / N * N : 0;
    auto take = [&](float v, int64_t i) {
        u64 key = key_of(v, i);
        *best = key > *best ? key : *best;
    };
#pragma unroll 2
    for (int64_t i = (int64_t)threadIdx.x * N; i < whole; i += (int64_t)THREADS * N) {
        float v[N];
        load_vec(v, x + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            take(v[j], i + j);
        add_logits(v, max, sum);
    }
    for (int64_t i = whole + threadIdx.x; i < vocab; i += THREADS) {
        float v[1] = {to_f32(x[i])};
        take(v[0], i);
        add_logits(v, max, sum);
    }
    return sum;
}

/* One block a row of logits [rows,Vp]. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    sample_kernel(int32_t *ids, float *logprobs, const T *logits, const struct sampling *params,
                  int64_t vocab, int64_t vocab_padded)
{
    __shared__ row_state r;
    const T *x = logits + (int64_t)blockIdx.x * vocab_padded;
    struct sampling p = params[blockIdx.x];
    u64 best = 0;
    float sum = scan_row(x, vocab, vocab_padded, &best);
    float own = best ? to_f32(x[(int32_t)(0xffffffffu - (uint32_t)best)]) : -INFINITY;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        u64 other = __shfl_xor_sync(0xffffffffu, best, o);
        best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0)
        r.sums[threadIdx.x / 32] = best;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++)
        best = r.sums[w] > best ? r.sums[w] : best;
    int32_t id = (int32_t)(0xffffffffu - (uint32_t)best);
    float max = to_f32(x[id]);
    sum = block_sum(own == -INFINITY ? 0.0f : sum * expf(own - max), r.scratch[0]);

    if (p.temperature > 0.0f) {
        float inverse = 1.0f / p.temperature;
        u64 bound = 0;
        if (p.top_k > 0 && p.top_k < vocab)
            bound = tighten(r, x, vocab, bound, (u64)p.top_k, true, max, inverse);
        if (p.top_p < 1.0f) {
            u64 own = 0;
            for (int64_t i = threadIdx.x; i < vocab; i += THREADS) {
                float v = to_f32(x[i]);
                own += key_of(v, i) >= bound ? weight_of(v, max, inverse) : 0;
            }
            block_total(r, own);
            double want = ceil((double)p.top_p * (double)r.total);
            u64 need = want < 1.0 ? 1 : (u64)want;
            bound =
                tighten(r, x, vocab, bound, need < r.total ? need : r.total, false, max, inverse);
        }
        id = draw(r, x, vocab, bound, p.uniform, max, inverse);
    }
    if (threadIdx.x == 0) {
        ids[blockIdx.x] = id;
        logprobs[blockIdx.x] = to_f32(x[id]) - max - logf(sum);
    }
}
} // namespace

extern "C" cudaError_t cuda_sample(cudaStream_t s, int32_t *ids, float *logprobs,
                                   const void *logits, const struct sampling *params, int64_t rows,
                                   int64_t vocab, int64_t vocab_padded, enum dtype dt)
{
    WITH_TYPE(dt, (sample_kernel<T><<<GRID(rows), THREADS, 0, s>>>(ids, logprobs, (const T *)logits,
                                                                   params, vocab, vocab_padded)));
    return cudaGetLastError();
}
