/* head_logprobs_wgmma.cu - log-probabilities of given tokens, without their logits ever lying in
 * memory: x [rows,C] times wte [V,C] transposed, of which each tile leaves a maximum and a sum a
 * row. Logits in fp32 would be written and read once at 200 KB a row, which takes as long as the
 * product. Compute capability 9.0. Test: tests/unit/test_parity.c. */
#include "device/cuda/kernels.h"

#if WITH_WGMMA
#include "device/cuda/tensor_map.cuh"
#include "device/cuda/vector.cuh"
#include "device/cuda/wgmma.cuh"

namespace
{
constexpr int GROUP = 128, MATH_GROUPS = 2;          /* threads of a warpgroup; that multiply */
constexpr int ROWS = 64 * MATH_GROUPS, TOKENS = 256; /* of a tile of logits */
constexpr int STAGES = 4;
constexpr int BAND = 32; /* tiles of rows that stay in the L2 cache while the tokens go by */
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

struct shared_stages {
    unsigned char x[STAGES][ROWS * PART_ROW_BYTES], w[STAGES][TOKENS * PART_ROW_BYTES];
    uint64_t here[STAGES], unused[STAGES];
};
constexpr int STAGE_BYTES = (ROWS + TOKENS) * PART_ROW_BYTES;

struct grid {
    int rows, vocab, steps; /* of 64 channels */
    int row_tiles, token_tiles;

