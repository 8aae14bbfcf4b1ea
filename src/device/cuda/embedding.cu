/* embedding.cu - token and position embeddings and their deterministic gradients.
 * CPU twins: src/device/cpu. Tests: tests/unit/test_parity.c, tests/gpu/test_cuda_kernels.c. */
#include "device/cuda/kernels.h"
#include "device/cuda/vector.cuh"

enum { THREADS = 256, SEGMENT = 32 /* rows of dx that one block adds up */ };

/* x[n,:] = dropout(wte[tokens[n],:] + wpe[position,:]). Each thread owns VEC channels of a row. */
template <typename T, int VEC>
__global__ void embed_forward_kernel(T *x, const T *wte, const T *wpe, const int32_t *tokens,
                                     const int32_t *positions, int64_t rows, int64_t time,
                                     int64_t channels, dropout_mask m)
{
    int64_t per_row = channels / VEC;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows * per_row)
        return;
    int64_t row = i / per_row, c = (i - row * per_row) * VEC, t = row % time;
    int64_t position = positions ? positions[row] : t;
    float a[VEC], b[VEC];
    load_vec(a, wte + (int64_t)tokens[row] * channels + c);
    load_vec(b, wpe + position * channels + c);
#pragma unroll
    for (int j = 0; j < VEC; j++)
        a[j] += b[j];
    if (m.threshold)
        dropout_apply(a, m, (uint64_t)m.samples[row / time], (uint64_t)(t * channels + c));
    store_vec(x + row * channels + c, a);
}

extern "C" cudaError_t cuda_embed_forward(cudaStream_t s, void *x, const void *wte, const void *wpe,
                                          const int32_t *tokens, const int32_t *positions,
                                          int64_t batch, int64_t time, int64_t channels,
                                          enum dtype dt, struct dropout dropout)
{
    dropout_mask m = dropout_mask_of(dropout);
    int64_t rows = batch * time;
    int vec_elems = channels % 8 == 0 ? 8 : 1;
    dim3 grid = GRID((rows * (channels / vec_elems) + THREADS - 1) / THREADS);
    WITH_TYPE(dt, {
        if (vec_elems == 8)
            embed_forward_kernel<T, 8><<<grid, THREADS, 0, s>>>(
                (T *)x, (const T *)wte, (const T *)wpe, tokens, positions, rows, time, channels, m);
        else
            embed_forward_kernel<T, 1><<<grid, THREADS, 0, s>>>(
                (T *)x, (const T *)wte, (const T *)wpe, tokens, positions, rows, time, channels, m);
    });
    return cudaGetLastError();
}

/* --- backward: a stable counting sort of the rows by token, then sums over runs of equal tokens
 * ----
 *
 * 1. count[v] = rows of token v; start = its exclusive prefix sum.
 * 2. bucket: rows placed in their token's range in any order (atomics); then each row counts how
 * many rows of its range come before it, which is its place in `order`: the order no longer depends
 * on who came first.
 * 3. Segments of 32 consecutive places: a block adds dx rows in that order. A run of one token that
 *    lies inside a segment goes straight to dwte; a run that crosses a segment's edge leaves a
 * partial sum at that edge (first or last of the segment).
 * 4. One block for each token whose range crosses an edge adds its partials in order. */
struct embed_workspace {
    int32_t *count, *start, *cursor; /* [Vp], [Vp+1], [Vp] */
    int32_t *bucket, *order;         /* [N] rows */
    float *partials;                 /* [segments, 2, C] */
};

static size_t align256(size_t n)
{
    return (n + 255) / 256 * 256;
}

static size_t embed_workspace_cut(struct embed_workspace *w, void *memory, int64_t rows,
                                  int64_t channels, int64_t vocab)
{
    size_t v = align256((size_t)(vocab + 1) * 4), n = align256((size_t)rows * 4);
    size_t segments = (size_t)(rows + SEGMENT - 1) / SEGMENT;
    char *p = (char *)memory;
    w->count = (int32_t *)p;
    w->cursor = (int32_t *)(p + v);
    w->start = (int32_t *)(p + 2 * v);
    w->bucket = (int32_t *)(p + 3 * v);
    w->order = (int32_t *)(p + 3 * v + n);
    w->partials = (float *)(p + 3 * v + 2 * n);
    return 3 * v + 2 * n + segments * 2 * (size_t)channels * sizeof(float);
}

__global__ void count_kernel(int32_t *count, const int32_t *tokens, int64_t rows)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < rows)
        atomicAdd(&count[tokens[i]], 1);
}

