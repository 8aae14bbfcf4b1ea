/* report.c - the log, the progress bar and the metrics file. */
#include "base/checked.h"
#include "base/log.h"
#include "sdp-train/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* JSON has no NaN or infinity; a diverged run still gets its line. */
static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_string(isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
}

void train_announce(const struct train *t)
{
    const struct sdp_engine *x = &t->engine;
    struct device_info info;
    if (t->world->rank != 0)
        return;
    t->dev->ops->info(t->dev, &info);
    log_info(
        "%lld parameters, %lld layers x %lld; %s, %d ranks: %d replicas x degree %d, collectives "
        "by %s, %s",
        (long long)gpt2_parameters(&t->model), (long long)t->model.layers,
        (long long)t->model.channels, info.name, t->world->size, x->groups.replicas,
        x->groups.degree, x->comms.ops->name, dtype_name(x->config.dt));
    if (x->config.hierarchical && x->groups.group_nodes > 1 && !x->groups.hierarchical)
        log_info("gathers are flat: a shard group has one rank on each of %d nodes",
                 x->groups.group_nodes);
    log_info(
        "%lld samples of %lld tokens; %lld a step (%lld x %lld micro-steps a rank), steps %lld to "
        "%lld",
        (long long)shard_set_samples(t->set), (long long)x->config.time, (long long)t->step_samples,
        (long long)x->config.batch, (long long)x->config.accumulation, (long long)t->state.step + 1,
        (long long)t->total_steps);
    log_info("%.1f MiB device and %.1f MiB host memory a rank",
             (double)sdp_arena_bytes(&x->arena, MEMORY_DEVICE) / 1048576.0,
             (double)sdp_arena_bytes(&x->arena, MEMORY_HOST) / 1048576.0);
    log_info("ready after %.2f s: %.2f ranks, %.2f device, %.2f data, %.2f engine, %.2f parameters",
             monotonic_seconds() - t->start.began, t->start.ranks, t->start.device, t->start.data,
             t->start.engine, t->start.parameters);
    for (int m = 0; t->o.memory_profiling && m < SDP_MEMORY_COUNT; m++)
        log_info("  %-14s %14lld bytes", sdp_memory_names[m], (long long)x->arena.part[m].peak);
}

/* What ranks consumed since the last call joins the run's digest. */
enum status train_sum_consumed(struct train *t, struct error *e)
{
    uint64_t *all = calloc((size_t)t->world->size, sizeof *all);
    if (!all)
        return error_memory(e, (size_t)t->world->size * sizeof *all, "digests");
    enum status st = world_all_gather(t->world, &t->consumed, sizeof t->consumed, all, e);
    for (int r = 0; r < t->world->size && st == STATUS_OK; r++)
        t->state.consumed += all[r];
    t->consumed = 0;
    free(all);
    return st;
}

/* The line of the metrics file; takes the reference. */
static enum status put_line(struct train *t, json_t *line, struct error *e)
{
    json_object_set_new(line, "seconds", number(monotonic_seconds() - t->start.began));
    return sdp_metrics_put(&t->metrics, line, e);
}

static json_t *memory_json(const struct train *t)
{
    json_t *out = json_object();
    for (int m = 0; m < SDP_MEMORY_COUNT; m++)
        json_object_set_new(out, sdp_memory_names[m], json_integer(t->engine.arena.part[m].peak));
    return out;
}

static enum status add_norms(struct train *t, json_t *line, struct error *e)
{
    double *norms = calloc((size_t)t->engine.tensors.count, sizeof *norms), sum = 0;
    if (!norms)
        return error_memory(e, (size_t)t->engine.tensors.count * sizeof *norms, "norms");
    enum status st = sdp_param_norms(&t->engine, norms, e);
    json_t *each = json_object();
    for (int64_t i = 0; i < t->engine.tensors.count; i++) {
        json_object_set_new(each, t->engine.tensors.tensors[i].name, number(norms[i]));
        sum += norms[i] * norms[i];
    }
    json_object_set_new(line, "param_norm", number(sqrt(sum)));
    json_object_set_new(line, "param_norms", each);
    free(norms);
    return st;
}

struct rates {
    double step_ms, tokens_per_second, tflops, mfu;
};

static struct rates measure(struct train *t)
{
    int64_t steps = t->state.step - t->logged_step;
    double seconds = fmax(t->interval_ms * 1e-3, 1e-9);
    double tokens = (double)(t->state.tokens - t->logged_tokens);
    double flops = tokens * gpt2_train_flops_per_token(&t->model, t->engine.config.time);
    struct device_info info;
    t->dev->ops->info(t->dev, &info);
    struct rates r = {.step_ms = seconds * 1e3 / (double)steps,
                      .tokens_per_second = tokens / seconds,
                      .tflops = flops / seconds / t->world->size / 1e12};
    if (info.peak_flops > 0)
        r.mfu = r.tflops * 1e12 / info.peak_flops;
    return r;
}

