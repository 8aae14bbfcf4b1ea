/* layernorm.cu - residual addition fused with layer normalisation, and its backward.
 *
 * Forward, a row [C] is owned by a team of TEAM threads (one warp, or a block of 256) that holds it
 * in registers: CHUNKS chunks of 8 elements a thread; backward, by a block just wide enough. Rows
 * that do not fit (C > 8192) or are not a multiple of 8 take the plain kernel of the same name,
 * which reads memory again. Statistics, sums over rows and reductions are fp32; two passes over
 * registers give the variance of deviations, not of squares. Deterministic: rows are dealt to
 * blocks by their number alone. CPU twins: src/device/cpu. Tests: tests/unit/test_parity.c,
 * tests/gpu/test_cuda_kernels.c. */
#include "device/cuda/kernels.h"
#include "device/cuda/mma.cuh"
#include "device/cuda/vector.cuh"

constexpr int64_t MULTIPROCESSORS = 132; /* of the GPU that sizes are tuned for */
constexpr int64_t FEW_ROWS =
    8 * MULTIPROCESSORS; /* a block each is quicker than eight to a block */

template <int TEAM> __device__ __forceinline__ float team_sum(float x, float *scratch)
{
    return TEAM == 32 ? warp_sum(x) : block_sum(x, scratch);
}

/* sum = residual + dropout(delta), rounded to T and normalised as rounded, so that backward sees
 * the same row; y = (sum - mean) rstd weight + bias. [N,C]. delta NULL: sum not written. */
template <typename T, int TEAM, int CHUNKS>
__global__ void __launch_bounds__(256)
    layernorm_forward_kernel(T *y, T *sum, float *mean, float *rstd, const T *residual,
                             const T *delta, const T *weight, const T *bias, int64_t rows,
                             int64_t time, int64_t channels, float eps, dropout_mask m)
{
    __shared__ float scratch[2][32];
    int lane = threadIdx.x % TEAM;
    int64_t row = (int64_t)blockIdx.x * (256 / TEAM) + threadIdx.x / TEAM;
    if (TEAM == 32 && row >= rows)
        return;
    float x[CHUNKS][8], total = 0.0f, squares = 0.0f;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        int64_t c = (int64_t)(k * TEAM + lane) * 8, at = row * channels + c;
        if (c < channels) {
            load_vec(x[k], residual + at);
            if (delta) {
                float d[8];
                load_vec(d, delta + at);
                if (m.threshold)
                    dropout_apply(d, m, (uint64_t)m.samples[row / time],
                                  (uint64_t)(row % time * channels + c));
#pragma unroll
                for (int i = 0; i < 8; i++)
                    x[k][i] = to_f32(from_f32<T>(x[k][i] + d[i]));
                store_vec(sum + at, x[k]);
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
                total += x[k][i];
        }
    }
    float mu = team_sum<TEAM>(total, scratch[0]) / (float)channels;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++)
        if ((int64_t)(k * TEAM + lane) * 8 < channels)
#pragma unroll
            for (int i = 0; i < 8; i++)
                squares += (x[k][i] - mu) * (x[k][i] - mu);
    float rs = rsqrtf(team_sum<TEAM>(squares, scratch[1]) / (float)channels + eps);
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        int64_t c = (int64_t)(k * TEAM + lane) * 8;
        if (c < channels) {
            float w[8], b[8];
            load_vec(w, weight + c);
            load_vec(b, bias + c);
#pragma unroll
            for (int i = 0; i < 8; i++)
                b[i] += (x[k][i] - mu) * rs * w[i];
            store_vec(y + row * channels + c, b);
        }
    }
    if (lane == 0 && mean)
        mean[row] = mu;
    if (lane == 0 && rstd)
        rstd[row] = rs;
}

