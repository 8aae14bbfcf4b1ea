/* attention_forward_wgmma.cu - attention_forward.cu for compute capability 9.0, without dropout:
 * products of whole warpgroups, tiles copied by the copy engine, and the softmax of one tile while
 * the tensor cores work on another. Shah et al. 2024 (FlashAttention-3), algorithm 2. Tests:
 * tests/unit/test_parity.c, tests/gpu/test_cuda_kernels.c. */
#include "device/cuda/attention.cuh"

#if WITH_WGMMA
#include "device/cuda/tensor_map.cuh"
#include "device/cuda/wgmma.cuh"

namespace
{
constexpr int GROUP = 128, ROWS = 64; /* threads and queries of a warpgroup */
constexpr int KEYS = 64, STAGES = 4;  /* of a tile; tiles of keys and of values in flight */

/* How a head dimension is cut: GROUPS warpgroups a block, BLOCKS blocks a multiprocessor, and
 * whether queries stay in registers. */
template <int GROUPS_, int BLOCKS_, bool Q_REGISTERS_> struct cut {
    static constexpr int GROUPS = GROUPS_, BLOCKS = BLOCKS_, QUERIES = GROUPS * ROWS;
    static constexpr bool Q_REGISTERS = Q_REGISTERS_;
    static_assert(GROUPS <= STAGES && KEYS == ROWS); /* see the loader; one box for all tiles */
};

template <int DP, typename CUT> struct shared_tiles {
    static constexpr int PARTS = (DP + PART - 1) / PART;
    static constexpr int Q_BYTES = ROWS * PARTS * PART_ROW_BYTES,
                         TILE_BYTES = KEYS * PARTS * PART_ROW_BYTES;
    unsigned char q[CUT::GROUPS][Q_BYTES], k[STAGES][TILE_BYTES], v[STAGES][TILE_BYTES];
    uint64_t q_here, k_here[STAGES], v_here[STAGES], unused[STAGES];
};

/* Rows row0 on of q, k or v (plane 0, 1, 2) of one head to a tile. */
template <int TILE_ROWS, int PARTS>
__device__ __forceinline__ void copy_tile(unsigned char *tile, const CUtensorMap *map, int plane,
                                          int row0, int h, int b, int heads, uint32_t barrier)
{
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        copy_box(tile + part * TILE_ROWS * PART_ROW_BYTES, map, part * PART, plane * heads + h,
                 row0, b, barrier);
}

/* One block: QUERIES queries of one (sample, head), 64 a warpgroup, which has no other work and
 * reads tiles of keys at its own pace. Grid: B*H*ceil(T/QUERIES); of every `section` heads the
 * longest rows first, so that the last blocks are short. `map` is qkv as [B][T][3H][D]; out
 * [B,T,H,D], lse [B,H,T] fp32 out. Rows past T and columns past D arrive as zeros. Accumulators
 * fp32; deterministic. */
template <typename T, int DP, typename CUT>
__global__ void __launch_bounds__(CUT::GROUPS *GROUP, CUT::BLOCKS)
    attention_forward_wgmma_kernel(T *out, float *lse, const __grid_constant__ CUtensorMap map,
                                   attention_args a, int section)
{
    using tiles = shared_tiles<DP, CUT>;
    constexpr int PARTS = tiles::PARTS;
    extern __shared__ __align__(1024) unsigned char shared_bytes[];
    tiles &shared = *(tiles *)shared_bytes;
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    int lane = threadIdx.x % 32, warp_row = threadIdx.x % GROUP / 32 * 16;
    int blocks_per_head = (int)((a.time + CUT::QUERIES - 1) / CUT::QUERIES);
    int heads = (int)a.heads, first = blockIdx.x / blocks_per_head / section * section;
    int count = min(section, (int)a.batch * heads - first); /* the last section may be smaller */
    int in_section = blockIdx.x - first * blocks_per_head;
    int bh = first + in_section % count, b = bh / heads, h = bh % heads;
    int q0 = (blocks_per_head - 1 - in_section / count) * CUT::QUERIES;
    int time = (int)a.time, group_row = q0 + group * ROWS;
    int tile_count = (min(q0 + CUT::QUERIES, time) + KEYS - 1) / KEYS;
    int own_count = (min(group_row + ROWS, time) + KEYS - 1) / KEYS;
    /* One thread of the last warpgroup, which needs every tile, starts all copies. */
    bool loader = threadIdx.x == (CUT::GROUPS - 1) * GROUP;

    auto load = [&](int tile, int stage) {
        barrier_expect(shared_address(&shared.k_here[stage]), tiles::TILE_BYTES);
        copy_tile<KEYS, PARTS>(shared.k[stage], &map, 1, tile * KEYS, h, b, heads,
                               shared_address(&shared.k_here[stage]));
        barrier_expect(shared_address(&shared.v_here[stage]), tiles::TILE_BYTES);
        copy_tile<KEYS, PARTS>(shared.v[stage], &map, 2, tile * KEYS, h, b, heads,
                               shared_address(&shared.v_here[stage]));
    };
    if (loader) {
        barrier_init(shared_address(&shared.q_here), 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared_address(&shared.k_here[i]), 1);
            barrier_init(shared_address(&shared.v_here[i]), 1);
            barrier_init(shared_address(&shared.unused[i]), CUT::GROUPS * GROUP / 32);
        }
        barrier_init_done();
        barrier_expect(shared_address(&shared.q_here), CUT::GROUPS * tiles::Q_BYTES);
        for (int g = 0; g < CUT::GROUPS; g++)
            copy_tile<ROWS, PARTS>(shared.q[g], &map, 0, q0 + g * ROWS, h, b, heads,
                                   shared_address(&shared.q_here));
        for (int i = 0; i < STAGES && i < tile_count; i++)
            load(i, i);
    }
    __syncthreads();
    barrier_wait(shared_address(&shared.q_here), 0);

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

