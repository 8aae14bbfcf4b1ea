/* pool.c - workers sleep on a condition between loops; inside a loop they take item numbers from
 * one atomic counter, so uneven items balance themselves. */
#define _GNU_SOURCE
#include "base/pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct worker {
    struct pool *pool;
    pthread_t thread;
    int number;
};

struct pool {
    int threads;
    int started; /* entries of workers[1..] whose thread exists */
    struct worker *workers;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    /* under lock */
    unsigned long generation; /* one more per pool_run; tells workers that there is a new loop */
    int busy;                 /* workers that have not finished the current loop */
    int stop;
    /* the loop; written under lock before generation changes */
    void (*fn)(void *arg, size_t i, int worker);
    void *arg;
    size_t count;
    atomic_size_t next;
};

static void run_items(struct pool *p, int worker)
{
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->count)
            return;
        p->fn(p->arg, i, worker);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    unsigned long seen = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->generation == seen && !p->stop)
            pthread_cond_wait(&p->work, &p->lock);
        if (p->stop)
            break;
        seen = p->generation;
        pthread_mutex_unlock(&p->lock);
        run_items(p, w->number);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0)
            pthread_cond_signal(&p->finished);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

enum status pool_create(struct pool **pool, int threads, struct error *e)
{
    *pool = NULL;
    if (threads < 1)
        return error_set(e, STATUS_USAGE, "a thread pool needs at least 1 thread, found %d",
                         threads);
    struct pool *p = calloc(1, sizeof *p);
    if (!p)
        return error_memory(e, sizeof *p, "a thread pool");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->finished, NULL);
    atomic_init(&p->next, 0);
    p->threads = threads;
    p->workers = calloc((size_t)threads, sizeof *p->workers);
    if (!p->workers) {
        pool_free(p);
        return error_memory(e, (size_t)threads * sizeof *p->workers, "a thread pool");
    }
    for (int i = 1; i < threads; i++) {
        struct worker *w = &p->workers[i];
        *w = (struct worker){.pool = p, .number = i};
        int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0) {
            pool_free(p);
            return error_set(e, STATUS_FAILED, "starting thread %d of %d: %s", i + 1, threads,
                             strerror(rc));
        }
        p->started++;
    }
    *pool = p;
    return STATUS_OK;
}

void pool_run(struct pool *p, size_t n, void (*fn)(void *arg, size_t i, int worker), void *arg)
{
    if (p->threads == 1 || n <= 1) {
        for (size_t i = 0; i < n; i++)
            fn(arg, i, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    assert(p->busy == 0);
    p->fn = fn;
    p->arg = arg;
    p->count = n;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    p->busy = p->threads - 1;
    p->generation++;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    run_items(p, 0);
    /* Every worker checks in, also one that found nothing left: none may still be reading this
     * loop's fields when the next one overwrites them. */
    pthread_mutex_lock(&p->lock);
    while (p->busy > 0)
        pthread_cond_wait(&p->finished, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

int pool_threads(const struct pool *p)
{
    return p->threads;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i <= p->started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->finished);
    free(p->workers);
    free(p);
}

int cpu_count(void)
{
    /* The kernel may know more processors than a fixed cpu_set_t holds; grow until it fits. */
    for (int limit = 1024; limit <= 1 << 20; limit *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)limit);
        if (!set)
            return 1;
        size_t bytes = CPU_ALLOC_SIZE((size_t)limit);
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0)
            return count;
    }
    return 1;
}
