/* resident.cu - all blocks of the model for one token in one kernel that stays on the device.
 *
 * One token's products are so small that the end of one kernel and the start of the next cost more
 * than their work. Here a block a multiprocessor lives through the whole pass. What a product needs
 * of the one before goes through memory (resident_exchange.cuh); the weights, which depend on
 * nothing, are streamed ahead (resident_weights.cuh). Norms, and the merging of
 * attention's parts, are computed by each block for itself.
 *
 * A product with one row is a dot product a column. The matrix unit computes it with few
 * instructions: a lane keeps 8 elements of x and meets 8 of the column, 4 and 4 of them as rows of
 * A and columns of B of m16n8k16. Row g of A is what the lanes 4g..4g+3 have of x, column g of B
 * what they have of w, so of the result the diagonal is what they add; the rest is not used. Sums
 * have one order: a pass has the same bits every time, but others than the separate products.
 *
 * 16-bit weights, compute capability 9.0. Test: tests/unit/test_parity.c. */
#include "device/cuda/kernels.h"
#include "device/cuda/resident_attention.cuh"

#include <algorithm>

namespace resident
{
constexpr int FINISHERS = 128;        /* threads that write results */
constexpr int MOST_UNITS = FINISHERS; /* of a block in a product: a thread each in the end */
constexpr int MOST_CHANNELS = 1792;
constexpr int MOST_PAGES = 256;            /* more stay in memory */
constexpr size_t SHARED_BYTES = 227 << 10; /* what a block can have */

template <typename T> struct arguments {
    const decode_block *blocks; /* [layers] device */
    const T *weights;           /* transposed: [layers] of qkv, proj, fc, fcproj */
    deal deals[PRODUCTS];
    int layers, channels;
    int slots, slots_at; /* in shared memory; bytes */
    float epsilon, inverse_channels;
    float inverse_rest; /* of the channels beyond a multiple of 256 */
    attention_shape attention;
    const int32_t *table, *sequences, *positions;
    T *x;                 /* [C] in and out */
    word *input, *middle; /* [C] of a block, and behind its attention */
    word *qkv, *hidden;   /* [3C], [4C] */
    struct progress *progress;
};

/* Shared memory before the slots. */
struct shared_memory {
    float sums[MOST_UNITS][8];
    float4 spread[WARPS]; /* of a norm, by warp: mean, squares about it, how many (constant) */
    uint64_t full[MOST_SLOTS], empty[MOST_SLOTS];
    int32_t pages[MOST_PAGES]; /* of the sequence */
};

/* --- inputs of products: each ends with a barrier of the team -----------------------------------
 * x lies in shared memory as the matrix unit wants it: of each 8 elements 0 1, 4 5, 2 3, 6 7.
 */
template <typename T> __device__ __forceinline__ void store8(T *x, uint4 v)
{
    *(uint4 *)x = make_uint4(v.x, v.z, v.y, v.w);
}

/* What a product needs beside its input and weights, asked for while the one before is not over:
 * a thread's 8 channels of the norm, and its column's bias. */
template <typename T> struct parameters {
    uint4 norm_w, norm_b;
    T bias;
    __device__ __forceinline__ parameters(const decode_block &b, const share &s, int channels)
        : norm_w(make_uint4(0, 0, 0, 0)), norm_b(norm_w), bias()
    {
        /* in decode_block: a norm's two, then weight and bias of two products */
        const T *const *tensors = (const T *const *)&b.ln1_w + (s.which < FC ? 0 : 6);
        if (s.ends)
            bias = tensors[s.which % 2 ? 5 : 3][s.column];
        int c = (int)threadIdx.x * 8;
        if (c < channels && s.which % 2 == 0) {
            norm_w = *(const uint4 *)(tensors[0] + c);
            norm_b = *(const uint4 *)(tensors[1] + c);
        }
    }
};

/* The residual's layer norm, rounded as layernorm_forward does. A warp has 256 channels. */
template <typename T, int CHUNKS>
__device__ __forceinline__ void load_normed(const arguments<T> &a, const parameters<T> &p,
                                            const word *from, unsigned tag, shared_memory &m, T *to)
{
    int c = (int)threadIdx.x * 8, warp = (int)threadIdx.x / 32;
    bool mine = c < a.channels;
    float x[8] = {};
    if (warp * 256 < a.channels) {
        float total = 0.0f, squares = 0.0f;
        if (mine) {
            vec<T, 8> v = elements<T>(receive8(from + c, tag));
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[j] = to_f32(v.v[j]), total += x[j];
        }
        bool whole = warp * 256 + 256 <= a.channels;
        float mean = warp_sum(total) * (whole ? 1.0f / 256 : a.inverse_rest);
#pragma unroll
        for (int j = 0; j < 8; j++)
            squares += mine ? (x[j] - mean) * (x[j] - mean) : 0.0f;
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0)
            *(float2 *)&m.spread[warp] = make_float2(mean, squares);
    }
    team_barrier();
    if (mine) {
        float mean = 0.0f, squares = 0.0f;
        float4 warps[CHUNKS];
#pragma unroll
        for (int w = 0; w < CHUNKS; w++) {
            warps[w] = m.spread[w];
            mean += warps[w].x * warps[w].z;
        }
        mean *= a.inverse_channels;
#pragma unroll
        for (int w = 0; w < CHUNKS; w++) {
            float off = warps[w].x - mean;
            squares += warps[w].y + off * off * warps[w].z;
        }
        float rstd = rsqrtf(squares * a.inverse_channels + a.epsilon);
        vec<T, 8> w = elements<T>(p.norm_w), b = elements<T>(p.norm_b);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = to_f32(b.v[j]) + (x[j] - mean) * rstd * to_f32(w.v[j]);
        store8(to + c, make_uint4(pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]),
                                  pack<T>(x[6], x[7])));
    }
    team_barrier();
}

