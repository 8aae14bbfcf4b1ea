/* derive.c - from options to the engine's configuration, refusing what cannot work. */
#include "base/checked.h"
#include "sdp-train/options.h"

#include <stdlib.h>
#include <string.h>

static enum status parse_precision(const struct train_options *o, enum dtype *dt, struct error *e)
{
    bool bf16 = o->bf16 || strcmp(o->precision, "bf16") == 0;
    bool fp16 = o->fp16 || strcmp(o->precision, "fp16") == 0;
    if (bf16 && fp16)
        return error_set(e, STATUS_USAGE, "bf16 and fp16 are both asked for; choose one");
    *dt = bf16 ? DTYPE_BF16 : fp16 ? DTYPE_F16 : DTYPE_F32;
    return STATUS_OK;
}

static enum status parse_saver(const struct train_options *o, const struct gpt2_config *m,
                               struct sdp_saver *s, struct error *e)
{
    *s = (struct sdp_saver){
        .keep = GPT2_KEEP_ALL, .group = 1, .offload = o->offload, .horizon = o->horizon};
    const char *text = o->strategy;
    if (strcmp(text, "each") == 0) {
        s->keep = GPT2_KEEP_INPUT;
    } else if (strcmp(text, "sublayer") == 0) {
        s->keep = GPT2_KEEP_SUBLAYER;
    } else if (strncmp(text, "group_", 6) == 0) {
        TRY(parse_i64(text + 6, "activation-strategy group_N", &s->group, e));
        if (s->group < 1 || s->group > m->layers)
            return error_set(e, STATUS_USAGE,
                             "activation-strategy %s: groups of %lld blocks in a model of %lld "
                             "(1 to %lld are valid)",
                             text, (long long)s->group, (long long)m->layers, (long long)m->layers);
        s->keep = GPT2_KEEP_INPUT;
    } else {
        return error_set(e, STATUS_USAGE,
                         "activation-strategy \"%s\" is not each, group_N or sublayer", text);
    }
    if (!o->checkpointing) {
        s->keep = GPT2_KEEP_ALL;
        s->group = 1;
    }
    return STATUS_OK;
}

/* Both are given: they must say the same. */
static enum status check_micro_steps(const struct train_options *o, int64_t world, int64_t each,
                                     int64_t needed, struct error *e)
{
    int64_t above = each * o->accumulation; /* checked by the caller */
    if (needed == o->accumulation)
        return STATUS_OK;
    return error_set(
        e, STATUS_USAGE,
        "--global-batch-size %lld on %lld ranks x %lld samples takes %lld micro-steps, "
        "--gradient-accumulation says %lld; nearest valid: --gradient-accumulation "
        "%lld, or --global-batch-size %lld to %lld",
        (long long)o->global_batch, (long long)world, (long long)o->batch, (long long)needed,
        (long long)o->accumulation, (long long)needed, (long long)(above - each + 1),
        (long long)above);
}

/* Micro-steps that hold the global batch; without one, the batch the micro-steps give. */
static enum status derive_batch(const struct options *given, const struct train_options *o,
                                int64_t world, struct sdp_config *c, int64_t *step_samples,
                                struct error *e)
{
    int64_t each;
    if (!checked_mul_i64(world, o->batch, &each) ||
        !checked_mul_i64(each, o->accumulation, step_samples))
        return error_set(e, STATUS_USAGE,
                         "%lld ranks x %lld samples x %lld micro-steps is too many",
                         (long long)world, (long long)o->batch, (long long)o->accumulation);
    c->batch = o->batch;
    c->accumulation = o->accumulation;
    if (o->global_batch == 0)
        return STATUS_OK;
    c->accumulation = ceil_div_i64(o->global_batch, each);
    *step_samples = o->global_batch;
    if (options_given(given, "gradient-accumulation"))
        return check_micro_steps(o, world, each, c->accumulation, e);
    return STATUS_OK;
}