/* Any C: one block a row, the sum read back from memory. */
template <typename T>
__global__ void layernorm_forward_plain(T *y, T *sum, float *mean, float *rstd, const T *residual,
                                        const T *delta, const T *weight, const T *bias,
                                        int64_t time, int64_t channels, float eps, dropout_mask m)
{
    __shared__ float scratch[2][32];
    int64_t row = blockIdx.x, base = row * channels;
    float total = 0.0f, squares = 0.0f;
    for (int64_t c = threadIdx.x; c < channels; c += blockDim.x) {
        float x[1] = {to_f32(residual[base + c])};
        if (delta) {
            float d[1] = {to_f32(delta[base + c])};
            if (m.threshold)
                dropout_apply(d, m, (uint64_t)m.samples[row / time],
                              (uint64_t)(row % time * channels + c));
            sum[base + c] = from_f32<T>(x[0] + d[0]);
            x[0] = to_f32(sum[base + c]);
        }
        total += x[0];
    }
    const T *from = delta ? sum : residual; /* each thread reads back what it wrote itself */
    float mu = block_sum(total, scratch[0]) / (float)channels;
    for (int64_t c = threadIdx.x; c < channels; c += blockDim.x) {
        float d = to_f32(from[base + c]) - mu;
        squares += d * d;
    }
    float rs = rsqrtf(block_sum(squares, scratch[1]) / (float)channels + eps);
    for (int64_t c = threadIdx.x; c < channels; c += blockDim.x)
        y[base + c] =
            from_f32<T>((to_f32(from[base + c]) - mu) * rs * to_f32(weight[c]) + to_f32(bias[c]));
    if (threadIdx.x == 0 && mean)
        mean[row] = mu;
    if (threadIdx.x == 0 && rstd)
        rstd[row] = rs;
}

/* Picks the smallest team and chunk count that hold a row of `channels`. */
#define WITH_TEAM(channels, ...)                  \
    do {                                          \
        if ((channels) <= 256) {                  \
            constexpr int TEAM = 32, CHUNKS = 1;  \
            __VA_ARGS__;                          \
        } else if ((channels) <= 768) {           \
            constexpr int TEAM = 32, CHUNKS = 3;  \
            __VA_ARGS__;                          \
        } else if ((channels) <= 1024) {          \
            constexpr int TEAM = 32, CHUNKS = 4;  \
            __VA_ARGS__;                          \
        } else if ((channels) <= 2048) {          \
            constexpr int TEAM = 256, CHUNKS = 1; \
            __VA_ARGS__;                          \
        } else if ((channels) <= 4096) {          \
            constexpr int TEAM = 256, CHUNKS = 2; \
            __VA_ARGS__;                          \
        } else {                                  \
            constexpr int TEAM = 256, CHUNKS = 4; \
            __VA_ARGS__;                          \
        }                                         \
    } while (0)

static bool fits_team(int64_t channels)
{
    return channels % 8 == 0 && channels <= 8192;
}

extern "C" cudaError_t cuda_layernorm_forward(cudaStream_t s, void *y, void *sum, float *mean,
                                              float *rstd, const void *residual, const void *delta,
                                              const void *weight, const void *bias, int64_t batch,
                                              int64_t time, int64_t channels, float eps,
                                              enum dtype dt, struct dropout dropout)
{
    int64_t rows = batch * time;
    dropout_mask m = dropout_mask_of(dropout);
    WITH_TYPE(dt, {
        if (!fits_team(channels))
            layernorm_forward_plain<T><<<GRID(rows), 256, 0, s>>>(
                (T *)y, (T *)sum, mean, rstd, (const T *)residual, (const T *)delta,
                (const T *)weight, (const T *)bias, time, channels, eps, m);
        else if (channels > 256 && channels <= 2048 && rows <= FEW_ROWS)
            layernorm_forward_kernel<T, 256, 1><<<GRID(rows), 256, 0, s>>>(
                (T *)y, (T *)sum, mean, rstd, (const T *)residual, (const T *)delta,
                (const T *)weight, (const T *)bias, rows, time, channels, eps, m);
        else
            WITH_TEAM(channels, {
                int64_t blocks = (rows + 256 / TEAM - 1) / (256 / TEAM);
                layernorm_forward_kernel<T, TEAM, CHUNKS><<<GRID(blocks), 256, 0, s>>>(
                    (T *)y, (T *)sum, mean, rstd, (const T *)residual, (const T *)delta,
                    (const T *)weight, (const T *)bias, rows, time, channels, eps, m);
            });
    });
    return cudaGetLastError();
}

