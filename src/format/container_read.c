/* container_read.c - sequential and random reading; nothing is believed before it is checked. */
#include "format/container_private.h"
#include "base/hash.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SKIP_BYTES ((size_t)64 << 10)

/* --- sequential ------------------------------------------------------------------------------- */

static uint64_t position(const struct container_reader *r)
{
    return r->in->offset - r->start;
}

enum status container_read_header(struct container_reader *r, struct input *in, const char *kind,
                                  uint16_t major, struct error *e)
{
    uint8_t p[CONTAINER_HEADER_BYTES];
    size_t got;
    *r = (struct container_reader){.in = in, .start = in->offset};
    input_expect_blocks(in);
    TRY(input_read(in, p, sizeof p, &got, e));
    TRY(container_decode_header(p, got, in->name, kind, major, &r->header, e));
    r->digest = hash_new();
    if (!r->digest)
        return error_memory(e, 1024, "a digest");
    return STATUS_OK;
}

static enum status finish(struct container_reader *r, const uint8_t *p, uint64_t offset,
                          struct container_trailer *t, struct error *e)
{
    const char *name = r->in->name;
    uint8_t more;
    size_t got;
    TRY(container_decode_trailer(p, name, offset, r->header.kind, t, e));
    TRY(container_check_trailer(t, &r->header, name, r->blocks, r->data_bytes, position(r), e));
    if (t->digest != hash_digest(r->digest))
        return error_set(e, STATUS_DATA,
                         "%s: the digest of the data is %016" PRIx64
                         ", the trailer says %016" PRIx64,
                         name, hash_digest(r->digest), t->digest);
    TRY(input_read(r->in, &more, 1, &got, e));
    if (got)
        return error_set(e, STATUS_DATA, "%s: bytes follow the trailer at byte %" PRIu64 "%s", name,
                         position(r) - 1,
                         more == 0x89 ? " (concatenated files? give each as its own argument)"
                                      : "");
    r->finished = true;
    return STATUS_OK;
}

enum status container_next_block(struct container_reader *r, uint64_t limit_bytes,
                                 struct container_block *b, bool *done, struct container_trailer *t,
                                 struct error *e)
{
    uint8_t p[CONTAINER_BLOCK_BYTES];
    uint64_t offset = position(r);
    const char *name = r->in->name;
    size_t got;
    assert(!r->finished);
    TRY(input_read(r->in, p, sizeof p, &got, e));
    if (got < sizeof p)
        return error_set(e, STATUS_DATA,
                         "%s is cut: it ends at byte %" PRIu64
                         " after %u whole blocks, without the "
                         "closing trailer",
                         name, offset + got, r->blocks);
    *done = container_is_trailer(p);
    if (*done)
        return finish(r, p, offset, t, e);
    TRY(container_decode_block(p, name, offset, r->blocks, b, e));
    if (b->payload_bytes > limit_bytes)
        return error_set(e, STATUS_DATA,
                         "%s: block \"%s\" at byte %" PRIu64 " claims %" PRIu64
                         " bytes, the limit is %" PRIu64,
                         name, b->tag, offset, b->payload_bytes, limit_bytes);
    return STATUS_OK;
}

static enum status cut_payload(const struct container_reader *r, const struct container_block *b,
                               struct error *e)
{
    return error_set(e, STATUS_DATA,
                     "%s is cut: it ends at byte %" PRIu64 " inside block \"%s\" of %" PRIu64
                     " bytes that begins at byte %" PRIu64,
                     r->in->name, position(r), b->tag, b->payload_bytes, b->payload_offset);
}

static enum status wrong_checksum(const struct container_block *b, const char *name, uint64_t found,
                                  struct error *e)
{
    return error_set(e, STATUS_DATA,
                     "%s: block %u \"%s\" at byte %" PRIu64 " (%" PRIu64
                     " bytes) is damaged: its checksum is %016" PRIx64 ", expected %016" PRIx64,
                     name, b->sequence, b->tag, b->payload_offset, b->payload_bytes, found,
                     b->checksum);
}

static enum status end_block(struct container_reader *r, const struct container_block *b,
                             struct error *e)
{
    uint8_t pad[CONTAINER_ALIGN];
    size_t want = container_padding(b->payload_bytes), got;
    uint64_t offset = position(r);
    TRY(input_read(r->in, pad, want, &got, e));
    if (got < want)
        return cut_payload(r, b, e);
    TRY(container_check_padding(pad, want, r->in->name, offset, e));
    if (container_is_data(b->tag))
        r->data_bytes += b->payload_bytes;
    r->blocks++;
    return STATUS_OK;
}

enum status container_read_payload(struct container_reader *r, const struct container_block *b,
                                   void *buf, struct error *e)
{
    size_t got;
    TRY(input_read(r->in, buf, b->payload_bytes, &got, e));
    if (got < b->payload_bytes)
        return cut_payload(r, b, e);
    TRY(container_check_payload(b, r->in->name, buf, e));
    if (container_is_data(b->tag))
        hash_update(r->digest, buf, b->payload_bytes);
    return end_block(r, b, e);
}