template <typename T>
__device__ __forceinline__ void load_hidden(const arguments<T> &a, unsigned tag, T *to)
{
    constexpr int PIECES = (4 * MOST_CHANNELS + THREADS * 8 - 1) / (THREADS * 8);
    int c = (int)threadIdx.x * 8, n = 4 * a.channels;
    if (c < n) {
        const word *from[PIECES];
        uint4 v[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            from[i] = a.hidden + (c + i * THREADS * 8 < n ? c + i * THREADS * 8 : c);
        receive8(from, tag, v);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            if (c + i * THREADS * 8 < n)
                store8(to + c + i * THREADS * 8, v[i]);
    }
    team_barrier();
}

/* The heads' outputs from their `used` parts, in order. */
template <typename T>
__device__ __forceinline__ void load_attention(const arguments<T> &a, const wide_word *states,
                                               const wide_word *outputs, int used, unsigned tag,
                                               T *to)
{
    int c = (int)threadIdx.x * 8;
    if (c < a.channels) {
        attention_state<8> st;
#pragma unroll 1
        for (int i = 0; i < used; i++) {
            float o[8];
            float2 state = receive2_8(states + 2 * i, outputs + i * a.attention.head_dim, tag, o);
            st.merge(state.x, state.y, o);
        }
        float scale = 1.0f / st.total;
        store8(to + c, make_uint4(pack<T>(st.o[0] * scale, st.o[1] * scale),
                                  pack<T>(st.o[2] * scale, st.o[3] * scale),
                                  pack<T>(st.o[4] * scale, st.o[5] * scale),
                                  pack<T>(st.o[6] * scale, st.o[7] * scale)));
    }
    team_barrier();
}

/* --- a product: x [k] in shared memory times this block's columns -------------------------------
 */

/* m.sums of the block's units. Everybody has read x behind it. */
template <int CHUNKS, typename T>
__device__ __forceinline__ void multiply(const share &s, int &unit, weight_reader &reader,
                                         const weight_slots &ring, shared_memory &m, uint32_t x,
                                         int channels)
{
    int lane = (int)threadIdx.x % 32;
    if (unit < s.units) {
        uint4 mine[CHUNKS], w[CHUNKS];
        if (s.which == FCPROJ)
            x += (uint32_t)(unit % 4 * channels) * 2;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            mine[i] = load_shared(x + (uint32_t)(lane + 32 * i) * 16);
        reader.wait();
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            w[i] = reader.part(i);
        for (int left = s.units - unit; left > 0; left -= WARPS, unit += WARPS) {
            float low[2][4] = {}, high[2][4] = {};
            reader.next(ring);
            if (left > WARPS)
                reader.wait();
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                const uint32_t rows[4] = {w[i].x, w[i].y, w[i].z, w[i].w};
                mma<T>(low[i % 2], rows, mine[i].x, mine[i].y);
                mma<T>(high[i % 2], rows, mine[i].z, mine[i].w);
                if (left > WARPS)
                    w[i] = reader.part(i);
            }
            int row = lane / 4; /* columns 2 (lane%4) and the next are in [0] and [1] */
            if (lane % 4 == row / 2)
                m.sums[unit][row] = row % 2 ? (low[0][1] + low[1][1]) + (high[0][3] + high[1][3])
                                            : (low[0][0] + low[1][0]) + (high[0][2] + high[1][2]);
        }
    }
    unit -= s.units;
    team_barrier();
}

