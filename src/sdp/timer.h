/* timer.h - how long compute stood still for communication: event pairs around every wait.
 *
 * Two banks of them, because the waits of a step are read when those of the next one are already
 * being recorded. */
#ifndef SDP_TIMER_H
#define SDP_TIMER_H

#include "device/device.h"

enum { SDP_BANKS = 2 };

struct sdp_timer {
    struct device *dev;
    struct event **events; /* [SDP_BANKS][pairs][begin, end] */
    int64_t pairs, used[SDP_BANKS];
    int bank; /* being recorded */
};

/* At most `pairs` waits of a bank are measured. */
enum status sdp_timer_open(struct sdp_timer *t, struct device *dev, int64_t pairs,
                           struct error *e) MUST_CHECK;
void sdp_timer_close(struct sdp_timer *t);
/* What follows is recorded in this bank, from empty. */
void sdp_timer_reset(struct sdp_timer *t, int bank);
/* s waits for ev, measured. */
void sdp_timer_wait(struct sdp_timer *t, struct stream *s, struct event *ev);
/* Around work that runs on s itself (communication without overlap). */
void sdp_timer_begin(struct sdp_timer *t, struct stream *s);
void sdp_timer_end(struct sdp_timer *t, struct stream *s);
/* Sum of a bank in milliseconds, once the stream has come past its last wait. */
double sdp_timer_total_ms(const struct sdp_timer *t, int bank);

#endif
