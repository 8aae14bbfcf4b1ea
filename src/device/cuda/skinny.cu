/* skinny.cu - products of few rows: reading the weights once is all the time there is.
 *
 * Each thread has a queue in shared memory that it alone fills (asynchronous copies of 16 bytes)
 * and empties, deep enough that the memory never waits for the arithmetic, and fills it before it
 * waits for its input (early.cuh): the weights of a product arrive while the product before still
 * ends.
 *
 * w [k,n]: a block takes 64 columns and a piece of k, a thread 8 columns of every 32nd row of w, so
 * that a warp reads four rows of 128 bytes. The pieces are a cluster, whose sums are added in order
 * over distributed shared memory. w [n,k] (the vocabulary): a warp takes 4 rows of w at a time. A
 * row's layer norm is computed by each block for itself, which costs less than a kernel. Nothing
 * depends on how many rows there are, so each row has the same bits in any company.
 * Compute capability 9.0. Test: tests/unit/test_parity.c. */
#include "device/cuda/early.cuh"
#include "device/cuda/kernels.h"
#include "device/cuda/queue.cuh"
#include "device/cuda/vector.cuh"

#include <cooperative_groups.h>

namespace
{
constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int COLUMNS = 64, STEP = 32 /* rows of w a block takes at once */;
constexpr int MOST_PIECES = 8 /* of a cluster that every GPU runs */;
constexpr int VOCABULARY_ROWS = 4 /* of w a warp takes at a time */;
constexpr int MULTIPROCESSORS = 132; /* of the GPU that sizes are tuned for */

template <typename T> struct arguments {
    const T *x, *norm_w, *norm_b, *w, *bias, *residual;
    void *y;
    const int32_t *select;
    int64_t rows, k, n, ldy;
    int chunk, pieces; /* k of a piece, a multiple of STEP */
    float epsilon;
    bool gelu, wide; /* y is fp32 */
};

/* Eight weights an entry; 48 KiB. */
template <typename T> constexpr int ENTRIES_OF = 24 / (int)sizeof(T);
template <typename T> using queue = thread_queue<(int)sizeof(T) / 2, ENTRIES_OF<T>, THREADS>;

template <typename T> __device__ __forceinline__ void push(queue<T> &q, bool valid, const T *from)
{
    q.push(valid, [=](int i) { return (const char *)from + i * 16; });
}
template <typename T> __device__ __forceinline__ vec<T, 8> pop(queue<T> &q)
{
    union {
        uint4 entry[sizeof(T) / 2];
        vec<T, 8> v;
    } u;
    q.pop(u.entry);
    return u.v;
}

template <typename T> __device__ __forceinline__ const T *row_of(const arguments<T> &a, int m)
{
    int64_t r = m < a.rows ? m : a.rows - 1; /* a row too many is computed and not written */
    return a.x + (a.select ? (int64_t)a.select[r] : r) * a.k;
}

/* Mean and 1/deviation of each row, WARPS / M warps a row: two passes over registers, of a long row
 * over memory. Ends with a barrier. */
template <typename T, int M>
__device__ void row_statistics(const arguments<T> &a, float (&mean)[M], float (&rstd)[M])
{
    constexpr int TEAM = WARPS / M * 32, KEPT = 2048 / (TEAM * 8);
    __shared__ float parts[2][WARPS];
    int warp = threadIdx.x / 32, m = threadIdx.x / TEAM, at = threadIdx.x % TEAM * 8;
    const T *x = row_of(a, m) + at;
    int64_t left = a.k - at;
    vec<T, 8> kept[KEPT] = {};
    float total = 0.0f, squares = 0.0f, mu = 0.0f;
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (i * TEAM * 8 < left)
            kept[i] = *(const vec<T, 8> *)(x + i * TEAM * 8);
#pragma unroll
    for (int i = 0; i < KEPT; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            total += to_f32(kept[i].v[j]);
    for (int64_t c = 2048; c < left; c += TEAM * 8)
        for (int j = 0; j < 8; j++)
            total += to_f32(x[c + j]);
    total = warp_sum(total);
    if (threadIdx.x % 32 == 0)
        parts[0][warp] = total;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS / M; i++)
        mu += parts[0][m * (WARPS / M) + i];
    mu /= (float)a.k;
#pragma unroll
    for (int i = 0; i < KEPT; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float d = i * TEAM * 8 < left ? to_f32(kept[i].v[j]) - mu : 0.0f;
            squares += d * d;
        }
    for (int64_t c = 2048; c < left; c += TEAM * 8)
        for (int j = 0; j < 8; j++)
            squares += (to_f32(x[c + j]) - mu) * (to_f32(x[c + j]) - mu);
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0)
        parts[1][warp] = squares;
    __syncthreads();
    if (threadIdx.x % TEAM == 0) {
        squares = 0.0f;
        for (int i = 0; i < WARPS / M; i++)
            squares += parts[1][m * (WARPS / M) + i];
        mean[m] = mu, rstd[m] = rsqrtf(squares / (float)a.k + a.epsilon);
    }
    __syncthreads();
}