/* The calling thread's unit, and with it the other quarters of the column. */
__device__ __forceinline__ float sum_of(const share &s, const shared_memory &m)
{
    float sum = 0.0f;
    if ((int)threadIdx.x < s.units) {
        const float4 *sums = (const float4 *)m.sums[threadIdx.x];
        float4 a = sums[0], b = sums[1];
        sum = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
    }
    if (s.which == FCPROJ) {
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    }
    return sum;
}

/* --- the pass -----------------------------------------------------------------------------------
 */

template <typename T> __device__ __forceinline__ const int32_t *pages_of(const arguments<T> &a)
{
    return a.table + (size_t)a.sequences[0] * (size_t)a.attention.max_pages;
}

/* The shared memory before anybody uses it; then a barrier. */
template <typename T>
__device__ __forceinline__ void prepare_shared(const arguments<T> &a, const weight_slots &ring,
                                               shared_memory &m, decode_block *blocks, T *x,
                                               int padded, char *slots)
{
    int t = (int)threadIdx.x, n = (int)blockDim.x;
    if (t == 0) {
        for (int i = 0; i < ring.count; i++) {
            barrier_init(ring.full + 8 * i, 1);
            barrier_init(ring.empty + 8 * i, 1);
        }
        barrier_init_done();
    }
    for (int i = t; i < a.layers * (int)(sizeof *blocks / sizeof(void *)); i += n)
        ((const void **)blocks)[i] = ((const void *const *)a.blocks)[i];
    for (int i = t; i < min(MOST_PAGES, a.attention.max_pages); i += n)
        m.pages[i] = pages_of(a)[i];
    if (t < WARPS)
        m.spread[t] = make_float4(0.0f, 0.0f, (float)max(0, min(256, a.channels - t * 256)), 0.0f);
    for (int i = t; i < 3 * a.channels + padded; i += n)
        ((unsigned short *)x)[i] = 0;
    int used = a.channels * (int)sizeof(T);
    for (int i = 0; i < ring.count; i++)
        for (int at = used + 16 * t; at < ring.stride; at += 16 * n)
            *(uint4 *)(slots + i * ring.stride + at) = make_uint4(0, 0, 0, 0);
}

