/* sha256.h - SHA-256 (FIPS 180-4), for comparing downloads with published digests. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 { /* caller-allocated; copy it to keep an intermediate state */
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64]; /* bytes % 64 of them are waiting */
};

void sha256_init(struct sha256 *s);
void sha256_update(struct sha256 *s, const void *data, size_t bytes);
void sha256_final(struct sha256 *s, uint8_t digest[32]); /* s must be initialised again afterwards */
/* Lower-case hexadecimal, NUL-terminated. */
void sha256_hex(const uint8_t digest[32], char hex[65]);

#endif
