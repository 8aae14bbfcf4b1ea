/* token_stream.h - documents of token ids as a stream: what gpt2-tokenize writes and shard-pack
 * reads.
 *
 * A container of kind "TOK", version 1.0, dtype u16 (vocabulary up to 65536) or u32. Blocks:
 * "vocb", "prov", then pairs: "DOCS" (one u32 for each document that ENDS in the following DATA
 * block: how many of that block's ids belong to it; ids behind the last end belong to a document
 * that goes on in the next block, so a document's length is not limited) and "DATA" (ids, at most 1
 * MiB; both may be empty, and DOCS holds at most 1 MiB too). A document of 0 tokens is legal; the
 * stream ends where a document ends. The trailer's count is the number of tokens; flag bit 16 =
 * documents end with the eot id. */
#ifndef FORMAT_TOKEN_STREAM_H
#define FORMAT_TOKEN_STREAM_H

#include "format/container.h"
#include "format/vocab_info.h"

#define TOKEN_STREAM_MAJOR 1
#define TOKEN_STREAM_FLAG_EOT (1u << 16)
#define TOKEN_STREAM_BLOCK_BYTES (1u << 20)

struct token_writer;
/* out is borrowed. provenance: JSON text or NULL. */
enum status token_writer_open(struct token_writer **w, struct output *out,
                              const struct vocab_info *vocab, bool ends_with_eot,
                              const char *provenance, struct error *e) MUST_CHECK;
/* Append ids to the current document; an id not below vocab->size is STATUS_DATA. */
enum status token_writer_put(struct token_writer *w, const uint32_t *ids, size_t n,
                             struct error *e) MUST_CHECK;
enum status token_writer_end_document(struct token_writer *w, struct error *e) MUST_CHECK;
/* Trailer. The caller commits the output. A document with ids that was not ended is ended. The
 * counts may be NULL. */
enum status token_writer_finish(struct token_writer *w, uint64_t *tokens, uint64_t *documents,
                                struct error *e) MUST_CHECK;
void token_writer_free(struct token_writer *w);

struct token_reader;
enum status token_reader_open(struct token_reader **r, struct input *in,
                              struct error *e) MUST_CHECK;
const struct vocab_info *token_reader_vocab(const struct token_reader *r);
bool token_reader_ends_with_eot(const struct token_reader *r);
const char *token_reader_provenance(const struct token_reader *r); /* JSON or NULL */
/* The next run of ids of the current document: *n ids at *ids (borrowed until the next call), and
 * whether the document ends after them. *n == 0 with *document_end is an empty document; at the end
 * of the stream *ids is NULL. */
enum status token_reader_next(struct token_reader *r, const uint32_t **ids, size_t *n,
                              bool *document_end, struct error *e) MUST_CHECK;
/* The same by whole DATA blocks and without widening, for those who move tokens rather than look at
 * them. Every id has been checked against the vocabulary. Do not mix with token_reader_next. */
struct token_block {
    const void *ids;      /* uint16_t or uint32_t in host order; NULL at the end of the stream */
    uint32_t id_bytes;    /* 2 or 4 */
    uint32_t n;           /* ids here, may be 0 */
    const uint32_t *ends; /* ids of this block in each document that ends here; the sum is <= n */
    uint32_t documents;   /* how many end here */
};
enum status token_reader_block(struct token_reader *r, struct token_block *b,
                               struct error *e) MUST_CHECK;
/* Takes the memory of the current block's ids, malloc'ed and of *bytes, in exchange for other such
 * memory or NULL: a block is kept without copying it. */
void token_reader_swap(struct token_reader *r, void **ids, size_t *bytes);
void token_reader_free(struct token_reader *r);

#endif
