/* stream.c - streams and events of the cpu backend.
 *
 * A stream other than the compute stream is a thread with a first-in-first-out queue. An event
 * counts how often it was recorded (by the driving thread) and how often that record was reached
 * (by whichever stream holds it); a wait remembers the count it has to see. */
#include "device/cpu/cpu.h"

#include <assert.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct event {
    pthread_mutex_t lock;
    pthread_cond_t reached;
    uint64_t issued, completed;
    double completed_ms;
    int references; /* the owner, and every queued task that names it */
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* --- streams */

static bool device_failed(const struct device *dev)
{
    return __atomic_load_n(&dev->error.status, __ATOMIC_ACQUIRE) != STATUS_OK;
}

static void *stream_thread(void *arg)
{
    struct stream *s = arg;
    /* Side streams move data beside compute; a team of their own would take its processors. */
    omp_set_num_threads(1);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->head && !s->stop)
            pthread_cond_wait(&s->wake, &s->lock);
        if (!s->head)
            break;
        struct task *t = s->head;
        s->head = t->next;
        if (!s->head)
            s->tail = NULL;
        s->busy = true;
        bool run = t->always || (s->error.status == STATUS_OK && !device_failed(&s->dev->base));
        pthread_mutex_unlock(&s->lock);
        if (run)
            t->fn(s, t->args);
        pthread_mutex_lock(&s->lock);
        t->next = s->spare;
        s->spare = t;
        s->busy = false;
        if (!s->head)
            pthread_cond_broadcast(&s->idle);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

enum status stream_new(struct cpu_device *dev, bool inline_run, struct stream **out,
                       struct error *e)
{
    struct stream *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return error_memory(e, sizeof *s, "a stream");
    s->dev = dev;
    s->inline_run = inline_run;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->idle, NULL);
    if (!inline_run && pthread_create(&s->thread, NULL, stream_thread, s) != 0) {
        free(s);
        return error_set(e, STATUS_DEVICE, "device cpu: cannot start the thread of a stream");
    }
    *out = s;
    return STATUS_OK;
}

enum status cpu_stream_create(struct device *dev, struct stream **s, struct error *e)
{
    return stream_new((struct cpu_device *)dev, false, s, e);
}

/* Moves a failure seen by the stream's thread to the device; called by the driving thread. */
static void collect_failure(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->error.status != STATUS_OK && s->dev->base.error.status == STATUS_OK)
        s->dev->base.error = s->error;
    pthread_mutex_unlock(&s->lock);
}