enum status container_skip_payload(struct container_reader *r, const struct container_block *b,
                                   struct error *e)
{
    enum status st = STATUS_OK;
    struct hash_state *sum = hash_new();
    uint8_t *buf = malloc(SKIP_BYTES);
    if (!sum || !buf)
        TRY_OUT(error_memory(e, SKIP_BYTES, "a block"));
    for (uint64_t left = b->payload_bytes; left > 0;) {
        size_t want = left < SKIP_BYTES ? (size_t)left : SKIP_BYTES, got;
        TRY_OUT(input_read(r->in, buf, want, &got, e));
        if (got < want)
            TRY_OUT(cut_payload(r, b, e));
        hash_update(sum, buf, want);
        if (container_is_data(b->tag))
            hash_update(r->digest, buf, want);
        left -= want;
    }
    if (hash_digest(sum) != b->checksum)
        TRY_OUT(wrong_checksum(b, r->in->name, hash_digest(sum), e));
    TRY_OUT(end_block(r, b, e));
out:
    free(buf);
    hash_free(sum);
    return st;
}

void container_reader_release(struct container_reader *r)
{
    hash_free(r->digest);
    *r = (struct container_reader){0};
}

/* --- random access ---------------------------------------------------------------------------- */

enum status container_check_payload(const struct container_block *b, const char *name,
                                    const void *payload, struct error *e)
{
    uint64_t found = hash64(payload, b->payload_bytes);
    return found == b->checksum ? STATUS_OK : wrong_checksum(b, name, found, e);
}

/* The block head at *offset, then *offset moved past its payload and padding. */
static enum status index_one(int fd, const char *name, uint64_t *offset, uint64_t end,
                             uint32_t sequence, struct container_block *b, struct error *e)
{
    uint8_t head[CONTAINER_BLOCK_BYTES], pad[CONTAINER_ALIGN];
    TRY(fd_read_at(fd, name, *offset, head, sizeof head, e));
    TRY(container_decode_block(head, name, *offset, sequence, b, e));
    size_t padding = container_padding(b->payload_bytes);
    uint64_t payload_end = b->payload_offset + b->payload_bytes;
    if (payload_end + padding > end)
        return error_set(e, STATUS_DATA,
                         "%s: block \"%s\" at byte %" PRIu64 " claims %" PRIu64
                         " bytes, but only %" PRIu64 " remain before the trailer",
                         name, b->tag, *offset, b->payload_bytes,
                         end > b->payload_offset ? end - b->payload_offset : 0);
    if (padding) {
        TRY(fd_read_at(fd, name, payload_end, pad, padding, e));
        TRY(container_check_padding(pad, padding, name, payload_end, e));
    }
    *offset = payload_end + padding;
    return STATUS_OK;
}

static enum status append_block(struct container_block **blocks, uint32_t n, uint32_t *capacity,
                                const struct container_block *b, struct error *e)
{
    if (n == *capacity) { /* grown as blocks are found, never from a count that a file claims */
        uint32_t next = *capacity ? *capacity * 2 : 16;
        struct container_block *more = realloc(*blocks, (size_t)next * sizeof *more);
        if (!more)
            return error_memory(e, (unsigned long long)next * sizeof *more, "a block index");
        *blocks = more;
        *capacity = next;
    }
    (*blocks)[n] = *b;
    return STATUS_OK;
}

/* Size, header and trailer; the blocks lie in [64, *end). */
static enum status index_ends(int fd, const char *name, const char *kind, uint16_t major,
                              struct container_header *h, struct container_trailer *t,
                              uint64_t *end, struct error *e)
{
    uint8_t p[CONTAINER_HEADER_BYTES];
    struct stat info;
    if (fstat(fd, &info) != 0)
        return error_errno(e, "cannot examine %s", name);
    if (!S_ISREG(info.st_mode))
        return error_set(e, STATUS_DATA, "%s is not a regular file", name);
    uint64_t size = (uint64_t)info.st_size;
    size_t first = size < sizeof p ? (size_t)size : sizeof p;
    TRY(fd_read_at(fd, name, 0, p, first, e));
    TRY(container_decode_header(p, first, name, kind, major, h, e));
    if (size < CONTAINER_HEADER_BYTES + CONTAINER_TRAILER_BYTES || size % CONTAINER_ALIGN != 0)
        return error_set(e, STATUS_DATA,
                         "%s is cut or has bytes after its end: its size is %" PRIu64
                         " bytes, expected a multiple of 64 of at least 128",
                         name, size);
    *end = size - CONTAINER_TRAILER_BYTES;
    TRY(fd_read_at(fd, name, *end, p, sizeof p, e));
    return container_decode_trailer(p, name, *end, h->kind, t, e);
}

enum status container_index(int fd, const char *name, const char *kind, uint16_t major,
                            struct container_header *h, struct container_trailer *t,
                            struct container_block **blocks, uint32_t *count, struct error *e)
{
    enum status st = STATUS_OK;
    struct container_block b, *list = NULL;
    uint32_t n = 0, capacity = 0;
    uint64_t offset = CONTAINER_HEADER_BYTES, end = 0, data_bytes = 0;
    *blocks = NULL;
    *count = 0;
    TRY_OUT(index_ends(fd, name, kind, major, h, t, &end, e));
    while (offset < end) {
        TRY_OUT(index_one(fd, name, &offset, end, n, &b, e));
        TRY_OUT(append_block(&list, n, &capacity, &b, e));
        if (container_is_data(b.tag))
            data_bytes += b.payload_bytes;
        n++;
    }
    TRY_OUT(container_check_trailer(t, h, name, n, data_bytes, end + CONTAINER_TRAILER_BYTES, e));
    *blocks = list;
    *count = n;
    list = NULL;
out:
    free(list);
    return st;
}
