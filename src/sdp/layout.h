/* layout.h - where every parameter lies once it is sharded.
 *
 * The engine's units are those of gpt2/tensors.h with two changes: block tensors of fewer elements
 * than the persistence threshold move to the last unit (with the final norm), and every unit is
 * padded to a multiple of degree * SDP_ALIGN elements, of which each place owns a contiguous
 * 1/degree. Unit 0 (the embeddings, needed at both ends of a pass) and the last unit are *held*:
 * gathered once a step and kept. Units between are *streamed*: gathered for use and released.
 * Inside a unit tensors with weight decay come first. Padding holds zeros. No device here. */
#ifndef SDP_LAYOUT_H
#define SDP_LAYOUT_H

#include "gpt2/tensors.h"

#define SDP_ALIGN 64

struct sdp_unit {
    int64_t elems;        /* padded */
    int64_t shard;        /* elems / degree */
    int64_t decay;        /* elements [0, decay) are decayed */
    int64_t first, count; /* its tensors: order[first .. first + count) */
};

struct sdp_layout {
    const struct gpt2_tensors *tensors; /* borrowed */
    int degree;
    int64_t units;          /* layers + 2 */
    struct sdp_unit *unit;  /* [units] */
    int64_t *order;         /* [tensors] tensor numbers by (unit, offset) */
    int32_t *tensor_unit;   /* [tensors] by tensor number */
    int64_t *tensor_offset; /* [tensors] by tensor number: first element in its unit */
    int64_t streamed_max;   /* elements of the largest streamed unit, 0 when all tensors are held */
    int64_t elems;          /* of all units, padded */
};

/* A contiguous run of one tensor inside a unit. */
struct sdp_segment {
    int64_t tensor;
    int64_t first, count; /* elements of the tensor */
    int64_t at;           /* first element in the unit */
};

enum status sdp_layout_create(struct sdp_layout *l, const struct gpt2_tensors *t, int degree,
                              int64_t threshold_elems, struct error *e) MUST_CHECK;
void sdp_layout_release(struct sdp_layout *l);
static inline bool sdp_layout_held(const struct sdp_layout *l, int64_t unit)
{
    return unit == 0 || unit == l->units - 1;
}
/* The segments of unit elements [begin, end), one a call: *cursor starts at 0; false after the
 * last.
 */
bool sdp_layout_next(const struct sdp_layout *l, int64_t unit, int64_t begin, int64_t end,
                     int64_t *cursor, struct sdp_segment *out);

#endif
