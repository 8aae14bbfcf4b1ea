#include "sdp/timer.h"

#include <stdlib.h>

enum status sdp_timer_open(struct sdp_timer *t, struct device *dev, int64_t pairs, struct error *e)
{
    int64_t n = SDP_BANKS * 2 * pairs;
    *t = (struct sdp_timer){.dev = dev, .pairs = pairs};
    t->events = calloc((size_t)n, sizeof *t->events);
    if (!t->events)
        return error_memory(e, (size_t)n * sizeof *t->events, "timing events");
    for (int64_t i = 0; i < n; i++)
        TRY(dev->ops->event_create(dev, &t->events[i], e));
    return STATUS_OK;
}

void sdp_timer_close(struct sdp_timer *t)
{
    for (int64_t i = 0; t->events && i < SDP_BANKS * 2 * t->pairs; i++)
        if (t->events[i])
            t->dev->ops->event_free(t->dev, t->events[i]);
    free(t->events);
    *t = (struct sdp_timer){0};
}

/* The events around wait i of a bank: two in a row. */
static struct event **pair_of(const struct sdp_timer *t, int bank, int64_t i)
{
    return &t->events[2 * (bank * t->pairs + i)];
}

void sdp_timer_reset(struct sdp_timer *t, int bank)
{
    t->bank = bank;
    t->used[bank] = 0;
}

void sdp_timer_begin(struct sdp_timer *t, struct stream *s)
{
    int64_t i = t->used[t->bank];
    if (i < t->pairs)
        t->dev->ops->event_record(t->dev, pair_of(t, t->bank, i)[0], s);
}

void sdp_timer_end(struct sdp_timer *t, struct stream *s)
{
    int64_t i = t->used[t->bank];
    if (i < t->pairs) {
        t->dev->ops->event_record(t->dev, pair_of(t, t->bank, i)[1], s);
        t->used[t->bank]++;
    }
}

void sdp_timer_wait(struct sdp_timer *t, struct stream *s, struct event *ev)
{
    sdp_timer_begin(t, s);
    t->dev->ops->stream_wait(t->dev, s, ev);
    sdp_timer_end(t, s);
}

double sdp_timer_total_ms(const struct sdp_timer *t, int bank)
{
    double sum = 0;
    for (int64_t i = 0; i < t->used[bank]; i++) {
        struct event **pair = pair_of(t, bank, i);
        double ms = t->dev->ops->event_elapsed_ms(t->dev, pair[0], pair[1]);
        sum += ms > 0 ? ms : 0;
    }
    return sum;
}
