/* attention_cached.cu - decoding: keys and values in pages, one query a row. Bound by reading the
 * cache once. Many rows: a warp a head. Few: long contexts are cut into splits that fill the device
 * (Flash-Decoding), the block that finishes last merges them in order.
 * CPU twins: kv_append, attention_cached in src/device/cpu. Test: tests/unit/test_parity.c. */
#include "device/cuda/attention_state.cuh"
#include "device/cuda/early.cuh"
#include "device/cuda/kernels.h"
#include "device/cuda/queue.cuh"

namespace
{
constexpr int SPLIT_KEYS = 128 /* a split is a multiple of it */, MAX_SPLITS = 16;
constexpr int MULTIPROCESSORS = 132; /* of the GPU that sizes are tuned for */

/* Block n copies k and v [H*D] of row n of qkv [N,3,H,D] to its place in the cache. */
template <typename T>
__global__ void append_kernel(kv_cache kv, const T *qkv, const int32_t *sequences,
                              const int32_t *positions, int64_t width)
{
    int64_t n = blockIdx.x;
    const int32_t *pages = kv.table + sequences[n] * kv.max_pages;
    int64_t to = cache_row(pages, kv.page_tokens, (uint32_t)positions[n]) * width;
    const T *from = qkv + n * 3 * width + width;
    for (int64_t c = (int64_t)threadIdx.x * 8; c < width; c += blockDim.x * 8) {
        *(vec<T, 8> *)((T *)kv.keys + to + c) = *(const vec<T, 8> *)(from + c);
        *(vec<T, 8> *)((T *)kv.values + to + c) = *(const vec<T, 8> *)(from + width + c);
    }
}

template <typename T> struct arguments {
    T *out;
    float *partials;    /* [rows, H, splits, D+2]: o unscaled, top, total */
    unsigned *arrivals; /* [rows * H], zero between calls */
    kv_cache kv;
    const T *qkv;
    const int32_t *sequences, *positions;
    int64_t units; /* rows * H */
    int heads, head_dim, splits;
    float scale_log2;
    bool append;
};

/* Merges the splits of a unit, in order; one thread a channel. */
template <typename T> __device__ void merge_splits(const arguments<T> &a, int64_t unit, int used)
{
    int stride = a.head_dim + 2, c = threadIdx.x;
    const float *p = a.partials + unit * a.splits * stride;
    float top = -INFINITY, total = 0.0f, o = 0.0f;
    if (c >= a.head_dim)
        return;
#pragma unroll 8
    for (int s = 0; s < used; s++)
        top = fmaxf(top, __ldcg(p + s * stride + a.head_dim));
#pragma unroll 8
    for (int s = 0; s < used; s++) {
        float f = exp2f(__ldcg(p + s * stride + a.head_dim) - top);
        total += f * __ldcg(p + s * stride + a.head_dim + 1);
        o += f * __ldcg(p + s * stride + c);
    }
    a.out[unit * a.head_dim + c] = from_f32<T>(o / total);
}

/* A unit is a head of a row, or a split of its keys; TEAM of the block's WARPS warps own one. LANES
 * lanes share a key (8 channels each); each takes its keys through a queue, BATCH to a rescaling.
 */
template <typename T, int LANES, int WARPS, int TEAM>
__global__ void __launch_bounds__(WARPS * 32, TEAM == 1 ? 6 : 1) cached_kernel(arguments<T> a)
{
    constexpr int GROUPS = 32 / LANES, STRIDE = TEAM * GROUPS, BATCH = TEAM == 1 ? 2 : 4;
    constexpr int HALF = (int)sizeof(T) / 2,
                  DEPTH = 16 / (int)sizeof(T); /* keys in 32 bytes x DEPTH */
    extern __shared__ __align__(16) char memory[];
    __shared__ float shared[WARPS][LANES * 8 + 2];
    __shared__ bool last_block;
    early_wait();
    early_next();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / LANES;
    int c = lane % LANES * 8, split = TEAM == 1 ? 0 : blockIdx.x % a.splits;
    int64_t unit = TEAM == 1 ? (int64_t)blockIdx.x * WARPS + warp : blockIdx.x / a.splits;
    if (unit >= a.units)
        return;
    int64_t row = unit / a.heads, width = (int64_t)a.heads * a.head_dim;
    int64_t channel = unit % a.heads * a.head_dim + c;
    const T *own = a.qkv + row * 3 * width + channel;
    const int32_t *pages = a.kv.table + (int64_t)a.sequences[row] * a.kv.max_pages;
    int position = a.positions[row], keys = position + 1;
    int each = (keys + a.splits - 1) / a.splits;
    if (TEAM > 1)
        each = (each + SPLIT_KEYS - 1) / SPLIT_KEYS * SPLIT_KEYS;
    int used = (keys + each - 1) / each;
    int first = split * each, last = min(keys, first + each);
    bool mine = c < a.head_dim;
    if (first >= last)
        return;

    thread_queue<2 * HALF, DEPTH, WARPS * 32> q(memory);
    int key = first + (TEAM == 1 ? 0 : warp * GROUPS) + group, next = key;
    auto push_next = [&]() {
        bool valid = mine && next < last;
        const T *k = own + width, *v = own + 2 * width;
        if (valid && !(a.append && next == position)) {
            int64_t at = cache_row(pages, a.kv.page_tokens, (uint32_t)next) * width + channel;
            k = (const T *)a.kv.keys + at, v = (const T *)a.kv.values + at;
        }
        q.push(valid, [=](int i) {
            return i < HALF ? (const char *)k + i * 16 : (const char *)v + (i - HALF) * 16;
        });
        next += STRIDE;
    };
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        push_next();
    float query[8] = {};
    attention_state<8> st;
    if (mine)
        load_vec(query, own);
    for (; key - group < last; key += STRIDE * BATCH) { /* as often in all lanes of a warp */
        vec<T, 8> values[BATCH];
        float s[BATCH], top = st.top;
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            union {
                uint4 entry[2 * HALF];
                vec<T, 8> half[2];
            } u;
            int at = key + b * STRIDE;
            vec<T, 8> own_key = {};
            q.pop(u.entry);
            push_next();
            if (mine && at < last) {
                if (a.append && at == position) {
                    int64_t to = cache_row(pages, a.kv.page_tokens, (uint32_t)at) * width + channel;
                    *(vec<T, 8> *)((T *)a.kv.keys + to) = u.half[0];
                    *(vec<T, 8> *)((T *)a.kv.values + to) = u.half[1];
                }
                own_key = u.half[0];
                values[b] = u.half[1];
            } else {
                values[b] = {};
            }
            float dot = attention_dot<LANES>(query, own_key);
            s[b] = at < last ? dot * a.scale_log2 : -INFINITY;
            top = fmaxf(top, s[b]);
        }
        if (top == -INFINITY)
            continue; /* this group has no key; the shuffles are behind us */
        st.add(s, values, top);
    }
    __syncwarp();
    st.merge_groups<LANES>();
    if (TEAM > 1) {
        if (group == 0) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                shared[warp][c + i] = st.o[i];
            if (lane == 0)
                shared[warp][LANES * 8] = st.top, shared[warp][LANES * 8 + 1] = st.total;
        }
        __syncthreads();
        for (int w = 1; w < WARPS && warp == 0; w++) {
            float o2[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                o2[i] = shared[w][c + i];
            st.merge(shared[w][LANES * 8], shared[w][LANES * 8 + 1], o2);
        }
    }
    bool writer = (TEAM == 1 || warp == 0) && group == 0 && mine;
    if (used == 1) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            st.o[i] /= st.total;
        if (writer)
            store_vec(a.out + row * width + channel, st.o);
        return;
    }
    if (TEAM == 1)
        return; /* has one split */
    if (writer) {
        float *p = a.partials + (unit * a.splits + split) * (a.head_dim + 2);
        for (int i = 0; i < 8; i++)
            p[c + i] = st.o[i];
        if (lane == 0)
            p[a.head_dim] = st.top, p[a.head_dim + 1] = st.total;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last_block = atomicAdd(a.arrivals + unit, 1u) == (unsigned)used - 1;
        if (last_block)
            a.arrivals[unit] = 0;
        __threadfence();
    }
    __syncthreads();
    if (last_block)
        merge_splits(a, unit, used);
}

