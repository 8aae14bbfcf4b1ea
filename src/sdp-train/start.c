/* start.c - where a run begins: seed, weights of others, or a checkpoint. */
#include "base/checked.h"
#include "sdp-train/train.h"

#include <stdlib.h>
#include <string.h>

static bool resumes(const struct train *t)
{
    return strcmp(t->o.load_partial, "0") != 0;
}

static void start_afresh(struct train *t)
{
    t->state = (struct sdp_state){
        .scale = sdp_loss_scale_start(t->o.loss_scale, t->o.loss_scale_min, t->o.loss_scale_window,
                                      t->o.loss_scale_hysteresis),
        .seed = (uint64_t)t->o.seed,
        .shuffle = t->o.shuffle,
        .data_digest = shard_set_digest(t->set),
        .data_samples = (int64_t)shard_set_samples(t->set),
    };
}

/* The rest of the run must read what the whole run would have read. */
static enum status check_continuation(struct train *t, struct error *e)
{
    const struct sdp_state *s = &t->state;
    const char *from = ckpt_path(t->ckpt);
    if (s->data_digest != shard_set_digest(t->set))
        return error_set(
            e, STATUS_DATA,
            "%s was trained on other samples (digest %016llx) than %s holds (%016llx); "
            "--fine-tune 1 starts anew on other data",
            from, (unsigned long long)s->data_digest, t->o.training_dir,
            (unsigned long long)shard_set_digest(t->set));
    if (options_given(&t->given, "seed") && (uint64_t)t->o.seed != s->seed)
        return error_set(e, STATUS_USAGE, "%s has seed %llu, the command line says %lld", from,
                         (unsigned long long)s->seed, (long long)t->o.seed);
    if (options_given(&t->given, "shuffle") && t->o.shuffle != s->shuffle)
        return error_set(e, STATUS_USAGE, "%s has shuffle %d, the command line says %d", from,
                         s->shuffle, t->o.shuffle);
    return vocab_info_match(ckpt_vocab(t->ckpt), from, shard_set_vocab(t->set), t->o.training_dir,
                            e);
}

static enum status load_checkpoint(struct train *t, struct error *e)
{
    bool whole = resumes(t);
    TRY(sdp_load_checkpoint(&t->engine, t->ckpt, whole, e));
    if (t->o.fine_tune)
        return STATUS_OK;
    TRY(sdp_state_from_json(json_object_get(ckpt_manifest(t->ckpt), "state"), ckpt_path(t->ckpt),
                            &t->state, e));
    if (!whole) /* the moments start at zero, and so does their bias correction */
        t->state.adam_steps = 0;
    return check_continuation(t, e);
}

static enum status load_weights(struct train *t, const char *path, struct error *e)
{
    struct safetensors *s = NULL;
    TRY(safetensors_open(&s, path, e));
    enum status st = sdp_load_safetensors(&t->engine, s, e);
    safetensors_close(s);
    return st;
}

enum status train_load(struct train *t, struct error *e)
{
    const char *weights = t->o.fine_tune ? t->o.model_dir : t->o.init_from;
    start_afresh(t);
    if (t->ckpt)
        TRY(load_checkpoint(t, e));
    else if (weights)
        TRY(load_weights(t, weights, e));
    else
        TRY(sdp_load_init(&t->engine, t->state.seed, e));
    t->engine.train.run.seed = t->state.seed;
    return STATUS_OK;
}

/* Agreed before the loop: every rank computes the same numbers from the same inputs. */
enum status train_length(struct train *t, struct error *e)
{
    int64_t n = (int64_t)shard_set_samples(t->set), all;
    if (n < t->step_samples)
        return error_set(
            e, STATUS_DATA,
            "%s holds %lld samples, fewer than the %lld of one step (%d ranks x %lld x "
            "%lld micro-steps); use fewer ranks, a smaller batch or more data",
            t->o.training_dir, (long long)n, (long long)t->step_samples, t->world->size,
            (long long)t->o.batch, (long long)t->engine.config.accumulation);
    int64_t epochs = t->o.epochs ? t->o.epochs : t->o.max_steps ? 0 : 1;
    t->first_step = t->state.step;
    t->first_sample = t->state.samples;
    t->limit_samples = INT64_MAX;
    t->total_steps = t->o.max_steps ? t->o.max_steps : INT64_MAX;
    if (epochs) {
        if (!checked_mul_i64(n, epochs, &all))
            return error_set(e, STATUS_USAGE, "%lld epochs of %lld samples is too many",
                             (long long)epochs, (long long)n);
        t->limit_samples = all;
        int64_t left = max_i64(0, all - t->state.samples);
        t->total_steps =
            min_i64(t->total_steps, t->state.step + ceil_div_i64(left, t->step_samples));
    }
    train_schedule(&t->o, t->total_steps, &t->schedule);
    return STATUS_OK;
}
