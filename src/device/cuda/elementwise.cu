/* elementwise.cu - casts, accumulation, dropout, product epilogues and row gathering: one pass over
 * memory each, bound by bandwidth. Every output element is owned by one thread; deterministic.
 * CPU twins: src/device/cpu. Test: tests/unit/test_parity.c. */
#include "device/cuda/kernels.h"
#include "device/cuda/vector.cuh"

enum { THREADS = 256 };

static bool aligned16(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* Enough blocks for n elements of `per_thread`, at most a few waves: the kernels stride. */
static dim3 stride_grid(int64_t n, int per_thread)
{
    int64_t blocks = (n + (int64_t)THREADS * per_thread - 1) / ((int64_t)THREADS * per_thread);
    return GRID(blocks < 16384 ? blocks : 16384);
}

/* dst[i] = src[i] in another type. n elements, VEC at a time. */
template <typename D, typename S, int VEC>
__global__ void cast_kernel(D *dst, const S *src, int64_t n)
{
    int64_t step = (int64_t)gridDim.x * THREADS * VEC;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VEC; i < n; i += step) {
        if (i + VEC <= n) {
            float x[VEC];
            load_vec(x, src + i);
            store_vec(dst + i, x);
        } else {
            for (int64_t j = i; j < n; j++)
                dst[j] = from_f32<D>(to_f32(src[j]));
        }
    }
}

template <typename D, typename S>
static void cast_launch(cudaStream_t s, void *dst, const void *src, int64_t n)
{
    if (aligned16(dst) && aligned16(src))
        cast_kernel<D, S, 8><<<stride_grid(n, 8), THREADS, 0, s>>>((D *)dst, (const S *)src, n);
    else
        cast_kernel<D, S, 1><<<stride_grid(n, 1), THREADS, 0, s>>>((D *)dst, (const S *)src, n);
}

template <typename S>
static void cast_from(cudaStream_t s, void *dst, enum dtype dst_dt, const void *src, int64_t n)
{
    WITH_TYPE(dst_dt, (cast_launch<T, S>(s, dst, src, n)));
}

extern "C" cudaError_t cuda_cast(cudaStream_t s, void *dst, enum dtype dst_dt, const void *src,
                                 enum dtype src_dt, int64_t n)
{
    WITH_TYPE(src_dt, (cast_from<T>(s, dst, dst_dt, src, n)));
    return cudaGetLastError();
}

/* dst[i] += src[i] * scale, dst fp32. */
template <typename S, int VEC>
__global__ void accumulate_kernel(float *dst, const S *src, int64_t n, float scale)
{
    int64_t step = (int64_t)gridDim.x * THREADS * VEC;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VEC; i < n; i += step) {
        if (i + VEC <= n) {
            float x[VEC], d[VEC];
            load_vec(x, src + i);
            load_vec(d, dst + i);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                d[j] += x[j] * scale;
            store_vec(dst + i, d);
        } else {
            for (int64_t j = i; j < n; j++)
                dst[j] += to_f32(src[j]) * scale;
        }
    }
}

extern "C" cudaError_t cuda_accumulate(cudaStream_t s, float *dst, const void *src,
                                       enum dtype src_dt, int64_t n, float scale)
{
    bool vector = aligned16(dst) && aligned16(src);
    WITH_TYPE(src_dt, {
        if (vector)
            accumulate_kernel<T, 8>
                <<<stride_grid(n, 8), THREADS, 0, s>>>(dst, (const T *)src, n, scale);
        else
            accumulate_kernel<T, 1>
                <<<stride_grid(n, 1), THREADS, 0, s>>>(dst, (const T *)src, n, scale);
    });
    return cudaGetLastError();
}

/* dst = src * mask/(1-p); [B, per_sample] with per_sample = T*C; a plain copy without dropout. */
template <typename T, int VEC>
__global__ void dropout_kernel(T *dst, const T *src, int64_t n, int64_t per_sample, dropout_mask m)
{
    int64_t step = (int64_t)gridDim.x * THREADS * VEC;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VEC; i < n; i += step) {
        float x[VEC];
        load_vec(x, src + i);
        if (m.threshold) {
            int64_t b = i / per_sample;
            dropout_apply(x, m, (uint64_t)m.samples[b], (uint64_t)(i - b * per_sample));
        }
        store_vec(dst + i, x);
    }
}

