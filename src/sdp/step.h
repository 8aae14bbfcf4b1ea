/* step.h - one optimizer step: micro-steps, reductions, clipping, AdamW; and validation. */
#ifndef SDP_STEP_H
#define SDP_STEP_H

#include "sdp/data.h"
#include "sdp/pass.h"

struct sdp_step {
    int64_t number;    /* of the step, 1-based; for messages */
    int64_t adam_step; /* 1-based count of applied steps, this one included */
    double lr;
    double loss_scale;  /* 1 unless fp16 */
    int64_t targets;    /* target tokens of the step over all ranks */
    bool stop, written; /* this rank was told to stop; its checkpoint part is written */
};

struct sdp_step_result {
    double loss;       /* mean over the step's target tokens, all ranks */
    double grad_norm;  /* of the mean gradient, before clipping */
    bool stop;         /* some rank was told to stop */
    bool written;      /* all ranks have written their checkpoint parts */
    bool skipped;      /* a non-finite gradient on any rank: nothing was changed */
    double exposed_ms; /* compute waited for communication */
    double device_ms;  /* from the first to the last operation of the step */
    uint64_t digest;   /* of the samples this rank consumed; adds up modulo 2^64 */
};

/* Collective. Reads accumulation micro-batches from data. On failure the engine is unusable. */
enum status sdp_step_run(struct sdp_engine *x, struct sdp_data *data, const struct sdp_step *s,
                         struct sdp_step_result *r, struct error *e) MUST_CHECK;
/* The same in two parts, so that the gradients can be looked at between them. */
enum status sdp_step_gradients(struct sdp_engine *x, struct sdp_data *data,
                               const struct sdp_step *s, struct sdp_step_result *r,
                               struct error *e) MUST_CHECK;
enum status sdp_step_update(struct sdp_engine *x, const struct sdp_step *s,
                            struct sdp_step_result *r, struct error *e) MUST_CHECK;
/* The parts of sdp_step_gradients around its micro-steps. */
void sdp_step_begin(struct sdp_engine *x);
void sdp_step_reduce(struct sdp_engine *x, const struct sdp_step *s);
/* Mean loss of the first `batches` validation batches (every rank one each), or all when fewer. */
enum status sdp_validate(struct sdp_engine *x, struct shard_set *set, int64_t batches, double *loss,
                         int64_t *samples, struct error *e) MUST_CHECK;
/* norms[tensors]: the 2-norm of every parameter; the engine was opened with param_norms. */
enum status sdp_param_norms(struct sdp_engine *x, double *norms, struct error *e) MUST_CHECK;

#endif
