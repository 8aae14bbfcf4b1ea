/* sdp-train - trains GPT-2 with sharded data parallelism: open, plan, loop over steps, close. */
#define _GNU_SOURCE
#include "base/checked.h"
#include "base/io.h"
#include "base/log.h"
#include "sdp-train/model.h"
#include "sdp-train/refused.h"
#include "sdp-train/train.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* --- opening ------------------------------------------------------------------------------------
 */

static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGUSR1);
    sigaddset(set, SIGCONT);           /* continues as ever; stays pending as a sign, see fail() */
    sigprocmask(SIG_BLOCK, set, NULL); /* inherited by every thread; looked for between steps */
}

static bool told_to_stop(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    return sigtimedwait(&set, NULL, &(struct timespec){0}) > 0;
}

static const char *first_of(const char *a, const char *b)
{
    const char *v = getenv(a);
    return v ? v : b ? getenv(b) : NULL;
}

/* As the launcher says, before the ranks have found each other; 0 when it says nothing. */
static int launched_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        int64_t rank;
        struct error ignored;
        if (text && parse_i64(text, names[i], &rank, &ignored) == STATUS_OK && rank >= 0 &&
            rank < INT32_MAX)
            return (int)rank;
    }
    return 0;
}

static enum status open_world(struct train *t, struct error *e)
{
    struct world_options w = {
        .launcher = t->o.launcher,
        .ranks_per_node = (int)t->o.ranks_per_node,
        .timeout_ms = (int64_t)(t->o.collective_timeout * 1e3),
        .env_rank = first_of("RANK", "SLURM_PROCID"),
        .env_world_size = first_of("WORLD_SIZE", "SLURM_NTASKS"),
        .env_local_rank = first_of("LOCAL_RANK", "SLURM_LOCALID"),
        .env_local_world_size = first_of("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"),
        .env_master_addr = getenv("MASTER_ADDR"),
        .env_master_port = getenv("MASTER_PORT"),
        .mpi_launched = getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE"),
        .waiting = watchdog_wait,
        .waiting_arg = &t->watchdog,
    };
    /* Open MPI yields in a loop when ranks share processors. That can starve the launcher, and our
     * waits sleep anyway; see comm/mpi_wait.c. */
    (void)setenv("OMPI_MCA_mpi_yield_when_idle", "0", 1);
    TRY(world_open(&t->world, &w, e));
    if (t->world->size > 1) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "sdp-train[%d]", t->world->rank);
        log_set_prefix(t->world->rank ? prefix : "sdp-train");
    }
    return STATUS_OK;
}

static enum status open_device(struct train *t, struct error *e)
{
    int count = 1;
    for (int i = 0; device_backends[i]; i++)
        if (strcmp(device_backends[i]->name, "cuda") == 0 && device_backends[i]->count() > 0)
            count = device_backends[i]->count();
    bool cpu = strcmp(t->o.device, "cpu") == 0;
    TRY(device_open(&t->dev, t->o.device, cpu ? 0 : t->world->host_rank % count, e));
    if (t->dev->ops->set_threads && !getenv("OMP_NUM_THREADS"))
        t->dev->ops->set_threads(t->dev, t->world->cpus);
    return STATUS_OK;
}

static enum status open_data(struct train *t, struct error *e)
{
    const struct vocab_info *v;
    TRY(shard_set_open(&t->set, t->o.training_dir, e));
    v = shard_set_vocab(t->set);
    if (v->size > t->model.vocab)
        return error_set(
            e, STATUS_DATA,
            "%s: token ids are below %u but the model's vocabulary is %lld; pack shards "
            "with the model's tokenizer or train with --vocab-size %u",
            t->o.training_dir, v->size, (long long)t->model.vocab, v->size);
    if (!t->o.test_dir)
        return STATUS_OK;
    TRY(shard_set_open(&t->test, t->o.test_dir, e));
    if (shard_set_samples(t->test) == 0)
        return error_set(e, STATUS_DATA, "%s holds no samples", t->o.test_dir);
    t->eval_time = shard_set_block_size(t->test);
    return vocab_info_match(v, t->o.training_dir, shard_set_vocab(t->test), t->o.test_dir, e);
}

