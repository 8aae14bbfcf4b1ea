/* nonfinite.h - --debug-nonfinite: the first NaN or infinity of a training step, by name.
 *
 * After every operation of a training pass the host waits and looks at what it wrote: gathered
 * weights, activations, their gradients, the parameters' gradients, and these again after the
 * reductions between ranks. The first value that is not finite fails the device with a message that
 * names step, micro-step, rank, pass, unit, operation and element; sdp_step_* return it. Off, a
 * pass costs one test of a pointer an operation. */
#ifndef SDP_NONFINITE_H
#define SDP_NONFINITE_H

#include "gpt2/model.h"

struct sdp_engine;

struct sdp_nonfinite {
    bool on;
    int64_t step, micro_step; /* under way, 1-based */
    struct gpt2_probe probe;
};

/* Looks into the engine's training passes when its configuration asks for it; after
 * sdp_work_lay_out. */
enum status sdp_nonfinite_open(struct sdp_engine *x, struct error *e) MUST_CHECK;
/* Every tensor of a gathered unit; data is what sdp_units_acquire returned. */
void sdp_nonfinite_weights(struct sdp_engine *x, int64_t unit, const void *data);
/* Every shard's accumulated gradient, after the reductions. */
void sdp_nonfinite_gradients(struct sdp_engine *x);

#endif
