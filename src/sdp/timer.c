#include "sdp/timer.h"

#include <stdlib.h>

enum status sdp_timer_open(struct sdp_timer *t, struct device *dev, int64_t pairs, struct error *e)
{
    *t = (struct sdp_timer){.dev = dev};
    t->events = calloc((size_t)pairs * 2, sizeof *t->events);
    if (!t->events)
        return error_memory(e, (size_t)pairs * 2 * sizeof *t->events, "timing events");
    for (int64_t i = 0; i < 2 * pairs; i++) {
        TRY(dev->ops->event_create(dev, &t->events[i], e));
        t->pairs = (i + 1) / 2;
    }
    return STATUS_OK;
}

void sdp_timer_close(struct sdp_timer *t)
{
    for (int64_t i = 0; t->events && i < 2 * t->pairs; i++)
        t->dev->ops->event_free(t->dev, t->events[i]);
    free(t->events);
    *t = (struct sdp_timer){0};
}

void sdp_timer_reset(struct sdp_timer *t)
{
    t->used = 0;
}

void sdp_timer_begin(struct sdp_timer *t, struct stream *s)
{
    if (t->used < t->pairs)
        t->dev->ops->event_record(t->dev, t->events[2 * t->used], s);
}

void sdp_timer_end(struct sdp_timer *t, struct stream *s)
{
    if (t->used < t->pairs) {
        t->dev->ops->event_record(t->dev, t->events[2 * t->used + 1], s);
        t->used++;
    }
}

void sdp_timer_wait(struct sdp_timer *t, struct stream *s, struct event *ev)
{
    sdp_timer_begin(t, s);
    t->dev->ops->stream_wait(t->dev, s, ev);
    sdp_timer_end(t, s);
}

double sdp_timer_total_ms(const struct sdp_timer *t)
{
    double sum = 0;
    for (int64_t i = 0; i < t->used; i++) {
        double ms = t->dev->ops->event_elapsed_ms(t->dev, t->events[2 * i], t->events[2 * i + 1]);
        sum += ms > 0 ? ms : 0;
    }
    return sum;
}