/* The model, and the device. */
static enum status configure(struct train *t, struct sdp_config *c, struct error *e)
{
    const char *path = t->ckpt ? ckpt_path(t->ckpt) : NULL;
    if (!path || t->o.model || t->o.init_from)
        TRY(train_model_config(&t->o, getenv("SDP_GPT2_SHARE"), &t->model, e));
    else
        TRY(gpt2_config_from_json(&t->model, json_object_get(ckpt_manifest(t->ckpt), "model"), path,
                                  e));
    TRY(train_engine_model(&t->o, &t->model, c, e));
    return open_device(t, e);
}

static enum status configure_data(struct train *t, struct sdp_config *c, struct error *e)
{
    TRY(open_data(t, e));
    return train_engine_samples(&t->o, shard_set_block_size(t->set), t->eval_time, c, e);
}

/* And moves the mark to now. */
static double seconds_since(double *mark)
{
    double before = *mark;
    *mark = monotonic_seconds();
    return *mark - before;
}

static enum status open_run(struct train *t, struct error *e)
{
    const struct comm_ops *comm = NULL;
    struct sdp_config c;
    struct sdp_save_options save = {.dir = t->o.checkpoint_dir, .keep = t->o.kept};
    double mark = monotonic_seconds();
    t->start.ranks = mark - t->start.began;
    /* Every phase that can fail on one rank alone ends with an agreement, so that all stop together
     * with one message. */
    TRY(world_agree(t->world,
                    train_engine_config(&t->given, &t->o, t->world->size, &c, &t->step_samples, e),
                    e));
    TRY(train_find_checkpoint(t, e));
    TRY(world_agree(t->world, configure(t, &c, e), e));
    TRY(world_agree(t->world, comm_choose(t->o.comm, t->world, t->dev, &comm, e), e));
    t->start.device = seconds_since(&mark);
    TRY(world_agree(t->world, configure_data(t, &c, e), e));
    t->start.data = seconds_since(&mark);
    TRY(world_agree(t->world, sdp_engine_open(&t->engine, &c, t->world, t->dev, comm, e), e));
    t->start.engine = seconds_since(&mark);
    TRY(world_agree(t->world, train_load(t, e), e));
    TRY(world_agree(t->world, train_length(t, e), e));
    TRY(sdp_load_compare_replicas(&t->engine, e));
    t->start.parameters = seconds_since(&mark);
    t->metrics.fd = -1;
    if (t->world->rank == 0)
        TRY(world_agree(t->world, sdp_metrics_open(&t->metrics, t->o.metrics, t->state.step, e),
                        e));
    else
        TRY(world_agree(t->world, STATUS_OK, e));
    if (t->o.checkpoint_dir) {
        char *provenance = options_config_json(&t->given, &t->o);
        save.vocab = *shard_set_vocab(t->set);
        save.provenance = provenance;
        enum status st = sdp_save_open(&t->save, &t->engine, &save, e);
        free(provenance);
        TRY(st);
    }
    struct sdp_data_plan plan = {.batch = c.batch,
                                 .time = c.time,
                                 .accumulation = c.accumulation,
                                 .step_samples = t->step_samples,
                                 .world = t->world->size,
                                 .rank = t->engine.groups.index,
                                 .shuffle = t->state.shuffle,
                                 .seed = t->state.seed,
                                 .first = t->first_sample,
                                 .limit = t->limit_samples};
    TRY(world_agree(t->world,
                    sdp_data_open(&t->data, &plan, t->set, t->dev, t->engine.train_memory, e), e));
    t->data_open = true;
    return STATUS_OK;
}

static void close_run(struct train *t)
{
    if (t->data_open)
        sdp_data_close(&t->data);
    sdp_save_free(t->save);
    sdp_metrics_close(&t->metrics);
    sdp_engine_close(&t->engine);
    ckpt_close(t->ckpt);
    shard_set_close(t->set);
    shard_set_close(t->test);
    device_close(t->dev);
}

/* --- the loop -----------------------------------------------------------------------------------
 */

