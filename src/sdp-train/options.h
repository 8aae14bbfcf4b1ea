/* options.h - the command line of sdp-train: one struct that nothing else parses. */
#ifndef SDP_TRAIN_OPTIONS_H
#define SDP_TRAIN_OPTIONS_H

#include "base/options.h"
#include "sdp/engine.h"
#include "sdp/schedule.h"

struct train_options {
    /* data */
    const char *training_dir, *test_dir;
    bool shuffle;
    int64_t seed, epochs, max_steps;
    /* model */
    const char *model, *init_from, *model_dir;
    int64_t context, width, layers, heads, vocab;
    double resid_pdrop, embd_pdrop, attn_pdrop;
    /* batch */
    int64_t batch, accumulation, global_batch, val_batch;
    /* optimizer */
    double lr, min_lr, warmup, plateau, beta1, beta2, eps, weight_decay, grad_clip;
    const char *decay;
    int64_t decay_iters;
    bool adamw;
    /* precision */
    const char *precision, *reduce_dtype;
    bool bf16, fp16;
    double loss_scale, loss_scale_min;
    int64_t loss_scale_window, loss_scale_hysteresis, abort_after_skips;
    /* sharding */
    int64_t degree, threshold, bucket, max_live, unit_buffers, ranks_per_node;
    bool overlap, hierarchical, deterministic;
    /* memory savers */
    bool checkpointing, offload;
    const char *strategy;
    int64_t horizon, logits_memory;
    /* checkpoints */
    const char *checkpoint_dir, *load_partial;
    int64_t checkpoint_freq, kept;
    bool load_full, fine_tune, async;
    /* validation, reports */
    int64_t validation_freq, validation_batches, logging_freq;
    bool log_param_norms, memory_profiling, debug_nonfinite, quiet;
    const char *metrics, *dump_gradients;
    /* machine */
    const char *device, *comm, *launcher;
    double collective_timeout;
    /* plan */
    bool plan, json;
    int64_t world_size, plan_time, device_memory;
    double device_tflops, memory_bandwidth, host_bandwidth, link_bandwidth, node_bandwidth;
    double node_latency, network_latency;
};

extern const struct option_table train_option_table;

/* The engine's configuration, in the order in which its parts become known, each refusing what
 * cannot work before the next is looked at: options and ranks; the model; the sample length. */
enum status train_engine_config(const struct options *given, const struct train_options *o,
                                int64_t world, struct sdp_config *c, int64_t *step_samples,
                                struct error *e) MUST_CHECK;
enum status train_engine_model(const struct train_options *o, const struct gpt2_config *model,
                               struct sdp_config *c, struct error *e) MUST_CHECK;
enum status train_engine_samples(const struct train_options *o, int64_t time, int64_t eval_time,
                                 struct sdp_config *c, struct error *e) MUST_CHECK;
/* Settings of the schedule for a run of `steps` steps. */
void train_schedule(const struct train_options *o, int64_t steps, struct sdp_schedule *s);
/* Combinations of options that cannot work, whatever the data. */
enum status train_options_check(const struct options *given, const struct train_options *o,
                                struct error *e) MUST_CHECK;

#endif
