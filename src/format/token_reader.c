/* token_reader.c - one block of the stream at a time, every id checked against the vocabulary. */
#include "format/token_stream.h"
#include "format/token_ids.h"

#include <assert.h>
#include <stdlib.h>

#define JSON_LIMIT ((uint64_t)16 << 20)
#define EXTRA_LIMIT ((uint64_t)1 << 40) /* of blocks passed over, which are not kept in memory */

/* Memory that grows to the largest block met. */
struct room {
    void *p;
    size_t bytes;
};

struct token_reader {
    struct container_reader container;
    struct container_block block; /* announced and not yet read, when pending */
    struct vocab_info vocab;
    char *provenance;
    struct room data, ends; /* of the current block */
    struct room wide;       /* for token_reader_next with 16-bit ids */
    uint32_t id_bytes;
    bool pending, at_end;
    bool document_open; /* the last block left a document unfinished */
    uint64_t tokens;    /* before the current block */
    /* token_reader_next's place in the current block */
    struct token_block current;
    uint32_t next_id, next_end;
};

/* The contents are lost when it grows. bytes is at most 2 * TOKEN_STREAM_BLOCK_BYTES. */
static enum status reserve(struct room *room, size_t bytes, struct error *e)
{
    if (bytes <= room->bytes && room->p)
        return STATUS_OK;
    free(room->p);
    room->bytes = bytes < 4096 ? 4096 : bytes;
    room->p = malloc(room->bytes);
    return room->p ? STATUS_OK : error_memory(e, room->bytes, "a block of tokens");
}

static const char *name_of(const struct token_reader *r)
{
    return r->container.in->name;
}

/* Announces the next block that is not to be skipped; r->at_end at the trailer. */
static enum status advance(struct token_reader *r, struct error *e)
{
    static const char *const known[] = {"vocb", "prov", "DOCS", "DATA"};
    struct container_trailer trailer;
    for (;;) {
        struct container_block *b = &r->block;
        TRY(container_next_block(&r->container, EXTRA_LIMIT, b, &r->at_end, &trailer, e));
        if (r->at_end)
            return STATUS_OK;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (strcmp(b->tag, known[i]) == 0) {
                r->pending = true;
                return STATUS_OK;
            }
        if (!container_tag_optional(b->tag))
            return error_set(
                e, STATUS_DATA,
                "%s: block \"%s\" at byte %llu is of a kind that this program does not "
                "know and may not skip",
                name_of(r), b->tag, (unsigned long long)b->payload_offset);
        TRY(container_skip_payload(&r->container, b, e));
    }
}

static enum status unexpected(const struct token_reader *r, const char *wanted, struct error *e)
{
    if (r->at_end)
        return error_set(e, STATUS_DATA, "%s: expected a \"%s\" block, found the trailer",
                         name_of(r), wanted);
    return error_set(e, STATUS_DATA, "%s: expected a \"%s\" block at byte %llu, found \"%s\"",
                     name_of(r), wanted,
                     (unsigned long long)(r->block.payload_offset - CONTAINER_BLOCK_BYTES),
                     r->block.tag);
}

static enum status check_size(const struct token_reader *r, uint64_t limit, uint32_t unit,
                              struct error *e)
{
    const struct container_block *b = &r->block;
    if (b->payload_bytes > limit)
        return error_set(e, STATUS_DATA,
                         "%s: block \"%s\" at byte %llu claims %llu bytes, the limit is %llu",
                         name_of(r), b->tag, (unsigned long long)b->payload_offset,
                         (unsigned long long)b->payload_bytes, (unsigned long long)limit);
    if (b->payload_bytes % unit)
        return error_set(e, STATUS_DATA,
                         "%s: block \"%s\" at byte %llu has %llu bytes, expected a multiple of %u",
                         name_of(r), b->tag, (unsigned long long)b->payload_offset,
                         (unsigned long long)b->payload_bytes, unit);
    return STATUS_OK;
}

static enum status read_into(struct token_reader *r, void *buf, struct error *e)
{
    r->pending = false;
    return container_read_payload(&r->container, &r->block, buf, e);
}

/* The pending block as a NUL-terminated text. */
static enum status read_text(struct token_reader *r, char **text, struct error *e)
{
    TRY(check_size(r, JSON_LIMIT, 1, e));
    free(*text);
    *text = malloc(r->block.payload_bytes + 1);
    if (!*text)
        return error_memory(e, r->block.payload_bytes + 1, "a block of text");
    (*text)[r->block.payload_bytes] = '\0';
    return read_into(r, *text, e);
}

static enum status read_preamble(struct token_reader *r, struct error *e)
{
    char *json = NULL;
    enum status st;
    TRY_OUT(advance(r, e));
    if (!r->pending || strcmp(r->block.tag, "vocb") != 0)
        TRY_OUT(unexpected(r, "vocb", e));
    TRY_OUT(read_text(r, &json, e));
    TRY_OUT(vocab_info_from_json(json, r->block.payload_bytes, name_of(r), &r->vocab, e));
    if (r->id_bytes == 2 && r->vocab.size > 65536)
        TRY_OUT(error_set(e, STATUS_DATA, "%s: ids of 16 bits with a vocabulary of %u", name_of(r),
                          r->vocab.size));
    TRY_OUT(advance(r, e));
    if (r->pending && strcmp(r->block.tag, "prov") == 0) {
        TRY_OUT(read_text(r, &r->provenance, e));
        TRY_OUT(advance(r, e));
    }
out:
    free(json);
    return st;
}