static bool due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* The step that begins at this global sample, as far as its micro-steps need to know it. */
static struct sdp_step plan_step(const struct train *t, int64_t number, int64_t first)
{
    int64_t samples = sdp_data_step_samples(&t->data.plan, first);
    return (struct sdp_step){.number = number,
                             .targets = samples * (t->engine.config.time - 1),
                             .loss_scale = t->state.scale.scale};
}

/* The step after the one that comes next. */
static struct sdp_step plan_ahead(const struct train *t)
{
    const struct sdp_state *s = &t->state;
    int64_t first = s->samples + sdp_data_step_samples(&t->data.plan, s->samples);
    return plan_step(t, s->step + 2, first);
}

/* Does the next step begin before the outcome of this one is looked at? Not when something between
 * them uses the model: the device would work on the one and be waited for by the other. Nor in the
 * first step, whose outcome people wait for: queuing the next takes about as long as the step,
 * because a device takes only so much work ahead. */
static bool runs_ahead(const struct train *t, int64_t step)
{
    const struct train_options *o = &t->o;
    return sdp_step_runs_ahead(&t->engine) && step < t->total_steps && step > t->first_step + 1 &&
           !(t->test && due(step, o->validation_freq)) &&
           !(t->save && due(step, o->checkpoint_freq)) &&
           !(o->log_param_norms && due(step, o->logging_freq));
}

static enum status dump_gradients(struct train *t, struct sdp_step *s, struct error *e)
{
    bool fp16 = t->engine.config.dt == DTYPE_F16;
    TRY(sdp_step_queue(&t->engine, &t->data, s, e));
    TRY(sdp_step_reduce(&t->engine, s, e));
    return train_dump_gradients(&t->engine, t->o.dump_gradients,
                                1.0 / (fp16 ? s->loss_scale : (double)s->targets), e);
}

/* Step s to its end; the micro-steps of next (NULL: not now) are queued meanwhile. */
static enum status train_step(struct train *t, struct sdp_step *s, struct sdp_step *next,
                              struct sdp_step_result *r, struct error *e)
{
    struct sdp_state *state = &t->state;
    int64_t samples = sdp_data_step_samples(&t->data.plan, state->samples);
    s->adam_step = state->adam_steps + 1;
    s->lr = sdp_schedule_lr(&t->schedule, state->step);
    s->stop = told_to_stop();
    s->written = t->save && sdp_save_written(t->save);
    if (t->o.dump_gradients && state->step == t->first_step)
        TRY(dump_gradients(t, s, e));
    TRY(sdp_step_run(&t->engine, &t->data, s, next, r, e));
    t->consumed += r->digest;
    t->interval_ms += r->interval_ms;
    t->exposed_ms += r->exposed_ms;
    state->step++;
    state->samples += samples;
    state->tokens += samples * t->engine.config.time;
    state->adam_steps += !r->skipped;
    return STATUS_OK;
}

/* A skipped step is the same on every rank: it was decided after the reduction. */
static enum status account_for_skip(struct train *t, const struct sdp_step_result *r,
                                    struct error *e)
{
    struct sdp_state *state = &t->state;
    if (t->engine.config.dt == DTYPE_F16)
        sdp_loss_scale_update(&state->scale, r->skipped);
    if (!r->skipped) {
        state->skipped_in_row = 0;
        return STATUS_OK;
    }
    state->skipped++;
    state->skipped_in_row++;
    if (t->world->rank == 0)
        log_warn("step %lld skipped: the gradient is not finite (%lld in a row, %lld in all)%s",
                 (long long)state->step, (long long)state->skipped_in_row,
                 (long long)state->skipped,
                 t->engine.config.dt == DTYPE_F16 ? "; fp16 loss scaling goes on" : "");
    if (t->o.abort_after_skips > 0 && state->skipped_in_row >= t->o.abort_after_skips)
        return error_set(e, STATUS_FAILED,
                         "%lld steps in a row were skipped for gradients that are not finite "
                         "(--abort-after-skips %lld); the last loss was %g",
                         (long long)state->skipped_in_row, (long long)t->o.abort_after_skips,
                         r->loss);
    return STATUS_OK;
}

