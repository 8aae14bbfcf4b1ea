/* packer.c - ids are copied once: whole samples go from the source's block to the writer's. */
#include "shard-pack/packer.h"
#include "format/token_ids.h"

#include <stdlib.h>
#include <string.h>

enum status packer_init(struct packer *p, struct error *e)
{
    p->partial = malloc((size_t)p->block_size * p->id_bytes);
    return p->partial ? STATUS_OK
                      : error_memory(e, (uint64_t)p->block_size * p->id_bytes, "a sample");
}

void packer_release(struct packer *p)
{
    free(p->partial);
    p->partial = NULL;
}

/* Ids that the caller has counted. */
static inline enum status append(struct packer *p, const void *ids, size_t n, struct error *e)
{
    const uint8_t *from = ids;
    uint8_t *to = p->partial;
    size_t width = p->id_bytes;
    while (n > 0) {
        size_t room = p->block_size - p->filled;
        if (n < room) {
            memcpy(to + p->filled * width, from, n * width);
            p->filled += (uint32_t)n;
            return STATUS_OK;
        }
        if (p->filled) { /* complete the sample */
            memcpy(to + p->filled * width, from, room * width);
            TRY(shard_writer_put_native(p->writer, p->partial, p->id_bytes, 1, e));
            p->filled = 0;
            from += room * width;
            n -= room;
            continue;
        }
        size_t samples = n / p->block_size;
        TRY(shard_writer_put_native(p->writer, from, p->id_bytes, samples, e));
        from += samples * p->block_size * width;
        n -= samples * p->block_size;
    }
    return STATUS_OK;
}

static void end_group(struct packer *p)
{
    p->dropped += p->filled;
    p->filled = 0;
    p->in_group = 0;
}

enum status packer_put(struct packer *p, const void *ids, size_t n, struct error *e)
{
    p->tokens += n;
    return append(p, ids, n, e);
}

enum status packer_end_document(struct packer *p, struct error *e)
{
    p->documents++;
    if (p->add_eot) {
        uint16_t narrow = (uint16_t)p->eot;
        p->separators++;
        TRY(append(p, p->id_bytes == 2 ? (const void *)&narrow : &p->eot, 1, e));
    }
    if (p->group_documents && ++p->in_group == p->group_documents)
        end_group(p);
    return STATUS_OK;
}

/* Ids of another width, in pieces through a small buffer. */
static enum status put_converted(struct packer *p, const void *ids, uint32_t id_bytes, size_t n,
                                 struct error *e)
{
    uint32_t buffer[1024];
    const uint8_t *from = ids;
    while (n > 0) {
        size_t take = n < 1024 ? n : 1024;
        token_convert(buffer, p->id_bytes, from, id_bytes, take);
        TRY(packer_put(p, buffer, take, e));
        from += take * id_bytes;
        n -= take;
    }
    return STATUS_OK;
}

enum status packer_block(struct packer *p, const struct token_block *b, struct error *e)
{
    const uint8_t *from = b->ids;
    size_t left = b->n;
    if (!p->add_eot && !p->group_documents && b->id_bytes == p->id_bytes) {
        p->documents += b->documents; /* bounds of documents do not matter */
        return packer_put(p, from, left, e);
    }
    for (uint32_t d = 0; d <= b->documents; d++) {
        size_t n = d < b->documents ? b->ends[d] : left;
        if (b->id_bytes == p->id_bytes)
            TRY(packer_put(p, from, n, e));
        else
            TRY(put_converted(p, from, b->id_bytes, n, e));
        if (d < b->documents)
            TRY(packer_end_document(p, e));
        from += n * b->id_bytes;
        left -= n;
    }
    return STATUS_OK;
}

void packer_finish(struct packer *p)
{
    end_group(p);
}
