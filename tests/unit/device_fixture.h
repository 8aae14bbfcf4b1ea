/* device_fixture.h - what the tests of device kernels share: an open device, arrays that are freed
 * together, reproducible data, comparison by largest error. */
#ifndef TESTS_DEVICE_FIXTURE_H
#define TESTS_DEVICE_FIXTURE_H

#include "base/philox.h"
#include "device/device.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>

enum { FX_ARRAYS = 4096 };
static struct {
    void *arrays[FX_ARRAYS];
    int count;
} fx_;

static inline void *fx_alloc(size_t bytes)
{
    void *p = calloc(1, bytes + 64);
    if (!p || fx_.count == FX_ARRAYS) {
        printf("Bail out! out of test memory\n");
        exit(1);
    }
    fx_.arrays[fx_.count++] = p;
    return p;
}

static inline void fx_free_all(void)
{
    while (fx_.count > 0)
        free(fx_.arrays[--fx_.count]);
}

static inline float *fx_floats(int64_t n)
{
    return fx_alloc((size_t)n * sizeof(float));
}

/* Uniform in [-scale, scale), a function of (seed, i). */
static inline float *fx_random(int64_t n, uint64_t seed, float scale)
{
    float *x = fx_floats(n);
    for (int64_t i = 0; i < n; i++) {
        struct philox4 r = philox4x32(philox_key(seed, 77), (uint64_t)i / 4, 0);
        x[i] = (2.0f * philox_uniform(r.v[i % 4]) - 1.0f) * scale;
    }
    return x;
}

static inline int32_t *fx_tokens(int64_t n, uint64_t seed, int64_t below)
{
    int32_t *x = fx_alloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (int32_t)(philox4x32(philox_key(seed, 78), (uint64_t)i, 0).v[0] % (uint32_t)below);
    return x;
}

static inline size_t fx_width(enum dtype dt)
{
    return dtype_bytes(dt);
}

/* A copy of x in dt, and back. */
static inline void *fx_narrow(const float *x, enum dtype dt, int64_t n)
{
    void *out = fx_alloc((size_t)n * fx_width(dt));
    for (int64_t i = 0; i < n; i++) {
        if (dt == DTYPE_F32)
            ((float *)out)[i] = x[i];
        else
            ((uint16_t *)out)[i] = dt == DTYPE_BF16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
    }
    return out;
}

static inline float fx_get(const void *x, enum dtype dt, int64_t i)
{
    if (dt == DTYPE_F32)
        return ((const float *)x)[i];
    uint16_t h = ((const uint16_t *)x)[i];
    return dt == DTYPE_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

/* Half a unit in the last place of dt, relative. */
static inline double fx_epsilon(enum dtype dt)
{
    return dt == DTYPE_F32 ? 6e-8 : dt == DTYPE_BF16 ? 3.91e-3 : 4.89e-4;
}

/* CHECK that |got - want| <= absolute + relative * |want| everywhere, naming the worst element. */
#define CHECK_CLOSE(got, want, dt, n, absolute, relative)                                          \
    do {                                                                                           \
        const void *got_all_ = (got);                                                              \
        const __typeof__((want)[0]) *want_all_ = (want);                                           \
        int64_t worst_ = -1;                                                                       \
        double excess_ = 0;                                                                        \
        for (int64_t i_ = 0; i_ < (int64_t)(n); i_++) {                                            \
            double w_ = (double)want_all_[i_];                                                     \
            double d_ = fabs((double)fx_get(got_all_, dt, i_) - w_);                               \
            double x_ = d_ - ((double)(absolute) + (double)(relative)*fabs(w_));                   \
            if (!(x_ <= 0) && (worst_ < 0 || !(x_ <= excess_))) {                                  \
                worst_ = i_;                                                                       \
                excess_ = x_;                                                                      \
            }                                                                                      \
        }                                                                                          \
        if (worst_ >= 0)                                                                           \
            tap_fail_(__FILE__, __LINE__, "%s[%lld]: got %.9g, want %.9g within %g + %g relative", \
                      #got, (long long)worst_, (double)fx_get(got_all_, dt, worst_),               \
                      (double)want_all_[worst_], (double)(absolute), (double)(relative));          \
    } while (0)

#define CHECK_SAME_BITS(x, y, bytes) CHECK(memcmp(x, y, bytes) == 0)

static inline struct device *fx_open(const char *name)
{
    struct error e = {0};
    struct device *dev = NULL;
    if (device_open(&dev, name, 0, &e) != STATUS_OK) {
        printf("Bail out! %s\n", e.message);
        exit(1);
    }
    return dev;
}

static inline void fx_check_device(struct device *dev)
{
    struct error e = {0};
    if (dev->ops->stream_sync(dev, dev->compute, &e) != STATUS_OK)
        tap_fail_(__FILE__, __LINE__, "device failed: %s", e.message);
}

#endif