template <typename T, int CHUNKS, int LANES>
__global__ void __launch_bounds__(THREADS + 32, 1) kernel(const __grid_constant__ arguments<T> a)
{
    static_assert(LANES * 8 <= FINISHERS, "");
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char memory[];
    shared_memory &m = *(shared_memory *)memory;
    decode_block *blocks = (decode_block *)(&m + 1);
    T *x = (T *)(blocks + a.layers);
    attention_scratch<LANES> &scratch =
        *(attention_scratch<LANES> *)(x + 3 * a.channels + CHUNKS * 256);
    const weight_slots ring = {shared_address(memory) + (uint32_t)a.slots_at,
                               shared_address(m.full), shared_address(m.empty), a.slots,
                               CHUNKS * 512};
    prepare_shared(a, ring, m, blocks, x, CHUNKS * 256, memory + a.slots_at);
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        if (threadIdx.x == THREADS)
            stream_weights(ring, a.deals, a.weights, a.layers, a.channels);
        return;
    }
    int t = (int)threadIdx.x, warps_unit = t / 32 /* of the product */, position = a.positions[0];
    int all = (int)gridDim.x;
    unsigned tag = a.progress->time + 1;
    weight_reader reader(ring);
    const int32_t *pages = a.attention.max_pages <= MOST_PAGES ? m.pages : pages_of(a);
    attention_cut cut(position + 1, a.attention.parts);
    bool attends = (int)blockIdx.x < a.attention.heads * cut.used;
    attention_unit<T, LANES> unit(a.attention, pages, position, (int)blockIdx.x, cut);
    int head = t * 8 / a.attention.head_dim, first_part = head * a.attention.parts;
    const wide_word *states = a.attention.states + 2 * first_part;
    const wide_word *outputs = a.attention.outputs + first_part * a.attention.head_dim +
                               (t * 8 - head * a.attention.head_dim);
    awaited counted;
    share s(a.deals);
    parameters<T> p(blocks[0], s, a.channels);
    for (int c = (int)blockIdx.x * THREADS + t; c < a.channels; c += all * THREADS)
        send(a.input + c, a.x[c], tag);
    for (int layer = 0; layer < a.layers;) {
        const word *residual = nullptr;
        word *result;
        if (s.which == PROJ) {
            if (attends)
                unit.run(a.qkv, tag, scratch);
            load_attention(a, states, outputs, cut.used, tag, x);
            residual = a.input, result = a.middle;
        } else if (s.which == FCPROJ) {
            if (t < 32)
                counted.wait(a.progress);
            team_barrier();
            load_hidden(a, tag, x);
            residual = a.middle, result = a.input;
        } else {
            if (s.which == QKV)
                unit.begin(blocks[layer]);
            load_normed<T, CHUNKS>(a, p, s.which == QKV ? a.input : a.middle, tag, m, x);
            result = s.which == QKV ? a.qkv : a.hidden;
        }
        tag += s.which == QKV;
        word before = 0;
        if (residual && s.ends)
            before = load_relaxed_one(residual + s.column); /* the block has received it */
        multiply<CHUNKS, T>(s, warps_unit, reader, ring, m, shared_address(x), a.channels);
        layer += s.which == FCPROJ;
        float v = sum_of(s, m);
        if (s.ends) {
            v += to_f32(p.bias) + to_f32(value_of<T>(before));
            v = s.which == FC ? gelu(v) : v;
            if (layer == a.layers)
                a.x[s.column] = from_f32<T>(v);
            else
                send(result + s.column, from_f32<T>(v), tag);
        }
        if (layer == a.layers)
            break;
        if (s.which == FC && t == 0)
            add_count(a.progress);
        s.next(a.deals);
        p = parameters<T>(blocks[layer], s, a.channels);
    }
    if (t == 0 && atomicAdd(&a.progress->done, 1u) == gridDim.x - 1) {
        for (int i = 0; i < COUNTS; i++) /* all have seen the last of them */
            a.progress->of[i].value = 0;
        a.progress->done = 0, a.progress->time = tag;
    }
#endif
}

/* to [n,k] = w [k,n] of one product of every layer (z). */
template <typename T>
__global__ void transpose_kernel(T *to, size_t layer_elems, const decode_block *blocks, int which,
                                 int k, int n)
{
    constexpr int TILE = 32, ROWS = 8;
    __shared__ T tile[TILE][TILE + 2];
    const decode_block &b = blocks[blockIdx.z];
    const T *w = (const T *)(which == QKV    ? b.qkv_w
                             : which == PROJ ? b.proj_w
                             : which == FC   ? b.fc_w
                                             : b.fcproj_w);
    int column = (int)blockIdx.x * TILE, row = (int)blockIdx.y * TILE;
    int tx = (int)threadIdx.x % TILE, ty = (int)threadIdx.x / TILE;
    for (int i = ty; i < TILE; i += ROWS)
        if (row + i < k && column + tx < n)
            tile[i][tx] = w[(size_t)(row + i) * (size_t)n + (size_t)(column + tx)];
    __syncthreads();
    to += blockIdx.z * layer_elems;
    for (int i = ty; i < TILE; i += ROWS)
        if (column + i < n && row + tx < k)
            to[(size_t)(column + i) * (size_t)k + (size_t)(row + tx)] = tile[tx][i];
}

