/* batch.c - the memory of a batch. */
#include "gpt2-tokenize/batch.h"

#include <stdlib.h>
#include <string.h>

enum status ends_push(struct ends *ends, size_t at, struct error *e)
{
    if (ends->count == ends->capacity) {
        size_t capacity = ends->capacity ? 2 * ends->capacity : 256;
        size_t *grown = realloc(ends->at, capacity * sizeof *grown);
        if (!grown)
            return error_memory(e, capacity * sizeof *grown, "the ends of documents");
        ends->at = grown;
        ends->capacity = capacity;
    }
    ends->at[ends->count++] = at;
    return STATUS_OK;
}

/* One long line must not make every batch of the ring as large as itself. */
static void strbuf_clear_bounded(struct strbuf *s)
{
    if (s->capacity > 16 * BATCH_BYTES)
        strbuf_release(s);
    strbuf_clear(s);
}

void batch_clear(struct batch *b)
{
    strbuf_clear_bounded(&b->data);
    strbuf_clear_bounded(&b->text);
    if (b->ids.capacity > 4 * BATCH_BYTES)
        token_buffer_release(&b->ids);
    b->ids.length = 0;
    b->data_ends.count = b->ends.count = 0;
    b->file = NULL;
    b->first_line = b->first_document = b->done_bytes = 0;
    b->continues = b->open = false;
    b->id_bytes = 0;
    b->documents = b->text_bytes = b->tokens = b->bad = 0;
    b->first_bad.status = b->error.status = STATUS_OK;
}

void batch_release(struct batch *b)
{
    strbuf_release(&b->data);
    strbuf_release(&b->text);
    token_buffer_release(&b->ids);
    free(b->data_ends.at);
    free(b->ends.at);
    memset(b, 0, sizeof *b);
}