enum status token_reader_open(struct token_reader **out_r, struct input *in, struct error *e)
{
    enum status st;
    struct token_reader *r = calloc(1, sizeof *r);
    *out_r = NULL;
    if (!r)
        return error_memory(e, sizeof *r, "a token reader");
    TRY_OUT(container_read_header(&r->container, in, "TOK", TOKEN_STREAM_MAJOR, e));
    if (r->container.header.dtype != DTYPE_U16 && r->container.header.dtype != DTYPE_U32)
        TRY_OUT(error_set(e, STATUS_DATA, "%s: token ids of type %s, expected u16 or u32", in->name,
                          dtype_name(r->container.header.dtype)));
    r->id_bytes = (uint32_t)dtype_bytes(r->container.header.dtype);
    TRY_OUT(read_preamble(r, e));
    *out_r = r;
    r = NULL;
out:
    token_reader_free(r);
    return st;
}

static enum status check_block(struct token_reader *r, const struct token_block *b, struct error *e)
{
    unsigned long long at = r->block.payload_offset;
    uint64_t ended = 0;
    for (uint32_t i = 0; i < b->documents; i++)
        ended += b->ends[i];
    if (ended > b->n)
        return error_set(
            e, STATUS_DATA,
            "%s: the documents that end in the block at byte %llu have %llu ids there, "
            "but it holds %u",
            name_of(r), at, (unsigned long long)ended, b->n);
    if (b->n && token_max(b->ids, b->n, b->id_bytes) >= r->vocab.size) {
        size_t bad = token_first_over(b->ids, b->n, b->id_bytes, r->vocab.size);
        return error_set(e, STATUS_DATA,
                         "%s: token %llu at byte %llu is id %u, but the vocabulary has %u ids",
                         name_of(r), (unsigned long long)(r->tokens + bad), at + bad * b->id_bytes,
                         token_at(b->ids, bad, b->id_bytes), r->vocab.size);
    }
    if (b->n > ended)
        r->document_open = true;
    else if (b->documents)
        r->document_open = false;
    return STATUS_OK;
}

enum status token_reader_block(struct token_reader *r, struct token_block *b, struct error *e)
{
    *b = (struct token_block){.id_bytes = r->id_bytes};
    if (r->at_end && !r->document_open)
        return STATUS_OK;
    if (r->at_end)
        return error_set(e, STATUS_DATA, "%s: the stream ends inside a document, after %llu tokens",
                         name_of(r), (unsigned long long)r->tokens);
    if (strcmp(r->block.tag, "DOCS") != 0)
        return unexpected(r, "DOCS", e);
    TRY(check_size(r, TOKEN_STREAM_BLOCK_BYTES, 4, e));
    b->documents = (uint32_t)(r->block.payload_bytes / 4);
    TRY(reserve(&r->ends, r->block.payload_bytes, e));
    TRY(read_into(r, r->ends.p, e));
    TRY(advance(r, e));
    if (!r->pending || strcmp(r->block.tag, "DATA") != 0)
        return unexpected(r, "DATA", e);
    TRY(check_size(r, TOKEN_STREAM_BLOCK_BYTES, r->id_bytes, e));
    b->n = (uint32_t)(r->block.payload_bytes / r->id_bytes);
    TRY(reserve(&r->data, r->block.payload_bytes, e));
    TRY(read_into(r, r->data.p, e));
    token_swap(r->ends.p, b->documents, 4);
    token_swap(r->data.p, b->n, r->id_bytes);
    b->ids = r->data.p;
    b->ends = r->ends.p;
    TRY(check_block(r, b, e));
    r->tokens += b->n;
    return advance(r, e); /* so that a damaged end is known before the last ids are used */
}

void token_reader_swap(struct token_reader *r, void **ids, size_t *bytes)
{
    struct room mine = r->data;
    r->data = (struct room){*ids, *bytes};
    *ids = mine.p;
    *bytes = mine.bytes;
}

/* Makes the current block's ids 32 bits wide. */
static enum status widen(struct token_reader *r, struct error *e)
{
    if (r->id_bytes == 4)
        return STATUS_OK;
    TRY(reserve(&r->wide, r->current.n * sizeof(uint32_t), e));
    token_convert(r->wide.p, 4, r->data.p, 2, r->current.n);
    return STATUS_OK;
}

enum status token_reader_next(struct token_reader *r, const uint32_t **ids, size_t *n,
                              bool *document_end, struct error *e)
{
    struct token_block *b = &r->current;
    while (r->next_end == b->documents && r->next_id == b->n) {
        TRY(token_reader_block(r, b, e));
        r->next_id = r->next_end = 0;
        *ids = NULL;
        *n = 0;
        *document_end = false;
        if (!b->ids)
            return STATUS_OK;
        TRY(widen(r, e));
    }
    *ids = (const uint32_t *)(r->id_bytes == 2 ? r->wide.p : r->data.p) + r->next_id;
    *document_end = r->next_end < b->documents;
    *n = *document_end ? b->ends[r->next_end++] : b->n - r->next_id;
    r->next_id += (uint32_t)*n;
    return STATUS_OK;
}

const struct vocab_info *token_reader_vocab(const struct token_reader *r)
{
    return &r->vocab;
}

bool token_reader_ends_with_eot(const struct token_reader *r)
{
    return (r->container.header.flags & TOKEN_STREAM_FLAG_EOT) != 0;
}

const char *token_reader_provenance(const struct token_reader *r)
{
    return r->provenance;
}

void token_reader_free(struct token_reader *r)
{
    if (!r)
        return;
    container_reader_release(&r->container);
    free(r->provenance);
    free(r->data.p);
    free(r->ends.p);
    free(r->wide.p);
    free(r);
}