/* --- the host's part ----------------------------------------------------------------------------
 */

struct shape {
    int64_t layers, channels, heads, head_dim;
    int parts;
    int slots, stride; /* slots 0: not for this kernel */
};

/* Of 256 channels, for the widths of GPT-2 and what lies between. */
int chunks_of(int64_t channels)
{
    int64_t n = (channels + 255) / 256;
    return n <= 3 ? 3 : n == 6 ? 7 : (int)n;
}
size_t x_bytes(const shape &s)
{
    size_t scratch =
        s.head_dim <= 64 ? sizeof(attention_scratch<8>) : sizeof(attention_scratch<16>);
    return 3 * (size_t)s.channels * 2 + (size_t)s.stride + scratch;
}
size_t slots_at(const shape &s)
{
    return sizeof(shared_memory) + (size_t)s.layers * sizeof(decode_block) + x_bytes(s);
}
size_t shared_bytes(const shape &s)
{
    return slots_at(s) + (size_t)s.slots * (size_t)s.stride;
}
/* 16-bit elements of the copy of the weights. */
size_t weights_of(const shape &s)
{
    return (size_t)(12 * s.channels * s.channels * s.layers);
}
/* Of all heads. */
size_t parts_of(const shape &s)
{
    return (size_t)(s.heads * s.parts);
}
/* Behind the weights. */
size_t exchange_bytes(const shape &s)
{
    return sizeof(struct progress) + parts_of(s) * (size_t)(s.head_dim + 2) * sizeof(wide_word) +
           9 * (size_t)s.channels * sizeof(word);
}

shape shape_of(int64_t layers, int64_t channels, int64_t heads, enum dtype dt, int multiprocessors)
{
    shape s = {layers, channels, heads, channels / heads, 0, 0, 0};
    int64_t parts = multiprocessors / heads;
    int columns = (int)((channels + multiprocessors - 1) / multiprocessors), units = 4 * columns;
    s.parts = (int)(parts < 1 ? 1 : parts < MOST_PARTS ? parts : MOST_PARTS);
    if (dt == DTYPE_F32 || channels < multiprocessors || heads > multiprocessors || channels % 8 ||
        channels > MOST_CHANNELS || s.head_dim % 8 || s.head_dim > 128 || units > MOST_UNITS)
        return s;
    s.stride = chunks_of(channels) * 512;
    s.slots = MOST_SLOTS;
    while (s.slots > 0 && shared_bytes(s) > SHARED_BYTES)
        s.slots--;
    s.slots = s.slots < std::max(WARPS, units) ? 0 : s.slots;
    return s;
}

template <typename T>
arguments<T> arguments_of(const struct decode_blocks *d, const shape &s, int multiprocessors)
{
    int c = (int)d->channels;
    const int columns[PRODUCTS] = {3 * c, c, 4 * c, c};
    arguments<T> a = {};
    a.blocks = d->blocks, a.layers = (int)d->layers, a.channels = c;
    a.slots = s.slots, a.slots_at = (int)slots_at(s);
    a.epsilon = d->epsilon, a.inverse_channels = 1.0f / (float)c;
    a.inverse_rest = 1.0f / (float)(c % 256 ? c % 256 : 256);
    a.table = d->table, a.sequences = d->sequences, a.positions = d->positions;
    for (int i = 0; i < PRODUCTS; i++)
        a.deals[i] = {columns[i] / multiprocessors, columns[i] % multiprocessors};
    a.x = (T *)d->x;
    T *weights = (T *)d->workspace;
    a.weights = weights;
    attention_shape &t = a.attention;
    t.channels = c, t.heads = (int)d->heads, t.head_dim = (int)s.head_dim, t.parts = s.parts;
    t.max_pages = (int)d->max_pages, t.page_tokens = (int)d->page_tokens;
    t.scale_log2 = 1.4426950408889634f / sqrtf((float)s.head_dim);
    a.progress = (struct progress *)(weights + weights_of(s));
    t.outputs = (wide_word *)(a.progress + 1);
    t.states = t.outputs + parts_of(s) * (size_t)s.head_dim;
    a.input = (word *)(t.states + 2 * parts_of(s));
    a.middle = a.input + c, a.qkv = a.middle + c, a.hidden = a.qkv + 3 * c;
    return a;
}

