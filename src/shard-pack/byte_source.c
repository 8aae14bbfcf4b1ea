/* byte_source.c - plain or gzip. zlib rather than libarchive: it verifies each member's CRC and
 * length. */
#include "shard-pack/byte_source.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)256 << 10)

enum status byte_source_open(struct byte_source *b, struct input *in, struct error *e)
{
    const uint8_t *head;
    size_t got;
    *b = (struct byte_source){.in = in};
    TRY(input_peek(in, 2, &head, &got, e));
    b->gzip = got >= 2 && head[0] == 0x1f && head[1] == 0x8b;
    b->buffer = malloc(CHUNK_BYTES);
    b->raw = b->gzip ? malloc(CHUNK_BYTES) : NULL;
    if (!b->buffer || (b->gzip && !b->raw))
        return error_memory(e, 2 * CHUNK_BYTES, "an input buffer");
    if (b->gzip && inflateInit2(&b->z, 15 + 16) != Z_OK)
        return error_memory(e, 65536, "a decompressor");
    b->p = b->end = b->buffer;
    b->member_open = b->gzip;
    return STATUS_OK;
}

static enum status broken(const struct byte_source *b, const char *what, struct error *e)
{
    return error_set(e, STATUS_DATA, "%s: gzip data %s before byte %llu of the file", b->in->name,
                     what, (unsigned long long)(b->in->offset - b->z.avail_in));
}

/* Makes compressed input available; b->z.avail_in stays 0 at the end of the file. */
static enum status feed(struct byte_source *b, struct error *e)
{
    size_t got;
    if (b->z.avail_in)
        return STATUS_OK;
    TRY(input_read_some(b->in, b->raw, CHUNK_BYTES, &got, e));
    b->z.next_in = b->raw;
    b->z.avail_in = (uInt)got;
    return STATUS_OK;
}

/* A gzip file may be several members, one after another. */
static enum status next_member(struct byte_source *b, struct error *e)
{
    TRY(feed(b, e));
    if (!b->z.avail_in) {
        b->at_end = true;
        return STATUS_OK;
    }
    if (inflateReset(&b->z) != Z_OK)
        return broken(b, "cannot be read on", e);
    b->member_open = true;
    return STATUS_OK;
}

static enum status inflate_some(struct byte_source *b, size_t *got, struct error *e)
{
    b->z.next_out = b->buffer;
    b->z.avail_out = (uInt)CHUNK_BYTES;
    while (b->z.avail_out == CHUNK_BYTES && !b->at_end) {
        if (!b->member_open) {
            TRY(next_member(b, e));
            continue;
        }
        TRY(feed(b, e));
        if (!b->z.avail_in)
            return broken(b, "is cut", e);
        int rc = inflate(&b->z, Z_NO_FLUSH);
        if (rc == Z_STREAM_END)
            b->member_open = false;
        else if (rc == Z_MEM_ERROR)
            return error_memory(e, 65536, "a decompressor");
        else if (rc != Z_OK && rc != Z_BUF_ERROR)
            return broken(b, b->z.msg ? b->z.msg : "is damaged", e);
    }
    *got = CHUNK_BYTES - b->z.avail_out;
    return STATUS_OK;
}

enum status byte_source_fill(struct byte_source *b, struct error *e)
{
    size_t got = 0;
    if (b->at_end)
        return STATUS_OK;
    if (b->gzip) {
        TRY(inflate_some(b, &got, e));
    } else {
        TRY(input_read_some(b->in, b->buffer, CHUNK_BYTES, &got, e));
        b->at_end = got == 0;
    }
    b->p = b->buffer;
    b->end = b->buffer + got;
    b->offset += got;
    return STATUS_OK;
}

enum status byte_source_read(struct byte_source *b, void *buf, size_t want, size_t *got,
                             struct error *e)
{
    *got = 0;
    while (*got < want) {
        if (b->p == b->end && !b->gzip && !b->at_end && want - *got >= CHUNK_BYTES) {
            size_t n; /* large requests skip the copy through the buffer */
            TRY(input_read_some(b->in, (uint8_t *)buf + *got, want - *got, &n, e));
            b->at_end = n == 0;
            b->offset += n;
            *got += n;
            continue;
        }
        if (b->p == b->end)
            TRY(byte_source_fill(b, e));
        size_t have = (size_t)(b->end - b->p), take = have < want - *got ? have : want - *got;
        if (take == 0)
            return STATUS_OK;
        memcpy((uint8_t *)buf + *got, b->p, take);
        b->p += take;
        *got += take;
    }
    return STATUS_OK;
}

void byte_source_close(struct byte_source *b)
{
    if (b->gzip)
        inflateEnd(&b->z);
    free(b->raw);
    free(b->buffer);
    *b = (struct byte_source){0};
}
