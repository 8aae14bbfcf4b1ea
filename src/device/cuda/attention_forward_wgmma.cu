/* attention_forward_wgmma.cu - attention_forward.cu for compute capability 9.0, without dropout:
 * products of whole warpgroups, tiles copied by the copy engine, and the softmax of one tile while
 * the tensor cores work on another. Shah et al. 2024 (FlashAttention-3), algorithm 2. Tests:
 * tests/unit/test_parity.c, tests/gpu/test_cuda_kernels.c. */
#include "device/cuda/attention.cuh"

#if WITH_WGMMA
#include "device/cuda/wgmma.cuh"

namespace
{
constexpr int GROUP = 128, ROWS = 64; /* threads and queries of a warpgroup */

/* How a head dimension is cut: GROUPS warpgroups a block, KEYS keys a tile, STAGES tiles of keys
 * and values in flight, queries in registers or shared memory, BLOCKS a multiprocessor. */
template <int GROUPS_, int KEYS_, int STAGES_, bool Q_REGISTERS_, int BLOCKS_> struct cut {
    static constexpr int GROUPS = GROUPS_, KEYS = KEYS_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr bool Q_REGISTERS = Q_REGISTERS_;
    static constexpr int QUERIES = GROUPS * ROWS, BOX = KEYS % 64 ? 32 : 64;
};

template <int DP, typename CUT> struct shared_tiles {
    static constexpr int PARTS = (DP + PART - 1) / PART;
    static constexpr int Q_BYTES = ROWS * PARTS * PART_ROW_BYTES,
                         TILE_BYTES = CUT::KEYS * PARTS * PART_ROW_BYTES;
    unsigned char q[CUT::GROUPS][Q_BYTES], k[CUT::STAGES][TILE_BYTES], v[CUT::STAGES][TILE_BYTES];
    uint64_t q_here, k_here[CUT::STAGES], v_here[CUT::STAGES], unused[CUT::STAGES];
};

/* Rows row0 on of q, k or v (plane 0, 1, 2) of one head to a tile. */
template <int TILE_ROWS, int PARTS, int BOX>
__device__ __forceinline__ void copy_tile(unsigned char *tile, const CUtensorMap *map, int plane,
                                          int row0, int h, int b, int heads, uint64_t *barrier)
{
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int r = 0; r < TILE_ROWS; r += BOX)
            copy_box(tile + (part * TILE_ROWS + r) * PART_ROW_BYTES, map, part * PART,
                     plane * heads + h, row0 + r, b, barrier);
}

/* s = -infinity where the key comes after the query; row is of the thread's upper row. */
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

/* One block: QUERIES queries of one (sample, head), 64 a warpgroup, which has no other work and
 * reads tiles of keys at its own pace. Grid: B*H*ceil(T/QUERIES), the longest rows of a head first.
 * `map` is qkv as [B][T][3H][D]; out [B,T,H,D], lse [B,H,T] fp32 out. Rows past T and columns past
 * D arrive as zeros. Accumulators fp32; deterministic. */
template <typename T, int DP, typename CUT>
__global__ void __launch_bounds__(CUT::GROUPS *GROUP, CUT::BLOCKS)
    attention_forward_wgmma_kernel(T *out, float *lse, const __grid_constant__ CUtensorMap map,
                                   attention_args a)
{
    constexpr int KEYS = CUT::KEYS, STAGES = CUT::STAGES;
    using tiles = shared_tiles<DP, CUT>;
    constexpr int PARTS = tiles::PARTS;
    extern __shared__ __align__(1024) unsigned char shared_bytes[];
    tiles &shared = *(tiles *)shared_bytes;
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    int lane = threadIdx.x % 32, warp_row = threadIdx.x % GROUP / 32 * 16;
    int blocks_per_head = (int)((a.time + CUT::QUERIES - 1) / CUT::QUERIES);
    int bh = blockIdx.x / blocks_per_head, heads = (int)a.heads, b = bh / heads, h = bh % heads;
    int q0 = (blocks_per_head - 1 - (int)(blockIdx.x % blocks_per_head)) * CUT::QUERIES;
    int time = (int)a.time, group_row = q0 + group * ROWS;
    int tile_count = (min(q0 + CUT::QUERIES, time) + KEYS - 1) / KEYS;
    int own_count = (min(group_row + ROWS, time) + KEYS - 1) / KEYS;
    /* One thread of the last warpgroup, which needs every tile, starts all copies. */
    bool loader = threadIdx.x == (CUT::GROUPS - 1) * GROUP;

    auto load = [&](int tile) {
        int stage = tile % STAGES;
        barrier_expect(&shared.k_here[stage], tiles::TILE_BYTES);
        copy_tile<KEYS, PARTS, CUT::BOX>(shared.k[stage], &map, 1, tile * KEYS, h, b, heads,
                                         &shared.k_here[stage]);
        barrier_expect(&shared.v_here[stage], tiles::TILE_BYTES);
        copy_tile<KEYS, PARTS, CUT::BOX>(shared.v[stage], &map, 2, tile * KEYS, h, b, heads,
                                         &shared.v_here[stage]);
    };
    if (loader) {
        barrier_init(&shared.q_here, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&shared.k_here[i], 1);
            barrier_init(&shared.v_here[i], 1);
            barrier_init(&shared.unused[i], CUT::GROUPS * GROUP / 32);
        }
        barrier_init_done();
        barrier_expect(&shared.q_here, CUT::GROUPS * tiles::Q_BYTES);
        for (int g = 0; g < CUT::GROUPS; g++)
            copy_tile<ROWS, PARTS, CUT::BOX>(shared.q[g], &map, 0, q0 + g * ROWS, h, b, heads,
                                             &shared.q_here);
        for (int i = 0; i < STAGES && i < tile_count; i++)
            load(i);
    }
    __syncthreads();
    barrier_wait(&shared.q_here, 0);

    unsigned char *q = shared.q[group];
    uint32_t q_fragments[CUT::Q_REGISTERS ? DP / 16 : 1][4];
    if (CUT::Q_REGISTERS)
