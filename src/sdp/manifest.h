/* manifest.h - from every rank's part to one manifest.json. */
#ifndef SDP_MANIFEST_H
#define SDP_MANIFEST_H

#include "format/ckpt.h"
#include "sdp/engine.h"

struct sdp_manifest {
    struct sdp_engine *x;
    int64_t step;
    uint64_t set_id;
    json_t *entry;           /* this rank's file */
    const uint64_t *digests; /* [tensors * CKPT_KINDS] of this rank's elements */
    json_t *state;
    const struct vocab_info *vocab;
    const char *provenance; /* JSON */
};

/* Collective: rank 0 gathers the entries and writes; all learn whether that worked. */
enum status sdp_manifest_write(const struct sdp_manifest *m, const char *dir,
                               struct error *e) MUST_CHECK;

#endif
