/* test_base_number.c - 16-bit floats over all their values, digests, and the random generator's
 * published known answers. */
#include "base/checked.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/le.h"
#include "base/philox.h"
#include "base/sha256.h"
#include "tap.h"

#include <float.h>
#include <stdlib.h>

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* The value of a half by the definition of binary16, in double. */
static double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

/* The nearest of the sorted finite values by search, ties to even: slow and obviously right. */
static uint16_t nearest_half(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    if (a >= 65520)
        return sign | 0x7c00;
    uint16_t low = 0, high = 0x7bff;
    while (low < high) { /* the largest half <= a */
        uint16_t middle = (uint16_t)((low + high + 1) / 2);
        if (half_value(middle) <= a)
            low = middle;
        else
            high = (uint16_t)(middle - 1);
    }
    if (low == 0x7bff)
        return sign | low;
    double below = a - half_value(low), above = half_value((uint16_t)(low + 1)) - a;
    bool up = above < below || (above == below && (low & 1));
    return (uint16_t)(sign | (low + up));
}

static void test_halves(void)
{
    CASE("every fp16 value survives a round trip and means what binary16 says")
    {
        int wrong = 0;
        for (uint32_t h = 0; h < 65536; h++) {
            float f = f16_to_f32((uint16_t)h);
            bool is_nan = (h & 0x7fff) > 0x7c00, is_inf = (h & 0x7fff) == 0x7c00;
            if (is_nan)
                wrong += !isnan(f) || (f32_to_f16(f) & 0x7fff) <= 0x7c00;
            else if (is_inf)
                wrong += !isinf(f) || f32_to_f16(f) != h;
            else
                wrong += (double)f != half_value((uint16_t)h) || f32_to_f16(f) != h ||
                         (signbit(f) != 0) != (h >> 15 != 0);
        }
        CHECK_INT(wrong, 0);
    }
    CASE("fp16 rounds to nearest even around every boundary")
    {
        int wrong = 0;
        for (uint32_t h = 0; h < 0x7c00; h++) {
            double a = half_value((uint16_t)h), b = half_value((uint16_t)(h + 1));
            float middle = (float)((a + b) / 2); /* exact in binary32 */
            float tests[5] = {middle, nextafterf(middle, INFINITY), nextafterf(middle, -INFINITY),
                              nextafterf((float)a, INFINITY), -middle};
            for (int k = 0; k < 5; k++)
                wrong += f32_to_f16(tests[k]) != nearest_half(tests[k]);
        }
        CHECK_INT(wrong, 0);
        CHECK_INT(f32_to_f16(65519.996f), 0x7bff);
        CHECK_INT(f32_to_f16(65520.0f), 0x7c00);
        CHECK_INT(f32_to_f16(FLT_MAX), 0x7c00);
        CHECK_INT(f32_to_f16(0x1p-25f), 0);
        CHECK_INT(f32_to_f16(nextafterf(0x1p-25f, 1)), 1);
        CHECK_INT(f32_to_f16(FLT_TRUE_MIN), 0);
        CHECK_INT(f32_to_f16(-0.0f), 0x8000);
    }
    CASE("every bf16 value survives a round trip; NaN stays NaN")
    {
        int wrong = 0;
        for (uint32_t h = 0; h < 65536; h++) {
            float f = bf16_to_f32((uint16_t)h);
            wrong += bits_of(f) != h << 16;
            if ((h & 0x7fff) > 0x7f80)
                wrong += (f32_to_bf16(f) & 0x7fff) <= 0x7f80;
            else
                wrong += f32_to_bf16(f) != h;
        }
        CHECK_INT(wrong, 0);
        /* A NaN whose payload lies in the dropped half must not become infinity. */
        CHECK_INT(f32_to_bf16(float_of(0x7f800001)) & 0x7fff, 0x7fc0);
        CHECK_INT(f32_to_bf16(float_of(0x7fffffff)) & 0x7fff, 0x7fff);
    }
    CASE("bf16 rounds to nearest even")
    {
        int wrong = 0;
        for (uint32_t h = 0; h < 0x7f80; h++) {
            uint32_t u = h << 16;
            wrong += f32_to_bf16(float_of(u + 0x7fff)) != h;
            wrong += f32_to_bf16(float_of(u + 0x8000)) != h + (h & 1);
            wrong += f32_to_bf16(float_of(u + 0x8001)) != h + 1;
            wrong += f32_to_bf16(float_of(0x80000000u | (u + 0x8001))) != (0x8000 | (h + 1));
        }
        CHECK_INT(wrong, 0);
        CHECK_INT(f32_to_bf16(FLT_MAX), 0x7f80);
    }
    CASE("sizes and names")
    {
        CHECK_INT(dtype_bytes(DTYPE_BF16), 2);
        CHECK_INT(dtype_bytes(DTYPE_I64), 8);
        CHECK_INT(dtype_bytes((enum dtype)77), 0);
        CHECK_STR(dtype_name(DTYPE_F16), "fp16");
        CHECK_STR(dtype_name((enum dtype)0), "unknown");
    }
}