#pragma unroll
        for (int d = 0; d < DP / 16; d++)
            load_matrices(q_fragments[d],
                          q + swizzled(ROWS, warp_row + lane % 16, 2 * d + lane / 16));

    float s[KEYS / 8][4] = {}, o[DP / 8][4] = {}, top[2], total[2] = {}, old[2];
    uint32_t p[KEYS / 16][4];
    top[0] = top[1] = -INFINITY;

    auto scores =
        [&](int tile) { /* s = q k^T */
                        uint32_t k = shared_address(shared.k[tile % STAGES]),
                                 queries = shared_address(q);
                        barrier_wait(&shared.k_here[tile % STAGES], tile / STAGES);
                        wgmma_fence(s);
#pragma unroll
                        for (int d = 0; d < DP; d += 16) {
                            int in_part = d % PART * 2;
                            uint64_t keys =
                                descriptor(k + d / PART * KEYS * PART_ROW_BYTES + in_part, 0);
                            if constexpr (CUT::Q_REGISTERS)
                                wgmma<T>(s, q_fragments[d / 16], keys, d > 0);
                            else
                                wgmma<T>(
                                    s,
                                    descriptor(queries + d / PART * ROWS * PART_ROW_BYTES + in_part,
                                               0),
                                    keys, d > 0);
                        }
                        wgmma_commit();
        };
    auto add_values =
        [&](int tile) { /* o += p v */
                        uint32_t v = shared_address(shared.v[tile % STAGES]);
                        barrier_wait(&shared.v_here[tile % STAGES], tile / STAGES);
                        wgmma_fence(o);
#pragma unroll
                        for (int t = 0; t < KEYS / 16; t++)
                            wgmma_transposed<T>(
                                o, p[t],
                                descriptor(v + t * 16 * PART_ROW_BYTES, KEYS * PART_ROW_BYTES),
                                true);
                        wgmma_commit();
        };
    auto probabilities = [&](int tile) {
        int row = group_row + warp_row;
        if ((tile + 1) * KEYS - 1 > row)
            mask_scores(s, tile * KEYS, row + lane / 4);
        softmax(s, top, total, old, a.scale_log2);
    };
    auto pack_probabilities = [&] {
#pragma unroll
        for (int t = 0; t < KEYS / 16; t++)
            accumulator_to_a<T>(p[t], s[2 * t], s[2 * t + 1]);
    };

    scores(0);
    wgmma_wait<0>(s);
    probabilities(0);
    pack_probabilities();
    for (int tile = 1; tile < own_count; tile++) {
        scores(tile);
        add_values(tile - 1);
        wgmma_wait<1>(s);
        probabilities(tile); /* while the tensor cores add the values of the tile before */
        wgmma_wait<0>(o);
        if (lane == 0)
            barrier_arrive(&shared.unused[(tile - 1) % STAGES]);
        /* One tile later than could be, so that the loader seldom waits for a warpgroup. */
        int last = tile - 2;
        if (loader && last >= 0 && last + STAGES < tile_count) {
            barrier_wait(&shared.unused[last % STAGES], last / STAGES);
            load(last + STAGES);
        }
#pragma unroll
        for (int n = 0; n < DP / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[n][e] *= old[e / 2];
        pack_probabilities();
    }
    add_values(own_count - 1);
    wgmma_wait<0>(o);

    /* The warpgroup's queries are no longer read: gather the output there for 16-byte stores. */
    if (!CUT::Q_REGISTERS)
        asm volatile("bar.sync %0, %1;\n" ::"r"(group + 1), "n"(GROUP) : "memory");
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int in_tile = warp_row + lane / 4 + 8 * r, row = group_row + in_tile;
        float t = total[r];
        t += __shfl_xor_sync(0xffffffffu, t, 1);
        t += __shfl_xor_sync(0xffffffffu, t, 2);
        if (lane % 4 == 0 && row < time)
            lse[bh * a.time + row] = top[r] * a.scale_log2 * 0.6931471805599453f + logf(t);
        float f = 1.0f / t;
#pragma unroll
        for (int n = 0; n < DP / 8; n++)
            *(uint32_t *)(q + swizzled(ROWS, in_tile, n) + lane % 4 * 4) =
                pack<T>(o[n][2 * r] * f, o[n][2 * r + 1] * f);
    }
    __syncwarp();
    T *to = out + (b * a.time * heads + h) * a.head_dim;
