/* columns.cu - sums over rows, for gradients of biases. Deterministic: rows are cut into parts by
 * their number alone, each part is summed in order, then the parts are. CPU twin: bias_backward in
 * src/device/cpu. Test: tests/unit/test_parity.c. */
#include "device/cuda/kernels.h"
#include "device/cuda/vector.cuh"

enum { WARPS = 8, MAX_PARTS = 256, MIN_ROWS = 64 };

static int64_t part_count(int64_t rows)
{
    int64_t parts = (rows + MIN_ROWS - 1) / MIN_ROWS;
    return parts < 1 ? 1 : parts > MAX_PARTS ? (int64_t)MAX_PARTS : parts;
}

/* partials[part, c] = sum of dy[r, c] over the part's rows. A block owns 32*VEC columns of one
 * part; its warps take rows in turn and are added in warp order. */
template <typename T, int VEC>
__global__ void column_sums_kernel(float *partials, const T *dy, int64_t rows, int64_t channels,
                                   int64_t ld, int64_t rows_per_part, int64_t column_blocks)
{
    __shared__ float shared[WARPS][32 * VEC];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t part = blockIdx.x / column_blocks;
    int64_t c = (blockIdx.x % column_blocks) * 32 * VEC + lane * VEC;
    int64_t first = part * rows_per_part, last = min(first + rows_per_part, rows);
    float sum[VEC] = {};

    if (c < channels) {
#pragma unroll 4
        for (int64_t r = first + warp; r < last; r += WARPS) {
            float x[VEC];
            load_vec(x, dy + r * ld + c);
#pragma unroll
            for (int i = 0; i < VEC; i++)
                sum[i] += x[i];
        }
    }
#pragma unroll
    for (int i = 0; i < VEC; i++)
        shared[warp][lane + 32 * i] = sum[i];
    __syncthreads();
    for (int k = threadIdx.x; k < 32 * VEC; k += WARPS * 32) {
        float t = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            t += shared[w][k];
        int64_t column = (blockIdx.x % column_blocks) * 32 * VEC + (k % 32) * VEC + k / 32;
        if (column < channels)
            partials[part * channels + column] = t;
    }
}

__global__ void add_partials_kernel(float *dst, const float *partials, int64_t parts,
                                    int64_t stride, int64_t channels)
{
    __shared__ float shared[WARPS][33];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t c = (int64_t)blockIdx.x * 32 + lane;
    float t = 0.0f;
    if (c < channels)
#pragma unroll 8
        for (int64_t p = warp; p < parts; p += WARPS)
            t += partials[p * stride + c];
    shared[warp][lane] = t;
    __syncthreads();
    if (warp == 0 && c < channels) {
        t = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            t += shared[w][lane];
        dst[c] += t;
    }
}

extern "C" cudaError_t cuda_add_partials(cudaStream_t s, float *dst, const float *partials,
                                         int64_t parts, int64_t stride, int64_t channels)
{
    add_partials_kernel<<<GRID((channels + 31) / 32), WARPS * 32, 0, s>>>(dst, partials, parts,
                                                                          stride, channels);
    return cudaGetLastError();
}

extern "C" size_t cuda_column_sums_workspace(int64_t rows, int64_t channels)
{
    return (size_t)part_count(rows) * (size_t)channels * sizeof(float);
}

extern "C" cudaError_t cuda_column_sums(cudaStream_t s, float *dbias, const void *dy, int64_t rows,
                                        int64_t channels, int64_t ld, enum dtype dt,
                                        void *workspace)
{
    int64_t parts = part_count(rows), rows_per_part = (rows + parts - 1) / parts;
    float *partials = (float *)workspace;
    WITH_TYPE(dt, {
        constexpr int VEC = 16 / sizeof(T);
        bool vector = channels % VEC == 0 && ld % VEC == 0 && (uintptr_t)dy % 16 == 0;
        int64_t blocks = (channels + 32 * (vector ? VEC : 1) - 1) / (32 * (vector ? VEC : 1));
        if (vector)
            column_sums_kernel<T, VEC><<<GRID(blocks * parts), WARPS * 32, 0, s>>>(
                partials, (const T *)dy, rows, channels, ld, rows_per_part, blocks);
        else
            column_sums_kernel<T, 1><<<GRID(blocks * parts), WARPS * 32, 0, s>>>(
                partials, (const T *)dy, rows, channels, ld, rows_per_part, blocks);
    });
    return cuda_add_partials(s, dbias, partials, parts, channels, channels);
}
