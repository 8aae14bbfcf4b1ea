/* container_private.h - what the container_*.c files share; not for other folders. */
#ifndef FORMAT_CONTAINER_PRIVATE_H
#define FORMAT_CONTAINER_PRIVATE_H

#include "format/container.h"
#include "base/strbuf.h"

void container_encode_header(uint8_t p[CONTAINER_HEADER_BYTES], const struct container_header *h);
void container_encode_block(uint8_t p[CONTAINER_BLOCK_BYTES], const struct container_block *b);
void container_encode_trailer(uint8_t p[CONTAINER_TRAILER_BYTES], const char kind[4],
                              const struct container_trailer *t);

/* p holds `got` bytes found at the header's place. kind NULL accepts any of ours. */
enum status container_decode_header(const uint8_t *p, size_t got, const char *name,
                                    const char *kind, uint16_t major, struct container_header *h,
                                    struct error *e) MUST_CHECK;
bool container_is_trailer(const uint8_t p[CONTAINER_BLOCK_BYTES]);
/* offset: of p in the file, for messages and for payload_offset. sequence: the number expected. */
enum status container_decode_block(const uint8_t p[CONTAINER_BLOCK_BYTES], const char *name,
                                   uint64_t offset, uint32_t sequence, struct container_block *b,
                                   struct error *e) MUST_CHECK;
enum status container_decode_trailer(const uint8_t p[CONTAINER_TRAILER_BYTES], const char *name,
                                     uint64_t offset, const char kind[4],
                                     struct container_trailer *t, struct error *e) MUST_CHECK;
/* The trailer's numbers against those counted while reading. trailer_end: file bytes up to and with
 * the trailer, counted from the header. */
enum status container_check_trailer(const struct container_trailer *t,
                                    const struct container_header *h, const char *name,
                                    uint32_t blocks, uint64_t data_bytes, uint64_t trailer_end,
                                    struct error *e) MUST_CHECK;
enum status container_check_padding(const uint8_t *p, size_t n, const char *name, uint64_t offset,
                                    struct error *e) MUST_CHECK;
bool container_is_data(const char tag[4]);
static inline size_t container_padding(uint64_t bytes)
{
    return (size_t)(-bytes & (CONTAINER_ALIGN - 1));
}

#endif
