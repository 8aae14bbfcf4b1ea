/* show.h - looking at shard sets: --verify, --list, --sample. */
#ifndef SHARD_PACK_SHOW_H
#define SHARD_PACK_SHOW_H

#include "base/io.h"

/* A shard set, or a token stream: reads all of it. */
enum status show_verify(const char *path, bool quiet, struct error *e) MUST_CHECK;
enum status show_list(const char *dir, struct output *out, struct error *e) MUST_CHECK;
/* Sample `number` as text when the vocabulary at vocab_path (NULL: the one that comes with the
 * program) is the set's; otherwise as a JSON array of ids, with *note saying why. */
enum status show_sample(const char *dir, uint64_t number, const char *vocab_path, const char *share,
                        struct output *out, struct error *note, struct error *e) MUST_CHECK;

#endif
