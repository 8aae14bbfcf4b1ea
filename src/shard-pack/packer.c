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

static enum status append_eot(struct packer *p, struct error *e)
{
    uint16_t narrow = (uint16_t)p->eot;
    p->separators++;
    if (p->filled + 1 == p->block_size)
        return append(p, p->id_bytes == 2 ? (const void *)&narrow : &p->eot, 1, e);
    if (p->id_bytes == 2)
        ((uint16_t *)p->partial)[p->filled++] = narrow;
    else
        ((uint32_t *)p->partial)[p->filled++] = p->eot;
    return STATUS_OK;
}

/* Of n documents; with a separator n is 1. */
static enum status end_documents(struct packer *p, uint32_t n, struct error *e)
{
    p->documents += n;
    if (p->add_eot)
        TRY(append_eot(p, e));
    p->in_group += n;
    if (p->in_group == p->group_documents)
        end_group(p);
    return STATUS_OK;
}

enum status packer_end_document(struct packer *p, struct error *e)
{
    return end_documents(p, 1, e);
}

/* Ids of any width; those of another than p's pass through a small buffer. */
static enum status put_ids(struct packer *p, const uint8_t *ids, uint32_t id_bytes, size_t n,
                           struct error *e)
{
    uint32_t buffer[1024];
    if (id_bytes == p->id_bytes)
        return packer_put(p, ids, n, e);
    while (n > 0) {
        size_t take = n < 1024 ? n : 1024;
        token_convert(buffer, p->id_bytes, ids, id_bytes, take);
        TRY(packer_put(p, buffer, take, e));
        ids += take * id_bytes;
        n -= take;
    }
    return STATUS_OK;
}

/* Documents that follow one another in a sample, with nothing between them, are put in one go: how
 * many from number d on, and their ids. */
static uint32_t joined_documents(const struct packer *p, const struct token_block *b, uint32_t d,
                                 size_t *ids)
{
    uint64_t most = p->add_eot           ? 1
                    : p->group_documents ? p->group_documents - p->in_group
                                         : UINT64_MAX;
    uint32_t n = 0;
    for (*ids = 0; n < most && d + n < b->documents; n++)
        *ids += b->ends[d + n];
    return n;
}

/* Documents from number d on, each with its separator, as long as they end inside the sample and
 * the group that are being filled: how many, and their ids. Documents may be as short as a line,
 * and going the general way with each of them takes twice as long. */
static uint32_t put_short_documents(struct packer *p, const struct token_block *b, uint32_t d,
                                    const uint8_t *from, size_t *ids)
{
    size_t width = p->id_bytes, filled = p->filled, begin = filled;
    uint64_t most = p->group_documents ? p->group_documents - p->in_group - 1 : UINT64_MAX;
    uint32_t count = 0;
    for (; count < most && d + count < b->documents; count++) {
        size_t n = b->ends[d + count];
        uint8_t *to = (uint8_t *)p->partial + filled * width;
        if (n + 1 >= p->block_size - filled)
            break;
        memcpy(to, from, n * width);
        if (width == 2)
            ((uint16_t *)to)[n] = (uint16_t)p->eot;
        else
            ((uint32_t *)to)[n] = p->eot;
        from += n * width;
        filled += n + 1;
    }
    *ids = filled - begin - count;
    p->filled = (uint32_t)filled;
    p->tokens += *ids;
    p->separators += count;
    p->documents += count;
    p->in_group += count;
    return count;
}

enum status packer_block(struct packer *p, const struct token_block *b, struct error *e)
{
    const uint8_t *from = b->ids;
    size_t left = b->n, ids;
    for (uint32_t d = 0, n; d < b->documents; d += n) {
        if (p->add_eot && b->id_bytes == p->id_bytes &&
            (n = put_short_documents(p, b, d, from, &ids)) > 0) {
            from += ids * b->id_bytes;
            left -= ids;
            continue;
        }
        n = joined_documents(p, b, d, &ids);
        TRY(put_ids(p, from, b->id_bytes, ids, e));
        TRY(end_documents(p, n, e));
        from += ids * b->id_bytes;
        left -= ids;
    }
    return put_ids(p, from, b->id_bytes, left, e); /* of a document that goes on */
}

void packer_finish(struct packer *p)
{
    end_group(p);
}