template <typename T, int CHUNKS, int LANES>
cudaError_t launch(cudaStream_t s, const arguments<T> &a, size_t shared, int multiprocessors)
{
    cudaLaunchAttribute together = {};
    cudaLaunchConfig_t config = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    config.gridDim = dim3((unsigned)multiprocessors);
    config.blockDim = dim3(THREADS + 32);
    config.dynamicSmemBytes = shared;
    config.stream = s;
    config.attrs = &together;
    config.numAttrs = 1;
    cudaError_t rc = cudaFuncSetAttribute(kernel<T, CHUNKS, LANES>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    return rc == cudaSuccess ? cudaLaunchKernelEx(&config, kernel<T, CHUNKS, LANES>, a) : rc;
}

template <typename T, int CHUNKS>
cudaError_t launch(cudaStream_t s, const arguments<T> &a, size_t shared, int multiprocessors)
{
    return a.attention.head_dim <= 64 ? launch<T, CHUNKS, 8>(s, a, shared, multiprocessors)
                                      : launch<T, CHUNKS, 16>(s, a, shared, multiprocessors);
}

template <typename T>
cudaError_t launch(cudaStream_t s, const struct decode_blocks *d, int multiprocessors)
{
    shape shape = shape_of(d->layers, d->channels, d->heads, d->dt, multiprocessors);
    arguments<T> a = arguments_of<T>(d, shape, multiprocessors);
    size_t shared = shared_bytes(shape);
    static_assert(MOST_CHANNELS == 7 * 256, "");
    switch (chunks_of(a.channels)) {
    case 3:
        return launch<T, 3>(s, a, shared, multiprocessors);
    case 4:
        return launch<T, 4>(s, a, shared, multiprocessors);
    case 5:
        return launch<T, 5>(s, a, shared, multiprocessors);
    default:
        return launch<T, 7>(s, a, shared, multiprocessors);
    }
}

template <typename T> void transpose(cudaStream_t s, const struct decode_blocks *d)
{
    size_t c = (size_t)d->channels, at = 0;
    const size_t shapes[PRODUCTS][2] = {{c, 3 * c}, {c, c}, {c, 4 * c}, {4 * c, c}};
    for (int i = 0; i < PRODUCTS; i++) {
        size_t k = shapes[i][0], n = shapes[i][1];
        dim3 grid((unsigned)((n + 31) / 32), (unsigned)((k + 31) / 32), (unsigned)d->layers);
        transpose_kernel<T>
            <<<grid, 256, 0, s>>>((T *)d->workspace + at, 12 * c * c, d->blocks, i, (int)k, (int)n);
        at += k * n;
    }
}
} // namespace resident

/* The transposed weights and what the blocks exchange. */
extern "C" size_t cuda_decode_blocks_workspace(int64_t layers, int64_t channels, int64_t heads,
                                               enum dtype dt, int multiprocessors)
{
    resident::shape s = resident::shape_of(layers, channels, heads, dt, multiprocessors);
    return s.slots == 0 ? 0 : 2 * resident::weights_of(s) + resident::exchange_bytes(s);
}

extern "C" cudaError_t cuda_decode_blocks_prepare(cudaStream_t s, const struct decode_blocks *d,
                                                  int multiprocessors)
{
    resident::shape shape =
        resident::shape_of(d->layers, d->channels, d->heads, d->dt, multiprocessors);
    if (d->dt == DTYPE_BF16)
        resident::transpose<__nv_bfloat16>(s, d);
    else
        resident::transpose<__half>(s, d);
    cudaError_t rc = cudaGetLastError();
    return rc != cudaSuccess
               ? rc
               : cudaMemsetAsync((char *)d->workspace + 2 * resident::weights_of(shape), 0,
                                 resident::exchange_bytes(shape), s);
}

extern "C" cudaError_t cuda_decode_blocks(cudaStream_t s, const struct decode_blocks *d,
                                          int multiprocessors)
{
    return d->dt == DTYPE_BF16 ? resident::launch<__nv_bfloat16>(s, d, multiprocessors)
                               : resident::launch<__half>(s, d, multiprocessors);
}