/* Rows on their way to shared memory: as many as fit in about 96 KiB a block, at most 4. */
template <typename T, int THREADS> struct ring {
    static constexpr int FIT = 98304 / (3 * 8 * (int)sizeof(T) * THREADS);
    static constexpr int STAGES = FIT > 4 ? 4 : FIT;
};

/* 8 elements to shared memory, asynchronously. */
template <typename T> __device__ __forceinline__ void copy_async_octet(vec<T, 8> *to, const T *from)
{
#pragma unroll
    for (int i = 0; i < (int)sizeof(T) / 2; i++)
        copy_async16((char *)to + 16 * i, (const char *)from + 16 * i, true);
}

/* With xhat = (x - mean) rstd and g = dy weight:
 * dx = [dx +] rstd (g - mean_c(g) - xhat mean_c(g xhat)); dweight += dy xhat; dbias += dy.
 * A block owns every gridDim-th row, a thread 8 columns of each, whose dweight and dbias it keeps
 * in registers; the next rows are on their way to shared memory while one is worked on, where a
 * thread reads what it copied itself, so a row needs one barrier, for the two sums. partials
 * [gridDim, 2, C] fp32 receives each block's dweight and dbias. dx may be dy's buffer. */
template <typename T, int THREADS, bool DROP>
__global__ void __launch_bounds__(THREADS, THREADS == 256 ? (DROP || sizeof(T) == 4 ? 3 : 4) : 1)
    layernorm_backward_kernel(T *dx, T *ddelta, float *partials, const T *dy, const T *x,
                              const float *mean, const float *rstd, const T *weight, int64_t rows,
                              int64_t time, int64_t channels, bool accumulate, dropout_mask m)
{
    constexpr int STAGES = ring<T, THREADS>::STAGES;
    extern __shared__ __align__(16) unsigned char shared_bytes[]; /* [STAGES, 3, threads] octets */
    __shared__ float statistics[STAGES][32][2];                   /* each warp's own copy */
    __shared__ float2 scratch[2][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int64_t column = (int64_t)threadIdx.x * 8;
    const bool inside = column < channels;
    const float per_channel = 1.0f / (float)channels;
    int parity = 0, stage = 0;
    float dw[8] = {}, db[8] = {};
    vec<T, 8> w = {};

    auto slot = [&](int which_stage, int tensor) {
        return (vec<T, 8> *)shared_bytes + (which_stage * 3 + tensor) * blockDim.x + threadIdx.x;
    };
    auto fetch = [&](int64_t row, int to) {
        if (row < rows) {
            int64_t at = row * channels + column;
            if (inside) {
                copy_async_octet(slot(to, 0), dy + at);
                copy_async_octet(slot(to, 1), x + at);
                if (accumulate)
                    copy_async_octet(slot(to, 2), (const T *)dx + at);
            }
            if (lane < 2)
                copy_async4(&statistics[to][warp][lane], (lane ? rstd : mean) + row, true);
        }
        copy_async_commit();
    };
    if (inside)
        w = *(const vec<T, 8> *)(weight + column);
    for (int i = 0; i < STAGES - 1; i++)
        fetch(blockIdx.x + (int64_t)i * gridDim.x, i);

    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x, parity ^= 1) {
        vec<T, 8> r_dy = {}, r_x = {}, r_dx = {};
        float sum_g = 0.0f, sum_gx = 0.0f;
        copy_async_wait<STAGES - 2>();
        __syncwarp(); /* the statistics came by two lanes; the warp is done with the last row's */
        float mu = statistics[stage][warp][0], rs = statistics[stage][warp][1];
        if (inside) {
            r_dy = *slot(stage, 0), r_x = *slot(stage, 1);
            if (accumulate)
                r_dx = *slot(stage, 2);
        }
        fetch(row + (int64_t)(STAGES - 1) * gridDim.x, stage == 0 ? STAGES - 1 : stage - 1);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int i = 0; i < 8; i++) { /* zeros outside */
            float d = to_f32(r_dy.v[i]), h = (to_f32(r_x.v[i]) - mu) * rs;
            float g = d * to_f32(w.v[i]);
            sum_g += g;
            sum_gx += g * h;
            dw[i] += d * h;
            db[i] += d;
        }
        sum_g = warp_sum(sum_g);
        sum_gx = warp_sum(sum_gx);
        if (lane == 0)
            scratch[parity][warp] = make_float2(sum_g, sum_gx);
        __syncthreads();
        sum_g = sum_gx = 0.0f;
        for (int i = 0; i < warps; i++)
            sum_g += scratch[parity][i].x, sum_gx += scratch[parity][i].y;
        sum_g *= per_channel, sum_gx *= per_channel;
        if (!inside)
            continue;
        int64_t at = row * channels + column;
        float out[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float h = (to_f32(r_x.v[i]) - mu) * rs, g = to_f32(r_dy.v[i]) * to_f32(w.v[i]);
            out[i] = (g - sum_g - h * sum_gx) * rs;
            if (accumulate)
                out[i] += to_f32(r_dx.v[i]);
        }
        store_vec(dx + at, out);
        if (ddelta) {
            if (DROP)
                dropout_apply(out, m, (uint64_t)m.samples[row / time],
                              (uint64_t)(row % time * channels + column));
            store_vec(ddelta + at, out);
        }
    }
    copy_async_wait<0>();
    if (inside) {
        float *mine = partials + (int64_t)blockIdx.x * 2 * channels;
        store_vec(mine + column, dw);
        store_vec(mine + channels + column, db);
    }
}

