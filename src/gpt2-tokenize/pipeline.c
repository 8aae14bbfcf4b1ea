/* pipeline.c - threads without roles: whoever is free writes the batch whose turn it is, or reads
 * the next one and works on it. Reading and writing are each done by one thread at a time, in
 * order; neither waits for the other, so no thread is a bottleneck by its office. A ring of batches
 * bounds the memory. */
#include "gpt2-tokenize/pipeline.h"
#include "base/pool.h"

#include <pthread.h>
#include <stdlib.h>

struct slot {
    struct batch batch;
    bool done; /* the worker is through with it */
};

struct pipeline {
    struct reader *reader;
    struct worker *workers;
    struct sink *sink;
    struct progress *progress;
    struct slot *slots;
    size_t slot_count;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    uint64_t read, written; /* batches; those in between are in the ring */
    bool reading, writing, at_end, stop;
    struct error read_error; /* of the batch behind the last one read */
    struct error error;
};

static void write_one(struct pipeline *p)
{
    struct slot *slot = &p->slots[p->written % p->slot_count];
    struct error e = {0};
    p->writing = true;
    pthread_mutex_unlock(&p->lock);
    enum status st = sink_write(p->sink, &slot->batch, &e);
    if (st == STATUS_OK)
        progress_update(p->progress, slot->batch.done_bytes);
    pthread_mutex_lock(&p->lock);
    p->writing = false;
    slot->done = false;
    p->written++;
    if (st != STATUS_OK) {
        p->error = e;
        p->stop = true;
    }
}

static void read_one(struct pipeline *p, struct worker *worker)
{
    struct slot *slot = &p->slots[p->read % p->slot_count];
    struct error e = {0};
    bool more;
    p->reading = true;
    pthread_mutex_unlock(&p->lock);
    batch_clear(&slot->batch);
    enum status st = reader_next(p->reader, &slot->batch, &more, &e);
    pthread_mutex_lock(&p->lock);
    p->reading = false;
    if (st != STATUS_OK || !more) {
        p->read_error = e;
        p->at_end = true;
        return;
    }
    p->read++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    worker_run(worker, &slot->batch);
    pthread_mutex_lock(&p->lock);
    slot->done = true;
}

static void run_thread(void *arg, size_t i, int number)
{
    struct pipeline *p = arg;
    (void)i;
    pthread_mutex_lock(&p->lock);
    while (!p->stop && !(p->at_end && p->written == p->read)) {
        bool can_write =
            !p->writing && p->written < p->read && p->slots[p->written % p->slot_count].done;
        bool can_read = !p->reading && !p->at_end && p->read - p->written < p->slot_count;
        if (can_write)
            write_one(p);
        else if (can_read)
            read_one(p, &p->workers[number]);
        else {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
}

static enum status run_pool(struct pipeline *p, int threads, struct error *e)
{
    struct pool *pool;
    TRY(pool_create(&pool, threads, e));
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    pool_run(pool, (size_t)threads, run_thread, p);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    pool_free(pool);
    if (p->stop)
        *e = p->error;
    else if (p->read_error.status != STATUS_OK)
        *e = p->read_error;
    else
        return STATUS_OK;
    return e->status;
}

enum status pipeline_run(struct reader *reader, struct worker *workers, int threads,
                         struct sink *sink, struct progress *progress, struct error *e)
{
    struct pipeline p = {.reader = reader,
                         .workers = workers,
                         .sink = sink,
                         .progress = progress,
                         .slot_count = threads > 1 ? 2 * (size_t)threads : 1};
    p.slots = calloc(p.slot_count, sizeof *p.slots);
    if (!p.slots)
        return error_memory(e, p.slot_count * sizeof *p.slots, "the ring of batches");
    enum status st = run_pool(&p, threads, e);
    for (size_t i = 0; i < p.slot_count; i++)
        batch_release(&p.slots[i].batch);
    free(p.slots);
    return st;
}
