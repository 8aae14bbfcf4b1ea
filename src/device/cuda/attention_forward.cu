/* attention_forward.cu - causal attention without the T x T matrix, bf16 and fp16, on tensor cores.
 * Dao 2023 (FlashAttention-2), algorithm 1. CPU twin: attention_forward in src/device/cpu. Tests:
 * tests/unit/test_parity.c, tests/gpu/test_cuda_kernels.c. */
#include "device/cuda/attention.cuh"

namespace
{
constexpr int QUERIES = 128, KEYS = 64, WARPS = 4, MTILES = 2, NTILES = KEYS / 8;

/* S = mask(q k^T) for a warp's 32 queries and 64 keys. */
template <typename T, int DP>
__device__ __forceinline__ void scores(float (&s)[MTILES][NTILES][4], const T *q, const T *k,
                                       int warp_row)
{
    constexpr int LD = DP + 8;
#pragma unroll
    for (int i = 0; i < MTILES; i++)
#pragma unroll
        for (int j = 0; j < NTILES; j++)
            s[i][j][0] = s[i][j][1] = s[i][j][2] = s[i][j][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < DP; d += 16) {
        uint32_t a[MTILES][4];
#pragma unroll
        for (int i = 0; i < MTILES; i++)
            load_matrices(a[i], a_address<LD>(q, warp_row + 16 * i, d));
#pragma unroll
        for (int j = 0; j < NTILES; j += 2) {
            uint32_t b[4];
            load_matrices(b, b_address<LD>(k, 8 * j, d));
#pragma unroll
            for (int i = 0; i < MTILES; i++) {
                mma<T>(s[i][j], a[i], b[0], b[1]);
                mma<T>(s[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* Dropout of probabilities in accumulator layout: rows are queries. A thread holds, per n-tile,
 * keys 2(l%4)+{0,1} of query rows l/4 and l/4+8; four neighbouring keys are one random quad, so the
 * even lane of a pair draws the quad of the upper row, the odd lane of the lower, and they swap
 * bits. */
template <int N>
__device__ __forceinline__ void drop_scores(float (&s)[N][4], const attention_args &a,
                                            uint64_t sample, int64_t head, int64_t query, int key0)
{
    int lane = threadIdx.x % 32;
    uint64_t row = ((uint64_t)head * a.time + query) * a.time; /* of the thread's upper row */
    uint32_t bits = 0; /* 4 for each n-tile: elements 0..3 of the accumulator */
    if (a.time % 4 == 0) {
        uint32_t mine = 0;
#pragma unroll
        for (int j = 0; j < N; j++) {
            uint64_t e =
                row + (uint64_t)(lane & 1 ? 8 * a.time : 0) + key0 + 8 * j + (lane & 2) * 2;
            mine |= keep_bits(a.mask, e / 4, sample) << (4 * j);
        }
        uint32_t other = __shfl_xor_sync(0xffffffffu, mine, 1);
        bits = lane & 1 ? (other >> 2 & 0x33333333u) | (mine & 0xccccccccu)
                        : (mine & 0x33333333u) | (other << 2 & 0xccccccccu);
    } else {
#pragma unroll 1
        for (int i = 0; i < 4 * N; i++) {
            uint64_t e = row + (i % 4 / 2) * 8 * a.time + key0 + i / 4 * 8 + 2 * (lane % 4) + i % 2;
            bits |= (uint32_t)keep_one(a.mask, e, sample) << i;
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[j][i] = bits >> (4 * j + i) & 1 ? s[j][i] : 0.0f;
}

/* One block: 128 queries of one (sample, head); a warp owns 32 of them. Grid: B*H*ceil(T/128), the
 * longest rows of a head first. qkv [B,T,3,H,D] in; out [B,T,H,D], lse [B,H,T] fp32 out. D is
 * padded with zeros to DP in shared memory. Accumulators fp32; deterministic. */
template <typename T, int DP, bool DROP>
__global__ void __launch_bounds__(WARPS * 32, DP <= 64 ? 3 : 2)
    attention_forward_kernel(T *out, float *lse, const T *qkv, attention_args a)
{
    constexpr int LD = DP + 8;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    T *q = (T *)shared_bytes, *k = q + QUERIES * LD, *v = k + KEYS * LD;
    int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 32;
    int blocks_per_head = (int)((a.time + QUERIES - 1) / QUERIES);
    int64_t bh = blockIdx.x / blocks_per_head, b = bh / a.heads, h = bh % a.heads;
    int q0 = (blocks_per_head - 1 - (int)(blockIdx.x % blocks_per_head)) * QUERIES;
    int time = (int)a.time;
    int64_t stride = 3 * a.heads * a.head_dim;
    const T *base = qkv + b * a.time * stride + h * a.head_dim;
    const T *keys = base + a.heads * a.head_dim, *values = keys + a.heads * a.head_dim;
    int key_blocks = (min(q0 + QUERIES, time) + KEYS - 1) / KEYS;

    load_tile<DP, QUERIES, WARPS * 32>(q, base, q0, time, stride, a.head_dim);
    load_tile<DP, KEYS, WARPS * 32>(k, keys, 0, time, stride, a.head_dim);
    copy_async_commit();

    float o[MTILES][DP / 8][4] = {}, top[MTILES][2], total[MTILES][2] = {};
#pragma unroll
    for (int i = 0; i < MTILES; i++)
        top[i][0] = top[i][1] = -INFINITY;

    for (int kb = 0; kb < key_blocks; kb++) {
        int k0 = kb * KEYS;
        bool active = k0 <= q0 + warp_row + 31; /* else all is masked for this warp */
        float s[MTILES][NTILES][4];
        copy_async_wait<0>();
        __syncthreads(); /* k has arrived; nobody reads the old v */
        load_tile<DP, KEYS, WARPS * 32>(v, values, k0, time, stride, a.head_dim);
        copy_async_commit();
        if (active)
            scores<T, DP>(s, q, k, warp_row);
        copy_async_wait<0>();
        __syncthreads(); /* v has arrived; nobody reads the old k */
        if (kb + 1 < key_blocks)
            load_tile<DP, KEYS, WARPS * 32>(k, keys, k0 + KEYS, time, stride, a.head_dim);
        copy_async_commit();
        if (!active)
            continue;
#pragma unroll
        for (int i = 0; i < MTILES; i++) {
            int row = q0 + warp_row + 16 * i + lane / 4;
            if (k0 + KEYS - 1 > q0 + warp_row + 16 * i)
                mask_scores(s[i], k0, row);
            float old[2];
            softmax(s[i], top[i], total[i], old, a.scale_log2);
#pragma unroll
            for (int n = 0; n < DP / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    o[i][n][e] *= old[e / 2];
            if (DROP)
                drop_scores(s[i], a, (uint64_t)a.mask.samples[b], h, row, k0);
        }
#pragma unroll
        for (int t = 0; t < KEYS / 16; t++) {
            uint32_t p[MTILES][4];
#pragma unroll
            for (int i = 0; i < MTILES; i++)
                accumulator_to_a<T>(p[i], s[i][2 * t], s[i][2 * t + 1]);
#pragma unroll
            for (int n = 0; n < DP / 8; n += 2) {
                uint32_t bv[4];
                load_matrices_transposed(bv, b_transposed_address<LD>(v, 8 * n, 16 * t));
#pragma unroll
                for (int i = 0; i < MTILES; i++) {
                    mma<T>(o[i][n], p[i], bv[0], bv[1]);
                    mma<T>(o[i][n + 1], p[i], bv[2], bv[3]);
                }
            }
        }
    }

    /* The warp's own rows of q are free now: gather the output there for 16-byte stores. */
    copy_async_wait<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < MTILES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int in_tile = warp_row + 16 * i + lane / 4 + 8 * r;
            float t = total[i][r];
            t += __shfl_xor_sync(0xffffffffu, t, 1);
            t += __shfl_xor_sync(0xffffffffu, t, 2);
            if (lane % 4 == 0 && q0 + in_tile < time)
                lse[bh * a.time + q0 + in_tile] =
                    top[i][r] * a.scale_log2 * 0.6931471805599453f + logf(t);
            float f = (DROP ? a.mask.scale : 1.0f) / t;
#pragma unroll
            for (int n = 0; n < DP / 8; n++)
                *(uint32_t *)(q + in_tile * LD + 8 * n + 2 * (lane % 4)) =
                    pack<T>(o[i][n][2 * r] * f, o[i][n][2 * r + 1] * f);
        }
    __syncwarp();
    store_warp_rows<DP, 32>(out + b * a.time * a.heads * a.head_dim + h * a.head_dim,
                            q + warp_row * LD, q0 + warp_row, time, a.heads * a.head_dim,
                            a.head_dim);
}

template <typename T, int DP, bool DROP>
cudaError_t launch(cudaStream_t s, void *out, float *lse, const void *qkv, const attention_args &a)
{
    constexpr int shared = (QUERIES + 2 * KEYS) * (DP + 8) * (int)sizeof(T);
    auto kernel = attention_forward_kernel<T, DP, DROP>;
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (e)
        return e;
    int64_t blocks = a.batch * a.heads * ((a.time + QUERIES - 1) / QUERIES);
    kernel<<<dim3((unsigned)blocks), WARPS * 32, shared, s>>>((T *)out, lse, (const T *)qkv, a);
    return cudaGetLastError();
}
} // namespace

extern "C" cudaError_t cuda_attention_forward(cudaStream_t s, void *out, float *lse,
                                              const void *qkv, const struct attention *attention)
{
    attention_args a = attention_args_of(*attention);
    WITH_ATTENTION(attention, return (launch<T, DP, DROP>(s, out, lse, qkv, a)));
}
