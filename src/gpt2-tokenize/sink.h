/* sink.h - batches in their order to the output. One thread at a time. */
#ifndef TOKENIZE_SINK_H
#define TOKENIZE_SINK_H

#include "base/io.h"
#include "format/token_stream.h"
#include "gpt2-tokenize/batch.h"

struct sink {
    const struct plan *plan;
    struct output out;
    struct token_writer *writer;
    uint64_t documents, text_bytes, tokens, bad;
    struct error first_bad; /* why the first line was left out */
};

enum status sink_open(struct sink *s, const struct plan *plan, const char *path,
                      const struct vocab_info *vocab, bool ends_with_eot, const char *provenance,
                      struct error *e) MUST_CHECK;
/* Fails with the batch's own error, or when more lines are bad than --skip-bad allows. */
enum status sink_write(struct sink *s, const struct batch *b, struct error *e) MUST_CHECK;
enum status sink_commit(struct sink *s, struct error *e) MUST_CHECK;
void sink_close(struct sink *s);

#endif
