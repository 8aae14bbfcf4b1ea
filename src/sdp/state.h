/* state.h - where a run stands: what a checkpoint holds beside tensors. */
#ifndef SDP_STATE_H
#define SDP_STATE_H

#include "base/error.h"
#include "sdp/schedule.h"
#include <jansson.h>

struct sdp_state {
    int64_t step;       /* optimizer steps done, skipped ones included */
    int64_t adam_steps; /* steps that changed parameters */
    int64_t samples;    /* the next global sample number */
    int64_t tokens;     /* read so far */
    int64_t skipped, skipped_in_row;
    uint64_t
        consumed; /* digest of the global sample numbers and set indices read so far, all ranks */
    struct sdp_loss_scale scale;
    /* what gives the rest of the run the same samples and masks */
    uint64_t seed;
    bool shuffle;
    uint64_t data_digest;
    int64_t data_samples;
};

json_t *sdp_state_to_json(const struct sdp_state *s); /* new reference; NULL when out of memory */
/* name is for messages; a missing or mistyped field is STATUS_DATA. */
enum status sdp_state_from_json(const json_t *json, const char *name, struct sdp_state *s,
                                struct error *e) MUST_CHECK;

#endif
