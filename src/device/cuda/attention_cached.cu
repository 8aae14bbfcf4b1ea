/* attention_cached.cu - decoding: keys and values in pages, one query a row. Bound by reading the
 * cache once, so long contexts are cut into splits that fill the device (Flash-Decoding).
 * CPU twins: kv_append, attention_cached in src/device/cpu. Test: tests/unit/test_parity.c. */
#include "device/cuda/kernels.h"
#include "device/cuda/vector.cuh"

namespace
{
constexpr int WARPS = 4, SPLIT_KEYS = 128 /* fewest keys of a split */, MAX_SPLITS = 64;

__device__ __forceinline__ int64_t cache_row(const kv_cache &kv, int64_t sequence, int64_t position)
{
    int64_t page = kv.table[sequence * kv.max_pages + position / kv.page_tokens];
    return page * kv.page_tokens + position % kv.page_tokens;
}

/* Block n copies k and v [H*D] of row n of qkv [N,3,H,D] to its place in the cache. */
template <typename T>
__global__ void append_kernel(kv_cache kv, const T *qkv, const int32_t *sequences,
                              const int32_t *positions, int64_t width)
{
    int64_t n = blockIdx.x, to = cache_row(kv, sequences[n], positions[n]) * width;
    const T *from = qkv + n * 3 * width + width;
    for (int64_t c = (int64_t)threadIdx.x * 8; c < width; c += blockDim.x * 8) {
        *(vec<T, 8> *)((T *)kv.keys + to + c) = *(const vec<T, 8> *)(from + c);
        *(vec<T, 8> *)((T *)kv.values + to + c) = *(const vec<T, 8> *)(from + width + c);
    }
}

/* Softmax state of some keys: maximum (base 2), sum, and this lane's 8 channels of the output. */
struct state {
    float top, total, o[8];
    __device__ __forceinline__ void merge(float top2, float total2, const float (&o2)[8])
    {
        float m = fmaxf(top, top2);
        if (m == -INFINITY)
            return;
        float f = exp2f(top - m), f2 = exp2f(top2 - m);
        total = total * f + total2 * f2;
#pragma unroll
        for (int i = 0; i < 8; i++)
            o[i] = o[i] * f + o2[i] * f2;
        top = m;
    }
};

/* Block (row, head, split): keys [split*per_split, ...) up to positions[row]. LANES lanes share a
 * key (8 channels each); a warp's groups take keys in turn and are merged in a fixed order. With
 * one split the output is written at once, else partials [rows, H, splits, D+2] fp32: o unscaled,
 * top, total. */
template <typename T, int LANES>
__global__ void __launch_bounds__(WARPS * 32)
    cached_kernel(T *out, float *partials, kv_cache kv, const T *qkv, const int32_t *sequences,
                  const int32_t *positions, int64_t heads, int64_t head_dim, int splits,
                  int64_t per_split, float scale_log2)
{
    constexpr int GROUPS = 32 / LANES;
    __shared__ float shared[WARPS][LANES * 8 + 2];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / LANES;
    int c = lane % LANES * 8, split = blockIdx.x % splits;
    int64_t row = blockIdx.x / splits / heads, h = blockIdx.x / splits % heads;
    int64_t width = heads * head_dim, sequence = sequences[row];
    int64_t first = split * per_split, last = min((int64_t)positions[row] + 1, first + per_split);
    bool mine = c < head_dim;
    if (first >= last)
        return; /* the adding kernel knows that there is nothing here */
    float q[8] = {};
    state st = {-INFINITY, 0.0f, {}};
    if (mine)
        load_vec(q, qkv + row * 3 * width + h * head_dim + c);

    for (int64_t base = first + warp * GROUPS; base < last; base += WARPS * GROUPS) {
        int64_t key = base + group;
        float s = 0.0f, v[8] = {};
        if (key < last && mine) {
            float k[8];
            int64_t at = cache_row(kv, sequence, key) * width + h * head_dim + c;
            load_vec(k, (const T *)kv.keys + at);
            load_vec(v, (const T *)kv.values + at);
#pragma unroll
            for (int i = 0; i < 8; i++)
                s += q[i] * k[i];
        }
#pragma unroll
        for (int o = 1; o < LANES; o <<= 1)
            s += __shfl_xor_sync(0xffffffffu, s, o);
        if (key < last)
            st.merge(s * scale_log2, 1.0f, v);
    }
#pragma unroll
    for (int o = LANES; o < 32; o <<= 1) {
        float top2 = __shfl_xor_sync(0xffffffffu, st.top, o), o2[8];
        float total2 = __shfl_xor_sync(0xffffffffu, st.total, o);
#pragma unroll
        for (int i = 0; i < 8; i++)
            o2[i] = __shfl_xor_sync(0xffffffffu, st.o[i], o);
        st.merge(top2, total2, o2);
    }
    if (group == 0) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            shared[warp][c + i] = st.o[i];
        if (lane == 0)
            shared[warp][LANES * 8] = st.top, shared[warp][LANES * 8 + 1] = st.total;
    }
    __syncthreads();
    if (warp || group || !mine)
        return;
    for (int w = 1; w < WARPS; w++) {
        float o2[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            o2[i] = shared[w][c + i];
        st.merge(shared[w][LANES * 8], shared[w][LANES * 8 + 1], o2);
    }
    if (splits == 1) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            st.o[i] /= st.total;
        store_vec(out + row * width + h * head_dim + c, st.o);
        return;
    }
    float *p = partials + (int64_t)blockIdx.x * (head_dim + 2);
    for (int i = 0; i < 8; i++)
        p[c + i] = st.o[i];
    if (lane == 0)
        p[head_dim] = st.top, p[head_dim + 1] = st.total;
}