template <typename T, int THREADS, bool DROP>
static cudaError_t layernorm_backward_launch(cudaStream_t s, int64_t blocks, int threads, T *dx,
                                             T *ddelta, float *partials, const T *dy, const T *x,
                                             const float *mean, const float *rstd, const T *weight,
                                             int64_t rows, int64_t time, int64_t channels,
                                             bool accumulate, const dropout_mask &m)
{
    auto kernel = layernorm_backward_kernel<T, THREADS, DROP>;
    size_t shared = (size_t)ring<T, THREADS>::STAGES * 3 * (size_t)threads * sizeof(vec<T, 8>);
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (e)
        return e;
    kernel<<<GRID(blocks), threads, shared, s>>>(dx, ddelta, partials, dy, x, mean, rstd, weight,
                                                 rows, time, channels, accumulate, m);
    return cudaGetLastError();
}

/* Any C: one block per row; dweight and dbias by a second pass below. */
template <typename T>
__global__ void layernorm_backward_plain(T *dx, T *ddelta, const T *dy, const T *x,
                                         const float *mean, const float *rstd, const T *weight,
                                         int64_t time, int64_t channels, bool accumulate,
                                         dropout_mask m)
{
    __shared__ float scratch[2][32];
    int64_t row = blockIdx.x, base = row * channels;
    float mu = mean[row], rs = rstd[row], sum_g = 0.0f, sum_gx = 0.0f;
    for (int64_t c = threadIdx.x; c < channels; c += blockDim.x) {
        float g = to_f32(dy[base + c]) * to_f32(weight[c]);
        sum_g += g;
        sum_gx += g * (to_f32(x[base + c]) - mu) * rs;
    }
    sum_g = block_sum(sum_g, scratch[0]) / (float)channels;
    sum_gx = block_sum(sum_gx, scratch[1]) / (float)channels;
    for (int64_t c = threadIdx.x; c < channels; c += blockDim.x) {
        float g = to_f32(dy[base + c]) * to_f32(weight[c]);
        float out[1] = {(g - sum_g - (to_f32(x[base + c]) - mu) * rs * sum_gx) * rs};
        if (accumulate)
            out[0] += to_f32(dx[base + c]);
        dx[base + c] = from_f32<T>(out[0]);
        if (ddelta) {
            if (m.threshold)
                dropout_apply(out, m, (uint64_t)m.samples[row / time],
                              (uint64_t)(row % time * channels + c));
            ddelta[base + c] = from_f32<T>(out[0]);
        }
    }
}
/* A thread owns a column of a block's strided rows. */
template <typename T>
__global__ void layernorm_backward_columns(float *partials, const T *dy, const T *x,
                                           const float *mean, const float *rstd, int64_t rows,
                                           int64_t channels)
{
    for (int64_t c = threadIdx.x; c < channels; c += blockDim.x) {
        float dw = 0.0f, db = 0.0f;
        for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
            float d = to_f32(dy[row * channels + c]);
            dw += d * (to_f32(x[row * channels + c]) - mean[row]) * rstd[row];
            db += d;
        }
        partials[(int64_t)blockIdx.x * 2 * channels + c] = dw;
        partials[(int64_t)blockIdx.x * 2 * channels + channels + c] = db;
    }
}