/* The norm's weights for the first 8 elements that this thread will put in shared memory: read
 * before the wait. */
template <typename T> struct norm_ahead {
    vec<T, 8> w, b;
    __device__ __forceinline__ norm_ahead(const arguments<T> &a, int64_t first, int count)
    {
        int c = (int)threadIdx.x % (count >= 8 ? count / 8 : 1) * 8;
        if (!a.norm_w || count < 8)
            return;
        w = *(const vec<T, 8> *)(a.norm_w + first + c);
        b = *(const vec<T, 8> *)(a.norm_b + first + c);
    }
};

/* xs[m*count + i] = element first + i of row m, normalised and rounded as layernorm_forward does.
 * Ends with a barrier. */
template <typename T, int M>
__device__ void load_rows(const arguments<T> &a, norm_ahead<T> norm, int64_t first, int count,
                          T *xs)
{
    __shared__ float mean[M], rstd[M];
    int vectors = count / 8, i = threadIdx.x;
    vec<T, 8> x = {};
    if (i < M * vectors)
        x = *(const vec<T, 8> *)(row_of(a, i / vectors) + first + i % vectors * 8);
    if (a.norm_w)
        row_statistics<T, M>(a, mean, rstd);
    while (i < M * vectors) {
        int m = i / vectors, c = i % vectors * 8;
        if (a.norm_w)
#pragma unroll
            for (int j = 0; j < 8; j++)
                x.v[j] = from_f32<T>(to_f32(norm.b.v[j]) +
                                     (to_f32(x.v[j]) - mean[m]) * rstd[m] * to_f32(norm.w.v[j]));
        *(vec<T, 8> *)(xs + m * count + c) = x;
        i += THREADS;
        if (i >= M * vectors)
            break;
        c = i % vectors * 8;
        x = *(const vec<T, 8> *)(row_of(a, i / vectors) + first + c);
        if (a.norm_w) {
            norm.w = *(const vec<T, 8> *)(a.norm_w + first + c);
            norm.b = *(const vec<T, 8> *)(a.norm_b + first + c);
        }
    }
    __syncthreads();
}

template <typename T>
__device__ __forceinline__ void write_out(const arguments<T> &a, int64_t m, int64_t c, float v)
{
    if (a.bias)
        v += to_f32(a.bias[c]);
    if (a.gelu)
        v = gelu(v);
    if (a.residual)
        v += to_f32(a.residual[m * a.n + c]);
    if (a.wide)
        ((float *)a.y)[m * a.ldy + c] = v;
    else
        ((T *)a.y)[m * a.ldy + c] = from_f32<T>(v);
}

