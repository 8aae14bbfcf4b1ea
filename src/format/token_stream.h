/* token_stream.h - documents of token ids as a stream: what gpt2-tokenize writes and shard-pack
 * reads.
 *
 * A container of kind "TOK", version 1.0, dtype u16 (vocabulary up to 65536) or u32. Blocks:
 * "vocb", "prov", then pairs: "DOCS" (u32 lengths in tokens of the documents that END in the
 * following DATA block; a document may span blocks) and "DATA" (ids, at most 1 MiB). A document of
 * 0 tokens is legal. The header's count is the number of tokens; flag bit 16 = documents end with
 * the eot id. */
#ifndef FORMAT_TOKEN_STREAM_H
#define FORMAT_TOKEN_STREAM_H

#include "format/container.h"
#include "format/vocab_info.h"

#define TOKEN_STREAM_MAJOR 1
#define TOKEN_STREAM_FLAG_EOT (1u << 16)

struct token_writer;
/* out is borrowed. provenance: JSON text or NULL. */
enum status token_writer_open(struct token_writer **w, struct output *out,
                              const struct vocab_info *vocab, bool ends_with_eot,
                              const char *provenance, struct error *e) MUST_CHECK;
/* Append ids to the current document; an id not below vocab->size is STATUS_DATA. */
enum status token_writer_put(struct token_writer *w, const uint32_t *ids, size_t n,
                             struct error *e) MUST_CHECK;
enum status token_writer_end_document(struct token_writer *w, struct error *e) MUST_CHECK;
/* Trailer. The caller commits the output. */
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
void token_reader_free(struct token_reader *r);

#endif
