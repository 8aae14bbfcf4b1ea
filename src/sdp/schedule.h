/* schedule.h - the learning rate of every step, and the loss scale of fp16.
 *
 * constant, linear, cosine, exponential and plateau are Megatron-LM's AnnealingLR: with n the
 * number of steps done, w the warm-up, p the end of the plateau and N the decay steps, the rate is
 * lr*n/w while n <= w (at most N - w), then with k = min(n, N - w) - w linear       lr * (N - k) /
 * N cosine       lr / 2 * (cos(pi * k / N) + 1) exponential  lr * exp(-0.693 * k / N) plateau lr
 * until n = p, then lr * (N - n) / (N - p) and never below min_lr. Two more reach min_lr exactly at
 * N: cosine-to-min         min + (lr - min) / 2 * (1 + cos(pi * (n - w) / (N - w)))
 *   warmup-stable-decay   lr until n = p, then in a line to min
 * No device here. */
#ifndef SDP_SCHEDULE_H
#define SDP_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

enum sdp_decay {
    SDP_DECAY_CONSTANT,
    SDP_DECAY_LINEAR,
    SDP_DECAY_COSINE,
    SDP_DECAY_EXPONENTIAL,
    SDP_DECAY_PLATEAU,
    SDP_DECAY_COSINE_TO_MIN,
    SDP_DECAY_WSD,
    SDP_DECAY_COUNT
};
extern const char *const sdp_decay_names[SDP_DECAY_COUNT + 1]; /* NULL-terminated */

struct sdp_schedule {
    enum sdp_decay decay;
    double lr, min_lr;
    double warmup_steps;  /* fractions of a step are kept, as in the original */
    double plateau_steps; /* from the start */
    int64_t decay_steps;
};

/* The rate of the step after `done` steps. */
double sdp_schedule_lr(const struct sdp_schedule *s, int64_t done);

/* Dynamic loss scaling: halve after `hysteresis` steps with overflow, double after `window` steps
 * without. All fields are state and go into checkpoints. */
struct sdp_loss_scale {
    double scale, minimum;
    int64_t window, hysteresis;
    int64_t good;      /* steps without overflow since the last change */
    int64_t tolerance; /* overflows left before the scale is halved */
};
struct sdp_loss_scale sdp_loss_scale_start(double initial, double minimum, int64_t window,
                                           int64_t hysteresis);
void sdp_loss_scale_update(struct sdp_loss_scale *s, bool overflow);

#endif