#pragma unroll
    for (int i = lane; i < 16 * DP / 8; i += 32) {
        int in_tile = warp_row + i / (DP / 8), unit = i % (DP / 8), row = group_row + in_tile;
        if (row < time && unit * 8 < a.head_dim)
            *(uint4 *)(to + row * heads * a.head_dim + unit * 8) =
                *(const uint4 *)(q + swizzled(ROWS, in_tile, unit));
    }
}

/* The runtime hands out the driver's function, so that nothing links to the driver. */
decltype(&cuTensorMapEncodeTiled) find_encode()
{
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                     cudaEnableDefault, &found);
#else
    cudaError_t e =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault, &found);
#endif
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess
               ? (decltype(&cuTensorMapEncodeTiled))f
               : NULL;
}

/* qkv as [B][T][3H][D], copied in boxes of `rows` rows and 64 columns of one plane and head. */
template <typename T>
cudaError_t describe(CUtensorMap *map, const void *qkv, const attention_args &a, int rows)
{
    static const auto encode = find_encode();
    const cuuint64_t width = (cuuint64_t)(a.head_dim * (int64_t)sizeof(T)),
                     planes = (cuuint64_t)(3 * a.heads), time = (cuuint64_t)a.time;
    const cuuint64_t dims[] = {(cuuint64_t)a.head_dim, planes, time, (cuuint64_t)a.batch};
    const cuuint64_t strides[] = {width, width * planes, width * planes * time};
    const cuuint32_t box[] = {PART, 1, (cuuint32_t)rows, 1}, steps[] = {1, 1, 1, 1};
    if (!encode)
        return cudaErrorNotSupported;
    CUresult rc = encode(map,
                         std::is_same_v<T, __nv_bfloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                         4, (void *)qkv, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorNotSupported;
}

template <typename T, int DP, typename CUT>
cudaError_t launch(cudaStream_t s, void *out, float *lse, const void *qkv, const attention_args &a)
{
    constexpr int shared = (int)sizeof(shared_tiles<DP, CUT>);
    auto kernel = attention_forward_wgmma_kernel<T, DP, CUT>;
    CUtensorMap map;
    cudaError_t e = describe<T>(&map, qkv, a, CUT::BOX);
    if (e)
        return e;
    e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (e)
        return e;
    int64_t blocks = a.batch * a.heads * ((a.time + CUT::QUERIES - 1) / CUT::QUERIES);
    kernel<<<dim3((unsigned)blocks), CUT::GROUPS * GROUP, shared, s>>>((T *)out, lse, map, a);
    return cudaGetLastError();
}

using narrow = cut<2, 64, 4, true, 2>;
using wide = cut<3, 64, 4, false, 1>;

template <typename T>
cudaError_t launch_padded(cudaStream_t s, void *out, float *lse, const void *qkv,
                          const attention_args &a)
{
    return a.head_dim <= 64    ? launch<T, 64, narrow>(s, out, lse, qkv, a)
           : a.head_dim <= 80  ? launch<T, 80, wide>(s, out, lse, qkv, a)
           : a.head_dim <= 96  ? launch<T, 96, wide>(s, out, lse, qkv, a)
           : a.head_dim <= 112 ? launch<T, 112, wide>(s, out, lse, qkv, a)
                               : launch<T, 128, wide>(s, out, lse, qkv, a);
}
} // namespace

extern "C" cudaError_t cuda_attention_forward_wgmma(cudaStream_t s, void *out, float *lse,
                                                    const void *qkv,
                                                    const struct attention *attention)
{
    attention_args a = attention_args_of(*attention);
    return attention->dt == DTYPE_BF16 ? launch_padded<__nv_bfloat16>(s, out, lse, qkv, a)
                                       : launch_padded<__half>(s, out, lse, qkv, a);
}
#else
extern "C" cudaError_t cuda_attention_forward_wgmma(cudaStream_t, void *, float *, const void *,
                                                    const struct attention *)
{
    return cudaErrorNotSupported;
}
#endif
