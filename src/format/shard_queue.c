/* shard_queue.c - a ring of blocks under one lock. */
#include "format/shard_queue.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct shard_queue {
    struct shard_queue_sink sink;
    uint8_t *blocks[SHARD_QUEUE_BLOCKS];
    uint64_t samples[SHARD_QUEUE_BLOCKS];
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    uint64_t put, written; /* blocks so far */
    bool stop;
    struct error error; /* of the first write that failed */
};

static void *write_blocks(void *arg)
{
    struct shard_queue *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->put == q->written && !q->stop)
            pthread_cond_wait(&q->changed, &q->lock);
        if (q->stop)
            break;
        size_t slot = q->written % SHARD_QUEUE_BLOCKS;
        struct error e = {0};
        enum status st = STATUS_OK;
        if (q->error.status == STATUS_OK) {
            pthread_mutex_unlock(&q->lock);
            st = q->sink.write(q->sink.arg, q->blocks[slot], q->samples[slot], &e);
            pthread_mutex_lock(&q->lock);
        }
        if (st != STATUS_OK)
            q->error = e;
        q->written++;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

enum status shard_queue_new(struct shard_queue **out, size_t block_bytes,
                            const struct shard_queue_sink *sink, struct error *e)
{
    struct shard_queue *q = calloc(1, sizeof *q);
    *out = q;
    if (!q)
        return error_memory(e, sizeof *q, "a queue of blocks");
    q->sink = *sink;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    for (int i = 0; i < SHARD_QUEUE_BLOCKS; i++)
        if (!(q->blocks[i] = malloc(block_bytes)))
            return error_memory(e, block_bytes, "a block of samples");
    int rc = pthread_create(&q->thread, NULL, write_blocks, q);
    if (rc != 0)
        return error_set(e, STATUS_FAILED, "starting the thread that writes shards: %s",
                         strerror(rc));
    q->started = true;
    return STATUS_OK;
}

/* Waits until at most `most` blocks are still to be written. */
static enum status wait_for(struct shard_queue *q, uint64_t most, struct error *e)
{
    pthread_mutex_lock(&q->lock);
    while (q->put - q->written > most)
        pthread_cond_wait(&q->changed, &q->lock);
    enum status st = q->error.status;
    if (st != STATUS_OK)
        *e = q->error;
    pthread_mutex_unlock(&q->lock);
    return st;
}

enum status shard_queue_take(struct shard_queue *q, uint8_t **block, struct error *e)
{
    TRY(wait_for(q, SHARD_QUEUE_BLOCKS - 1, e));
    *block = q->blocks[q->put % SHARD_QUEUE_BLOCKS];
    return STATUS_OK;
}

void shard_queue_put(struct shard_queue *q, uint64_t samples)
{
    pthread_mutex_lock(&q->lock);
    q->samples[q->put++ % SHARD_QUEUE_BLOCKS] = samples;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

enum status shard_queue_drain(struct shard_queue *q, struct error *e)
{
    return wait_for(q, 0, e);
}

void shard_queue_free(struct shard_queue *q)
{
    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    if (q->started)
        pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    for (int i = 0; i < SHARD_QUEUE_BLOCKS; i++)
        free(q->blocks[i]);
    free(q);
}