extern "C" cudaError_t cuda_dropout(cudaStream_t s, void *dst, const void *src, int64_t batch,
                                    int64_t time, int64_t channels, enum dtype dt,
                                    struct dropout dropout)
{
    int64_t per_sample = time * channels, n = batch * per_sample;
    dropout_mask m = dropout_mask_of(dropout);
    WITH_TYPE(dt, {
        if (per_sample % 8 == 0 && aligned16(dst) && aligned16(src))
            dropout_kernel<T, 8>
                <<<stride_grid(n, 8), THREADS, 0, s>>>((T *)dst, (const T *)src, n, per_sample, m);
        else
            dropout_kernel<T, 1>
                <<<stride_grid(n, 1), THREADS, 0, s>>>((T *)dst, (const T *)src, n, per_sample, m);
    });
    return cudaGetLastError();
}

/* d gelu / dx */
__device__ __forceinline__ float gelu_derivative(float x)
{
    float t = tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x));
    float du = 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du;
}

template <typename O, typename T>
__global__ void epilogue_kernel(O *d, const T *bias, bool with_gelu, T *gelu_aux,
                                const T *dgelu_aux, int64_t m, int64_t n, int64_t ldd)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < m * n; i += step) {
        int64_t row = i / n, col = i - row * n;
        float x = to_f32(d[row * ldd + col]);
        if (bias)
            x += to_f32(bias[col]);
        if (gelu_aux)
            gelu_aux[i] = from_f32<T>(x);
        if (with_gelu)
            x = gelu(x);
        if (dgelu_aux)
            x *= gelu_derivative(to_f32(dgelu_aux[i]));
        d[row * ldd + col] = from_f32<O>(x);
    }
}

extern "C" cudaError_t cuda_epilogue(cudaStream_t s, void *d, enum dtype out_dt, const void *bias,
                                     bool gelu, void *gelu_aux, const void *dgelu_aux,
                                     enum dtype dt, int64_t m, int64_t n, int64_t ldd)
{
    dim3 grid = stride_grid(m * n, 4);
    WITH_TYPE(dt, {
        if (out_dt == DTYPE_F32)
            epilogue_kernel<float, T><<<grid, THREADS, 0, s>>>(
                (float *)d, (const T *)bias, gelu, (T *)gelu_aux, (const T *)dgelu_aux, m, n, ldd);
        else
            epilogue_kernel<T, T><<<grid, THREADS, 0, s>>>(
                (T *)d, (const T *)bias, gelu, (T *)gelu_aux, (const T *)dgelu_aux, m, n, ldd);
    });
    return cudaGetLastError();
}

/* dst[i,:] = src[rows[i],:]; one block a row. */
template <typename T, int VEC>
__global__ void gather_kernel(T *dst, const T *src, const int32_t *rows, int64_t channels)
{
    const T *from = src + (int64_t)rows[blockIdx.x] * channels;
    T *to = dst + (int64_t)blockIdx.x * channels;
    for (int64_t c = (int64_t)threadIdx.x * VEC; c < channels; c += blockDim.x * VEC)
        *reinterpret_cast<vec<T, VEC> *>(to + c) = *reinterpret_cast<const vec<T, VEC> *>(from + c);
}

extern "C" cudaError_t cuda_gather_rows(cudaStream_t s, void *dst, const void *src,
                                        const int32_t *rows, int64_t n, int64_t channels,
                                        enum dtype dt)
{
    WITH_TYPE(dt, {
        constexpr int VEC = 16 / sizeof(T);
        if (channels % VEC == 0 && aligned16(dst) && aligned16(src))
            gather_kernel<T, VEC><<<GRID(n), 128, 0, s>>>((T *)dst, (const T *)src, rows, channels);
        else
            gather_kernel<T, 1><<<GRID(n), 128, 0, s>>>((T *)dst, (const T *)src, rows, channels);
    });
    return cudaGetLastError();
}

template <typename T> __global__ void nonfinite_kernel(int32_t *found, const T *x, int64_t n)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    bool bad = false;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
        bad |= !isfinite(to_f32(x[i]));
    if (bad)
        *found = 1;
}

extern "C" cudaError_t cuda_find_nonfinite(cudaStream_t s, int32_t *found, const void *x, int64_t n,
                                           enum dtype dt)
{
    WITH_TYPE(dt,
              (nonfinite_kernel<T><<<stride_grid(n, 8), THREADS, 0, s>>>(found, (const T *)x, n)));
    return cudaGetLastError();
}

__global__ void compare_kernel(int32_t *differs, const uint16_t *a, const uint16_t *b, int64_t n)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    bool same = true;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
        same &= a[i] == b[i];
    if (!same)
        *differs = 1;
}

extern "C" cudaError_t cuda_compare(cudaStream_t s, int32_t *differs, const void *a, const void *b,
                                    size_t bytes)
{
    int64_t n = (int64_t)(bytes / 2);
    if (n > 0)
        compare_kernel<<<stride_grid(n, 8), THREADS, 0, s>>>(differs, (const uint16_t *)a,
                                                             (const uint16_t *)b, n);
    return cudaGetLastError();
}
