/* grads.h - gradients on their way from the backward pass to the shards that own them.
 *
 * Backward adds into a whole-unit fp32 buffer; when the unit is finished, its gradient is
 * reduce-scattered inside the shard group (on the scatter stream, behind the backward of the next
 * units) and added to this rank's accumulator. After the last micro-step of a step the accumulator
 * is all-reduced across replicas (on the replica stream): one crossing a step, whatever the
 * accumulation. Sums are in rank order and in micro-step order, so results depend on neither
 * overlap nor bucket size nor threshold. With degree 1 backward adds straight into the accumulator.
 */
#ifndef SDP_GRADS_H
#define SDP_GRADS_H

#include "device/device.h"

struct sdp_engine;

struct sdp_grad_slot {
    float *data;
    bool busy; /* recorded `done` has not been waited for */
    struct event *done;
};

enum { SDP_GRAD_SLOTS = 2 };

struct sdp_grads {
    struct sdp_grad_slot slots[SDP_GRAD_SLOTS]; /* streamed units take turns */
    struct sdp_grad_slot held[2];               /* unit 0 and the last */
    int next;
    void *wire, *replica_wire; /* bf16 copies when the wire is narrower */
    struct event *computed, *scattered;
    struct event *finished[2]; /* of the scatter and the replica stream: each has its own order */
};

void sdp_grads_lay_out(struct sdp_engine *x);
enum status sdp_grads_open(struct sdp_engine *x, struct error *e) MUST_CHECK;
void sdp_grads_close(struct sdp_engine *x);

/* A zeroed whole-unit buffer to add into on the compute stream. first: the step's first micro-step.
 */
float *sdp_grads_begin(struct sdp_engine *x, int64_t unit, bool first);
/* The unit's gradient of this micro-step is complete on the compute stream. */
void sdp_grads_end(struct sdp_engine *x, int64_t unit, float *data, bool first, bool last);
/* Compute waits until all accumulators hold the global sum. */
void sdp_grads_finish(struct sdp_engine *x);

#endif
