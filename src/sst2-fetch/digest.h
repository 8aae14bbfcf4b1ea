/* digest.h - SHA-256 of files and HMAC-SHA256 (RFC 2104), on top of base/sha256.h. */
#ifndef SST2_FETCH_DIGEST_H
#define SST2_FETCH_DIGEST_H

#include "base/error.h"
#include "base/sha256.h"

/* Digest of a whole open file from its start, lower-case hex; name is for messages. The file offset
 * does not move. */
enum status sha256_of_file(int fd, const char *name, char hex[65], struct error *e) MUST_CHECK;
void sha256_of_bytes(const void *data, size_t bytes, char hex[65]);
void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                 uint8_t digest[32]);

#endif
