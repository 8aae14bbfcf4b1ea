/* attention_backward.cu - gradient of causal attention, bf16 and fp16, on tensor cores.
 *
 * With P = softmax(scale q k^T), delta = rowsum(dO o O): dV = P^T dO, dP = dO V^T,
 * dS = P o (dP - delta), dQ = scale dS K, dK = scale dS^T Q (Dao 2023, algorithm 2).
 *
 * Work is cut by blocks of 128 keys. A block of threads takes one or more key blocks of a (sample,
 * head) one after the other and walks their queries, 64 at a time; dK and dV stay in registers. dQ
 * gets a contribution from every key block: a thread block adds them up in its own fp32 slice of
 * the workspace, in key order and always by the same thread, so there are no atomics and the result
 * is the same every time. With one slice the last key block of a query writes dQ at once; with
 * several (when B*H alone would not fill the device) a last kernel adds the slices.
 *
 * CPU twin: attention_backward in src/device/cpu. Tests: as attention_forward.cu. */
#include "device/cuda/attention.cuh"

namespace
{
constexpr float LOG2E = 1.4426950408889634f;
constexpr int QUERIES = 64, KEYS = 128, CHUNK = 32 /* queries handled in registers at a time */;

/* A warp owns 16*MTILES keys: two tiles while dK and dV fit in registers. */
template <int DP> struct shape {
    static constexpr int MTILES = DP <= 64 ? 2 : 1;
    static constexpr int WARPS = KEYS / (16 * MTILES);
    static constexpr int LD = DP + 8;
    /* dQ [64, DP]: four row groups of 16; with eight warps, two share a group's column pairs. */
    static constexpr int COLUMN_GROUPS = WARPS / 4;
    static constexpr int PAIRS = (DP / 16 + COLUMN_GROUPS - 1) / COLUMN_GROUPS;
    static constexpr int SLOT = WARPS * PAIRS * 2 * 32 * 4; /* floats of a query block in a slice */
    /* Two dS when both fit the 163 KiB that a block may have since compute capability 8.0. */
    static constexpr int DS_BUFFERS = DP <= 112 ? 2 : 1;
    static constexpr int SHARED =
        (2 * KEYS * LD + 4 * QUERIES * LD + DS_BUFFERS * KEYS * (QUERIES + 8)) * 2 +
        4 * QUERIES * 4;
};

/* Probabilities' dropout bits in transposed accumulators [16 keys, CHUNK queries]: a thread holds,
 * per n-tile, keys l/4 and l/4+8 of queries 2(l%4)+{0,1}. Lanes l, l^4, l^8, l^12 share four quads:
 * each draws one and they swap bits. Bit 4*j+i: element i of n-tile j. */
__device__ __forceinline__ uint32_t transposed_keep_bits(const attention_args &a, uint64_t sample,
                                                         int64_t head, int query0, int key0)
{
    int lane = threadIdx.x % 32, part = lane / 4 % 4, first = lane & 16;
    uint32_t bits = 0;
    if (a.time % 4 == 0) {
        uint32_t mine = 0;
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++) {
            int64_t query = query0 + 8 * j + 2 * (lane % 4) + part % 2;
            int64_t key = key0 + first / 4 + part / 2 * 8;
            uint64_t e = ((uint64_t)head * a.time + query) * a.time + key;
            mine |= keep_bits(a.mask, e / 4, sample) << (4 * j);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) { /* element i: query +i%2, key +8*(i/2) -> drawn by part i */
            uint32_t word = __shfl_sync(0xffffffffu, mine, first + 4 * i + lane % 4);
            bits |= (word >> part & 0x11111111u) << i;
        }
    } else {
#pragma unroll 1
        for (int n = 0; n < CHUNK / 2; n++) {
            int64_t query = query0 + n / 4 * 8 + 2 * (lane % 4) + n % 2;
            int64_t key = key0 + lane / 4 + n % 4 / 2 * 8;
            uint64_t e = ((uint64_t)head * a.time + query) * a.time + key;
            bits |= (uint32_t)keep_one(a.mask, e, sample) << n;
        }
    }
    return bits;
}

