/* step.h - one optimizer step: micro-steps, reductions, clipping, AdamW; and validation.
 *
 * Everything but sdp_step_finish puts work on streams and returns. Two steps can be under way: the
 * micro-steps of step k+1 need nothing the host learns from step k, so they are queued before it
 * waits for k, and the device comes from one step to the next without standing still. The
 * reductions and the update of k+1 follow that wait: what they are told (Adam's count of applied
 * steps, what this rank has to say to the others) depends on the outcome of k. So does everything
 * of an fp16 step, whose loss scale follows from the step before. */
#ifndef SDP_STEP_H
#define SDP_STEP_H

#include "sdp/data.h"
#include "sdp/pass.h"

enum sdp_step_stage { SDP_STEP_NEW, SDP_STEP_QUEUED, SDP_STEP_REDUCED };

struct sdp_step {
    /* for the micro-steps */
    int64_t number;    /* of the step, 1-based; for messages */
    int64_t targets;   /* target tokens of the step over all ranks */
    double loss_scale; /* 1 unless fp16 */
    /* for the reductions and the update */
    int64_t adam_step; /* 1-based count of applied steps, this one included */
    double lr;
    bool stop, written; /* this rank was told to stop; its checkpoint part is written */
    /* filled by the functions below; zero before */
    enum sdp_step_stage stage;
    int bank;           /* of the engine's events */
    uint64_t digest;    /* of the samples the micro-steps took */
    int64_t taken;      /* micro-batches taken, up to this step's last */
    int64_t bytes_sent; /* by this rank, up to this step's update */
};

struct sdp_step_result {
    double loss;        /* mean over the step's target tokens, all ranks */
    double grad_norm;   /* of the mean gradient, before clipping */
    bool stop;          /* some rank was told to stop */
    bool written;       /* all ranks have written their checkpoint parts */
    bool skipped;       /* a non-finite gradient on any rank: nothing was changed */
    double exposed_ms;  /* compute waited for communication */
    double device_ms;   /* from the first to the last operation of the step */
    double interval_ms; /* from the end of the step before, or sdp_step_clock, to this one's end */
    uint64_t digest;    /* of the samples this rank consumed; adds up modulo 2^64 */
    int64_t bytes_sent; /* by this rank since the engine was opened, up to the end of this step */
};

/* The first step's interval_ms counts from here. */
void sdp_step_clock(struct sdp_engine *x);
/* May the micro-steps of a step be queued before the one before it is finished? */
bool sdp_step_runs_ahead(const struct sdp_engine *x);
/* Collective. s from its micro-steps to its outcome; parts of it that were queued earlier are not
 * queued again. When there is a next step, its micro-steps are queued before the host waits for s:
 * pass it as s then, or discard it. On failure the engine is unusable. */
enum status sdp_step_run(struct sdp_engine *x, struct sdp_data *data, struct sdp_step *s,
                         struct sdp_step *next, struct sdp_step_result *r,
                         struct error *e) MUST_CHECK;
/* Collective. Forgets a step whose micro-steps are queued: waits until they are through, which
 * leaves parameters and optimizer as the step before left them. The samples stay taken from `data`:
 * to go on, open it again where the step before ended. */
enum status sdp_step_discard(struct sdp_engine *x, struct sdp_step *s, struct error *e) MUST_CHECK;

/* The parts of sdp_step_run, in their order. */
/* Reads accumulation micro-batches from data and queues forward and backward of each. */
enum status sdp_step_queue(struct sdp_engine *x, struct sdp_data *data, struct sdp_step *s,
                           struct error *e) MUST_CHECK;
/* What sdp_step_queue does first; for those who have no data, see sim.c. */
void sdp_step_begin(struct sdp_engine *x, struct sdp_step *s);
/* Earlier steps are finished. Afterwards the accumulators hold the step's gradient. */
enum status sdp_step_reduce(struct sdp_engine *x, struct sdp_step *s, struct error *e) MUST_CHECK;
void sdp_step_update(struct sdp_engine *x, struct sdp_step *s);
/* Waits for the update. */
enum status sdp_step_finish(struct sdp_engine *x, const struct sdp_step *s,
                            struct sdp_step_result *r, struct error *e) MUST_CHECK;

/* No step is under way during these. */
/* Mean loss of the first `batches` validation batches (every rank one each), or all when fewer. */
enum status sdp_validate(struct sdp_engine *x, struct shard_set *set, int64_t batches, double *loss,
                         int64_t *samples, struct error *e) MUST_CHECK;
/* norms[tensors]: the 2-norm of every parameter; the engine was opened with param_norms. */
enum status sdp_param_norms(struct sdp_engine *x, double *norms, struct error *e) MUST_CHECK;

#endif