static enum status validate(struct train *t, struct error *e)
{
    double loss, began = monotonic_seconds();
    int64_t samples;
    TRY(sdp_validate(&t->engine, t->test, t->o.validation_batches, &loss, &samples, e));
    double took = monotonic_seconds() - began;
    t->interval_ms -= took * 1e3; /* not part of a step's time */
    return train_report_validation(t, loss, samples, took * 1e3, e);
}

static enum status save(struct train *t, bool wait, struct error *e)
{
    double began = monotonic_seconds();
    TRY(train_sum_consumed(t, e));
    json_t *state = sdp_state_to_json(&t->state);
    if (!state)
        return error_memory(e, 1024, "the checkpoint's state");
    enum status st = sdp_save_start(t->save, t->state.step, state, e);
    json_decref(state);
    TRY(st);
    if (wait || !t->o.async)
        TRY(sdp_save_complete(t->save, e));
    t->save_step = t->state.step;
    double took = monotonic_seconds() - began;
    t->interval_ms -= took * 1e3;
    return train_report_checkpoint(t, took * 1e3, e);
}

/* What the outcome of a step leads to. */
static enum status conclude_step(struct train *t, const struct sdp_step *s,
                                 const struct sdp_step_result *r, struct error *e)
{
    bool last = r->stop || t->state.step == t->total_steps;
    if (due(t->state.step, t->o.logging_freq) || last)
        TRY(train_report_step(t, s, r, e));
    if (t->test && (due(t->state.step, t->o.validation_freq) || (last && !r->stop)))
        TRY(validate(t, e));
    t->alone = false; /* what follows is decided together */
    TRY(account_for_skip(t, r, e));
    if (r->written)
        TRY(sdp_save_complete(t->save, e));
    if (t->save && (due(t->state.step, t->o.checkpoint_freq) || last))
        TRY(save(t, last, e));
    return STATUS_OK;
}

/* The run ends although the next step has begun: as if it had not. Its samples were not read, as
 * far as the state and so a checkpoint knows. */
static enum status abandon(struct train *t, struct sdp_step *next, struct error *e)
{
    t->alone = true;
    TRY(sdp_step_discard(&t->engine, next, e));
    t->alone = false;
    return STATUS_OK;
}

static enum status loop(struct train *t, struct error *e)
{
    bool stop = false;
    struct sdp_step s = plan_step(t, t->state.step + 1, t->state.samples), next;
    t->logged_step = t->state.step;
    t->logged_tokens = t->state.tokens;
    t->save_step = -1;
    sdp_step_clock(&t->engine);
    while (t->state.step < t->total_steps && !stop) {
        struct sdp_step_result r;
        bool ahead = runs_ahead(t, s.number);
        if (ahead)
            next = plan_ahead(t);
        t->alone = true; /* a step can fail on one rank */
        TRY(train_step(t, &s, ahead ? &next : NULL, &r, e));
        stop = r.stop;
        if (stop && ahead)
            TRY(abandon(t, &next, e));
        enum status st = conclude_step(t, &s, &r, e);
        if (st != STATUS_OK && ahead && !stop && !t->alone) {
            struct error lost;
            if (abandon(t, &next, &lost) != STATUS_OK)
                t->alone = true; /* a rank is gone: the others do not end together */
        }
        TRY(st);
        s = ahead ? next : plan_step(t, t->state.step + 1, t->state.samples);
    }
    if (stop && t->world->rank == 0)
        log_info("told to stop: ended after step %lld%s", (long long)t->state.step,
                 t->save ? ", checkpoint written" : "");
    return t->save ? sdp_save_complete(t->save, e) : STATUS_OK;
}

static enum status print_last(struct train *t, struct error *e)
{
    const char *path = t->save ? sdp_save_last(t->save) : NULL;
    if (!path && t->ckpt && t->save)
        path = ckpt_path(t->ckpt); /* there was nothing left to do */
    if (t->world->rank != 0 || !path)
        return STATUS_OK;
    if (printf("%s\n", path) < 0 || fflush(stdout) != 0)
        return error_errno(e, "writing to stdout");
    return STATUS_OK;
}

