/* source_bin.c - files of ids without documents: llm.c's (a header of 256 little-endian 32-bit
 * numbers: magic, version, count of ids) and nanoGPT's (16-bit ids and nothing else). */
#include "shard-pack/byte_source.h"
#include "shard-pack/source.h"
#include "base/le.h"
#include "format/token_ids.h"

#include <inttypes.h>
#include <stdlib.h>

#define BLOCK_BYTES ((size_t)512 << 10)
#define HEADER_BYTES 1024

struct bin {
    struct source *source;
    struct byte_source bytes;
    uint32_t id_bytes;
    uint64_t header_bytes, ids; /* ids so far */
    uint64_t promised;          /* by the header; UINT64_MAX without one */
    uint8_t *data;
    uint32_t *ends;
    bool open;          /* the current document has ids */
    uint32_t open_here; /* how many of this block's */
};

static enum status read_header(struct bin *f, struct error *e)
{
    uint8_t h[HEADER_BYTES];
    const char *name = f->source->in->name;
    size_t got;
    f->id_bytes = 2;
    f->promised = UINT64_MAX;
    if (f->bytes.p == f->bytes.end)
        TRY(byte_source_fill(&f->bytes, e));
    if (f->bytes.end - f->bytes.p < 4)
        return STATUS_OK; /* too short for a header */
    uint32_t magic = le32_get(f->bytes.p);
    if (magic != LLMC_MAGIC_GPT2 && magic != LLMC_MAGIC_LLAMA3)
        return STATUS_OK;
    TRY(byte_source_read(&f->bytes, h, sizeof h, &got, e));
    if (got < sizeof h)
        return error_set(e, STATUS_DATA, "%s is cut inside its header: %zu bytes of %d", name, got,
                         HEADER_BYTES);
    uint32_t version = le32_get(h + 4), expected = magic == LLMC_MAGIC_GPT2 ? 1 : 7;
    if (version != expected)
        return error_set(e, STATUS_DATA,
                         "%s: version %" PRIu32
                         " at byte 4 of an llm.c token file, expected %" PRIu32,
                         name, version, expected);
    f->id_bytes = magic == LLMC_MAGIC_GPT2 ? 2 : 4;
    f->promised = le32_get(h + 8);
    f->header_bytes = sizeof h;
    return STATUS_OK;
}

static enum status check_ids(const struct bin *f, size_t n, struct error *e)
{
    uint32_t size = f->source->vocab.size;
    if (n == 0 || token_max(f->data, n, f->id_bytes) < size)
        return STATUS_OK;
    size_t bad = token_first_over(f->data, n, f->id_bytes, size);
    return error_set(e, STATUS_DATA,
                     "%s: id %" PRIu32 " at byte %" PRIu64 ", but the vocabulary has %" PRIu32
                     " ids: another vocabulary (--vocab-size), or not a file of %u-bit ids",
                     f->source->in->name, token_at(f->data, bad, f->id_bytes),
                     f->header_bytes + (f->ids + bad) * f->id_bytes, size, f->id_bytes * 8);
}

/* Marks the ends of documents in n ids; returns how many end here. */
static uint32_t find_ends(struct bin *f, size_t n)
{
    enum split split = f->source->options->split;
    uint32_t eot = (uint32_t)f->source->vocab.eot, count = 0;
    f->open_here = 0;
    for (size_t i = 0; i < n; i++) {
        bool is_eot = split != SPLIT_NONE && token_at(f->data, i, f->id_bytes) == eot;
        if (is_eot && split == SPLIT_EOT_BEGINS && f->open) {
            f->ends[count++] = f->open_here;
            f->open_here = 0;
        }
        f->open = true;
        f->open_here++;
        if (is_eot && split == SPLIT_EOT_ENDS) {
            f->ends[count++] = f->open_here;
            f->open_here = 0;
            f->open = false;
        }
    }
    return count;
}

static enum status run_blocks(struct bin *f, const struct source_sink *sink, struct error *e)
{
    const char *name = f->source->in->name;
    for (;;) {
        size_t got, n;
        TRY(byte_source_read(&f->bytes, f->data, BLOCK_BYTES, &got, e));
        n = got / f->id_bytes;
        token_swap(f->data, n, f->id_bytes);
        TRY(check_ids(f, n, e));
        struct token_block b = {
            .ids = f->data, .id_bytes = f->id_bytes, .n = (uint32_t)n, .ends = f->ends};
        if (f->source->options->split != SPLIT_NONE)
            b.documents = find_ends(f, n);
        else
            f->open = f->open || n > 0;
        f->ids += n;
        if (n)
            TRY(sink->block(sink->arg, &b, e));
        if (got % f->id_bytes)
            return error_set(e, STATUS_DATA, "%s is cut: it ends inside the id at byte %" PRIu64,
                             name, f->header_bytes + f->ids * f->id_bytes);
        if (got < BLOCK_BYTES)
            return STATUS_OK;
    }
}

static enum status finish(struct bin *f, const struct source_sink *sink, struct error *e)
{
    const char *name = f->source->in->name;
    if (f->promised != UINT64_MAX && f->ids != f->promised)
        return error_set(e, STATUS_DATA,
                         "%s: the header counts %" PRIu64 " ids, found %" PRIu64 "%s", name,
                         f->promised, f->ids, f->ids < f->promised ? ": the file is cut" : "");
    if (!f->open)
        return STATUS_OK;
    uint32_t end = 0; /* closes the last document, all of whose ids are out */
    struct token_block b = {.ids = f->data, .id_bytes = f->id_bytes, .ends = &end, .documents = 1};
    return sink->block(sink->arg, &b, e);
}

enum status source_run_bin(struct source *s, const struct source_sink *sink, struct error *e)
{
    struct bin f = {.source = s, .data = malloc(BLOCK_BYTES)};
    enum status st = STATUS_OK;
    f.ends = malloc(BLOCK_BYTES / 2 * sizeof *f.ends);
    if (!f.data || !f.ends)
        TRY_OUT(error_memory(e, BLOCK_BYTES, "a block of ids"));
    TRY_OUT(byte_source_open(&f.bytes, s->in, e));
    TRY_OUT(read_header(&f, e));
    TRY_OUT(run_blocks(&f, sink, e));
    TRY_OUT(finish(&f, sink, e));
out:
    byte_source_close(&f.bytes);
    free(f.data);
    free(f.ends);
    return st;
}