/* Splits so that few rows still fill the device. */
int split_count(int64_t units, int64_t max_positions)
{
    int64_t most = (max_positions + SPLIT_KEYS - 1) / SPLIT_KEYS;
    int64_t wanted = (MULTIPROCESSORS * 2 + units - 1) / units;
    most = most < MAX_SPLITS ? most : MAX_SPLITS;
    return (int)(wanted < most ? wanted : most);
}

template <typename T, int LANES>
cudaError_t launch(const arguments<T> &a, cudaStream_t s, bool early)
{
    constexpr int SMALL = 4, LARGE = 8; /* warps of a block */
    struct launch_shape shape = {};
    if (a.units >= MULTIPROCESSORS * LARGE) {
        shape.blocks = (a.units + SMALL - 1) / SMALL, shape.threads = SMALL * 32;
        shape.shared = (size_t)shape.threads * 256;
        return launch_early(cached_kernel<T, LANES, SMALL, 1>, shape, s, early, a);
    }
    shape.blocks = a.units * a.splits, shape.threads = LARGE * 32;
    shape.shared = (size_t)shape.threads * 256;
    return launch_early(cached_kernel<T, LANES, LARGE, LARGE>, shape, s, early, a);
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

/* Enough for any number of rows up to this one: fewer rows have more splits, so that units times
 * splits stays below what fills the device and a half. */
extern "C" size_t cuda_attention_cached_workspace(int64_t rows, int64_t max_positions,
                                                  int64_t heads, int64_t head_dim)
{
    size_t most = 0;
    for (int64_t r = 1; r <= rows && split_count(r * heads, max_positions) > 1; r++) {
        size_t units = (size_t)(r * heads * split_count(r * heads, max_positions));
        most = units > most ? units : most;
    }
    return most * (size_t)(head_dim + 2) * sizeof(float);
}

extern "C" cudaError_t cuda_attention_cached(cudaStream_t s, void *out, const struct kv_cache *kv,
                                             const void *qkv, const int32_t *sequences,
                                             const int32_t *positions, int64_t rows, int64_t heads,
                                             int64_t head_dim, enum dtype dt, bool append,
                                             void *workspace, size_t workspace_bytes,
                                             unsigned *arrivals, bool early)
{
    int64_t units = rows * heads;
    int splits = split_count(units, kv->max_pages * kv->page_tokens);
    size_t need = (size_t)(units * splits * (head_dim + 2)) * sizeof(float);
    cudaError_t rc = cudaSuccess;
    if (units >= MULTIPROCESSORS * 8 || workspace_bytes < need || units > CUDA_ARRIVALS)
        splits = 1;
    WITH_TYPE(dt, {
        arguments<T> a = {};
        a.out = (T *)out, a.partials = (float *)workspace, a.arrivals = arrivals, a.kv = *kv;
        a.qkv = (const T *)qkv, a.sequences = sequences, a.positions = positions;
        a.units = units, a.heads = (int)heads, a.head_dim = (int)head_dim, a.splits = splits;
        a.scale_log2 = 1.4426950408889634f / sqrtf((float)head_dim), a.append = append;
        rc = head_dim <= 64 ? launch<T, 8>(a, s, early) : launch<T, 16>(a, s, early);
    });
    return rc;
}