static enum status train(struct train *t, struct error *e)
{
    TRY(open_run(t, e));
    train_announce(t);
    bool quiet = t->o.quiet || t->world->rank != 0 || !isatty(STDERR_FILENO);
    progress_start(&t->progress, "train", "steps", (uint64_t)(t->total_steps - t->state.step),
                   quiet);
    enum status st = loop(t, e);
    progress_finish(&t->progress);
    TRY(st);
    return print_last(t, e);
}

/* --- ends ---------------------------------------------------------------------------------------
 */

/* Ranks fail together with the same message (an agreement) or apart (a lost peer). */
static int fail(struct train *t, struct error *e)
{
    struct world *w = t->world;
    if (!w) {
        failing_speak(t->watchdog.rank, e);
        return e->status;
    }
    if (!t->alone && e->status != STATUS_DEVICE) {
        if (w->rank == 0)
            log_error(e);
        return e->status;
    }
    failing_speak(w->rank, e);
    world_abort(w, e->status);
}

static enum status plan(struct train *t, struct error *e)
{
    int64_t time = t->o.plan_time, world = t->o.world_size ? t->o.world_size : t->world->size;
    struct sdp_config c;
    TRY(train_engine_config(&t->given, &t->o, world, &c, &t->step_samples, e));
    TRY(train_model_config(&t->o, getenv("SDP_GPT2_SHARE"), &t->model, e));
    TRY(train_engine_model(&t->o, &t->model, &c, e));
    if (t->o.training_dir) {
        TRY(open_data(t, e));
        time = time ? time : shard_set_block_size(t->set);
    }
    TRY(train_engine_samples(&t->o, time ? time : t->model.context, t->eval_time, &c, e));
    return train_print_plan(&t->o, &c, world, e);
}

static enum status parse(struct train *t, int argc, char **argv, enum option_action *action,
                         struct error *e)
{
    TRY(refuse_foreign_options(&argc, argv, e));
    enum status st = options_parse(&t->given, &train_option_table, argc, argv, &t->o, action, e);
    if (st != STATUS_OK) {
        /* Half-filled: nothing of it may be used. */
        t->o = (struct train_options){.collective_timeout = 300};
        return st;
    }
    if (*action == OPTIONS_EXIT)
        return STATUS_OK;
    if (t->given.positional_count > 0)
        return error_set(e, STATUS_USAGE, "unexpected argument \"%s\"; options start with --",
                         t->given.positional[0]);
    if (t->given.print_config)
        return STATUS_OK;
    return train_options_check(&t->given, &t->o, e);
}

int main(int argc, char **argv)
{
    static struct train t; /* zeroed; large for a stack */
    struct error e = {0}, world_error = {0};
    enum option_action action = OPTIONS_RUN;
    sigset_t blocked;

    t.start.began = monotonic_seconds();
    log_set_prefix("sdp-train");
    block_signals(&blocked);
    enum status st = parse(&t, argc, argv, &action, &e);
    if (st == STATUS_OK && action == OPTIONS_EXIT) {
        options_release(&t.given);
        return 0;
    }
    if (st == STATUS_OK && t.given.print_config)
        return options_print_config(&t.given, &t.o, stdout, &e) ? log_error(&e) : 0;
    log_set_quiet(t.o.quiet);
    watchdog_init(&t.watchdog, launched_rank(), t.o.collective_timeout);
    /* Even a usage error finds the other ranks first: one of them speaks for all. */
    if (open_world(&t, &world_error) != STATUS_OK)
        return fail(&t, st != STATUS_OK ? &e : &world_error);
    if (st == STATUS_OK && t.o.plan) {
        st = t.world->rank == 0 ? plan(&t, &e) : STATUS_OK;
        st = world_agree(t.world, st, &e);
    } else if (st == STATUS_OK) {
        st = train(&t, &e);
    }
    int code = st;
    if (st != STATUS_OK)
        code = fail(&t, &e);
    close_run(&t);
    world_close(t.world);
    watchdog_release(&t.watchdog);
    options_release(&t.given);
    return code;
}
