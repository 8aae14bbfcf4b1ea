/* attention_f32.cu - causal attention in fp32, and delta = rowsum(dO o O) for every dtype. fp32 is
 * for checking results, so these are the formulas of attention_forward.cu and attention_backward.cu
 * in plain 32 x 32 tiles. Deterministic: every output row has one owner. CPU twins:
 * attention_forward, attention_backward in src/device/cpu. Tests: as attention_forward.cu. */
#include "device/cuda/attention.cuh"

namespace
{
constexpr int TILE = 32, PER_ROW = 8 /* threads a row */, THREADS = TILE * PER_ROW, MAX_DIM = 128;
constexpr int OWN = MAX_DIM / PER_ROW; /* channels of a row that a thread owns: sub + 8 i */

/* Where a block works: one tile of rows of one (sample, head). */
struct place {
    int64_t b, h, bh;
    int first, row, sub;
    __device__ place(const attention_args &a)
    {
        int tiles = (int)((a.time + TILE - 1) / TILE);
        bh = blockIdx.x / tiles;
        b = bh / a.heads, h = bh % a.heads;
        first = blockIdx.x % tiles * TILE;
        row = threadIdx.x / PER_ROW, sub = threadIdx.x % PER_ROW;
    }
};

/* Rows first.. of a [T] x stride matrix to tile[TILE][D+1], zeros past the end. */
__device__ void load_rows(float *tile, const float *from, int first, const attention_args &a,
                          int64_t stride)
{
    int d = (int)a.head_dim;
    for (int i = threadIdx.x; i < TILE * d; i += THREADS) {
        int r = i / d, c = i % d;
        tile[r * (d + 1) + c] = first + r < a.time ? from[(first + r) * stride + c] : 0.0f;
    }
}
__device__ float dot(const float *x, const float *y, int d)
{
    float s = 0.0f;
    for (int i = 0; i < d; i++)
        s += x[i] * y[i];
    return s;
}
/* mask/(1-p) of one probability. */
__device__ float dropout_factor(const attention_args &a, int64_t b, int64_t h, int q, int k)
{
    if (!a.mask.threshold)
        return 1.0f;
    uint64_t e = ((uint64_t)h * a.time + q) * a.time + k;
    return keep_one(a.mask, e, (uint64_t)a.mask.samples[b]) ? a.mask.scale : 0.0f;
}

__global__ void forward_kernel(float *out, float *lse, const float *qkv, attention_args a)
{
    extern __shared__ float shared[];
    int d = (int)a.head_dim;
    float *q = shared, *k = q + TILE * (d + 1), *v = k + TILE * (d + 1), *p = v + TILE * (d + 1);
    place at(a);
    int64_t stride = 3 * a.heads * a.head_dim;
    const float *base = qkv + at.b * a.time * stride + at.h * a.head_dim;
    float top = -INFINITY, total = 0.0f, o[OWN] = {};
    load_rows(q, base, at.first, a, stride);
    for (int k0 = 0; k0 <= at.first; k0 += TILE) {
        __syncthreads();
        load_rows(k, base + a.heads * a.head_dim, k0, a, stride);
        load_rows(v, base + 2 * a.heads * a.head_dim, k0, a, stride);
        __syncthreads();
        float s[TILE / PER_ROW], m = top, sum = 0.0f;
        for (int i = 0; i < TILE / PER_ROW; i++) {
            int key = at.sub + PER_ROW * i;
            s[i] = k0 + key <= at.first + at.row
                       ? a.scale * dot(q + at.row * (d + 1), k + key * (d + 1), d)
                       : -INFINITY;
            m = fmaxf(m, s[i]);
        }
        for (int o2 = 1; o2 < PER_ROW; o2 <<= 1)
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o2));
        float old = expf(top - m);
        for (int i = 0; i < TILE / PER_ROW; i++) {
            int key = at.sub + PER_ROW * i;
            float e = expf(s[i] - m);
            sum += e;
            p[at.row * (TILE + 1) + key] =
                e * dropout_factor(a, at.b, at.h, at.first + at.row, k0 + key);
        }
        for (int o2 = 1; o2 < PER_ROW; o2 <<= 1)
            sum += __shfl_xor_sync(0xffffffffu, sum, o2);
        total = total * old + sum;
        top = m;
        __syncwarp(); /* a row's eight threads are in one warp */
        for (int i = 0; i < OWN && at.sub + PER_ROW * i < d; i++) {
            float t = o[i] * old;
            for (int j = 0; j < TILE; j++)
                t += p[at.row * (TILE + 1) + j] * v[j * (d + 1) + at.sub + PER_ROW * i];
            o[i] = t;
        }
    }
    int row = at.first + at.row;
    if (row >= a.time)
        return;
    for (int i = 0; i < OWN && at.sub + PER_ROW * i < d; i++)
        out[((at.b * a.time + row) * a.heads + at.h) * d + at.sub + PER_ROW * i] = o[i] / total;
    if (at.sub == 0)
        lse[at.bh * a.time + row] = top + logf(total);
}

