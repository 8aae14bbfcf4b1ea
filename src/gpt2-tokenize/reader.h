/* reader.h - the input files, cut into batches. One thread at a time. */
#ifndef TOKENIZE_READER_H
#define TOKENIZE_READER_H

#include "format/token_stream.h"
#include "gpt2-tokenize/batch.h"

struct reader;

/* files: count paths, none = stdin. A token stream's header is read here, so that its vocabulary is
 * known before any work. */
enum status reader_open(struct reader **r, const struct plan *plan, char **files, size_t count,
                        struct error *e) MUST_CHECK;
/* Of token streams only. */
const struct vocab_info *reader_vocab(const struct reader *r);
bool reader_ends_with_eot(const struct reader *r);
/* The next batch; *more is false when there is none. b has been cleared. */
enum status reader_next(struct reader *r, struct batch *b, bool *more, struct error *e) MUST_CHECK;
uint64_t reader_total_bytes(const struct reader *r); /* of all files; 0 = not known */
void reader_free(struct reader *r);

#endif