/* One block: start = exclusive prefix sum of count, start[vocab] = rows; cursor = start. */
__global__ void scan_kernel(int32_t *start, int32_t *cursor, const int32_t *count, int64_t vocab)
{
    __shared__ int32_t sums[32];
    __shared__ int32_t carry;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0)
        carry = 0;
    __syncthreads();
    for (int64_t base = 0; base < vocab; base += 4096) {
        int64_t v = base + threadIdx.x * 4;
        int32_t c[4], own = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            c[j] = v + j < vocab ? count[v + j] : 0;
            own += c[j];
        }
        int32_t inclusive = own;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            int32_t other = __shfl_up_sync(0xffffffffu, inclusive, o);
            inclusive += lane >= o ? other : 0;
        }
        if (lane == 31)
            sums[warp] = inclusive;
        __syncthreads();
        if (warp == 0) {
            int32_t t = sums[lane];
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                int32_t other = __shfl_up_sync(0xffffffffu, t, o);
                t += lane >= o ? other : 0;
            }
            sums[lane] = t;
        }
        __syncthreads();
        int32_t at = carry + inclusive - own + (warp ? sums[warp - 1] : 0);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (v + j < vocab)
                start[v + j] = cursor[v + j] = at;
            at += c[j];
        }
        __syncthreads();
        if (threadIdx.x == 0)
            carry += sums[31];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        start[vocab] = carry;
}

__global__ void bucket_kernel(int32_t *bucket, int32_t *cursor, const int32_t *tokens, int64_t rows)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < rows)
        bucket[atomicAdd(&cursor[tokens[i]], 1)] = (int32_t)i;
}

__global__ void order_kernel(int32_t *order, const int32_t *bucket, const int32_t *start,
                             const int32_t *tokens, int64_t rows)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows)
        return;
    int32_t row = bucket[i], token = tokens[row], first = start[token], last = start[token + 1];
    int32_t rank = 0;
#pragma unroll 8
    for (int32_t j = first; j < last; j++)
        rank += bucket[j] < row;
    order[first + rank] = row;
}

/* Adds `sum` to where a run belongs and clears it. */
template <int VEC>
__device__ __forceinline__ void flush_run(float (&sum)[VEC], float *dwte, float *partials,
                                          bool starts_inside, bool ends_inside, int64_t token,
                                          int64_t channels, int64_t c)
{
    float *to = dwte + token * channels + c;
    if (starts_inside && ends_inside) {
        float old[VEC];
        load_vec(old, to);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            sum[j] += old[j];
    } else { /* crosses the left edge: partial 0, else the right edge: partial 1 */
        to = partials + (starts_inside ? channels : 0) + c;
    }
    store_vec(to, sum);
#pragma unroll
    for (int j = 0; j < VEC; j++)
        sum[j] = 0.0f;
}

template <typename T, int VEC>
__global__ void segment_kernel(float *dwte, float *partials, const T *dx, const int32_t *order,
                               const int32_t *start, const int32_t *tokens, int64_t rows,
                               int64_t time, int64_t channels, dropout_mask m)
{
    __shared__ int32_t row_of[SEGMENT], token_of[SEGMENT];
    int64_t base = (int64_t)blockIdx.x * SEGMENT;
    int n = (int)min((int64_t)SEGMENT, rows - base);
    if (threadIdx.x < n) {
        row_of[threadIdx.x] = order[base + threadIdx.x];
        token_of[threadIdx.x] = tokens[row_of[threadIdx.x]];
    }
    __syncthreads();
    partials += (int64_t)blockIdx.x * 2 * channels;
    for (int64_t c = (int64_t)threadIdx.x * VEC; c < channels; c += blockDim.x * VEC) {
        float sum[VEC] = {};
        for (int i = 0; i < n; i++) {
            int64_t row = row_of[i], token = token_of[i];
            float x[VEC];
            load_vec(x, dx + row * channels + c);
            if (m.threshold)
                dropout_apply(x, m, (uint64_t)m.samples[row / time],
                              (uint64_t)(row % time * channels + c));
#pragma unroll
            for (int j = 0; j < VEC; j++)
                sum[j] += x[j];
            if (i + 1 == n || token_of[i + 1] != token)
                flush_run(sum, dwte, partials, start[token] >= base,
                          start[token + 1] <= base + SEGMENT, token, channels, c);
        }
    }
}

/* One block a segment edge: the token whose range first crosses an edge here owns all its partials.
 */