/* A thread block owns 32 rows; KEYS_OWNED: they are keys and it walks the queries below them,
 * giving dK and dV; else they are queries and it walks the keys above, giving dQ. */
template <bool KEYS_OWNED>
__global__ void backward_kernel(float *dqkv, const float *dout, const float *qkv, const float *lse,
                                const float *delta, attention_args a)
{
    extern __shared__ float shared[];
    int d = (int)a.head_dim, ld = d + 1, time = (int)a.time;
    float *q = shared, *k = q + TILE * ld, *v = k + TILE * ld, *d_o = v + TILE * ld;
    float *p = d_o + TILE * ld, *ds = p + TILE * (TILE + 1);
    place at(a);
    int64_t stride = 3 * a.heads * a.head_dim, part = a.heads * a.head_dim;
    const float *base = qkv + at.b * a.time * stride + at.h * a.head_dim;
    const float *dob = dout + at.b * a.time * part + at.h * a.head_dim;
    float g1[OWN] = {}, g2[OWN] = {};
    int from = KEYS_OWNED ? at.first : 0, to = KEYS_OWNED ? time : at.first + 1;
    for (int walk = from; walk < to; walk += TILE) {
        int q0 = KEYS_OWNED ? walk : at.first, k0 = KEYS_OWNED ? at.first : walk;
        __syncthreads();
        load_rows(q, base, q0, a, stride);
        load_rows(k, base + part, k0, a, stride);
        load_rows(v, base + 2 * part, k0, a, stride);
        load_rows(d_o, dob, q0, a, part);
        __syncthreads();
        int row = q0 + at.row; /* of p and ds: rows are queries */
        float l = row < time ? lse[at.bh * a.time + row] : INFINITY;
        float dl = row < time ? delta[at.bh * a.time + row] : 0.0f;
        for (int i = 0; i < TILE / PER_ROW; i++) {
            int key = at.sub + PER_ROW * i;
            float e = 0.0f, f = 0.0f, dp = 0.0f;
            if (k0 + key <= row && row < time) {
                e = expf(a.scale * dot(q + at.row * ld, k + key * ld, d) - l);
                f = dropout_factor(a, at.b, at.h, row, k0 + key);
                dp = dot(d_o + at.row * ld, v + key * ld, d);
            }
            p[at.row * (TILE + 1) + key] = e * f;
            ds[at.row * (TILE + 1) + key] = e * (dp * f - dl) * a.scale;
        }
        __syncthreads();
        for (int i = 0; i < OWN && at.sub + PER_ROW * i < d; i++) {
            int c = at.sub + PER_ROW * i;
            for (int j = 0; j < TILE; j++) {
                if (KEYS_OWNED) {
                    g1[i] += ds[j * (TILE + 1) + at.row] * q[j * ld + c];
                    g2[i] += p[j * (TILE + 1) + at.row] * d_o[j * ld + c];
                } else {
                    g1[i] += ds[at.row * (TILE + 1) + j] * k[j * ld + c];
                }
            }
        }
    }
    int row = at.first + at.row;
    float *mine = dqkv + (at.b * a.time + row) * stride + at.h * a.head_dim;
    if (row < time)
        for (int i = 0; i < OWN && at.sub + PER_ROW * i < d; i++) {
            int c = at.sub + PER_ROW * i;
            mine[(KEYS_OWNED ? part : 0) + c] = g1[i];
            if (KEYS_OWNED)
                mine[2 * part + c] = g2[i];
        }
}

