/* test_cpu_stream.c - memory, streams and events of the cpu backend: zeroed, aligned, counted
 * memory; order inside a stream and across events; that streams really run beside each other;
 * failures. */
#include "device_fixture.h"
#include <pthread.h>
#include <time.h>

static void pause_ms(long ms)
{
    const struct timespec t = {0, ms * 1000000};
    nanosleep(&t, NULL);
}

/* A gate that one host call waits at until another thread opens it. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open, timed_out;
};

static void gate_open(void *arg)
{
    struct gate *g = arg;
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void gate_wait(void *arg)
{
    struct gate *g = arg;
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 20;
    pthread_mutex_lock(&g->lock);
    while (!g->open && !g->timed_out)
        g->timed_out = pthread_cond_timedwait(&g->changed, &g->lock, &limit) != 0;
    pthread_mutex_unlock(&g->lock);
}

struct append {
    int *log, *count, value;
};

static void append(void *arg)
{
    struct append *a = arg;
    if (a->value % 3 == 0)
        pause_ms(2);
    a->log[__atomic_fetch_add(a->count, 1, __ATOMIC_SEQ_CST)] = a->value;
}

static struct stream *new_stream(struct device *dev)
{
    struct error e = {0};
    struct stream *s = NULL;
    CHECK_INT(dev->ops->stream_create(dev, &s, &e), STATUS_OK);
    return s;
}

static struct event *new_event(struct device *dev)
{
    struct error e = {0};
    struct event *ev = NULL;
    CHECK_INT(dev->ops->event_create(dev, &ev, &e), STATUS_OK);
    return ev;
}

static void memory(struct device *dev)
{
    static const size_t sizes[] = {1, 64, 1000, 5 << 20};
    struct error e = {0};
    void *p[4] = {0};
    const int64_t before = dev->allocated_bytes[MEMORY_DEVICE];
    int64_t total = 0;
    for (int i = 0; i < 4; i++) {
        CHECK_INT(dev->ops->alloc(dev, MEMORY_DEVICE, sizes[i], &p[i], &e), STATUS_OK);
        CHECK((uintptr_t)p[i] % 64 == 0);
        for (size_t j = 0; j < sizes[i]; j++)
            if (((char *)p[i])[j] != 0) {
                CHECK(!"zero-filled");
                break;
            }
        memset(p[i], 1, sizes[i]);
        total += (int64_t)sizes[i];
        CHECK_INT(dev->allocated_bytes[MEMORY_DEVICE], before + total);
    }
    for (int i = 0; i < 4; i++)
        dev->ops->free(dev, MEMORY_DEVICE, p[i]);
    CHECK_INT(dev->allocated_bytes[MEMORY_DEVICE], before);
    CHECK(dev->peak_bytes[MEMORY_DEVICE] >= before + total);
    CHECK_INT(dev->allocated_bytes[MEMORY_HOST], 0);
    dev->ops->free(dev, MEMORY_DEVICE, NULL);
    CHECK(dev->ops->alloc(dev, MEMORY_DEVICE, SIZE_MAX - 8, &p[0], &e) != STATUS_OK);
    CHECK_CONTAINS(e.message, "out of memory");
}

static void order_in_a_stream(struct device *dev)
{
    enum { N = 200 };
    struct error e = {0};
    struct stream *s = new_stream(dev);
    int log[N], count = 0;
    struct append items[N];
    for (int i = 0; i < N; i++) {
        items[i] = (struct append){log, &count, i};
        dev->ops->host_call(dev, s, append, &items[i]);
    }
    CHECK_INT(dev->ops->stream_sync(dev, s, &e), STATUS_OK);
    CHECK_INT(count, N);
    for (int i = 0; i < N; i++)
        CHECK_INT(log[i], i);
    dev->ops->stream_free(dev, s);
}

/* The call on the side stream ends only after compute, which runs later in program order, has
 * worked: possible only if both run at the same time. */
static void overlap(struct device *dev)
{
    struct error e = {0};
    struct stream *s = new_stream(dev);
    struct gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, sum = 0;
    dev->ops->host_call(dev, s, gate_wait, &g);
    dev->ops->reduce_sum(dev, dev->compute, &sum, x, 8, false, false);
    CHECK(sum == 36.0f);
    dev->ops->host_call(dev, dev->compute, gate_open, &g);
    CHECK_INT(dev->ops->stream_sync(dev, s, &e), STATUS_OK);
    CHECK(!g.timed_out);
    dev->ops->stream_free(dev, s);
}

