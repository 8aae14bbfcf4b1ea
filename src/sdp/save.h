/* save.h - checkpoints out of the engine while training goes on.
 *
 * Every rank copies its part (each element is stored once; replicas share the work) to host memory
 * and a thread of its own writes, syncs and digests the file. When all ranks have finished, rank 0
 * writes the manifest, which makes the checkpoint exist, and removes the oldest beyond the number
 * to keep. One checkpoint is under way at a time; the main thread does all talking between ranks.
 */
#ifndef SDP_SAVE_H
#define SDP_SAVE_H

#include "format/ckpt.h"
#include "sdp/engine.h"

struct sdp_save;

struct sdp_save_options {
    const char *dir; /* of all checkpoints */
    int64_t keep;    /* 0 = all */
    struct vocab_info vocab;
    const char *provenance; /* JSON */
};

/* The engine was opened with staging. Collective; dir is created. */
enum status sdp_save_open(struct sdp_save **s, struct sdp_engine *x,
                          const struct sdp_save_options *o, struct error *e) MUST_CHECK;
/* Waits for a running writer and frees; a checkpoint that was not completed does not exist. */
void sdp_save_free(struct sdp_save *s);
/* Collective. Waits for an earlier checkpoint, copies the state out and starts writing. state: what
 * the trainer needs to continue; a reference is taken. */
enum status sdp_save_start(struct sdp_save *s, int64_t step, json_t *state,
                           struct error *e) MUST_CHECK;
/* Has this rank written its part of the checkpoint under way? */
bool sdp_save_written(const struct sdp_save *s);
/* Collective. Waits until every rank has written its part, then completes the checkpoint: the
 * manifest, and the removal of old ones. Nothing to do when none is under way. */
enum status sdp_save_complete(struct sdp_save *s, struct error *e) MUST_CHECK;
bool sdp_save_pending(const struct sdp_save *s);
const char *sdp_save_last(const struct sdp_save *s); /* path of the last complete one, or NULL */

#endif
