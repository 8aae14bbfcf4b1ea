/* token_writer.c - fills one DATA block and the ends of documents in it, then writes both. */
#include "format/token_stream.h"
#include "format/token_ids.h"

#include <assert.h>
#include <stdlib.h>

#define DOCS_MAX (TOKEN_STREAM_BLOCK_BYTES / 4)

struct token_writer {
    struct container_writer container;
    struct vocab_info vocab;
    uint32_t id_bytes, data_max; /* ids a block holds */
    void *data;                  /* host order until written */
    uint32_t *ends;
    uint32_t used, documents; /* ids and ends in the block being filled */
    uint32_t open_from;       /* where the current document begins in this block */
    bool open;                /* the current document has ids, here or in earlier blocks */
    uint64_t total_tokens, total_documents;
};

static enum status write_preamble(struct token_writer *w, struct output *out, bool ends_with_eot,
                                  const char *provenance, struct error *e)
{
    struct strbuf json = {0};
    struct container_header h = {.kind = "TOK",
                                 .major = TOKEN_STREAM_MAJOR,
                                 .dtype = w->id_bytes == 2 ? DTYPE_U16 : DTYPE_U32,
                                 .flags = ends_with_eot ? TOKEN_STREAM_FLAG_EOT : 0,
                                 .count = CONTAINER_COUNT_UNKNOWN,
                                 .parts = 1};
    enum status st;
    TRY_OUT(container_write_header(&w->container, out, &h, e));
    TRY_OUT(vocab_info_to_json(&w->vocab, &json, e));
    TRY_OUT(container_write_block(&w->container, "vocb", json.data, json.length, NULL, e));
    if (provenance)
        TRY_OUT(
            container_write_block(&w->container, "prov", provenance, strlen(provenance), NULL, e));
out:
    strbuf_release(&json);
    return st;
}

enum status token_writer_open(struct token_writer **out_w, struct output *out,
                              const struct vocab_info *vocab, bool ends_with_eot,
                              const char *provenance, struct error *e)
{
    enum status st;
    struct token_writer *w = calloc(1, sizeof *w);
    *out_w = NULL;
    if (!w)
        return error_memory(e, sizeof *w, "a token writer");
    w->vocab = *vocab;
    w->id_bytes = vocab->size <= 65536 ? 2 : 4;
    w->data_max = TOKEN_STREAM_BLOCK_BYTES / w->id_bytes;
    w->data = malloc(TOKEN_STREAM_BLOCK_BYTES);
    w->ends = malloc(DOCS_MAX * sizeof *w->ends);
    if (!w->data || !w->ends)
        TRY_OUT(error_memory(e, 2ull * TOKEN_STREAM_BLOCK_BYTES, "a block of tokens"));
    TRY_OUT(write_preamble(w, out, ends_with_eot, provenance, e));
    *out_w = w;
    w = NULL;
out:
    token_writer_free(w);
    return st;
}

static enum status write_block(struct token_writer *w, struct error *e)
{
    token_swap(w->ends, w->documents, 4);
    token_swap(w->data, w->used, w->id_bytes);
    TRY(container_write_block(&w->container, "DOCS", w->ends, 4ull * w->documents, NULL, e));
    TRY(container_write_block(&w->container, "DATA", w->data, (uint64_t)w->used * w->id_bytes, NULL,
                              e));
    w->used = w->documents = w->open_from = 0;
    return STATUS_OK;
}

enum status token_writer_put(struct token_writer *w, const uint32_t *ids, size_t n, struct error *e)
{
    if (n && token_max_u32(ids, n) >= w->vocab.size) {
        size_t bad = token_first_over(ids, n, 4, w->vocab.size);
        return error_set(e, STATUS_DATA,
                         "document %llu: token id %u, but the vocabulary has %u ids",
                         (unsigned long long)w->total_documents, ids[bad], w->vocab.size);
    }
    w->open = w->open || n > 0;
    w->total_tokens += n;
    while (n > 0) {
        if (w->used == w->data_max)
            TRY(write_block(w, e));
        size_t room = w->data_max - w->used, take = n < room ? n : room;
        token_convert((uint8_t *)w->data + (size_t)w->used * w->id_bytes, w->id_bytes, ids, 4,
                      take);
        w->used += (uint32_t)take;
        ids += take;
        n -= take;
    }
    return STATUS_OK;
}

enum status token_writer_end_document(struct token_writer *w, struct error *e)
{
    if (w->documents == DOCS_MAX)
        TRY(write_block(w, e));
    w->ends[w->documents++] = w->used - w->open_from;
    w->open_from = w->used;
    w->open = false;
    w->total_documents++;
    return STATUS_OK;
}

enum status token_writer_finish(struct token_writer *w, uint64_t *tokens, uint64_t *documents,
                                struct error *e)
{
    if (w->open)
        TRY(token_writer_end_document(w, e));
    if (w->used || w->documents)
        TRY(write_block(w, e));
    if (tokens)
        *tokens = w->total_tokens;
    if (documents)
        *documents = w->total_documents;
    return container_write_trailer(&w->container, w->total_tokens, NULL, e);
}

void token_writer_free(struct token_writer *w)
{
    if (!w)
        return;
    container_writer_release(&w->container);
    free(w->data);
    free(w->ends);
    free(w);
}
