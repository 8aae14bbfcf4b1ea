#include "sdp/data.h"

#include "base/checked.h"
#include "base/philox.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Philox stream of shuffles; initial values and dropout use others of the same seed. */
#define SHUFFLE_STREAM_BASE (0x53687566ull << 32) /* "Shuf" */
#define FEISTEL_ROUNDS 4

/* No more micro-batches are held than this; a step of so many is uploaded piece by piece. */
#define SLOTS_MAX 65

uint64_t sdp_permute(uint64_t index, uint64_t n, uint64_t seed, uint64_t epoch)
{
    uint64_t key = philox_key(seed, SHUFFLE_STREAM_BASE + epoch);
    int half = 1;
    while (half < 32 && (1ull << (2 * half)) < n)
        half++;
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t f = philox4x32(key, right, round).v[0] & mask;
            uint64_t next = left ^ f;
            left = right;
            right = next;
        }
        index = left << half | right;
    } while (index >= n);
    return index;
}

/* The finaliser of splitmix64 over a pair. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    return philox_key(a, b);
}

int64_t sdp_data_step_samples(const struct sdp_data_plan *p, int64_t first)
{
    return max_i64(0, min_i64(p->step_samples, p->limit - first));
}

/* A step's micro-batches stay until the host has seen the step end, and it sees that after it has
 * given out those of the next step. */
static int64_t count_slots(int64_t accumulation)
{
    return accumulation < SLOTS_MAX / 2 ? 2 * accumulation + 1 : SLOTS_MAX;
}

int64_t sdp_data_bytes(int64_t batch, int64_t time, int64_t accumulation)
{
    int64_t rows = batch * time;
    return count_slots(accumulation) *
           (round_up_i64(rows * 4, 64) * 2 + round_up_i64(batch * 8, 64));
}

struct sdp_data_thread {
    pthread_t id;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;
    int64_t filled; /* micro-batches put into slots so far */
    enum status status;
    struct error error;
};

/* One sample row: tokens, and as targets the tokens that follow; the last position has none. */
static enum status fill_row(struct sdp_data *d, struct sdp_data_slot *s, int64_t row, int64_t g,
                            bool real, struct error *e)
{
    int64_t time = d->plan.time;
    int32_t *tokens = s->tokens + row * time, *targets = s->targets + row * time;
    if (!real) {
        memset(tokens, 0, (size_t)time * sizeof *tokens);
        for (int64_t t = 0; t < time; t++)
            targets[t] = -1;
        s->samples[row] = 0;
        return STATUS_OK;
    }
    uint64_t n = shard_set_samples(d->set), index = (uint64_t)g % n;
    if (d->plan.shuffle)
        index = sdp_permute(index, n, d->plan.seed, (uint64_t)g / n);
    TRY(shard_set_get(d->set, index, tokens, e));
    memcpy(targets, tokens + 1, (size_t)(time - 1) * sizeof *targets);
    targets[time - 1] = -1;
    s->samples[row] = g;
    s->digest += mix((uint64_t)g, index);
    return STATUS_OK;
}

static enum status fill_slot(struct sdp_data *d, struct sdp_data_slot *s, int64_t number,
                             struct error *e)
{
    const struct sdp_data_plan *p = &d->plan;
    int64_t step = number / p->accumulation, micro = number % p->accumulation;
    int64_t first = p->first + step * p->step_samples;
    int64_t real = sdp_data_step_samples(p, first);
    s->digest = 0;
    for (int64_t row = 0; row < p->batch; row++) {
        int64_t position = (micro * p->world + p->rank) * p->batch + row;
        TRY(fill_row(d, s, row, first + position, position < real, e));
    }
    return STATUS_OK;
}

