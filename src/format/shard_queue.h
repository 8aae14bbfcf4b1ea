/* shard_queue.h - blocks from the thread that fills them to one that writes them, in order: reading
 * and checking the next block goes on while this one is hashed and copied to the file. Not for
 * other folders.
 *
 * One thread fills; take and put alternate. Memory: SHARD_QUEUE_BLOCKS blocks. */
#ifndef FORMAT_SHARD_QUEUE_H
#define FORMAT_SHARD_QUEUE_H

#include "base/error.h"
#include <stddef.h>
#include <stdint.h>

#define SHARD_QUEUE_BLOCKS 3 /* one being filled, one being written, one in between */

struct shard_queue;
struct shard_queue_sink {
    /* Called on the queue's thread. After a failure it is not called again. */
    enum status (*write)(void *arg, const uint8_t *block, uint64_t samples, struct error *e);
    void *arg;
};

/* On failure *q may be non-NULL, to be freed. */
enum status shard_queue_new(struct shard_queue **q, size_t block_bytes,
                            const struct shard_queue_sink *sink, struct error *e) MUST_CHECK;
/* The block to fill, once there is one; fails with what an earlier write failed with. Taking again
 * before it is put gives the same one. */
enum status shard_queue_take(struct shard_queue *q, uint8_t **block, struct error *e) MUST_CHECK;
/* The block that was taken goes to the thread. */
void shard_queue_put(struct shard_queue *q, uint64_t samples);
/* Waits until all blocks are written: until the next put the thread touches nothing. */
enum status shard_queue_drain(struct shard_queue *q, struct error *e) MUST_CHECK;
/* Waits for the block being written; the others are forgotten. */
void shard_queue_free(struct shard_queue *q);

#endif
