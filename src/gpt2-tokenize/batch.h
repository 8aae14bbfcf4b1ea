/* batch.h - a stretch of input on its way through reader, worker and sink.
 *
 * What a batch holds depends only on the input, never on timing, so the output does not depend on
 * the number of threads. A document may begin in one batch and end in a later one. */
#ifndef TOKENIZE_BATCH_H
#define TOKENIZE_BATCH_H

#include "bpe/bpe.h"
#include "gpt2-tokenize/config.h"

#define BATCH_BYTES ((size_t)256 << 10)
#define BATCH_LINE_LIMIT_BYTES ((size_t)1 << 30)

struct ends {
    size_t *at; /* document d ends before ids[at[d]] */
    size_t count, capacity;
};

struct batch {
    /* from the reader */
    const char *file;                    /* name for messages */
    struct strbuf data;                  /* text, lines, or ids of id_bytes each in host order */
    uint64_t first_line, first_document; /* in the file, from 1 */
    uint64_t done_bytes;                 /* of the whole input, up to the end of this batch */
    bool continues;                      /* begins inside a document of which ids have been seen */
    bool open;                           /* its last document goes on in the next batch */
    uint32_t id_bytes;
    struct ends data_ends; /* of documents among the ids of a token stream */

    /* from the worker */
    struct token_buffer ids;
    struct ends ends;
    struct strbuf text; /* the output, when that is text */
    uint64_t documents, text_bytes, tokens;
    uint64_t bad;           /* lines left out */
    struct error first_bad; /* why the first of them */
    struct error error;     /* what ended the work; its status is STATUS_OK otherwise */
};

enum status ends_push(struct ends *ends, size_t at, struct error *e) MUST_CHECK;
void batch_clear(struct batch *b); /* keeps the memory, unless a long document made it grow */
void batch_release(struct batch *b);

#endif