/* Block (tile of columns, piece) of y = x w with w [k,n]; the pieces of a tile are a cluster. */
template <typename T, int M>
__global__ void __launch_bounds__(THREADS, M <= 2 ? 4 : 2) columns_kernel(arguments<T> a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) char memory[];
    __shared__ float sums[WARPS][M][COLUMNS];
    __shared__ float gathered[MOST_PIECES][M][COLUMNS]; /* of the cluster's first block */
    auto cluster = cooperative_groups::this_cluster();
    cluster.barrier_arrive(); /* I run, so that what I share can be written */
    int piece = (int)(blockIdx.x % a.pieces), row = threadIdx.x / 8;
    int64_t tile = blockIdx.x / a.pieces, first = (int64_t)piece * a.chunk;
    int count = (int)max((int64_t)0, min((int64_t)a.chunk, a.k - first));
    int64_t column = tile * COLUMNS + threadIdx.x % 8 * 8;
    bool mine = column < a.n;
    const T *w = a.w + (first + row) * a.n + column;
    queue<T> q(memory);
    T *xs = (T *)(memory + queue<T>::BYTES);
    float sum[M][8] = {};
    int next = row;
#pragma unroll
    for (int i = 0; i < ENTRIES_OF<T>; i++, next += STEP)
        push<T>(q, mine && next < count, w + (int64_t)(next - row) * a.n);
    norm_ahead<T> norm(a, first, count);
    early_wait();
    early_next();
    load_rows<T, M>(a, norm, first, count, xs);
    for (int r = row; r < count; r += STEP, next += STEP) {
        vec<T, 8> v = pop<T>(q);
        push<T>(q, mine && next < count, w + (int64_t)(next - row) * a.n);
#pragma unroll
        for (int m = 0; m < M; m++) {
            float x = to_f32(xs[m * count + r]);
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum[m][j] += x * to_f32(v.v[j]);
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float v = sum[m][j];
            v += __shfl_xor_sync(0xffffffffu, v, 8);
            v += __shfl_xor_sync(0xffffffffu, v, 16);
            if (threadIdx.x % 32 < 8)
                sums[threadIdx.x / 32][m][threadIdx.x % 8 * 8 + j] = v;
        }
    __syncthreads();
    for (int i = threadIdx.x; i < M * COLUMNS; i += THREADS) {
        float v = 0.0f;
#pragma unroll
        for (int k = 0; k < WARPS; k++)
            v += sums[k][i / COLUMNS][i % COLUMNS];
        sums[0][i / COLUMNS][i % COLUMNS] = v; /* read and written by this thread alone */
    }
    cluster.barrier_wait();
    for (int i = threadIdx.x; i < M * COLUMNS; i += THREADS)
        *cluster.map_shared_rank(&gathered[piece][i / COLUMNS][i % COLUMNS], 0) =
            sums[0][i / COLUMNS][i % COLUMNS];
    cluster.barrier_arrive();
    if (piece > 0)
        return;
    cluster.barrier_wait();
    for (int i = threadIdx.x; i < M * COLUMNS; i += THREADS) {
        int m = i / COLUMNS;
        int64_t c = tile * COLUMNS + i % COLUMNS;
        float v = 0.0f;
        if (c >= a.n || m >= a.rows)
            continue;
        for (int k = 0; k < a.pieces; k++)
            v += gathered[k][m][i % COLUMNS];
        write_out(a, m, c, v);
    }
#endif
}