enum status train_engine_config(const struct options *given, const struct train_options *o,
                                int64_t world, struct sdp_config *c, int64_t *step_samples,
                                struct error *e)
{
    *c = (struct sdp_config){.degree = o->degree ? o->degree : world,
                             .overlap = o->overlap,
                             .hierarchical = o->hierarchical,
                             .unit_buffers = o->unit_buffers,
                             .max_live_elems = o->max_live,
                             .threshold_elems = o->threshold,
                             .bucket_elems = o->bucket,
                             .logits_bytes = o->logits_memory,
                             .decoupled = o->adamw,
                             .beta1 = (float)o->beta1,
                             .beta2 = (float)o->beta2,
                             .eps = (float)o->eps,
                             .weight_decay = (float)o->weight_decay,
                             .clip = (float)o->grad_clip,
                             .seed = (uint64_t)o->seed,
                             .deterministic = o->deterministic,
                             .staging = o->checkpoint_dir != NULL,
                             .param_norms = o->log_param_norms,
                             .debug_nonfinite = o->debug_nonfinite && !o->plan};
    TRY(sdp_degree_check(world, c->degree, e));
    TRY(parse_precision(o, &c->dt, e));
    c->reduce_dt = strcmp(o->reduce_dtype, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    return derive_batch(given, o, world, c, step_samples, e);
}

enum status train_engine_model(const struct train_options *o, const struct gpt2_config *model,
                               struct sdp_config *c, struct error *e)
{
    c->model = *model;
    return parse_saver(o, model, &c->saver, e);
}

enum status train_engine_samples(const struct train_options *o, int64_t time, int64_t eval_time,
                                 struct sdp_config *c, struct error *e)
{
    const struct gpt2_config *model = &c->model;
    c->time = time;
    c->eval_time = eval_time;
    c->eval_batch = eval_time > 0 ? o->val_batch : 0;
    if (time > model->context)
        return error_set(
            e, STATUS_USAGE,
            "samples of %lld tokens do not fit the model's context of %lld; pack shards "
            "with --block-size %lld or train with --max-context-width %lld",
            (long long)time, (long long)model->context, (long long)model->context, (long long)time);
    if (eval_time > model->context)
        return error_set(e, STATUS_USAGE,
                         "validation samples of %lld tokens do not fit the model's context of %lld",
                         (long long)eval_time, (long long)model->context);
    return STATUS_OK;
}

static enum sdp_decay find_decay(const struct train_options *o)
{
    int decay = 0;
    while (decay < SDP_DECAY_COUNT && strcmp(o->decay, sdp_decay_names[decay]) != 0)
        decay++;
    return (enum sdp_decay)decay;
}

void train_schedule(const struct train_options *o, int64_t steps, struct sdp_schedule *s)
{
    int64_t span = o->decay_iters ? o->decay_iters : max_i64(steps, 1);
    *s = (struct sdp_schedule){.decay = find_decay(o),
                               .lr = o->lr,
                               .min_lr = o->min_lr,
                               .warmup_steps = o->warmup * (double)span,
                               .plateau_steps = (o->warmup + o->plateau) * (double)span,
                               .decay_steps = span};
}

static enum status check_schedule(const struct train_options *o, struct error *e)
{
    enum sdp_decay decay = find_decay(o);
    if (o->min_lr > o->lr)
        return error_set(e, STATUS_USAGE, "min-lr %g is above lr %g", o->min_lr, o->lr);
    if (o->warmup + o->plateau > 1 && (decay == SDP_DECAY_PLATEAU || decay == SDP_DECAY_WSD))
        return error_set(e, STATUS_USAGE,
                         "warmup %g and plateau %g are more than the whole schedule; their sum may "
                         "be at most 1",
                         o->warmup, o->plateau);
    return STATUS_OK;
}

enum status train_options_check(const struct options *given, const struct train_options *o,
                                struct error *e)
{
    bool resumes = strcmp(o->load_partial, "0") != 0;
    if (!o->plan && !o->training_dir)
        return error_set(e, STATUS_USAGE,
                         "no --training-dir: a folder of shards made by shard-pack");
    if (!o->checkpoint_dir && (resumes || o->load_full))
        return error_set(e, STATUS_USAGE, "--%s needs --checkpoint-dir",
                         resumes ? "load-partial" : "load-full");
    if (!o->checkpoint_dir && o->checkpoint_freq > 0)
        return error_set(e, STATUS_USAGE, "--checkpoint-freq %lld needs --checkpoint-dir",
                         (long long)o->checkpoint_freq);
    if (o->fine_tune && !o->model_dir && !o->checkpoint_dir)
        return error_set(e, STATUS_USAGE, "--fine-tune needs --model-dir or --checkpoint-dir");
    if (o->model_dir && !o->fine_tune)
        return error_set(
            e, STATUS_USAGE,
            "--model-dir is read with --fine-tune 1 only; --init-from starts from weights");
    if ((o->load_full != 0) + (o->fine_tune != 0) + (o->init_from != NULL) +
            (strcmp(o->load_partial, "1") == 0) >
        1)
        return error_set(
            e, STATUS_USAGE,
            "more than one of --load-partial 1, --load-full, --fine-tune and --init-from "
            "says where to start");
    if (o->validation_freq > 0 && !o->test_dir)
        return error_set(e, STATUS_USAGE, "--validation-freq %lld needs --test-dir",
                         (long long)o->validation_freq);
    bool scale_given = options_given(given, "loss-scale") || options_given(given, "loss-scale-min");
    if (scale_given && !o->fp16 && strcmp(o->precision, "fp16") != 0)
        return error_set(e, STATUS_USAGE, "--loss-scale belongs to fp16; add --fp16 1");
    if (o->loss_scale < o->loss_scale_min)
        return error_set(e, STATUS_USAGE, "loss-scale %g is below loss-scale-min %g", o->loss_scale,
                         o->loss_scale_min);
    if (options_given(given, "activation-loading-horizon") && !o->offload &&
        !options_given(given, "offload-activations"))
        return error_set(e, STATUS_USAGE,
                         "--activation-loading-horizon %lld needs --offload-activations 1",
                         (long long)o->horizon);
    if ((o->json || o->device_memory > 0 || o->world_size > 0) && !o->plan)
        return error_set(e, STATUS_USAGE, "--%s belongs to --plan",
                         o->json                ? "json"
                         : o->device_memory > 0 ? "device-memory"
                                                : "world-size");
    return check_schedule(o, e);
}