/* acc[MTILES] [16 keys, CHUNK queries] = x[keys,:] y[queries,:]^T, both rows of DP in shared
 * memory. */
template <typename T, int DP, int MTILES>
__device__ __forceinline__ void transposed_scores(float (&acc)[MTILES][CHUNK / 8][4], const T *x,
                                                  const T *y)
{
    constexpr int LD = DP + 8;
#pragma unroll
    for (int i = 0; i < MTILES; i++)
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++)
            acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < DP; d += 16) {
        uint32_t ax[MTILES][4];
#pragma unroll
        for (int i = 0; i < MTILES; i++)
            load_matrices(ax[i], a_address<LD>(x, 16 * i, d));
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j += 2) {
            uint32_t b[4];
            load_matrices(b, b_address<LD>(y, 8 * j, d));
#pragma unroll
            for (int i = 0; i < MTILES; i++) {
                mma<T>(acc[i][j], ax[i], b[0], b[1]);
                mma<T>(acc[i][j + 1], ax[i], b[2], b[3]);
            }
        }
    }
}

/* grad[MTILES] [16 keys, DP] += p[keys, CHUNK queries] y[queries,:]. */
template <typename T, int DP, int MTILES>
__device__ __forceinline__ void add_product(float (&grad)[MTILES][DP / 8][4],
                                            const uint32_t (&p)[MTILES][CHUNK / 16][4], const T *y)
{
    constexpr int LD = DP + 8;
#pragma unroll
    for (int t = 0; t < CHUNK / 16; t++)
#pragma unroll
        for (int n = 0; n < DP / 8; n += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, b_transposed_address<LD>(y, 8 * n, 16 * t));
#pragma unroll
            for (int i = 0; i < MTILES; i++) {
                mma<T>(grad[i][n], p[i][t], b[0], b[1]);
                mma<T>(grad[i][n + 1], p[i][t], b[2], b[3]);
            }
        }
}

/* The tiles in shared memory. All but k and v have two buffers: q, dout, lse and delta because the
 * next query block is on its way, dS because dQ of the previous one is still to be worked out. */
template <typename T, int DP> struct tiles {
    static constexpr int LD = DP + 8;
    T *k, *v, *first_ds;
    float *statistics;
    __device__ __forceinline__ explicit tiles(unsigned char *p)
    {
        k = (T *)p, v = k + KEYS * LD;
        first_ds = v + (KEYS + 4 * QUERIES) * LD;
        statistics = (float *)(first_ds + shape<DP>::DS_BUFFERS * KEYS * (QUERIES + 8));
    }
    __device__ __forceinline__ T *ds(int buffer) const
    {
        return first_ds + (shape<DP>::DS_BUFFERS == 1 ? 0 : buffer) * KEYS * (QUERIES + 8);
    }
    __device__ __forceinline__ T *q(int buffer) const
    {
        return v + (KEYS + buffer * QUERIES) * LD;
    }
    __device__ __forceinline__ T *dout(int buffer) const
    {
        return v + (KEYS + (2 + buffer) * QUERIES) * LD;
    }
    __device__ __forceinline__ float *lse(int buffer) const
    {
        return statistics + buffer * QUERIES;
    }
    __device__ __forceinline__ float *delta(int buffer) const
    {
        return statistics + (2 + buffer) * QUERIES;
    }
};

/* Rows of P^T and dS^T for one chunk: turns s into probabilities and dp into dS, in place, and
 * packs both as operands; dS also goes to shared memory for dQ. */