static json_t *step_line(const struct train *t, const struct sdp_step *s,
                         const struct sdp_step_result *r, const struct rates *rate)
{
    char digest[20];
    int64_t steps = t->state.step - t->logged_step;
    json_t *line = json_object();
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)t->state.consumed);
    json_object_set_new(line, "step", json_integer(t->state.step));
    json_object_set_new(line, "epoch",
                        number((double)t->state.samples / (double)shard_set_samples(t->set)));
    json_object_set_new(line, "samples", json_integer(t->state.samples));
    json_object_set_new(line, "tokens", json_integer(t->state.tokens));
    json_object_set_new(line, "loss", number(r->loss));
    json_object_set_new(line, "lr", number(s->lr));
    json_object_set_new(line, "grad_norm", number(r->grad_norm));
    json_object_set_new(line, "tokens_per_second", number(rate->tokens_per_second));
    json_object_set_new(line, "tflops", number(rate->tflops));
    if (rate->mfu > 0)
        json_object_set_new(line, "mfu", number(rate->mfu));
    json_object_set_new(line, "step_ms", number(rate->step_ms));
    json_object_set_new(line, "device_ms", number(r->device_ms));
    json_object_set_new(line, "exposed_comm_ms", number(t->exposed_ms / (double)steps));
    json_object_set_new(line, "comm_bytes", json_integer((r->bytes_sent - t->bytes_sent) / steps));
    json_object_set_new(line, "memory_bytes", json_integer(t->dev->peak_bytes[MEMORY_DEVICE]));
    json_object_set_new(line, "host_memory_bytes", json_integer(t->dev->peak_bytes[MEMORY_HOST]));
    if (t->o.memory_profiling)
        json_object_set_new(line, "memory", memory_json(t));
    if (t->engine.config.dt == DTYPE_F16)
        json_object_set_new(line, "loss_scale", number(s->loss_scale));
    json_object_set_new(line, "skipped", json_integer(t->state.skipped));
    json_object_set_new(line, "samples_digest", json_string(digest));
    return line;
}

static void show_step(struct train *t, const struct sdp_step *s, const struct sdp_step_result *r,
                      const struct rates *rate)
{
    if (t->world->rank != 0 || t->o.quiet)
        return;
    if (t->progress.terminal) {
        snprintf(t->progress.note, sizeof t->progress.note, "loss %.4f  %.0f tokens/s", r->loss,
                 rate->tokens_per_second);
        progress_update(&t->progress, (uint64_t)(t->state.step - t->first_step));
        return;
    }
    log_info("step %lld/%lld  loss %.4f  lr %.3g  norm %.3f  %.0f tokens/s  %.2f TFLOP/s a rank  "
             "%.1f ms (%.1f ms waiting)",
             (long long)t->state.step, (long long)t->total_steps, r->loss, s->lr, r->grad_norm,
             rate->tokens_per_second, rate->tflops, rate->step_ms,
             t->exposed_ms / (double)(t->state.step - t->logged_step));
}

enum status train_report_step(struct train *t, const struct sdp_step *s,
                              const struct sdp_step_result *r, struct error *e)
{
    TRY(train_sum_consumed(t, e));
    struct rates rate = measure(t);
    json_t *line = step_line(t, s, r, &rate);
    enum status st = STATUS_OK;
    show_step(t, s, r, &rate);
    t->bytes_sent = r->bytes_sent;
    if (t->o.log_param_norms) {
        int64_t before = sdp_engine_bytes_sent(&t->engine);
        st = add_norms(t, line, e);
        t->bytes_sent += sdp_engine_bytes_sent(&t->engine) - before; /* not a step's */
    }
    if (st == STATUS_OK)
        st = put_line(t, line, e);
    else
        json_decref(line);
    t->logged_step = t->state.step;
    t->logged_tokens = t->state.tokens;
    t->interval_ms = t->exposed_ms = 0;
    return st;
}

enum status train_report_validation(struct train *t, double loss, int64_t samples, double ms,
                                    struct error *e)
{
    if (t->world->rank == 0 && !t->o.quiet && !t->progress.terminal)
        log_info("step %lld  validation loss %.4f  perplexity %.2f  (%lld samples)",
                 (long long)t->state.step, loss, exp(loss), (long long)samples);
    json_t *line = json_object();
    json_object_set_new(line, "step", json_integer(t->state.step));
    json_object_set_new(line, "validation_loss", number(loss));
    json_object_set_new(line, "validation_perplexity", number(exp(loss)));
    json_object_set_new(line, "validation_samples", json_integer(samples));
    json_object_set_new(line, "validation_ms", number(ms));
    return put_line(t, line, e);
}

enum status train_report_checkpoint(struct train *t, double stall_ms, struct error *e)
{
    if (t->world->rank == 0 && !t->o.quiet && !t->progress.terminal)
        log_info("step %lld  checkpoint being written, training stood still %.1f ms",
                 (long long)t->state.step, stall_ms);
    json_t *line = json_object();
    json_object_set_new(line, "step", json_integer(t->state.step));
    json_object_set_new(line, "checkpoint_stall_ms", number(stall_ms));
    return put_line(t, line, e);
}
