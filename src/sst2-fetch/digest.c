#include "sst2-fetch/digest.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum status sha256_of_file(int fd, const char *name, char hex[65], struct error *e)
{
    enum { CHUNK = 1 << 18 };
    uint8_t *buffer = malloc(CHUNK), digest[32];
    struct sha256 s;
    uint64_t offset = 0;
    if (!buffer)
        return error_memory(e, CHUNK, "a read buffer");
    sha256_init(&s);
    for (;;) {
        ssize_t n = pread(fd, buffer, CHUNK, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            error_errno(e, "%s: reading at byte %llu", name, (unsigned long long)offset);
            free(buffer);
            return e->status;
        }
        if (n == 0)
            break;
        sha256_update(&s, buffer, (size_t)n);
        offset += (uint64_t)n;
    }
    free(buffer);
    sha256_final(&s, digest);
    sha256_hex(digest, hex);
    return STATUS_OK;
}

void sha256_of_bytes(const void *data, size_t bytes, char hex[65])
{
    struct sha256 s;
    uint8_t digest[32];
    sha256_init(&s);
    sha256_update(&s, data, bytes);
    sha256_final(&s, digest);
    sha256_hex(digest, hex);
}

void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                 uint8_t digest[32])
{
    uint8_t pad[64] = {0}, inner[32];
    struct sha256 s;
    if (key_bytes > sizeof(pad)) {
        sha256_init(&s);
        sha256_update(&s, key, key_bytes);
        sha256_final(&s, pad);
    } else {
        memcpy(pad, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] ^= 0x36;
    sha256_init(&s);
    sha256_update(&s, pad, sizeof(pad));
    sha256_update(&s, data, bytes);
    sha256_final(&s, inner);
    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] ^= 0x36 ^ 0x5c;
    sha256_init(&s);
    sha256_update(&s, pad, sizeof(pad));
    sha256_update(&s, inner, sizeof(inner));
    sha256_final(&s, digest);
}