template <typename T, bool DROP, int MTILES>
__device__ __forceinline__ void
softmax_gradient(float (&s)[MTILES][CHUNK / 8][4], float (&dp)[MTILES][CHUNK / 8][4],
                 uint32_t (&p_out)[MTILES][CHUNK / 16][4],
                 uint32_t (&ds_out)[MTILES][CHUNK / 16][4], T *ds, const float *lse,
                 const float *delta, const attention_args &a, uint64_t sample, int64_t head,
                 int query0, int key0, bool masked)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < MTILES; i++) {
        uint32_t keep = DROP ? transposed_keep_bits(a, sample, head, query0, key0 + 16 * i) : 0;
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++) {
            float2 l = *(const float2 *)(lse + 8 * j + 2 * (lane % 4));
            float2 d = *(const float2 *)(delta + 8 * j + 2 * (lane % 4));
            l.x *= LOG2E, l.y *= LOG2E;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = exp2_fast(s[i][j][e] * a.scale_log2 - (e % 2 ? l.y : l.x));
                if (masked &&
                    key0 + 16 * i + lane / 4 + e / 2 * 8 > query0 + 8 * j + 2 * (lane % 4) + e % 2)
                    p = 0.0f;
                float g = dp[i][j][e], kept = p;
                if (DROP) {
                    bool k = keep >> (4 * j + e) & 1;
                    g = k ? g * a.mask.scale : 0.0f;
                    kept = k ? p : 0.0f;
                }
                s[i][j][e] = kept;
                dp[i][j][e] = p * (g - (e % 2 ? d.y : d.x));
            }
            T *to = ds + (16 * i + lane / 4) * (QUERIES + 8) + 8 * j + 2 * (lane % 4);
            *(uint32_t *)to = pack<T>(dp[i][j][0], dp[i][j][1]);
            *(uint32_t *)(to + 8 * (QUERIES + 8)) = pack<T>(dp[i][j][2], dp[i][j][3]);
        }
#pragma unroll
        for (int t = 0; t < CHUNK / 16; t++) {
            accumulator_to_a<T>(p_out[i][t], s[i][2 * t], s[i][2 * t + 1]);
            accumulator_to_a<T>(ds_out[i][t], dp[i][2 * t], dp[i][2 * t + 1]);
        }
    }
}

/* dQ of one query block: this key block's dS K added to the slice, or to zero for the slice's
 * first; the last one of the only slice goes to dq, scaled. */
