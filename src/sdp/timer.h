/* timer.h - how long compute stood still for communication: event pairs around every wait. */
#ifndef SDP_TIMER_H
#define SDP_TIMER_H

#include "device/device.h"

struct sdp_timer {
    struct device *dev;
    struct event **events; /* [2 * pairs] */
    int64_t pairs, used;
};

/* At most `pairs` waits a step are measured. */
enum status sdp_timer_open(struct sdp_timer *t, struct device *dev, int64_t pairs,
                           struct error *e) MUST_CHECK;
void sdp_timer_close(struct sdp_timer *t);
void sdp_timer_reset(struct sdp_timer *t);
/* s waits for ev, measured. */
void sdp_timer_wait(struct sdp_timer *t, struct stream *s, struct event *ev);
/* Around work that runs on s itself (communication without overlap). */
void sdp_timer_begin(struct sdp_timer *t, struct stream *s);
void sdp_timer_end(struct sdp_timer *t, struct stream *s);
/* Sum in milliseconds, after the stream was synchronised. */
double sdp_timer_total_ms(const struct sdp_timer *t);

#endif
