/* init.c - initial values: normal numbers by Box-Muller on Philox.
 *
 * Element e is output e % 2 of counter e / 2: with 32-bit words r0, r1 of the counter's block,
 *     radius = std sqrt(-2 ln((r0 + 1) / 2^32)), angle = 2 pi r1 / 2^32,
 *     value = radius cos(angle) or radius sin(angle),
 * in double, rounded to float. Drawing XL's 1.6 G values through libm takes a minute of one core,
 * so pairs are made in blocks whose loops vectorise, with polynomials for ln, cos and sin. Their
 * result is within 2^-48 radius of libm's; a value that lies so close to the middle between two
 * floats that the two could round apart (one in some 2^16) is made again with libm. Thus the values
 * are those of the formula through libm, bit for bit, whatever instructions the loops became.
 * Test: tests/unit/test_gpt2_model.c. */
#include "gpt2/tensors.h"

#include "base/checked.h"
#include "base/philox.h"

#include <math.h>
#include <string.h>

#define INIT_STD 0.02
/* Philox stream of initial values; dropout and shuffling use other streams of the same seed. */
#define INIT_STREAM_BASE (0x496e6974ull << 32) /* "Init" */

/* Pairs made together: working memory fits the first-level cache. */
enum { PAIRS = 256 };

/* More than the two ways of computing a value can differ by, in units of its radius: a few
 * roundings each, of which the largest is that of the angle, 2^-51, where a fused multiply-add
 * leaves it out. */
#define DOUBT 0x1p-44

