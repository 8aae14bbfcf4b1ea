/* resident_attention.cuh - attention of one token over its cache, within resident.cu.
 *
 * A unit is a head's keys, or a part of them where there are more blocks than heads; one block
 * computes it and leaves the output unscaled with its softmax state. LANES lanes share a key, and
 * each thread holds BATCH keys and values at a time. All but the newest lie in the cache before the
 * kernel begins, so the first are read while blocks wait for each other. */
#ifndef DEVICE_CUDA_RESIDENT_ATTENTION_CUH
#define DEVICE_CUDA_RESIDENT_ATTENTION_CUH

#include "device/cuda/attention_state.cuh"
#include "device/cuda/resident_exchange.cuh"
#include "device/cuda/resident_weights.cuh"

namespace resident
{
constexpr int PART_KEYS = 128; /* a part of a head is a multiple of it */
constexpr int MOST_PARTS = 16; /* of a head */

struct attention_shape {
    int channels, heads, head_dim, parts; /* at most so many parts a head */
    int max_pages, page_tokens;           /* as in struct kv_cache */
    float scale_log2;
    wide_word *outputs; /* [heads, parts, head_dim] unscaled */
    wide_word *states;  /* [heads, parts, 2] maximum (base 2) and sum */
};

/* How a sequence's keys are cut. */
struct attention_cut {
    int each, used; /* keys of a part, parts of a head */
    __device__ __forceinline__ attention_cut(int keys, int parts)
    {
        each = (keys + parts - 1) / parts;
        each = (each + PART_KEYS - 1) / PART_KEYS * PART_KEYS;
        used = (keys + each - 1) / each;
    }
};

/* 8 elements kept as the 16 bytes they are: as elements they would take twice the registers. */
template <typename T> __device__ __forceinline__ vec<T, 8> elements(uint4 bits)
{
    union {
        uint4 bits;
        vec<T, 8> v;
    } u;
    u.bits = bits;
    return u.v;
}
template <int LANES> struct attention_scratch {
    float o[WARPS][LANES * 8], top[WARPS], total[WARPS];
};

template <typename T, int LANES> struct attention_unit {
    static constexpr int GROUPS = 32 / LANES, STRIDE = WARPS * GROUPS, BATCH = 4;
    const attention_shape &a;
    const int32_t *pages; /* of the sequence */
    int position, head, part, first, last, channel;
    bool mine;                    /* my 8 channels are within the head */
    bool has_newest;              /* the token's own key is one of mine */
    uint32_t rows[BATCH], newest; /* of the first keys in the cache, and of the token's own */
    T *key_cache, *value_cache;   /* of the layer */
    uint4 keys[BATCH], values[BATCH];

    /* unit: head * cut.used + part */
    __device__ __forceinline__ attention_unit(const attention_shape &a_, const int32_t *pages_,
                                              int position_, int unit, const attention_cut &cut)
        : a(a_), pages(pages_), position(position_)
    {
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, c = lane % LANES * 8;
        head = unit / cut.used, part = unit % cut.used;
        mine = head < a.heads && c < a.head_dim;
        last = head < a.heads ? min(position + 1, (part + 1) * cut.each) : 0;
        first = part * cut.each + warp * GROUPS + lane / LANES;
        channel = head * a.head_dim + c;
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            rows[i] = first + i * STRIDE < last ? row(first + i * STRIDE) : 0;
        has_newest =
            mine && last == position + 1 && position >= first && (position - first) % STRIDE == 0;
        newest = row(position);
    }
    __device__ __forceinline__ uint32_t row(int at) const
    {
        return (uint32_t)cache_row(pages, a.page_tokens, (uint32_t)at);
    }
    __device__ __forceinline__ void load(int i, int at, uint32_t row)
    {
        keys[i] = values[i] = make_uint4(0, 0, 0, 0);
        if (mine && at < last && at != position) {
            size_t from = (size_t)row * (unsigned)a.channels + (unsigned)channel;
            keys[i] = *(const uint4 *)(key_cache + from);
            values[i] = *(const uint4 *)(value_cache + from);
        }
    }
    /* The first keys and values of a layer, which are there before the kernel begins. */
    __device__ __forceinline__ void begin(const decode_block &b)
    {
        key_cache = (T *)b.keys, value_cache = (T *)b.values;
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            load(i, first + i * STRIDE, rows[i]);
    }
    /* The token's own to the cache. */
    __device__ __forceinline__ void keep_newest(uint4 new_key, uint4 new_value) const
    {
        if (has_newest) {
            size_t to = (size_t)newest * (unsigned)a.channels + (unsigned)channel;
            *(uint4 *)(key_cache + to) = new_key;
            *(uint4 *)(value_cache + to) = new_value;
        }
    }
    __device__ __forceinline__ void add_keys(int key, const float (&query)[8],
                                             attention_state<8> &st) const;
    __device__ __forceinline__ void run(const word *qkv, unsigned tag,
                                        attention_scratch<LANES> &scratch);
};

template <typename T, int LANES>
__device__ __forceinline__ void attention_unit<T, LANES>::add_keys(int key, const float (&query)[8],
                                                                   attention_state<8> &st) const
{
    float s[BATCH], top = st.top;
    vec<T, 8> v[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        float dot = attention_dot<LANES>(query, elements<T>(keys[i]));
        v[i] = elements<T>(values[i]);
        s[i] = key + i * STRIDE < last ? dot * a.scale_log2 : -INFINITY;
        top = fmaxf(top, s[i]);
    }
    if (top > -INFINITY) /* else no key; the shuffles are behind us */
        st.add(s, v, top);
}

/* Behind it the threads 0 .. LANES*8-1 have written the outputs and the state. */
template <typename T, int LANES>
__device__ __forceinline__ void attention_unit<T, LANES>::run(const word *qkv, unsigned tag,
                                                              attention_scratch<LANES> &scratch)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, group = lane / LANES;
    float query[8] = {};
    attention_state<8> st;
    uint4 fresh[3] = {}; /* query, key and value */
    if (mine) {
        const word *from = qkv + channel;
        receive8({from, from + a.channels, from + 2 * a.channels}, tag, fresh);
        vec<T, 8> v = elements<T>(fresh[0]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            query[i] = to_f32(v.v[i]);
    }
    for (int key = first; key - group < last;) { /* as often in all lanes of a warp */
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (key + i * STRIDE == position)
                keys[i] = fresh[1], values[i] = fresh[2];
        add_keys(key, query, st);
        key += STRIDE * BATCH;
        if (key - group < last)
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                load(i, key + i * STRIDE, key + i * STRIDE < last ? row(key + i * STRIDE) : 0);
    }
    keep_newest(fresh[1], fresh[2]);
    __syncwarp();
    st.merge_groups<LANES>();
    if (group == 0) {
        *(float4 *)&scratch.o[warp][lane * 8] = make_float4(st.o[0], st.o[1], st.o[2], st.o[3]);
        *(float4 *)&scratch.o[warp][lane * 8 + 4] = make_float4(st.o[4], st.o[5], st.o[6], st.o[7]);
        if (lane == 0)
            scratch.top[warp] = st.top, scratch.total[warp] = st.total;
    }
    team_barrier();
    int t = (int)threadIdx.x;
    if (t < LANES * 8) { /* a channel each; of a part at least one key is there */
        float top = scratch.top[0], total = 0.0f, o = 0.0f;
#pragma unroll
        for (int w = 1; w < WARPS; w++)
            top = fmaxf(top, scratch.top[w]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float f = exp2_fast(scratch.top[w] - top);
            total += f * scratch.total[w];
            o += f * scratch.o[w][t];
        }
        int at = head * a.parts + part;
        if (t < a.head_dim)
            send(a.outputs + (size_t)at * a.head_dim + t, o, tag);
        if (t == 0) {
            send(a.states + 2 * at, top, tag);
            send(a.states + 2 * at + 1, total, tag);
        }
    }
}
} // namespace resident

#endif