void cpu_stream_free(struct device *dev, struct stream *s)
{
    if (!s)
        return;
    if (!s->inline_run) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
        collect_failure(s);
    }
    cpu_free(dev, MEMORY_DEVICE, s->scratch);
    for (struct task *t = s->spare, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void stream_queue(struct stream *s, kernel_fn *fn, const void *args, size_t bytes,
                         bool always)
{
    assert(bytes <= TASK_ARGS_BYTES);
    if (s->inline_run) {
        if (always || !device_failed(&s->dev->base))
            fn(s, args);
        return;
    }
    pthread_mutex_lock(&s->lock);
    struct task *t = s->spare;
    if (t)
        s->spare = t->next;
    else
        t = malloc(sizeof *t);
    if (t) {
        t->next = NULL;
        t->fn = fn;
        t->always = always;
        memcpy(t->args, args, bytes);
        if (s->tail)
            s->tail->next = t;
        else
            s->head = t;
        s->tail = t;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    if (!t)
        device_fail(&s->dev->base, "stream", "out of memory queueing work");
}

void stream_submit(struct stream *s, kernel_fn *fn, const void *args, size_t bytes)
{
    stream_queue(s, fn, args, bytes, false);
}

void stream_fail(struct stream *s, const char *operation, const char *fmt, ...)
{
    char detail[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    if (s->inline_run) {
        device_fail(&s->dev->base, operation, "%s", detail);
        return;
    }
    pthread_mutex_lock(&s->lock);
    if (s->error.status == STATUS_OK)
        error_set(&s->error, STATUS_DEVICE, "device cpu: %s: %s", operation, detail);
    pthread_mutex_unlock(&s->lock);
}

void *stream_scratch(struct stream *s, const char *operation, size_t bytes)
{
    struct error e = {0};
    struct device *dev = &s->dev->base;
    if (bytes <= s->scratch_bytes)
        return s->scratch;
    cpu_free(dev, MEMORY_DEVICE, s->scratch);
    s->scratch = NULL;
    s->scratch_bytes = 0;
    if (cpu_alloc(dev, MEMORY_DEVICE, bytes, &s->scratch, &e) != STATUS_OK) {
        stream_fail(s, operation, "%s", e.message);
        return NULL;
    }
    s->scratch_bytes = bytes;
    return s->scratch;
}

enum status cpu_stream_sync(struct device *dev, struct stream *s, struct error *e)
{
    if (!s->inline_run) {
        pthread_mutex_lock(&s->lock);
        while (s->head || s->busy)
            pthread_cond_wait(&s->idle, &s->lock);
        pthread_mutex_unlock(&s->lock);
        collect_failure(s);
    }
    return device_check(dev, e);
}

struct host_call_args {
    void (*fn)(void *);
    void *arg;
};

static void host_call_run(struct stream *s, const void *args)
{
    const struct host_call_args *a = args;
    (void)s;
    a->fn(a->arg);
}

void cpu_host_call(struct device *dev, struct stream *s, void (*fn)(void *), void *arg)
{
    struct host_call_args a = {fn, arg};
    (void)dev;
    stream_submit(s, host_call_run, &a, sizeof a);
}

/* --- events */

enum status cpu_event_create(struct device *dev, struct event **out, struct error *e)
{
    struct event *ev = calloc(1, sizeof *ev);
    (void)dev;
    *out = ev;
    if (!ev)
        return error_memory(e, sizeof *ev, "an event");
    pthread_mutex_init(&ev->lock, NULL);
    pthread_cond_init(&ev->reached, NULL);
    ev->references = 1;
    return STATUS_OK;
}

/* Called with the lock held; releases it. */
static void event_unref(struct event *ev)
{
    bool last = --ev->references == 0;
    pthread_mutex_unlock(&ev->lock);
    if (!last)
        return;
    pthread_cond_destroy(&ev->reached);
    pthread_mutex_destroy(&ev->lock);
    free(ev);
}

void cpu_event_free(struct device *dev, struct event *ev)
{
    (void)dev;
    if (!ev)
        return;
    pthread_mutex_lock(&ev->lock);
    event_unref(ev);
}

struct event_args {
    struct event *ev;
    uint64_t ticket;
};

static void event_record_run(struct stream *s, const void *args)
{
    const struct event_args *a = args;
    (void)s;
    pthread_mutex_lock(&a->ev->lock);
    if (a->ticket > a->ev->completed) {
        a->ev->completed = a->ticket;
        a->ev->completed_ms = now_ms();
    }
    pthread_cond_broadcast(&a->ev->reached);
    event_unref(a->ev);
}

static void event_wait_run(struct stream *s, const void *args)
{
    const struct event_args *a = args;
    (void)s;
    pthread_mutex_lock(&a->ev->lock);
    while (a->ev->completed < a->ticket)
        pthread_cond_wait(&a->ev->reached, &a->ev->lock);
    event_unref(a->ev);
}

void cpu_event_record(struct device *dev, struct event *ev, struct stream *s)
{
    (void)dev;
    pthread_mutex_lock(&ev->lock);
    struct event_args a = {ev, ++ev->issued};
    ev->references++;
    pthread_mutex_unlock(&ev->lock);
    stream_queue(s, event_record_run, &a, sizeof a, true);
}

void cpu_stream_wait(struct device *dev, struct stream *s, struct event *ev)
{
    (void)dev;
    pthread_mutex_lock(&ev->lock);
    struct event_args a = {ev, ev->issued};
    ev->references++;
    pthread_mutex_unlock(&ev->lock);
    stream_queue(s, event_wait_run, &a, sizeof a, true);
}

enum status cpu_event_sync(struct device *dev, struct event *ev, struct error *e)
{
    pthread_mutex_lock(&ev->lock);
    while (ev->completed < ev->issued)
        pthread_cond_wait(&ev->reached, &ev->lock);
    pthread_mutex_unlock(&ev->lock);
    return device_check(dev, e);
}

double cpu_event_elapsed_ms(struct device *dev, struct event *from, struct event *to)
{
    (void)dev;
    pthread_mutex_lock(&from->lock);
    bool recorded = from->completed > 0;
    double begin = from->completed_ms;
    pthread_mutex_unlock(&from->lock);
    pthread_mutex_lock(&to->lock);
    recorded = recorded && to->completed > 0;
    double end = to->completed_ms;
    pthread_mutex_unlock(&to->lock);
    return recorded ? end - begin : -1.0;
}
