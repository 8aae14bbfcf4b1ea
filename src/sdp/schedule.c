#include "sdp/schedule.h"

#include <math.h>

const char *const sdp_decay_names[SDP_DECAY_COUNT + 1] = {
    "constant",
    "linear",
    "cosine",
    "exponential",
    "plateau",
    "cosine-to-min",
    "warmup-stable-decay",
    0,
};

static double annealed(const struct sdp_schedule *s, double n)
{
    double total = (double)s->decay_steps, w = s->warmup_steps;
    double k = fmin(n, total - w) - w;
    switch (s->decay) {
    case SDP_DECAY_LINEAR:
        return s->lr * (total - k) / total;
    case SDP_DECAY_COSINE:
        return s->lr / 2.0 * (cos(M_PI * k / total) + 1.0);
    case SDP_DECAY_EXPONENTIAL:
        return s->lr * exp(-0.693 * k / total);
    case SDP_DECAY_PLATEAU:
        if (n <= s->plateau_steps || total <= s->plateau_steps)
            return s->lr;
        return s->lr * (total - n) / (total - s->plateau_steps);
    default:
        return s->lr;
    }
}

/* Share of the way from `from` to the last decay step. */
static double progress(const struct sdp_schedule *s, double n, double from)
{
    double length = (double)s->decay_steps - from;
    return length > 0 ? fmin(1.0, fmax(0.0, (n - from) / length)) : 1.0;
}

double sdp_schedule_lr(const struct sdp_schedule *s, int64_t done)
{
    double n = (double)done;
    if (s->warmup_steps > 0 && n <= s->warmup_steps)
        return fmin(n, (double)s->decay_steps - s->warmup_steps) * s->lr / s->warmup_steps;
    if (s->decay == SDP_DECAY_COSINE_TO_MIN)
        return s->min_lr +
               (s->lr - s->min_lr) / 2.0 * (1.0 + cos(M_PI * progress(s, n, s->warmup_steps)));
    if (s->decay == SDP_DECAY_WSD)
        return s->lr + (s->min_lr - s->lr) * progress(s, n, s->plateau_steps);
    return fmax(annealed(s, n), s->min_lr);
}

struct sdp_loss_scale sdp_loss_scale_start(double initial, double minimum, int64_t window,
                                           int64_t hysteresis)
{
    struct sdp_loss_scale s = {.scale = initial,
                               .minimum = minimum,
                               .window = window,
                               .hysteresis = hysteresis,
                               .tolerance = hysteresis};
    return s;
}

void sdp_loss_scale_update(struct sdp_loss_scale *s, bool overflow)
{
    if (overflow) {
        s->good = 0;
        if (s->tolerance > 1) {
            s->tolerance--;
            return;
        }
        s->scale = fmax(s->scale / 2.0, s->minimum);
        return;
    }
    if (++s->good < s->window)
        return;
    s->good = 0;
    s->tolerance = s->hysteresis;
    s->scale *= 2.0;
}