__global__ void edge_kernel(float *dwte, const float *partials, const int32_t *order,
                            const int32_t *start, const int32_t *tokens, int64_t rows,
                            int64_t channels)
{
    int64_t edge = (int64_t)blockIdx.x + 1; /* between segments edge-1 and edge */
    int64_t token = tokens[order[edge * SEGMENT]];
    int64_t first = start[token], last = start[token + 1];
    if (first >= edge * SEGMENT || first < (edge - 1) * SEGMENT)
        return; /* does not cross this edge, or crossed one before */
    int64_t last_segment = (last - 1) / SEGMENT;
    for (int64_t c = threadIdx.x; c < channels; c += blockDim.x) {
        float sum = partials[((edge - 1) * 2 + 1) * channels + c];
        /* A range that begins exactly at the segment's start and fills it is its partial 1 too. */
#pragma unroll 8
        for (int64_t k = edge; k <= last_segment; k++)
            sum += partials[k * 2 * channels + c];
        dwte[token * channels + c] += sum;
    }
    (void)rows;
}

/* dwpe[t,:] += sum over b of dx[b,t,:] in order; a thread owns VEC channels of a position. */
template <typename T, int VEC>
__global__ void position_kernel(float *dwpe, const T *dx, int64_t batch, int64_t time,
                                int64_t channels, dropout_mask m)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VEC, n = time * channels;
    if (i >= n)
        return;
    float sum[VEC];
    load_vec(sum, dwpe + i);
#pragma unroll 4
    for (int64_t b = 0; b < batch; b++) {
        float x[VEC];
        load_vec(x, dx + b * n + i);
        if (m.threshold)
            dropout_apply(x, m, (uint64_t)m.samples[b], (uint64_t)i);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            sum[j] += x[j];
    }
    store_vec(dwpe + i, sum);
}

extern "C" size_t cuda_embed_backward_workspace(int64_t batch, int64_t time, int64_t channels,
                                                int64_t vocab_padded)
{
    struct embed_workspace w;
    return embed_workspace_cut(&w, NULL, batch * time, channels, vocab_padded);
}

extern "C" cudaError_t cuda_embed_backward(cudaStream_t s, float *dwte, float *dwpe, const void *dx,
                                           const int32_t *tokens, int64_t batch, int64_t time,
                                           int64_t channels, int64_t vocab_padded, enum dtype dt,
                                           struct dropout dropout, void *workspace)
{
    struct embed_workspace w;
    dropout_mask m = dropout_mask_of(dropout);
    int64_t rows = batch * time, segments = (rows + SEGMENT - 1) / SEGMENT;
    dim3 by_row = GRID((rows + THREADS - 1) / THREADS);
    embed_workspace_cut(&w, workspace, rows, channels, vocab_padded);

    cudaError_t e = cudaMemsetAsync(w.count, 0, (size_t)vocab_padded * sizeof(int32_t), s);
    if (e)
        return e;
    count_kernel<<<by_row, THREADS, 0, s>>>(w.count, tokens, rows);
    scan_kernel<<<1, 1024, 0, s>>>(w.start, w.cursor, w.count, vocab_padded);
    bucket_kernel<<<by_row, THREADS, 0, s>>>(w.bucket, w.cursor, tokens, rows);
    order_kernel<<<by_row, THREADS, 0, s>>>(w.order, w.bucket, w.start, tokens, rows);
    WITH_TYPE(dt, {
        const T *d = (const T *)dx;
        if (channels % 4 == 0) {
            segment_kernel<T, 4><<<GRID(segments), 192, 0, s>>>(
                dwte, w.partials, d, w.order, w.start, tokens, rows, time, channels, m);
            position_kernel<T, 4>
                <<<GRID((time * channels / 4 + THREADS - 1) / THREADS), THREADS, 0, s>>>(
                    dwpe, d, batch, time, channels, m);
        } else {
            segment_kernel<T, 1><<<GRID(segments), 192, 0, s>>>(
                dwte, w.partials, d, w.order, w.start, tokens, rows, time, channels, m);
            position_kernel<T, 1>
                <<<GRID((time * channels + THREADS - 1) / THREADS), THREADS, 0, s>>>(
                    dwpe, d, batch, time, channels, m);
        }
    });
    if (segments > 1)
        edge_kernel<<<GRID(segments - 1), 256, 0, s>>>(dwte, w.partials, w.order, w.start, tokens,
                                                       rows, channels);
    return cudaGetLastError();
}