template <typename T, int DP>
__device__ __forceinline__ void add_query_gradient(const T *ds, const T *k, float *slot, T *dq,
                                                   int64_t stride, int rows_left,
                                                   const attention_args &a, bool first, bool last)
{
    using S = shape<DP>;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 4 * 16, group = warp / 4;
    float acc[S::PAIRS][2][4];
    float4 *mine = (float4 *)slot + warp * S::PAIRS * 2 * 32 + lane;
#pragma unroll
    for (int n = 0; n < S::PAIRS; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4 old = first ? make_float4(0, 0, 0, 0) : mine[(n * 2 + i) * 32];
            acc[n][i][0] = old.x, acc[n][i][1] = old.y, acc[n][i][2] = old.z, acc[n][i][3] = old.w;
        }
#pragma unroll
    for (int key = 0; key < KEYS; key += 16) {
        uint32_t a_ds[4];
        load_matrices_transposed(a_ds, a_transposed_address<QUERIES + 8>(ds, row, key));
#pragma unroll
        for (int n = 0; n < S::PAIRS; n++) {
            int column = (n * S::COLUMN_GROUPS + group) * 16;
            if (column < DP) {
                uint32_t b[4];
                load_matrices_transposed(b, b_transposed_address<S::LD>(k, column, key));
                mma<T>(acc[n][0], a_ds, b[0], b[1]);
                mma<T>(acc[n][1], a_ds, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < S::PAIRS; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int column = (n * S::COLUMN_GROUPS + group) * 16 + 8 * i;
            float(&v)[4] = acc[n][i];
            if (!last) {
                mine[(n * 2 + i) * 32] = make_float4(v[0], v[1], v[2], v[3]);
            } else if (column < a.head_dim) {
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (row + lane / 4 + 8 * r < rows_left)
                        *(uint32_t *)(dq + (row + lane / 4 + 8 * r) * stride + column +
                                      2 * (lane % 4)) =
                            pack<T>(v[2 * r] * a.scale, v[2 * r + 1] * a.scale);
            }
        }
}

/* Grid: B*H*slices. qkv, dqkv [B,T,3,H,D]; dout [B,T,H,D]; lse and delta [B,H,T] fp32;
 * partial [slices, B*H, query blocks, SLOT] fp32. */
template <typename T, int DP, bool DROP>
__global__ void __launch_bounds__(shape<DP>::WARPS * 32, DP <= 64 ? 2 : 1)
    attention_backward_kernel(T *dqkv, const T *dout, const T *qkv, const float *lse,
                              const float *delta, float *partial, int slices, attention_args a)
{
    using S = shape<DP>;
    constexpr int THREADS = S::WARPS * 32, MT = S::MTILES, LD = S::LD;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    tiles<T, DP> t(shared_bytes);
    int lane = threadIdx.x % 32, warp_key = threadIdx.x / 32 * 16 * MT, time = (int)a.time;
    int slice = blockIdx.x % slices;
    int64_t bh = blockIdx.x / slices, b = bh / a.heads, h = bh % a.heads;
    int64_t stride = 3 * a.heads * a.head_dim, out_stride = a.heads * a.head_dim;
    const T *query = qkv + b * a.time * stride + h * a.head_dim;
    const T *key = query + a.heads * a.head_dim, *value = key + a.heads * a.head_dim;
    T *dquery = dqkv + (query - qkv), *dkey = dqkv + (key - qkv), *dvalue = dqkv + (value - qkv);
    const T *dob = dout + b * a.time * out_stride + h * a.head_dim;
    int key_blocks = (time + KEYS - 1) / KEYS, query_blocks = (time + QUERIES - 1) / QUERIES;
    uint64_t sample = DROP ? (uint64_t)a.mask.samples[b] : 0;
    partial += ((int64_t)slice * a.batch * a.heads + bh) * query_blocks * S::SLOT;

    auto load_queries = [&](int qb, int buffer) {
        load_tile<DP, QUERIES, THREADS>(t.q(buffer), query, qb * QUERIES, time, stride, a.head_dim);
        load_tile<DP, QUERIES, THREADS>(t.dout(buffer), dob, qb * QUERIES, time, out_stride,
                                        a.head_dim);
        /* Missing rows have q = dO = delta = 0, so that they add nothing whatever P is. */
        int i = threadIdx.x % QUERIES, q = qb * QUERIES + i;
        int64_t at = bh * a.time + (q < time ? q : 0);
        if (threadIdx.x < QUERIES)
            copy_async4(t.lse(buffer) + i, lse + at, q < time);
        else if (threadIdx.x < 2 * QUERIES)
            copy_async4(t.delta(buffer) + i, delta + at, q < time);
    };

    /* Key blocks are dealt in snake order, which evens out their triangle of work. */
    for (int kb = 0; kb < key_blocks; kb++) {
        int place = kb % (2 * slices);
        if ((place < slices ? place : 2 * slices - 1 - place) != slice)
            continue;
        float dk[MT][DP / 8][4] = {}, dv[MT][DP / 8][4] = {};
        int k0 = kb * KEYS, qb = k0 / QUERIES;
        __syncthreads(); /* the previous key block is no longer read */
        load_tile<DP, KEYS, THREADS>(t.k, key, k0, time, stride, a.head_dim);
        load_tile<DP, KEYS, THREADS>(t.v, value, k0, time, stride, a.head_dim);
        load_queries(qb, 0);
        copy_async_commit();
        /* One turn more than query blocks: dQ follows a turn behind. */
        int buffer = 0;
        for (const int first = qb; qb <= query_blocks; qb++, buffer ^= 1) {
            const int q0 = qb * QUERIES, done = S::DS_BUFFERS == 1 ? qb : qb - 1;
            copy_async_wait<0>();
            __syncthreads(); /* this block and the last one's dS are here; the rest is free */
            if (qb + 1 < query_blocks)
                load_queries(qb + 1, buffer ^ 1);
            copy_async_commit();
            /* The sums that dQ will be added to have mostly left the cache since the last key
             * block. */
            if (done >= first && done < query_blocks && kb != slice &&
                (int)threadIdx.x * 32 < S::SLOT)
                prefetch_l2(partial + (int64_t)done * S::SLOT + threadIdx.x * 32);
#pragma unroll 1
            for (int c = 0; c < QUERIES && qb < query_blocks; c += CHUNK) {
                T *ds = t.ds(buffer) + warp_key * (QUERIES + 8) + c;
                float s[MT][CHUNK / 8][4], dp[MT][CHUNK / 8][4];
                uint32_t p_[MT][CHUNK / 16][4], ds_[MT][CHUNK / 16][4];
                transposed_scores<T, DP, MT>(s, t.k + warp_key * LD, t.q(buffer) + c * LD);
                transposed_scores<T, DP, MT>(dp, t.v + warp_key * LD, t.dout(buffer) + c * LD);
                softmax_gradient<T, DROP, MT>(s, dp, p_, ds_, ds, t.lse(buffer) + c,
                                              t.delta(buffer) + c, a, sample, h, q0 + c,
                                              k0 + warp_key, k0 + KEYS > q0 + c);
                add_product<T, DP, MT>(dv, p_, t.dout(buffer) + c * LD);
                add_product<T, DP, MT>(dk, ds_, t.q(buffer) + c * LD);
            }
            if (S::DS_BUFFERS == 1)
                __syncthreads(); /* this block's dS is here */
            if (done >= first && done < query_blocks)
                add_query_gradient<T, DP>(
                    t.ds(buffer ^ (S::DS_BUFFERS - 1)), t.k, partial + (int64_t)done * S::SLOT,
                    dquery + done * QUERIES * stride, stride, time - done * QUERIES, a, kb == slice,
                    slices == 1 && kb == done * QUERIES / KEYS);
        }
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int64_t row = k0 + warp_key + 16 * i + lane / 4 + 8 * r;
                if (row < time)
#pragma unroll
                    for (int n = 0; n < DP / 8; n++)
                        if (8 * n < a.head_dim) {
                            int64_t at = row * stride + 8 * n + 2 * (lane % 4);
                            float f = DROP ? a.mask.scale : 1.0f;
                            *(uint32_t *)(dkey + at) =
                                pack<T>(dk[i][n][2 * r] * a.scale, dk[i][n][2 * r + 1] * a.scale);
                            *(uint32_t *)(dvalue + at) =
                                pack<T>(dv[i][n][2 * r] * f, dv[i][n][2 * r + 1] * f);
                        }
            }
    }
}

/* dq = scale * sum of the slices that reach the query block, in order. One block a query block. */
template <typename T, int DP>
__global__ void add_slices_kernel(T *dqkv, const float *partial, int slices, int query_blocks,
                                  attention_args a)
{
    using S = shape<DP>;
    int64_t bh = blockIdx.x / query_blocks, b = bh / a.heads, h = bh % a.heads;
    int qb = blockIdx.x % query_blocks, reach = min(slices, qb * QUERIES / KEYS + 1);
    for (int i = threadIdx.x; i < S::SLOT / 4; i += blockDim.x) {
        int lane = i % 32, tile = i / 32 % (S::PAIRS * 2), warp = i / (32 * S::PAIRS * 2);
        int column = (tile / 2 * S::COLUMN_GROUPS + warp / 4) * 16 + tile % 2 * 8 + 2 * (lane % 4);
        int64_t row = (int64_t)qb * QUERIES + warp % 4 * 16 + lane / 4;
        float4 sum = make_float4(0, 0, 0, 0);
        if (column >= a.head_dim)
            continue;
        for (int k = 0; k < reach; k++) {
            float4 p =
                ((const float4 *)(partial +
                                  (((int64_t)k * a.batch * a.heads + bh) * query_blocks + qb) *
                                      S::SLOT))[i];
            sum.x += p.x, sum.y += p.y, sum.z += p.z, sum.w += p.w;
        }
        T *to = dqkv + ((b * a.time + row) * 3 * a.heads + h) * a.head_dim + column;
        if (row < a.time)
            *(uint32_t *)to = pack<T>(sum.x * a.scale, sum.y * a.scale);
        if (row + 8 < a.time)
            *(uint32_t *)(to + 8 * 3 * a.heads * a.head_dim) =
                pack<T>(sum.z * a.scale, sum.w * a.scale);
    }
}

/* Slices that fill 132 multiprocessors best: whole rounds of thread blocks, few slices. */
int slice_count(const struct attention *a)
{
    int64_t heads = a->batch * a->heads, slots = a->head_dim <= 64 ? 264 : 132;
    int64_t most = (a->time + KEYS - 1) / KEYS;
    int best = 1;
    double best_cost = 1e30;
    for (int s = 1; s <= most && s <= 8; s++) {
        int64_t blocks = heads * s, rounds = (blocks + slots - 1) / slots;
        double cost = (double)(rounds * slots) / (double)blocks * (s > 1 ? 1.05 + 0.01 * s : 1.0);
        if (cost < best_cost)
            best = s, best_cost = cost;
    }
    return best;
}

template <int DP> size_t slices_bytes(const struct attention *a)
{
    int64_t query_blocks = (a->time + QUERIES - 1) / QUERIES;
    return (size_t)(slice_count(a) * a->batch * a->heads * query_blocks) * shape<DP>::SLOT *
           sizeof(float);
}

size_t delta_bytes(const struct attention *a)
{
    return ((size_t)(a->batch * a->heads * a->time) * sizeof(float) + 255) / 256 * 256;
}

template <typename T, int DP, bool DROP>
cudaError_t launch(cudaStream_t s, void *dqkv, const void *dout, const void *qkv, const float *lse,
                   const struct attention *attention, const float *delta, float *partial)
{
    attention_args a = attention_args_of(*attention);
    int slices = slice_count(attention), query_blocks = (int)((a.time + QUERIES - 1) / QUERIES);
    auto kernel = attention_backward_kernel<T, DP, DROP>;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         shape<DP>::SHARED);
    if (e)
        return e;
    kernel<<<GRID(a.batch * a.heads * slices), shape<DP>::WARPS * 32, shape<DP>::SHARED, s>>>(
        (T *)dqkv, (const T *)dout, (const T *)qkv, lse, delta, partial, slices, a);
    if (slices > 1)
        add_slices_kernel<T, DP><<<GRID(a.batch * a.heads * query_blocks), 256, 0, s>>>(
            (T *)dqkv, partial, slices, query_blocks, a);
    return cudaGetLastError();
}
} // namespace

