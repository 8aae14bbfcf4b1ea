/* container_write.c - sequential writing; never seeks, so that a pipe is as good as a file. */
#include "format/container_private.h"
#include "base/hash.h"

#include <assert.h>
#include <string.h>

enum status container_write_header(struct container_writer *w, struct output *out,
                                   const struct container_header *h, struct error *e)
{
    uint8_t p[CONTAINER_HEADER_BYTES];
    assert(dtype_bytes(h->dtype) && h->part < h->parts);
    *w = (struct container_writer){.out = out, .header = *h, .start = out->offset};
    w->digest = hash_new();
    if (!w->digest)
        return error_memory(e, 1024, "a digest");
    container_encode_header(p, h);
    return output_write(out, p, sizeof p, e);
}

enum status container_write_block(struct container_writer *w, const char tag[4],
                                  const void *payload, uint64_t bytes, uint64_t *payload_offset,
                                  struct error *e)
{
    static const uint8_t zeros[CONTAINER_ALIGN];
    uint8_t p[CONTAINER_BLOCK_BYTES];
    struct container_block b = {.sequence = w->blocks, .payload_bytes = bytes};
    if (w->blocks == UINT32_MAX)
        return error_set(e, STATUS_FAILED, "%s: more blocks than a file can number", w->out->name);
    memcpy(b.tag, tag, 4);
    b.checksum = hash64(payload, bytes);
    container_encode_block(p, &b);
    TRY(output_write(w->out, p, sizeof p, e));
    if (payload_offset)
        *payload_offset = w->out->offset - w->start;
    TRY(output_write(w->out, payload, bytes, e));
    TRY(output_write(w->out, zeros, container_padding(bytes), e));
    if (container_is_data(tag)) {
        hash_update(w->digest, payload, bytes);
        w->data_bytes += bytes;
    }
    w->blocks++;
    return STATUS_OK;
}

enum status container_write_trailer(struct container_writer *w, uint64_t count,
                                    struct container_trailer *t, struct error *e)
{
    uint8_t p[CONTAINER_TRAILER_BYTES];
    assert(count * dtype_bytes(w->header.dtype) == w->data_bytes);
    assert(w->header.count == CONTAINER_COUNT_UNKNOWN || w->header.count == count);
    struct container_trailer end = {.blocks = w->blocks,
                                    .count = count,
                                    .file_bytes = w->out->offset - w->start + sizeof p,
                                    .digest = hash_digest(w->digest)};
    container_encode_trailer(p, w->header.kind, &end);
    if (t)
        *t = end;
    return output_write(w->out, p, sizeof p, e);
}

void container_writer_release(struct container_writer *w)
{
    hash_free(w->digest);
    *w = (struct container_writer){0};
}