static uint64_t bits_of(double x)
{
    uint64_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static double double_of(uint64_t b)
{
    double x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static double uniform_of(uint32_t r)
{
    return ((double)r + 1.0) * 0x1p-32; /* in (0, 1], exact */
}

static double angle_of(uint32_t r)
{
    return 2.0 * M_PI * ((double)r * 0x1p-32);
}

/* The definition. */
static void normal_pair(uint32_t r0, uint32_t r1, double std, float out[2])
{
    double radius = std * sqrt(-2.0 * log(uniform_of(r0)));
    out[0] = (float)(radius * cos(angle_of(r1)));
    out[1] = (float)(radius * sin(angle_of(r1)));
}

/* ln of a normal double: x = 2^k m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m-1)/(m+1)) by
 * its series, whose first term left out is below 2^-54 of the sum. */
static inline double fast_log(double x)
{
    const uint64_t half_root = 0x3FE6A09E00000000ull; /* just below sqrt(1/2) */
    uint64_t b = bits_of(x) + (0x3FF0000000000000ull - half_root);
    /* The exponent to double without an integer conversion: as the low bits of 2^52. */
    double k = double_of((b >> 52) | 0x4330000000000000ull) - (0x1p52 + 1023.0);
    double m = double_of((b & 0x000FFFFFFFFFFFFFull) + half_root);
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 2.0 / 19;
    p = p * z + 2.0 / 17;
    p = p * z + 2.0 / 15;
    p = p * z + 2.0 / 13;
    p = p * z + 2.0 / 11;
    p = p * z + 2.0 / 9;
    p = p * z + 2.0 / 7;
    p = p * z + 2.0 / 5;
    p = p * z + 2.0 / 3;
    return k * M_LN2 + (s * 2.0 + s * z * p);
}

/* cos and sin of angle = angle_of(r) by their series on [-pi/4, pi/4] around the nearest multiple q
 * of pi/2, which r's upper bits give. pi/2 is taken off in two parts, the first of 50 bits so that
 * q times it is exact. */
static inline void fast_cos_sin(uint32_t r, double angle, double *cosine, double *sine)
{
    const double upper = 0x1.921fb54442d18p0, lower = 0x1.1a62633145c07p-54;
    uint64_t quarter = ((uint64_t)r + 0x20000000u) >> 30; /* 0..4 */
    double q = double_of(quarter | 0x4330000000000000ull) - 0x1p52;
    double x = (angle - q * upper) - q * lower, z = x * x;
    double s = -1.0 / 1307674368000.0, c = 1.0 / 20922789888000.0;
    s = s * z + 1.0 / 6227020800.0;
    s = s * z - 1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z - 1.0 / 6.0;
    s = x + x * z * s;
    c = c * z - 1.0 / 87178291200.0;
    c = c * z + 1.0 / 479001600.0;
    c = c * z - 1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = c * z - 0.5;
    c = 1.0 + z * c;
    /* Odd quarters swap the two; signs are (+,+), (-,+), (-,-), (+,-) from the first on. */
    uint64_t swap = -(quarter & 1), cb = bits_of(c), sb = bits_of(s);
    uint64_t cos_sign = ((quarter + 1) >> 1 & 1) << 63, sin_sign = (quarter >> 1 & 1) << 63;
    *cosine = double_of(((cb & ~swap) | (sb & swap)) ^ cos_sign);
    *sine = double_of(((sb & ~swap) | (cb & swap)) ^ sin_sign);
}

/* Would a value within margin of x round to another float? Yes for zeros, whose sign counts. */
static inline bool in_doubt(double x, double margin)
{
    return (float)(x - margin) != (float)(x + margin) || x == 0.0;
}

static void draw_words(uint64_t key, uint64_t first, uint32_t r0[PAIRS], uint32_t r1[PAIRS])
{
    for (int i = 0; i < PAIRS; i++) {
        struct philox4 r = philox4x32(key, first + (uint64_t)i, 0);
        r0[i] = r.v[0];
        r1[i] = r.v[1];
    }
}

/* out[2 PAIRS] = the values of PAIRS counters from `first`. */
static void normal_block(uint64_t key, uint64_t first, double std, float out[2 * PAIRS])
{
    uint32_t r0[PAIRS], r1[PAIRS];
    uint32_t doubt[PAIRS], any = 0;
    draw_words(key, first, r0, r1);
    for (int i = 0; i < PAIRS; i++) {
        double radius = std * sqrt(-2.0 * fast_log(uniform_of(r0[i]))), c, s;
        fast_cos_sin(r1[i], angle_of(r1[i]), &c, &s);
        c *= radius;
        s *= radius;
        doubt[i] = in_doubt(c, radius * DOUBT) | in_doubt(s, radius * DOUBT);
        out[2 * i] = (float)c;
        out[2 * i + 1] = (float)s;
    }
    for (int i = 0; i < PAIRS; i++)
        any |= doubt[i];
    for (int i = 0; any && i < PAIRS; i++)
        if (doubt[i])
            normal_pair(r0[i], r1[i], std, &out[2 * i]);
}

void gpt2_init_values(const struct gpt2_tensors *t, const struct gpt2_config *c, int64_t index,
                      uint64_t seed, int64_t first, int64_t n, float *out)
{
    const struct gpt2_tensor *x = &t->tensors[index];
    if (x->init == GPT2_INIT_ZERO || x->init == GPT2_INIT_ONE) {
        for (int64_t i = 0; i < n; i++)
            out[i] = x->init == GPT2_INIT_ONE ? 1.0f : 0.0f;
        return;
    }
    double std = INIT_STD;
    if (x->init == GPT2_INIT_RESIDUAL)
        std /= sqrt(2.0 * (double)c->layers);
    uint64_t key = philox_key(seed, INIT_STREAM_BASE + (uint64_t)index);
    float block[2 * PAIRS];
    for (int64_t done = 0; done < n;) {
        int64_t element = first + done, skip = element % 2;
        int64_t count = min_i64(n - done, 2 * PAIRS - skip);
        bool whole = skip == 0 && count == 2 * PAIRS;
        normal_block(key, (uint64_t)(element / 2), std, whole ? out + done : block);
        if (!whole)
            memcpy(out + done, block + skip, (size_t)count * sizeof *out);
        done += count;
    }
}