/* compute waits for side, side2 waits for compute: values pass through in order. */
static void order_across_streams(struct device *dev)
{
    struct error e = {0};
    struct stream *a = new_stream(dev), *b = new_stream(dev);
    struct event *first = new_event(dev), *second = new_event(dev);
    float *x = fx_random(100000, 1, 1.0f), *y = fx_floats(100000), *z = fx_floats(100000);
    float *w = fx_floats(100000);
    for (int round = 0; round < 50; round++) {
        struct append nap = {(int[1]){0}, (int[1]){0}, 0};
        x[7] = (float)round;
        dev->ops->host_call(dev, a, append, &nap); /* makes a late */
        dev->ops->copy(dev, a, y, x, 400000);
        dev->ops->event_record(dev, first, a);
        dev->ops->stream_wait(dev, dev->compute, first);
        dev->ops->copy(dev, dev->compute, z, y, 400000);
        dev->ops->event_record(dev, second, dev->compute);
        dev->ops->stream_wait(dev, b, second);
        dev->ops->copy(dev, b, w, z, 400000);
        CHECK_INT(dev->ops->stream_sync(dev, b, &e), STATUS_OK);
        CHECK(w[7] == (float)round);
    }
    CHECK_SAME_BITS(w, x, 400000);
    dev->ops->event_free(dev, first);
    dev->ops->event_free(dev, second);
    dev->ops->stream_free(dev, a);
    dev->ops->stream_free(dev, b);
    fx_free_all();
}

static void events(struct device *dev)
{
    struct error e = {0};
    struct stream *s = new_stream(dev);
    struct event *begin = new_event(dev), *end = new_event(dev), *never = new_event(dev);
    struct gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
    dev->ops->stream_wait(dev, s, never); /* an event never recorded holds nobody up */
    dev->ops->event_record(dev, begin, s);
    dev->ops->host_call(dev, s, gate_wait, &g);
    dev->ops->event_record(dev, end, s);
    CHECK_INT(dev->ops->event_sync(dev, begin, &e), STATUS_OK);
    pause_ms(20);
    gate_open(&g);
    CHECK_INT(dev->ops->event_sync(dev, end, &e), STATUS_OK);
    CHECK(dev->ops->event_elapsed_ms(dev, begin, end) >= 19.0);
    CHECK(dev->ops->event_elapsed_ms(dev, begin, never) < 0);
    CHECK(dev->ops->event_elapsed_ms(dev, never, end) < 0);
    dev->ops->event_record(dev, end, s);
    dev->ops->event_free(dev, end); /* while queued */
    dev->ops->event_free(dev, begin);
    dev->ops->event_free(dev, never);
    dev->ops->stream_free(dev, s);
}

/* The first failure is kept, later work does nothing, events still fire. */
static void failures(void)
{
    struct device *dev = fx_open("cpu");
    struct error e = {0};
    struct stream *s = new_stream(dev);
    struct event *ev = new_event(dev);
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    device_fail(dev, "first", "number %d", 1);
    device_fail(dev, "second", "number %d", 2);
    dev->ops->copy(dev, s, y, x, sizeof x);
    dev->ops->copy(dev, dev->compute, y, x, sizeof x);
    dev->ops->event_record(dev, ev, s);
    CHECK_INT(dev->ops->event_sync(dev, ev, &e), STATUS_DEVICE);
    CHECK_CONTAINS(e.message, "first: number 1");
    CHECK_INT(dev->ops->stream_sync(dev, s, &e), STATUS_DEVICE);
    CHECK(y[0] == 0.0f);
    dev->ops->event_free(dev, ev);
    dev->ops->stream_free(dev, s);
    device_close(dev);
}

int main(void)
{
    struct device *dev = fx_open("auto");
    device_close(dev);
    dev = fx_open("cpu");
    CASE("memory is zeroed, aligned and counted; too much is an error")
    memory(dev);
    CASE("work runs in the order it was put on a stream")
    order_in_a_stream(dev);
    CASE("a host call on another stream runs beside compute")
    overlap(dev);
    CASE("events order streams")
    order_across_streams(dev);
    CASE("events: sync, elapsed time, never recorded, freed while queued")
    events(dev);
    CASE("the first failure is kept and stops later work")
    failures();
    CASE("info names the processor and its memory")
    {
        struct device_info info;
        dev->ops->info(dev, &info);
        CHECK(info.name[0] && info.memory_bytes > 0 && info.free_bytes > 0);
    }
    CASE("an unknown device and a missing one are errors that say what exists")
    {
        struct error e = {0};
        struct device *none = NULL;
        CHECK_INT(device_open(&none, "tpu", 0, &e), STATUS_DEVICE);
        CHECK_CONTAINS(e.message, "cpu");
        CHECK_INT(device_open(&none, "cpu", 3, &e), STATUS_DEVICE);
        CHECK_CONTAINS(e.message, "cpu:3");
        CHECK(none == NULL);
    }
    device_close(dev);
    return tap_done();
}