    /* s = q k^T and o += p v, both left under way. */
    auto scores = [&](int stage, int phase) {
        uint32_t queries = shared_address(q), keys = shared_address(shared.k[stage]);
        barrier_wait(shared_address(&shared.k_here[stage]), phase);
        wgmma_fence(s);
#pragma unroll
        for (int d = 0; d < DP; d += 16) {
            int part = d / PART * PART_ROW_BYTES, in_part = d % PART * 2;
            uint64_t k = descriptor(keys + part * KEYS + in_part, 0);
            if constexpr (CUT::Q_REGISTERS)
                wgmma<T>(s, q_fragments[d / 16], k, d > 0);
            else
                wgmma<T>(s, descriptor(queries + part * ROWS + in_part, 0), k, d > 0);
        }
        wgmma_commit();
    };
    auto add_values = [&](int stage, int phase) {
        uint32_t values = shared_address(shared.v[stage]);
        barrier_wait(shared_address(&shared.v_here[stage]), phase);
        wgmma_fence(o);
#pragma unroll
        for (int t = 0; t < KEYS / 16; t++)
            wgmma_transposed<T>(
                o, p[t], descriptor(values + t * 16 * PART_ROW_BYTES, KEYS * PART_ROW_BYTES));
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

    scores(0, 0);
    wgmma_wait<0>(s);
    probabilities(0);
    pack_probabilities();
    int tile = 1;
    /* A turn is one use of every stage, so that a stage's addresses are known when compiling. */
    for (int turn = 0; tile < own_count; turn++) {
#pragma unroll
        for (int i = 1; i <= STAGES && tile < own_count; i++, tile++) {
            scores(i % STAGES, turn + i / STAGES);
            add_values(i - 1, turn);
            wgmma_wait<1>(s);
            probabilities(tile); /* while the tensor cores add the values of the tile before */
            wgmma_wait<0>(o);
            if (lane == 0)
                barrier_arrive(shared_address(&shared.unused[i - 1]));
            /* One tile later than could be, so that the loader seldom waits for a warpgroup. */
            int last = (i + STAGES - 2) % STAGES;
            if (loader && tile >= 2 && tile - 2 + STAGES < tile_count) {
                barrier_wait(shared_address(&shared.unused[last]), turn - (i == 1));
                load(tile - 2 + STAGES, last);
            }
            if (__any_sync(0xffffffffu, old[0] < 1.0f || old[1] < 1.0f))
#pragma unroll
                for (int n = 0; n < DP / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        o[n][e] *= old[e / 2];
            pack_probabilities();
        }
    }
    add_values((tile - 1) % STAGES, (tile - 1) / STAGES);
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

/* qkv as [B][T][3H][D], copied in boxes of a tile's rows and 64 columns of one plane and head. */
template <typename T>
cudaError_t describe(CUtensorMap *map, const void *qkv, const attention_args &a)
{
    const cuuint64_t width = (cuuint64_t)(a.head_dim * (int64_t)sizeof(T)),
                     planes = (cuuint64_t)(3 * a.heads), time = (cuuint64_t)a.time;
    const cuuint64_t dims[] = {(cuuint64_t)a.head_dim, planes, time, (cuuint64_t)a.batch};
    const cuuint64_t strides[] = {width, width * planes, width * planes * time};
    const cuuint32_t box[] = {PART, 1, KEYS, 1};
    return describe_tensor<T>(map, qkv, dims, strides, box);
}

template <typename T, int DP, typename CUT>
cudaError_t launch(cudaStream_t s, void *out, float *lse, const void *qkv, const attention_args &a)
{
    constexpr int shared = (int)sizeof(shared_tiles<DP, CUT>);
    auto kernel = attention_forward_wgmma_kernel<T, DP, CUT>;
    CUtensorMap map;
    cudaError_t e = describe<T>(&map, qkv, a);
    if (e)
        return e;
    e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (e)
        return e;
    int64_t blocks = a.batch * a.heads * ((a.time + CUT::QUERIES - 1) / CUT::QUERIES);
    /* The keys and values of a section stay in the L2 cache. Sections are even: the last one keeps
     * the GPU busy to the end. */
    int64_t heads = a.batch * a.heads;
    int64_t most = max((int64_t)1, (16 << 20) / (4 * a.time * a.head_dim));
    int64_t sections = (heads + most - 1) / most, section = (heads + sections - 1) / sections;
    kernel<<<dim3((unsigned)blocks), CUT::GROUPS * GROUP, shared, s>>>((T *)out, lse, map, a,
                                                                       (int)section);
    return cudaGetLastError();
}

using narrow = cut<2, 2, true>;
using wide = cut<3, 1, false>;

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