extern "C" size_t cuda_attention_backward_workspace(const struct attention *a)
{
    if (a->dt == DTYPE_F32)
        return delta_bytes(a);
    return delta_bytes(a) + (a->head_dim <= 64    ? slices_bytes<64>(a)
                             : a->head_dim <= 80  ? slices_bytes<80>(a)
                             : a->head_dim <= 96  ? slices_bytes<96>(a)
                             : a->head_dim <= 112 ? slices_bytes<112>(a)
                                                  : slices_bytes<128>(a));
}

extern "C" cudaError_t cuda_attention_backward(cudaStream_t s, void *dqkv, const void *dout,
                                               const void *qkv, const void *out, const float *lse,
                                               const struct attention *attention, void *workspace)
{
    float *delta = (float *)workspace;
    float *partial = (float *)((char *)workspace + delta_bytes(attention));
    cudaError_t e = cuda_attention_delta(s, delta, dout, out, attention);
    if (e)
        return e;
    if (attention->dt == DTYPE_F32)
        return cuda_attention_backward_f32(s, (float *)dqkv, (const float *)dout,
                                           (const float *)qkv, lse, delta, attention);
    WITH_ATTENTION(attention, return (launch<T, DP, DROP>(s, dqkv, dout, qkv, lse, attention, delta,
                                                          partial)));
}
