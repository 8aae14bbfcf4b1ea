/* optimizer.cu - the global norm, the clip-or-skip decision and AdamW, without a host round trip.
 * CPU twins: src/device/cpu. Test: tests/unit/test_parity.c. */
#include "device/cuda/kernels.h"
#include "device/cuda/vector.cuh"

enum { THREADS = 256 };

__device__ __forceinline__ double block_sum_double(double x, double *scratch)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, o);
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}

/* partials[block] = sum of x (or x^2) over the block's strided share. The partition depends on n
 * alone, so the result is the same every time. fp32 within a run of 64 terms, double beyond. */
template <bool SQUARES> __global__ void reduce_kernel(double *partials, const float *x, int64_t n)
{
    __shared__ double scratch[32];
    int64_t step = (int64_t)gridDim.x * THREADS * 4;
    double total = 0.0;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4; i < n; i += step) {
        float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (i + 4 <= n && (uintptr_t)x % 16 == 0)
            load_vec(v, x + i);
        else
            for (int j = 0; j < 4 && i + j < n; j++)
                v[j] = x[i + j];
        float t = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++)
            t += SQUARES ? v[j] * v[j] : v[j];
        total += t;
    }
    total = block_sum_double(total, scratch);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = total;
}

__global__ void reduce_finish_kernel(float *sum, const double *partials, int blocks,
                                     bool accumulate)
{
    __shared__ double scratch[32];
    double t = 0.0;
    for (int i = threadIdx.x; i < blocks; i += THREADS)
        t += partials[i];
    t = block_sum_double(t, scratch);
    if (threadIdx.x == 0)
        *sum = (float)((accumulate ? (double)*sum : 0.0) + t);
}

extern "C" cudaError_t cuda_reduce_sum(cudaStream_t s, float *sum, const float *x, int64_t n,
                                       bool squares, bool accumulate, double *partials)
{
    int64_t blocks = (n + THREADS * 16 - 1) / (THREADS * 16);
    blocks = blocks < 1 ? 1 : blocks > CUDA_REDUCE_BLOCKS ? (int64_t)CUDA_REDUCE_BLOCKS : blocks;
    if (squares)
        reduce_kernel<true><<<GRID(blocks), THREADS, 0, s>>>(partials, x, n);
    else
        reduce_kernel<false><<<GRID(blocks), THREADS, 0, s>>>(partials, x, n);
    reduce_finish_kernel<<<1, THREADS, 0, s>>>(sum, partials, (int)blocks, accumulate);
    return cudaGetLastError();
}

/* norm = sqrt(norm_squared) |unscale|; grad_scale = unscale * min(1, clip/norm); see device.h. */
__global__ void step_control_kernel(struct step_control *c, const float *norm_squared,
                                    const float *loss_sum, float unscale, float loss_unscale,
                                    float clip)
{
    float norm = sqrtf(*norm_squared) * fabsf(unscale);
    bool bad = !isfinite(norm);
    float scale = unscale;
    if (!bad && clip > 0.0f && norm > clip)
        scale *= clip / (norm + 1e-6f); /* as clip_grad_norm_ of PyTorch */
    c->grad_scale = scale;
    c->skip = bad ? 1.0f : 0.0f;
    c->grad_norm = norm;
    c->loss = loss_sum ? *loss_sum * loss_unscale : 0.0f;
}

extern "C" cudaError_t cuda_step_control(cudaStream_t s, struct step_control *c,
                                         const float *norm_squared, const float *loss_sum,
                                         float unscale, float loss_unscale, float clip)
{
    step_control_kernel<<<1, 1, 0, s>>>(c, norm_squared, loss_sum, unscale, loss_unscale, clip);
    return cudaGetLastError();
}

struct adamw_args {
    float lr, beta1, beta2, eps, weight_decay, correction1, correction2;
    bool decoupled;
};

/* g = grad * c.grad_scale; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 * p -= lr (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) [+ wd p]); working = p. All fp32, in place.
 * Loshchilov and Hutter 2019, algorithm 2; not decoupled: g += wd p first. */
__device__ __forceinline__ void adamw_element(float &p, float &m, float &v, float g,
                                              const adamw_args &h)
{
    if (!h.decoupled)
        g += h.weight_decay * p;
    m = h.beta1 * m + (1.0f - h.beta1) * g;
    v = h.beta2 * v + (1.0f - h.beta2) * g * g;
    float update = (m * h.correction1) / (sqrtf(v * h.correction2) + h.eps);
    if (h.decoupled)
        update += h.weight_decay * p;
    p -= h.lr * update;
}

template <typename T, int VEC>
__global__ void adamw_kernel(float *master, float *m, float *v, const float *grad, T *working,
                             int64_t n, adamw_args h, const struct step_control *c)
{
    if (c->skip != 0.0f)
        return;
    float scale = c->grad_scale;
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (i + VEC <= n) {
        float p_[VEC], m_[VEC], v_[VEC], g_[VEC];
        load_vec(p_, master + i);
        load_vec(m_, m + i);
        load_vec(v_, v + i);
        load_vec(g_, grad + i);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            adamw_element(p_[j], m_[j], v_[j], g_[j] * scale, h);
        store_vec(master + i, p_);
        store_vec(m + i, m_);
        store_vec(v + i, v_);
        if (working)
            store_vec(working + i, p_);
    } else {
        for (int64_t j = i; j < n; j++) {
            adamw_element(master[j], m[j], v[j], grad[j] * scale, h);
            if (working)
                working[j] = from_f32<T>(master[j]);
        }
    }
}

extern "C" cudaError_t cuda_adamw(cudaStream_t s, float *master, float *m, float *v,
                                  const float *grad, void *working, int64_t n, enum dtype dt,
                                  const struct adamw *h, const struct step_control *c)
{
    adamw_args a = {h->lr,
                    h->beta1,
                    h->beta2,
                    h->eps,
                    h->weight_decay,
                    (float)(1.0 / (1.0 - pow((double)h->beta1, (double)h->step))),
                    (float)(1.0 / (1.0 - pow((double)h->beta2, (double)h->step))),
                    h->decoupled};
    bool vector = ((uintptr_t)master | (uintptr_t)m | (uintptr_t)v | (uintptr_t)grad) % 16 == 0 &&
                  (uintptr_t)working % 8 == 0;
    int64_t per_block = THREADS * (vector ? 4 : 1);
    dim3 grid = GRID((n + per_block - 1) / per_block);
    WITH_TYPE(dt, {
        if (vector)
            adamw_kernel<T, 4><<<grid, THREADS, 0, s>>>(master, m, v, grad, (T *)working, n, a, c);
        else
            adamw_kernel<T, 1><<<grid, THREADS, 0, s>>>(master, m, v, grad, (T *)working, n, a, c);
    });
    return cudaGetLastError();
}