/* Blocks that are on the device at once: about 28 warps a multiprocessor. */
static int64_t backward_blocks(int64_t rows, int64_t channels)
{
    int64_t warps = (channels + 255) / 256, most = warps <= 8 ? 28 / warps : 1;
    return rows < MULTIPROCESSORS * most ? rows : MULTIPROCESSORS * most;
}

extern "C" size_t cuda_layernorm_backward_workspace(int64_t rows, int64_t channels)
{
    return (size_t)backward_blocks(rows, channels) * 2 * (size_t)channels * sizeof(float);
}

#define LAUNCH(THREADS, DROP)                                                                  \
    layernorm_backward_launch<T, THREADS, DROP>(s, blocks, threads, (T *)dx, (T *)ddelta,      \
                                                partials, dy_, x_, mean, rstd, w_, rows, time, \
                                                channels, accumulate, m)
extern "C" cudaError_t cuda_layernorm_backward(cudaStream_t s, void *dx, void *ddelta,
                                               float *dweight, float *dbias, const void *dy,
                                               const void *x, const float *mean, const float *rstd,
                                               const void *weight, int64_t batch, int64_t time,
                                               int64_t channels, bool accumulate, enum dtype dt,
                                               struct dropout dropout, void *workspace)
{
    int64_t rows = batch * time, blocks = backward_blocks(rows, channels);
    float *partials = (float *)workspace;
    dropout_mask m = dropout_mask_of(dropout);
    int threads = (int)((channels + 255) / 256) * 32;
    cudaError_t e = cudaSuccess;
    WITH_TYPE(dt, {
        const T *dy_ = (const T *)dy, *x_ = (const T *)x, *w_ = (const T *)weight;
        if (!fits_team(channels) || (sizeof(T) == 4 && channels > 4096)) {
            /* Columns first: dx may be dy's buffer. */
            layernorm_backward_columns<T>
                <<<GRID(blocks), 256, 0, s>>>(partials, dy_, x_, mean, rstd, rows, channels);
            layernorm_backward_plain<T><<<GRID(rows), 256, 0, s>>>(
                (T *)dx, (T *)ddelta, dy_, x_, mean, rstd, w_, time, channels, accumulate, m);
        } else {
            bool drop = m.threshold && ddelta;
            if (threads <= 256)
                e = drop ? LAUNCH(256, true) : LAUNCH(256, false);
            else if (threads <= 512)
                e = drop ? LAUNCH(512, true) : LAUNCH(512, false);
            else if constexpr (sizeof(T) == 2)
                e = drop ? LAUNCH(1024, true) : LAUNCH(1024, false);
        }
    });
    if (!e)
        e = cuda_add_partials(s, dweight, partials, blocks, 2 * channels, channels);
    return e ? e : cuda_add_partials(s, dbias, partials + channels, blocks, 2 * channels, channels);
}
#undef LAUNCH
