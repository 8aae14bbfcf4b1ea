/* engine.h - one rank's share of a sharded model, and everything that works on it.
 *
 * Life: sdp_engine_size fills sizes without a device's memory; sdp_engine_open makes streams,
 * communicators and memory. Parameters come in through load.h, steps run through step.h, state goes
 * out through save.h. One thread drives an engine. */
#ifndef SDP_ENGINE_H
#define SDP_ENGINE_H

#include "comm/comm.h"
#include "sdp/arena.h"
#include "sdp/grads.h"
#include "sdp/groups.h"
#include "sdp/layout.h"
#include "sdp/nonfinite.h"
#include "sdp/timer.h"
#include "sdp/units.h"
#include "sdp/work.h"

struct sdp_config {
    struct gpt2_config model;
    int64_t degree;
    int64_t batch, eval_batch; /* samples a rank and micro-step; eval_batch 0 = no validation */
    int64_t time, eval_time;   /* tokens a sample */
    int64_t accumulation;      /* micro-steps a step */
    enum dtype dt;             /* of working weights and activations */
    enum dtype reduce_dt;      /* of gradients on the wire: DTYPE_F32 or DTYPE_BF16 */
    bool overlap;              /* communication on streams of its own */
    bool hierarchical;
    int64_t unit_buffers;    /* gathered units at once */
    int64_t max_live_elems;  /* bounds unit_buffers */
    int64_t threshold_elems; /* persistence threshold */
    int64_t bucket_elems;    /* largest replica reduction at once */
    struct sdp_saver saver;
    int64_t logits_bytes; /* most memory for a chunk of logits */
    bool decoupled;       /* AdamW, else Adam with L2 */
    float beta1, beta2, eps, weight_decay, clip;
    uint64_t seed; /* of dropout */
    bool deterministic;
    bool staging; /* keep host memory for the copy of a checkpoint */
    bool param_norms;
    bool debug_nonfinite; /* stop at the first NaN or infinity, see nonfinite.h */
};

/* What this rank owns of one unit: elements [begin, begin + elems) of it. */
struct sdp_shard {
    int64_t begin, elems;
    float *master, *m, *v, *grad;
    void *working; /* working dtype; the same memory as master for fp32 */
};

struct sdp_streams {
    /* compute is the device's. Without overlap all are compute. */
    struct stream *compute, *gather, *scatter, *replica, *offload;
};

struct sdp_comms {
    const struct comm_ops *ops;
    struct comm *all;              /* every rank: losses and norms */
    struct comm *gather, *scatter; /* the shard group */
    struct comm *inter, *intra;    /* the two stages of a hierarchical gather */
    struct comm *replica;          /* the replica group */
};

/* What ranks add up once a step: the loss, the squared norm of the gradient, and two counts that
 * ride along so that no other collective is needed: ranks told to stop, ranks whose checkpoint part
 * is written. */
enum { SDP_SUM_LOSS, SDP_SUM_NORM, SDP_SUM_STOP, SDP_SUM_WRITTEN, SDP_SUMS };

/* Device scalars of a step. */
struct sdp_scalars {
    float *sums; /* [SDP_SUMS] */
    struct step_control *control;
    float *param_norms; /* [tensors] */
};
struct sdp_readback { /* host */
    struct step_control control;
    float sums[SDP_SUMS];
    float flags[2];   /* of this rank, on their way to sums */
    uint32_t element; /* nonfinite.c: one value of any dtype */
};

#define SDP_PIECES 2
#define SDP_PIECE_ELEMS (1 << 20)

struct sdp_engine {
    struct sdp_config config;
    struct gpt2_tensors tensors;
    struct sdp_groups groups;
    struct sdp_layout layout;
    struct sdp_arena arena;
    struct world *world; /* borrowed; NULL in a plan */
    struct device *dev;  /* borrowed */
    struct sdp_streams streams;
    struct sdp_comms comms;
    struct sdp_shard *shards; /* [units] */
    struct sdp_units units;
    struct sdp_grads grads;
    struct sdp_work train, eval;
    struct sdp_timer timer;
    struct sdp_nonfinite nonfinite;
    struct sdp_scalars scalars;
    struct sdp_readback *readback;
    float *readback_norms;            /* host [tensors] */
    void *train_memory, *eval_memory; /* host: micro-batches read ahead, for data.h */
    float *pieces;  /* host [SDP_PIECES, SDP_PIECE_ELEMS]: elements on their way in or out */
    float *staging; /* host: this rank's part of a checkpoint */
    int64_t staging_elems;
    struct event *step_begun[SDP_BANKS], *step_ended[SDP_BANKS]; /* step.h: steps take turns */
    int bank;                                                    /* of the step begun last */
};

/* Sizes only: the arena counts, nothing is allocated but small tables. ops says how much workspace
 * its kernels need; no device is opened. */
enum status sdp_engine_size(struct sdp_engine *x, const struct sdp_config *c, int world, int rank,
                            const int32_t *nodes, const struct device_ops *ops,
                            struct error *e) MUST_CHECK;
/* What sdp_engine_open does once the nodes of all ranks are known; sim.h gives it a world, a device
 * and collectives that only keep time. */
enum status sdp_engine_assemble(struct sdp_engine *x, const struct sdp_config *c, struct world *w,
                                const int32_t *nodes, struct device *dev,
                                const struct comm_ops *comm, struct error *e) MUST_CHECK;
/* Collective. The world and the device outlive the engine. */
enum status sdp_engine_open(struct sdp_engine *x, const struct sdp_config *c, struct world *w,
                            struct device *dev, const struct comm_ops *comm,
                            struct error *e) MUST_CHECK;
void sdp_engine_close(struct sdp_engine *x); /* safe on a zeroed object */
/* Any failure of the device or a communicator so far. Does not wait. */
enum status sdp_engine_check(struct sdp_engine *x, struct error *e) MUST_CHECK;
/* Wait for all streams, then check. */
enum status sdp_engine_sync(struct sdp_engine *x, struct error *e) MUST_CHECK;
/* Bytes this rank has sent so far, all communicators. */
int64_t sdp_engine_bytes_sent(const struct sdp_engine *x);
/* The part of its shard of unit u that this rank writes to a checkpoint: replicas share the work.
 */
void sdp_engine_saved_range(const struct sdp_engine *x, int64_t u, int64_t *begin, int64_t *end);

/* Small helpers of the schedule: b waits for what a has been given so far. */
void sdp_order(struct sdp_engine *x, struct event *ev, struct stream *a, struct stream *b);

#endif