static void test_digests(void)
{
    CASE("XXH3 equals the library's published values and streams alike")
    {
        CHECK(hash64("", 0) == 0x2d06800538d394c2ull); /* xxHash's sanity value for no input */
        uint8_t data[10000];
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = (uint8_t)(i * 131 >> 3);
        struct hash_state *h = hash_new();
        CHECK(h != NULL);
        size_t at = 0;
        for (size_t n = 0; at + n <= sizeof data; n++) { /* pieces of 0, 1, 2, ... bytes */
            hash_update(h, data + at, n);
            at += n;
            if (n % 40 == 0)
                CHECK(hash_digest(h) == hash64(data, at));
        }
        data[17] ^= 1;
        CHECK(hash_digest(h) != hash64(data, at));
        hash_free(h);
    }
    CASE("SHA-256 of FIPS 180-4's examples")
    {
        static const struct {
            const char *text;
            size_t repeat;
            const char *want;
        } cases[] = {
            {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
            {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
            {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
             "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
            {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
        };
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            struct sha256 s;
            uint8_t digest[32];
            char hex[65];
            sha256_init(&s);
            for (size_t i = 0; i < cases[k].repeat; i++)
                sha256_update(&s, cases[k].text, strlen(cases[k].text));
            sha256_final(&s, digest);
            sha256_hex(digest, hex);
            CHECK_STR(hex, cases[k].want);
        }
    }
    CASE("SHA-256 does not depend on how the bytes arrive, at every length around a block")
    {
        uint8_t data[200], whole[32], parts[32];
        int wrong = 0;
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = (uint8_t)i;
        for (size_t n = 0; n <= sizeof data; n++) {
            for (size_t cut = 0; cut <= n; cut += 7) {
                struct sha256 a, b;
                sha256_init(&a);
                sha256_update(&a, data, n);
                sha256_final(&a, whole);
                sha256_init(&b);
                sha256_update(&b, data, cut);
                sha256_update(&b, data + cut, n - cut);
                sha256_final(&b, parts);
                wrong += memcmp(whole, parts, sizeof whole) != 0;
            }
        }
        CHECK_INT(wrong, 0);
    }
}

static void test_philox(void)
{
    CASE("Philox4x32-10 gives the known answers published with Random123")
    {
        struct philox4 r = philox4x32(0, 0, 0);
        CHECK(r.v[0] == 0x6627e8d5 && r.v[1] == 0xe169c58d && r.v[2] == 0xbc57ac4c &&
              r.v[3] == 0x9b00dbd8);
        r = philox4x32(UINT64_MAX, UINT64_MAX, UINT64_MAX);
        CHECK(r.v[0] == 0x408f276d && r.v[1] == 0x41c83b0e && r.v[2] == 0xa20bc7c6 &&
              r.v[3] == 0x6d5451fd);
        /* Counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0 (digits of pi). */
        r = philox4x32(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull);
        CHECK(r.v[0] == 0xd16cfe09 && r.v[1] == 0x94fdcceb && r.v[2] == 0x5001e420 &&
              r.v[3] == 0x24126ea1);
    }
    CASE("uniform values lie in [0, 1) and fill it evenly")
    {
        int bins[16] = {0};
        CHECK(philox_uniform(0) == 0.0f);
        CHECK(philox_uniform(UINT32_MAX) < 1.0f);
        for (uint64_t i = 0; i < 40000; i++)
            for (int k = 0; k < 4; k++)
                bins[(int)(philox_uniform(philox4x32(philox_key(1, 2), i, 0).v[k]) * 16)]++;
        /* 10000 a bin expected, standard deviation 97: 5 of them either way. */
        for (int k = 0; k < 16; k++)
            CHECK_NEAR(bins[k], 10000, 490);
        CHECK(philox_key(1, 2) != philox_key(2, 1));
    }
}

int main(void)
{
    test_halves();
    test_digests();
    test_philox();
    CASE("checked arithmetic refuses to wrap and leaves the result alone")
    {
        size_t s = 7;
        int64_t v = 7;
        CHECK(!checked_add_size(SIZE_MAX, 1, &s) && s == 7);
        CHECK(!checked_mul_size(SIZE_MAX / 2, 3, &s) && s == 7);
        CHECK(!checked_mul_i64(INT64_MIN, -1, &v) && v == 7);
        CHECK(!checked_add_i64(INT64_MAX, 1, &v) && v == 7);
        CHECK(checked_mul_size(6, 7, &s) && s == 42);
        CHECK_INT(round_up_i64(65, 64), 128);
        CHECK_INT(ceil_div_i64(64, 64), 1);
    }
    CASE("little-endian bytes")
    {
        uint8_t b[8];
        le64_put(b, 0x0123456789abcdefull);
        CHECK(b[0] == 0xef && b[7] == 0x01);
        CHECK(le64_get(b) == 0x0123456789abcdefull);
        CHECK(le32_get(b + 1) == 0x6789abcdu); /* unaligned */
        CHECK(le16_get(b + 6) == 0x0123);
    }
    return tap_done();
}