    /* Which tile is number i: in bands of rows, the tokens of a band outermost. */
    __device__ __forceinline__ void place(int i, int &row_tile, int &token_tile) const
    {
        int band = i / (BAND * token_tiles), first = band * BAND;
        int count = min(BAND, row_tiles - first), in_band = i - first * token_tiles;
        token_tile = in_band / count;
        row_tile = first + in_band % count;
    }
};

/* Of the tokens of a tile: states [token_tiles, rows], maximum (base 2) and sum; and the targets'
 * logits [rows] (base 2). One block a multiprocessor takes tile after tile; a warpgroup of it
 * copies, two have 64 rows each and may be up to STAGES steps apart, so that one multiplies while
 * the other exponentiates. */
template <typename T>
__global__ void __launch_bounds__((MATH_GROUPS + 1) * GROUP, 1)
    tiles_kernel(float2 *states, float *target_logits, const int32_t *targets,
                 const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                 const grid g)
{
    extern __shared__ __align__(1024) unsigned char shared_bytes[];
    shared_stages &shared = *(shared_stages *)shared_bytes;
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    const int tiles = g.row_tiles * g.token_tiles;
    const uint32_t here = shared_address(shared.here), unused = shared_address(shared.unused);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(here + 8 * i, 1);
            barrier_init(unused + 8 * i, MATH_GROUPS * GROUP / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    int stage = 0, phase = 0;
    if (group == MATH_GROUPS) {
        fewer_registers<40>();
        if (threadIdx.x % GROUP == 0)
            for (int tile = blockIdx.x, row_tile, token_tile; tile < tiles; tile += gridDim.x) {
                g.place(tile, row_tile, token_tile);
                for (int step = 0; step < g.steps; step++) {
                    barrier_wait(unused + 8 * stage, phase - 1);
                    barrier_expect(here + 8 * stage, STAGE_BYTES);
                    copy_box(shared.x[stage], &x, step * PART, row_tile * ROWS, 0, 0,
                             here + 8 * stage);
                    copy_box(shared.w[stage], &w, step * PART, token_tile * TOKENS, 0, 0,
                             here + 8 * stage);
                    if (++stage == STAGES)
                        stage = 0, phase++;
                }
            }
    } else {
        more_registers<232>();
        const int lane = (int)threadIdx.x % 32, warp_row = (int)threadIdx.x % GROUP / 32 * 16;
        float d[TOKENS / 8][4];
        for (int tile = blockIdx.x, row_tile, token_tile; tile < tiles; tile += gridDim.x) {
            g.place(tile, row_tile, token_tile);
            for (int step = 0; step < g.steps; step++) {
                uint32_t rows = shared_address(shared.x[stage]) + group * 64 * PART_ROW_BYTES;
                uint32_t tokens = shared_address(shared.w[stage]);
                barrier_wait(here + 8 * stage, phase);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < PART; k += 16)
                    wgmma<T>(d, descriptor(rows + 2 * k, 0), descriptor(tokens + 2 * k, 0),
                             step > 0 || k > 0);
                wgmma_commit();
                if (step > 0) { /* the products of the stage before have been made */
                    wgmma_wait<1>();
                    if (lane == 0)
                        barrier_arrive(unused + 8 * ((stage + STAGES - 1) % STAGES));
                }
                if (++stage == STAGES)
                    stage = 0, phase++;
            }
            wgmma_wait<0>(d);
            if (lane == 0)
                barrier_arrive(unused + 8 * ((stage + STAGES - 1) % STAGES));

            const int token0 = token_tile * TOKENS + lane % 4 * 2;
            if (token_tile == g.token_tiles - 1) /* what is beyond the vocabulary */
#pragma unroll
                for (int n = 0; n < TOKENS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (token0 + n * 8 + e % 2 >= g.vocab)
                            d[n][e] = -INFINITY;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int row = row_tile * ROWS + group * 64 + warp_row + lane / 4 + 8 * r;
                float tops[4], sums[4] = {}; /* four chains */
#pragma unroll
                for (int n = 0; n < TOKENS / 8; n++) {
                    float two = fmaxf(d[n][2 * r], d[n][2 * r + 1]);
                    tops[n % 4] = n < 4 ? two : fmaxf(tops[n % 4], two);
                }
                float top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)) * LOG2E;
#pragma unroll
                for (int n = 0; n < TOKENS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        sums[n % 4] += exp2_fast(d[n][2 * r + e] * LOG2E - top);
                float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                if (row < g.rows && lane % 4 == 0)
                    states[(size_t)token_tile * g.rows + row] = make_float2(top, sum);
                int target = (row < g.rows ? targets[row] : -1) - token0;
                bool mine = target >= 0 && target < TOKENS && target % 8 < 2;
                if (__any_sync(0xffffffffu, mine)) { /* few: a row has one in all tiles */
                    float logit = 0.0f;
#pragma unroll
                    for (int n = 0; n < TOKENS / 8; n++)
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            logit = n * 8 + e == target ? d[n][2 * r + e] : logit;
                    if (mine)
                        target_logits[row] = logit * LOG2E;
                }
            }
        }
    }
}

/* The states of a row, a quarter of them a thread, in order. */
constexpr int MERGE_ROWS = 32, MERGE_PARTS = 8;
__global__ void merge_kernel(float *logprobs, const float2 *states, const float *target_logits,
                             const int32_t *targets, int rows, int token_tiles)
{
    __shared__ float2 parts[MERGE_PARTS][MERGE_ROWS];
    int row = (int)blockIdx.x * MERGE_ROWS + threadIdx.x, part = threadIdx.y;
    float top = -INFINITY, sum = 0.0f;
    if (row < rows)
#pragma unroll 8
        for (int i = part; i < token_tiles; i += MERGE_PARTS) {
            float2 s = states[(size_t)i * rows + row];
            float new_top = fmaxf(top, s.x);
            sum = sum * exp2f(top - new_top) + s.y * exp2f(s.x - new_top);
            top = new_top;
        }
    parts[part][threadIdx.x] = make_float2(top, sum);
    __syncthreads();
    if (part > 0 || row >= rows)
        return;
    for (int i = 1; i < min(MERGE_PARTS, token_tiles); i++) {
        float2 s = parts[i][threadIdx.x];
        float new_top = fmaxf(top, s.x);
        sum = sum * exp2f(top - new_top) + s.y * exp2f(s.x - new_top);
        top = new_top;
    }
    logprobs[row] = targets[row] < 0 ? 0.0f : (target_logits[row] - top) * LN2 - logf(sum);
}