/* y = x w' with w [n,k]: warps take VOCABULARY_ROWS columns of y at a time, in turn. */
template <typename T, int M> __global__ void __launch_bounds__(THREADS) rows_kernel(arguments<T> a)
{
    extern __shared__ __align__(16) char memory[];
    int lane = threadIdx.x % 32;
    int64_t stride = (int64_t)gridDim.x * WARPS * VOCABULARY_ROWS;
    int64_t column = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * VOCABULARY_ROWS;
    queue<T> q(memory);
    T *xs = (T *)(memory + queue<T>::BYTES);
    /* Where the next entry comes from: 8 elements of row `r` of the group at `from`. */
    int64_t from = column, at = lane * 8;
    int r = 0;
    auto push_next = [&]() {
        push<T>(q, from + r < a.n && at < a.k, a.w + (from + r) * a.k + at);
        if (++r == VOCABULARY_ROWS) {
            r = 0;
            at += 256;
            if (at - lane * 8 >= a.k)
                at = lane * 8, from += stride;
        }
    };
    for (int i = 0; i < ENTRIES_OF<T>; i++)
        push_next();
    norm_ahead<T> norm(a, 0, (int)a.k);
    early_wait();
    early_next();
    load_rows<T, M>(a, norm, 0, (int)a.k, xs);
    for (; column < a.n; column += stride) {
        float sum[VOCABULARY_ROWS][M] = {};
        for (int64_t c = lane * 8; c - lane * 8 < a.k; c += 256) {
            float x[M][8] = {};
#pragma unroll
            for (int m = 0; m < M; m++)
                if (c < a.k)
                    load_vec(x[m], xs + m * a.k + c);
#pragma unroll
            for (int i = 0; i < VOCABULARY_ROWS; i++) {
                vec<T, 8> v = pop<T>(q);
                push_next();
                if (column + i < a.n && c < a.k) /* else the entry is empty */
#pragma unroll
                    for (int m = 0; m < M; m++)
#pragma unroll
                        for (int j = 0; j < 8; j++)
                            sum[i][m] += x[m][j] * to_f32(v.v[j]);
            }
        }
#pragma unroll
        for (int i = 0; i < VOCABULARY_ROWS; i++)
#pragma unroll
            for (int m = 0; m < M; m++) {
                float total = warp_sum(sum[i][m]);
                if (lane == 0 && column + i < a.n && m < a.rows)
                    write_out(a, m, column + i, total);
            }
    }
}

/* Pieces of k: a block for each multiprocessor, no more than a cluster has. */
template <typename T> void split_k(arguments<T> *a)
{
    int64_t tiles = (a->n + COLUMNS - 1) / COLUMNS, steps = (a->k + STEP - 1) / STEP;
    int64_t pieces = (MULTIPROCESSORS + tiles - 1) / tiles;
    pieces = pieces < MOST_PIECES ? pieces : MOST_PIECES;
    pieces = pieces < steps ? pieces : steps;
    a->chunk = (int)((steps + pieces - 1) / pieces * STEP);
    a->pieces = (int)((a->k + a->chunk - 1) / a->chunk);
}

template <typename T, int M> cudaError_t launch(cudaStream_t s, arguments<T> a, bool transpose)
{
    struct launch_shape shape = {};
    shape.threads = THREADS;
    if (transpose) {
        int64_t groups = (a.n + WARPS * VOCABULARY_ROWS - 1) / (WARPS * VOCABULARY_ROWS);
        shape.blocks = groups < 2 * MULTIPROCESSORS ? groups : 2 * MULTIPROCESSORS;
        shape.shared = queue<T>::BYTES + (size_t)(M * a.k) * sizeof(T);
        return launch_early(rows_kernel<T, M>, shape, s, true, a);
    }
    split_k(&a);
    shape.blocks = (a.n + COLUMNS - 1) / COLUMNS * a.pieces;
    shape.cluster = a.pieces;
    shape.shared = queue<T>::BYTES + (size_t)(M * a.chunk) * sizeof(T);
    return launch_early(columns_kernel<T, M>, shape, s, true, a);
}
} // namespace

extern "C" cudaError_t cuda_skinny_gemm(cudaStream_t s, const struct skinny_gemm *g)
{
    cudaError_t rc = cudaSuccess;
    WITH_TYPE(g->dt, {
        arguments<T> a = {};
        a.x = (const T *)g->x, a.w = (const T *)g->w, a.bias = (const T *)g->bias;
        a.norm_w = (const T *)g->norm_w, a.norm_b = (const T *)g->norm_b;
        a.residual = (const T *)g->residual, a.y = g->y, a.select = g->select;
        a.rows = g->rows, a.k = g->k, a.n = g->n, a.ldy = g->ldy ? g->ldy : g->n;
        a.epsilon = g->epsilon, a.gelu = g->gelu, a.wide = g->out_dt == DTYPE_F32;
        rc = g->rows == 1   ? launch<T, 1>(s, a, g->transpose_w)
             : g->rows == 2 ? launch<T, 2>(s, a, g->transpose_w)
             : g->rows <= 4 ? launch<T, 4>(s, a, g->transpose_w)
                            : launch<T, 8>(s, a, g->transpose_w);
    });
    return rc;
}