/* LANES threads share a row of D <= 8*LANES channels. dout, out [B,T,H,D]. */
template <typename T, int LANES>
__global__ void delta_kernel(float *delta, const T *dout, const T *out, attention_args a)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / LANES; /* (b*T + t)*H + h */
    int c = threadIdx.x % LANES * 8;
    float sum = 0.0f;
    if (i < a.batch * a.time * a.heads && c < a.head_dim) {
        float x[8], y[8];
        load_vec(x, dout + i * a.head_dim + c);
        load_vec(y, out + i * a.head_dim + c);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum += x[j] * y[j];
    }
#pragma unroll
    for (int o = 1; o < LANES; o <<= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (i < a.batch * a.time * a.heads && c == 0) {
        int64_t h = i % a.heads, t = i / a.heads % a.time, b = i / a.heads / a.time;
        delta[(b * a.heads + h) * a.time + t] = sum;
    }
}

dim3 grid_of(const attention_args &a)
{
    return GRID(a.batch * a.heads * ((a.time + TILE - 1) / TILE));
}
} // namespace

extern "C" cudaError_t cuda_attention_forward_f32(cudaStream_t s, float *out, float *lse,
                                                  const float *qkv, const struct attention *t)
{
    attention_args a = attention_args_of(*t);
    int bytes = (int)((3 * TILE * (a.head_dim + 1) + TILE * (TILE + 1)) * sizeof(float));
    cudaError_t e =
        cudaFuncSetAttribute(forward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e)
        return e;
    forward_kernel<<<grid_of(a), THREADS, bytes, s>>>(out, lse, qkv, a);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_backward_f32(cudaStream_t s, float *dqkv, const float *dout,
                                                   const float *qkv, const float *lse,
                                                   const float *delta, const struct attention *t)
{
    attention_args a = attention_args_of(*t);
    int bytes = (int)((4 * TILE * (a.head_dim + 1) + 2 * TILE * (TILE + 1)) * sizeof(float));
    cudaError_t e = cudaFuncSetAttribute(backward_kernel<true>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (!e)
        e = cudaFuncSetAttribute(backward_kernel<false>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e)
        return e;
    backward_kernel<true><<<grid_of(a), THREADS, bytes, s>>>(dqkv, dout, qkv, lse, delta, a);
    backward_kernel<false><<<grid_of(a), THREADS, bytes, s>>>(dqkv, dout, qkv, lse, delta, a);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_delta(cudaStream_t s, float *delta, const void *dout,
                                            const void *out, const struct attention *t)
{
    attention_args a = attention_args_of(*t);
    int lanes = a.head_dim <= 64 ? 8 : 16;
    dim3 grid = GRID((a.batch * a.time * a.heads * lanes + 255) / 256);
    WITH_TYPE(t->dt, {
        if (lanes == 8)
            delta_kernel<T, 8><<<grid, 256, 0, s>>>(delta, (const T *)dout, (const T *)out, a);
        else
            delta_kernel<T, 16><<<grid, 256, 0, s>>>(delta, (const T *)dout, (const T *)out, a);
    });
    return cudaGetLastError();
}
