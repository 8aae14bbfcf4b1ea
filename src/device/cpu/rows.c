/* rows.c - conversions, sums and dropout masks by rows. */
#include "device/cpu/rows.h"

#include "base/philox.h"
#include "device/cpu/math.h"
#include "device/cpu/vector.h"

void row_to_f32(float *restrict dst, const void *restrict src, enum dtype dt, int64_t n)
{
    const uint16_t *h = src;
    if (dt == DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
    } else if (dt == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++)
            dst[i] = load_bf16(h[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            dst[i] = load_f16(h[i]);
    }
}

void row_from_f32(void *restrict dst, const float *restrict src, enum dtype dt, int64_t n)
{
    uint16_t *h = dst;
    if (dt == DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof *src);
    } else if (dt == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++)
            h[i] = store_bf16(src[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            h[i] = store_f16(src[i]);
    }
}

const float *row_read(const void *base, int64_t i, enum dtype dt, int64_t n, float *buffer)
{
    if (dt == DTYPE_F32)
        return (const float *)base + i;
    row_to_f32(buffer, element(base, i, dt), dt, n);
    return buffer;
}

void row_round(float *row, enum dtype dt, int64_t n)
{
    if (dt == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++)
            row[i] = load_bf16(store_bf16(row[i]));
    } else if (dt == DTYPE_F16) {
        for (int64_t i = 0; i < n; i++)
            row[i] = load_f16(store_f16(row[i]));
    }
}

double row_sum(const float *x, int64_t n)
{
    struct wide_sum a = {0}, b = {0};
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        wide_add(&a, vf_load(x + i));
        wide_add(&b, vf_load(x + i + VL));
    }
    double sum = wide_total(a) + wide_total(b);
    for (; i < n; i++)
        sum += (double)x[i];
    return sum;
}

double row_dot(const float *x, const float *y, int64_t n)
{
    struct wide_sum a = {0}, b = {0};
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        wide_add_product(&a, vf_load(x + i), vf_load(y + i));
        wide_add_product(&b, vf_load(x + i + VL), vf_load(y + i + VL));
    }
    double sum = wide_total(a) + wide_total(b);
    for (; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

float row_max(const float *x, int64_t n)
{
    vf a = (vf){0} - INFINITY, b = a;
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        a = vf_max(vf_load(x + i), a);
        b = vf_max(vf_load(x + i + VL), b);
    }
    float max = vf_max_lane(vf_max(a, b));
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

double row_sum_exp(float *out, const float *x, int64_t n, float max)
{
    struct wide_sum a = {0}, b = {0};
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        vf p = vf_exp(vf_load(x + i) - max), q = vf_exp(vf_load(x + i + VL) - max);
        wide_add(&a, p);
        wide_add(&b, q);
        if (out) {
            vf_store(out + i, p);
            vf_store(out + i + VL, q);
        }
    }
    double sum = wide_total(a) + wide_total(b);
    for (; i < n; i++) {
        float p = exp_f32(x[i] - max);
        sum += (double)p;
        if (out)
            out[i] = p;
    }
    return sum;
}

void dropout_mask(float *mask, const struct dropout *d, int64_t sample, int64_t first, int64_t n)
{
    const uint64_t key = philox_key(d->seed, d->site);
    const float scale = 1.0f / (1.0f - d->p), p = d->p;
    int64_t i = 0;
    while (i < n && (first + i) % 4 != 0) { /* up to the first whole group of four */
        struct philox4 r = philox4x32(key, (uint64_t)(first + i) / 4, (uint64_t)sample);
        mask[i] = philox_uniform(r.v[(first + i) % 4]) >= p ? scale : 0.0f;
        i++;
    }
    const uint64_t group = (uint64_t)(first + i) / 4;
    const int64_t groups = (n - i) / 4;
    float *whole = mask + i;
#pragma omp simd
    for (int64_t g = 0; g < groups; g++) {
        struct philox4 r = philox4x32(key, group + (uint64_t)g, (uint64_t)sample);
        whole[4 * g] = philox_uniform(r.v[0]) >= p ? scale : 0.0f;
        whole[4 * g + 1] = philox_uniform(r.v[1]) >= p ? scale : 0.0f;
        whole[4 * g + 2] = philox_uniform(r.v[2]) >= p ? scale : 0.0f;
        whole[4 * g + 3] = philox_uniform(r.v[3]) >= p ? scale : 0.0f;
    }
    for (i += 4 * groups; i < n; i++) {
        struct philox4 r = philox4x32(key, (uint64_t)(first + i) / 4, (uint64_t)sample);
        mask[i] = philox_uniform(r.v[(first + i) % 4]) >= p ? scale : 0.0f;
    }
}

void dropout_row(float *row, const struct dropout *d, int64_t row_index, int64_t time, int64_t n,
                 float *buffer)
{
    if (d->p == 0.0f)
        return;
    dropout_mask(buffer, d, d->samples[row_index / time], row_index % time * n, n);
    /* Selecting, not multiplying: a dropped infinity is zero, as on every backend. */
    for (int64_t i = 0; i < n; i++)
        row[i] = buffer[i] != 0.0f ? row[i] * buffer[i] : 0.0f;
}
