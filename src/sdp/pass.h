/* pass.h - one micro-batch through the model: forward, and backward in reverse, while units are
 * gathered ahead of use and gradients leave behind it. */
#ifndef SDP_PASS_H
#define SDP_PASS_H

#include "sdp/engine.h"

struct sdp_batch {
    const int32_t *tokens, *targets; /* host [B*T] */
    const int64_t *samples;          /* host [B] global sample numbers */
};

/* Forward, loss and backward of one training micro-batch. grad_scale multiplies every d(logit). The
 * sum of losses is added to the engine's loss scalar (set when first). batch must stay as it is
 * until *uploaded has happened. */
void sdp_pass_train(struct sdp_engine *x, const struct sdp_batch *batch, float grad_scale,
                    bool first, bool last, struct event *uploaded);
/* Forward and loss only. first: sets the loss scalar, else adds to it. */
void sdp_pass_eval(struct sdp_engine *x, const struct sdp_batch *batch, bool first,
                   struct event *uploaded);

#endif
