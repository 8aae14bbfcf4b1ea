/* shuffle.h - documents in the order of a random key each, whatever their number, in bounded
 * memory.
 *
 * A document's key is Philox(seed, its number), so the order is a function of the seed and the
 * number of documents only: not of memory, threads or block bounds. What does not fit into memory
 * is distributed by the key's leading bits over temporary files, and each of those again where
 * needed. */
#ifndef SHARD_PACK_SHUFFLE_H
#define SHARD_PACK_SHUFFLE_H

#include "format/token_stream.h"

struct shuffle;

/* dir: for unnamed temporary files. id_bytes: 2 or 4. */
enum status shuffle_new(struct shuffle **s, uint64_t seed, uint32_t id_bytes, const char *dir,
                        uint64_t memory_bytes, struct error *e) MUST_CHECK;
enum status shuffle_block(struct shuffle *s, const struct token_block *b,
                          struct error *e) MUST_CHECK;

/* Where documents go: ids of the current one, and whether it ends with them. */
struct shuffle_sink {
    enum status (*put)(void *arg, const void *ids, size_t n, bool document_end, struct error *e);
    void *arg;
};
/* Everything, in order; the memory is free afterwards. */
enum status shuffle_drain(struct shuffle *s, const struct shuffle_sink *sink,
                          struct error *e) MUST_CHECK;
void shuffle_free(struct shuffle *s);

#endif