static void *read_ahead(void *arg)
{
    struct sdp_data *d = arg;
    struct sdp_data_thread *t = d->thread;
    pthread_mutex_lock(&t->lock);
    while (!t->stop && t->status == STATUS_OK) {
        struct sdp_data_slot *s = &d->slots[t->filled % d->slot_count];
        if (s->full) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        int64_t number = t->filled;
        struct error e = {0};
        pthread_mutex_unlock(&t->lock);
        enum status st = fill_slot(d, s, number, &e);
        pthread_mutex_lock(&t->lock);
        t->status = st;
        t->error = e;
        t->filled++;
        s->full = true;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void cut_memory(struct sdp_data *d, char *p)
{
    int64_t rows = round_up_i64(d->plan.batch * d->plan.time * 4, 64);
    for (int64_t i = 0; i < d->slot_count; i++) {
        struct sdp_data_slot *s = &d->slots[i];
        s->tokens = (int32_t *)p;
        s->targets = (int32_t *)(p + rows);
        s->samples = (int64_t *)(p + 2 * rows);
        p += 2 * rows + round_up_i64(d->plan.batch * 8, 64);
        s->batch = (struct sdp_batch){s->tokens, s->targets, s->samples};
    }
}

enum status sdp_data_open(struct sdp_data *d, const struct sdp_data_plan *plan,
                          struct shard_set *set, struct device *dev, void *memory, struct error *e)
{
    enum status st;
    int64_t slots = count_slots(plan->accumulation);
    *d = (struct sdp_data){.plan = *plan, .set = set, .dev = dev, .slot_count = slots};
    d->slots = calloc((size_t)slots, sizeof *d->slots);
    if (!d->slots)
        return error_memory(e, (size_t)slots * sizeof *d->slots, "the table of micro-batches");
    cut_memory(d, memory);
    for (int64_t i = 0; i < slots; i++)
        TRY_OUT(dev->ops->event_create(dev, &d->slots[i].uploaded, e));
    d->thread = calloc(1, sizeof *d->thread);
    if (!d->thread) {
        st = error_memory(e, sizeof *d->thread, "the data thread");
        goto out;
    }
    pthread_mutex_init(&d->thread->lock, NULL);
    pthread_cond_init(&d->thread->changed, NULL);
    if (pthread_create(&d->thread->id, NULL, read_ahead, d) != 0) {
        st = error_set(e, STATUS_FAILED, "cannot start the thread that reads samples ahead");
        goto out;
    }
    d->thread->started = true;
    return STATUS_OK;
out:
    sdp_data_close(d);
    return st;
}

void sdp_data_close(struct sdp_data *d)
{
    struct sdp_data_thread *t = d->thread;
    if (t && t->started) {
        pthread_mutex_lock(&t->lock);
        t->stop = true;
        pthread_cond_broadcast(&t->changed);
        pthread_mutex_unlock(&t->lock);
        pthread_join(t->id, NULL);
    }
    if (t) {
        pthread_mutex_destroy(&t->lock);
        pthread_cond_destroy(&t->changed);
        free(t);
    }
    for (int64_t i = 0; d->slots && i < d->slot_count; i++)
        if (d->slots[i].uploaded)
            d->dev->ops->event_free(d->dev, d->slots[i].uploaded);
    free(d->slots);
    *d = (struct sdp_data){0};
}

/* Gives a slot whose upload has happened back to the thread. */
static void reclaim(struct sdp_data *d, struct sdp_data_slot *s)
{
    s->pending = false;
    pthread_mutex_lock(&d->thread->lock);
    s->full = false;
    pthread_cond_broadcast(&d->thread->changed);
    pthread_mutex_unlock(&d->thread->lock);
}

void sdp_data_uploaded(struct sdp_data *d, int64_t taken)
{
    for (int64_t i = 0; i < d->slot_count; i++)
        if (d->slots[i].pending && d->slots[i].number < taken)
            reclaim(d, &d->slots[i]);
}

enum status sdp_data_next(struct sdp_data *d, struct sdp_data_slot **slot, struct error *e)
{
    struct sdp_data_thread *t = d->thread;
    /* The slot after this one was given out longest ago, before all the others. When it is not
     * known to be free, waiting for its upload still leaves the device the micro-batches since, and
     * the thread fills it while this micro-batch computes. */
    struct sdp_data_slot *s = &d->slots[d->taken % d->slot_count];
    struct sdp_data_slot *oldest = &d->slots[(d->taken + 1) % d->slot_count];
    if (oldest->pending) {
        TRY(d->dev->ops->event_sync(d->dev, oldest->uploaded, e));
        reclaim(d, oldest);
    }
    pthread_mutex_lock(&t->lock);
    while (t->filled <= d->taken && t->status == STATUS_OK)
        pthread_cond_wait(&t->changed, &t->lock);
    /* The thread stops at the micro-batch it could not read; those before it are good. */
    enum status st = d->taken + 1 >= t->filled ? t->status : STATUS_OK;
    if (st != STATUS_OK)
        *e = t->error;
    pthread_mutex_unlock(&t->lock);
    if (st != STATUS_OK)
        return error_context(e, "reading micro-batch %lld", (long long)d->taken);
    s->number = d->taken++;
    *slot = s;
    return STATUS_OK;
}

void sdp_data_done(struct sdp_data *d, struct sdp_data_slot *slot)
{
    (void)d;
    slot->pending = true;
}
