/* train.h - one run of sdp-train: what main.c opens, loops over and closes. */
#ifndef SDP_TRAIN_TRAIN_H
#define SDP_TRAIN_TRAIN_H

#include "base/progress.h"
#include "sdp-train/failing.h"
#include "sdp-train/options.h"
#include "sdp/data.h"
#include "sdp/load.h"
#include "sdp/metrics.h"
#include "sdp/save.h"
#include "sdp/state.h"
#include "sdp/step.h"

/* Where the time before the first step goes, in seconds. */
struct train_start {
    double began; /* monotonic_seconds when the program started */
    double ranks, device, data, engine, parameters;
};

struct train {
    struct train_start start;
    struct train_options o;
    struct options given;
    struct watchdog watchdog;
    struct world *world;
    struct device *dev;
    struct gpt2_config model;
    struct shard_set *set, *test;
    struct ckpt *ckpt; /* resumed or started from; NULL */
    struct sdp_engine engine;
    struct sdp_data data;
    bool data_open;
    struct sdp_schedule schedule;
    struct sdp_state state;
    int64_t total_steps;
    bool alone; /* a failure now may be this rank's only */
    int64_t step_samples;
    int64_t first_sample, first_step; /* where this process started */
    int64_t limit_samples;            /* the run ends there */
    int64_t eval_time;
    struct sdp_save *save;
    struct sdp_metrics metrics;
    struct progress progress;
    int64_t save_step; /* of the checkpoint under way, for its metrics line */
    int64_t logged_tokens, logged_step;
    double interval_ms, exposed_ms; /* since the last report: of steps, without what is between */
    int64_t bytes_sent;             /* up to the last report */
    uint64_t consumed;              /* by this rank, not yet in state */
};

/* resume.c: finds the checkpoint a run continues from, if any; collective */
enum status train_find_checkpoint(struct train *t, struct error *e) MUST_CHECK;

/* start.c: where a run begins */
/* Fills the engine's parameters and t->state. */
enum status train_load(struct train *t, struct error *e) MUST_CHECK;
/* Steps and samples of the run, from options, data and t->state. */
enum status train_length(struct train *t, struct error *e) MUST_CHECK;

/* report.c: what people and scripts see; all are collective where they gather, rank 0 writes */
void train_announce(const struct train *t);
/* Before the state is shown or saved: other ranks' part of the digest of samples. */
enum status train_sum_consumed(struct train *t, struct error *e) MUST_CHECK;
enum status train_report_step(struct train *t, const struct sdp_step *s,
                              const struct sdp_step_result *r, struct error *e) MUST_CHECK;
enum status train_report_validation(struct train *t, double loss, int64_t samples, double ms,
                                    struct error *e) MUST_CHECK;
enum status train_report_checkpoint(struct train *t, double stall_ms, struct error *e) MUST_CHECK;

/* dump.c: DIR/gradients.safetensors from the accumulators; collective */
enum status train_dump_gradients(struct sdp_engine *x, const char *dir, double unscale,
                                 struct error *e) MUST_CHECK;

/* plan_print.c: --plan, of a complete configuration */
enum status train_print_plan(const struct train_options *o, const struct sdp_config *c,
                             int64_t world, struct error *e) MUST_CHECK;

#endif