/* Block (row, head): out = the merged splits, in order. One thread a channel. */
template <typename T>
__global__ void merge_kernel(T *out, const float *partials, const int32_t *positions, int64_t heads,
                             int64_t head_dim, int splits, int64_t per_split)
{
    int64_t row = blockIdx.x / heads, used = positions[row] / per_split + 1;
    const float *p = partials + (int64_t)blockIdx.x * splits * (head_dim + 2);
    int c = threadIdx.x;
    float top = -INFINITY, total = 0.0f, o = 0.0f;
    if (c >= head_dim)
        return;
    for (int s = 0; s < used; s++)
        top = fmaxf(top, p[s * (head_dim + 2) + head_dim]);
    for (int s = 0; s < used; s++) {
        float f = exp2f(p[s * (head_dim + 2) + head_dim] - top);
        total += f * p[s * (head_dim + 2) + head_dim + 1];
        o += f * p[s * (head_dim + 2) + c];
    }
    out[(int64_t)blockIdx.x * head_dim + c] = from_f32<T>(o / total);
}

/* Splits so that rows*heads*splits gives each multiprocessor several blocks. */
int split_count(int64_t rows, int64_t max_positions, int64_t heads)
{
    int64_t wanted = (132 * 8 + rows * heads - 1) / (rows * heads);
    int64_t most = (max_positions + SPLIT_KEYS - 1) / SPLIT_KEYS;
    wanted = wanted < most ? wanted : most;
    return (int)(wanted < 1 ? 1 : wanted > MAX_SPLITS ? (int64_t)MAX_SPLITS : wanted);
}
} // namespace

extern "C" cudaError_t cuda_kv_append(cudaStream_t s, const struct kv_cache *kv, const void *qkv,
                                      const int32_t *sequences, const int32_t *positions,
                                      int64_t rows, int64_t heads, int64_t head_dim, enum dtype dt)
{
    WITH_TYPE(dt, (append_kernel<T><<<GRID(rows), 128, 0, s>>>(*kv, (const T *)qkv, sequences,
                                                               positions, heads * head_dim)));
    return cudaGetLastError();
}

extern "C" size_t cuda_attention_cached_workspace(int64_t rows, int64_t max_positions,
                                                  int64_t heads, int64_t head_dim)
{
    int64_t splits = split_count(rows, max_positions, heads);
    return splits == 1 ? 0 : (size_t)(rows * heads * splits * (head_dim + 2)) * sizeof(float);
}

extern "C" cudaError_t cuda_attention_cached(cudaStream_t s, void *out, const struct kv_cache *kv,
                                             const void *qkv, const int32_t *sequences,
                                             const int32_t *positions, int64_t rows, int64_t heads,
                                             int64_t head_dim, enum dtype dt, void *workspace,
                                             size_t workspace_bytes)
{
    int64_t max_positions = kv->max_pages * kv->page_tokens;
    int splits = split_count(rows, max_positions, heads);
    size_t per_split_bytes = (size_t)(rows * heads * (head_dim + 2)) * sizeof(float);
    if (splits > 1 && workspace_bytes < per_split_bytes * (size_t)splits)
        splits =
            workspace_bytes < 2 * per_split_bytes ? 1 : (int)(workspace_bytes / per_split_bytes);
    int64_t per_split = (max_positions + splits - 1) / splits;
    float scale_log2 = 1.4426950408889634f / sqrtf((float)head_dim);
    dim3 grid = GRID(rows * heads * splits);
    WITH_TYPE(dt, {
        if (head_dim <= 64)
            cached_kernel<T, 8><<<grid, WARPS * 32, 0, s>>>(
                (T *)out, (float *)workspace, *kv, (const T *)qkv, sequences, positions, heads,
                head_dim, splits, per_split, scale_log2);
        else
            cached_kernel<T, 16><<<grid, WARPS * 32, 0, s>>>(
                (T *)out, (float *)workspace, *kv, (const T *)qkv, sequences, positions, heads,
                head_dim, splits, per_split, scale_log2);
        if (splits > 1)
            merge_kernel<T><<<GRID(rows * heads), 128, 0, s>>>(
                (T *)out, (const float *)workspace, positions, heads, head_dim, splits, per_split);
    });
    return cudaGetLastError();
}