/* A matrix [rows,channels], in boxes of `box_rows` rows and 64 channels. */
template <typename T>
cudaError_t describe(CUtensorMap *map, const void *matrix, int64_t rows, int64_t channels,
                     int box_rows)
{
    const cuuint64_t width = (cuuint64_t)channels * sizeof(T), all = width * (cuuint64_t)rows;
    const cuuint64_t dims[] = {(cuuint64_t)channels, (cuuint64_t)rows, 1, 1};
    const cuuint64_t strides[] = {width, all, all};
    const cuuint32_t box[] = {PART, (cuuint32_t)box_rows, 1, 1};
    return describe_tensor<T>(map, matrix, dims, strides, box);
}

int tiles_of(int64_t n, int tile)
{
    return (int)((n + tile - 1) / tile);
}

template <typename T>
cudaError_t launch(cudaStream_t s, float *logprobs, const void *x, const void *wte,
                   const int32_t *targets, int64_t rows, int64_t channels, int64_t vocab,
                   void *workspace, int multiprocessors)
{
    const grid g = {(int)rows, (int)vocab, tiles_of(channels, PART), tiles_of(rows, ROWS),
                    tiles_of(vocab, TOKENS)};
    constexpr int shared = (int)sizeof(shared_stages);
    float2 *states = (float2 *)workspace;
    float *target_logits = (float *)(states + (size_t)g.token_tiles * (size_t)rows);
    CUtensorMap x_map, w_map;
    cudaError_t e = describe<T>(&x_map, x, rows, channels, ROWS);
    if (!e)
        e = describe<T>(&w_map, wte, vocab, channels, TOKENS);
    if (!e)
        e = cudaFuncSetAttribute(tiles_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 shared);
    if (e)
        return e;
    int blocks = min(multiprocessors, g.row_tiles * g.token_tiles);
    tiles_kernel<T><<<blocks, (MATH_GROUPS + 1) * GROUP, shared, s>>>(states, target_logits,
                                                                      targets, x_map, w_map, g);
    merge_kernel<<<tiles_of(rows, MERGE_ROWS), dim3(MERGE_ROWS, MERGE_PARTS), 0, s>>>(
        logprobs, states, target_logits, targets, (int)rows, g.token_tiles);
    return cudaGetLastError();
}
} // namespace

extern "C" size_t cuda_head_logprobs_workspace(int64_t rows, int64_t channels, int64_t vocab)
{
    if (channels % 8 || rows > INT32_MAX || vocab > INT32_MAX - TOKENS)
        return 0;
    size_t states = (size_t)tiles_of(vocab, TOKENS) * (size_t)rows;
    return states * sizeof(float2) + (size_t)rows * sizeof(float);
}

extern "C" cudaError_t cuda_head_logprobs(cudaStream_t s, float *logprobs, const void *x,
                                          const void *wte, const int32_t *targets, int64_t rows,
                                          int64_t channels, int64_t vocab, enum dtype dt,
                                          void *workspace, int multiprocessors)
{
    return dt == DTYPE_BF16 ? launch<__nv_bfloat16>(s, logprobs, x, wte, targets, rows, channels,
                                                    vocab, workspace, multiprocessors)
                            : launch<__half>(s, logprobs, x, wte, targets, rows, channels, vocab,
                                             workspace, multiprocessors);
}
#else
extern "C" size_t cuda_head_logprobs_workspace(int64_t, int64_t, int64_t)
{
    return 0;
}
extern "C" cudaError_t cuda_head_logprobs(cudaStream_t, float *, const void *, const void *,
                                          const int32_t *, int64_t, int64_t, int64_t, enum dtype,
                                          void *, int)
{
    return cudaErrorNotSupported;
}
#endif
