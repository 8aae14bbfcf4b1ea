/* Steps under way: the next step's micro-steps are queued before the host waits for a step, it
 * waits once a step, and nothing a step computes depends on either.
 *
 * The device is the cpu backend with a worker thread as its compute stream, so that compute runs
 * behind the host as on a GPU, and with a record of what is queued and waited for. Under mpirun
 * (invariance.bats) the ranks together look at sharding and replicas on such a device. */
#include "format_test.h"
#include "base/philox.h"
#include "sdp/load.h"
#include "sdp/step.h"

#include <semaphore.h>
#include <time.h>

enum { TIME = 12, VOCAB = 40, SAMPLES = 61, STEPS_MAX = 8 };

static struct error e;
static struct world *world;

/* --- a device that works behind the host and writes down what happens --------------------------
 */

static const struct device_ops *cpu;
static struct device_ops recording;
static char trace[4096]; /* m micro-step, u update, W the host waits */
static sem_t *gate;      /* opened by the first wait of the host */

static void note(char c)
{
    size_t n = strlen(trace);
    if (n + 1 < sizeof trace && !(c == 'u' && n > 0 && trace[n - 1] == 'u'))
        trace[n] = c;
}

static void open_gate(void)
{
    if (gate)
        sem_post(gate);
    gate = NULL;
}

static enum status noted_event_sync(struct device *dev, struct event *ev, struct error *err)
{
    note('W');
    open_gate();
    return cpu->event_sync(dev, ev, err);
}

static enum status noted_stream_sync(struct device *dev, struct stream *s, struct error *err)
{
    note('W');
    open_gate();
    return cpu->stream_sync(dev, s, err);
}

static void noted_embed_forward(struct device *dev, struct stream *s, void *x, const void *wte,
                                const void *wpe, const int32_t *tokens, const int32_t *positions,
                                int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                                struct dropout dropout)
{
    note('m');
    cpu->embed_forward(dev, s, x, wte, wpe, tokens, positions, batch, time, channels, dt, dropout);
}

static void noted_adamw(struct device *dev, struct stream *s, float *master, float *m, float *v,
                        const float *grad, void *working, int64_t n, enum dtype dt,
                        const struct adamw *h, const struct step_control *c)
{
    note('u');
    cpu->adamw(dev, s, master, m, v, grad, working, n, dt, h, c);
}

/* --- a run -------------------------------------------------------------------------------------
 */

struct bench {
    struct device *dev;
    struct stream *own_compute;
    struct shard_set *set;
    struct sdp_engine x;
    struct sdp_data data;
    struct sdp_data_plan plan;
};

struct outcome {
    struct sdp_step_result step[STEPS_MAX];
    float parameters;          /* sum of squares of all masters, in order */
    double clocked, last_call; /* seconds: after sdp_step_clock, before the last sdp_step_run */
};

static void write_samples(void)
{
    struct vocab_info v = {.size = VOCAB, .fingerprint = 1, .eot = -1};
    struct shard_options o = {
        .block_size = TIME, .shard_bytes = 1 << 20, .group_documents = "all", .separator = "none"};
    struct shard_writer *w = NULL;
    uint32_t ids[TIME];
    CHECK_OK(shard_writer_open(&w, work_path("set"), true, &v, &o, &e));
    for (uint64_t s = 0; s < SAMPLES; s++) {
        for (uint64_t i = 0; i < TIME; i++)
            ids[i] = philox4x32(philox_key(5, s), i, 0).v[0] % VOCAB;
        CHECK_OK(shard_writer_put(w, ids, &e));
    }
    CHECK_OK(shard_writer_finish(w, NULL, NULL, &e));
    shard_writer_free(w);
}

static struct sdp_config small_config(int64_t accumulation)
{
    return (struct sdp_config){
        .model = {.layers = 3,
                  .heads = 2,
                  .channels = 16,
                  .context = TIME,
                  .vocab = VOCAB,
                  .epsilon = 1e-5f,
                  .resid_pdrop = 0.1f,
                  .eot = -1},
        .degree = 1,
        .batch = 2,
        .time = TIME,
        .accumulation = accumulation,
        .dt = DTYPE_F32,
        .reduce_dt = DTYPE_F32,
        .overlap = true,
        .unit_buffers = 3,
        .max_live_elems = INT64_MAX,
        .bucket_elems = 1 << 20,
        .saver = {.keep = GPT2_KEEP_ALL, .group = 1, .horizon = 1},
        .logits_bytes = 1 << 20,
        .decoupled = true,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .clip = 1.0f,
        .seed = 3,
    };
}

static void open_data(struct bench *b, int64_t first)
{
    b->plan.first = first;
    CHECK_OK(sdp_data_open(&b->data, &b->plan, b->set, b->dev, b->x.train_memory, &e));
}

static void bench_open(struct bench *b, const struct sdp_config *c, bool behind)
{
    *b = (struct bench){0};
    CHECK_OK(device_open(&b->dev, "cpu", 0, &e));
    cpu = b->dev->ops;
    recording = *cpu;
    recording.event_sync = noted_event_sync;
    recording.stream_sync = noted_stream_sync;
    recording.embed_forward = noted_embed_forward;
    recording.adamw = noted_adamw;
    b->dev->ops = &recording;
    b->own_compute = b->dev->compute;
    if (behind)
        CHECK_OK(cpu->stream_create(b->dev, &b->dev->compute, &e));
    CHECK_OK(shard_set_open(&b->set, work_path("set"), &e));
    const struct comm_ops *comm = NULL;
    CHECK_OK(comm_choose(world->size > 1 ? "mpi" : "self", world, b->dev, &comm, &e));
    CHECK_OK(sdp_engine_open(&b->x, c, world, b->dev, comm, &e));
    CHECK_OK(sdp_load_init(&b->x, 3, &e));
    b->x.train.run.seed = 3;
    b->plan = (struct sdp_data_plan){.batch = c->batch,
                                     .time = c->time,
                                     .accumulation = c->accumulation,
                                     .step_samples = c->batch * c->accumulation * world->size,
                                     .world = world->size,
                                     .rank = b->x.groups.index,
                                     .shuffle = true,
                                     .seed = 3,
                                     .limit = INT64_MAX};
    open_data(b, 0);
    memset(trace, 0, sizeof trace);
}

static void bench_close(struct bench *b)
{
    struct stream *behind = b->dev->compute;
    sdp_data_close(&b->data);
    sdp_engine_close(&b->x);
    b->dev->ops = cpu;
    b->dev->compute = b->own_compute;
    if (behind != b->own_compute)
        cpu->stream_free(b->dev, behind);
    device_close(b->dev);
    shard_set_close(b->set);
}

static struct sdp_step plan_step(const struct bench *b, int64_t number)
{
    return (struct sdp_step){.number = number,
                             .targets = b->plan.step_samples * (TIME - 1),
                             .loss_scale = 1,
                             .adam_step = number,
                             .lr = 1e-3};
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float sum_parameters(struct bench *b)
{
    float sum = 0;
    CHECK_OK(sdp_engine_sync(&b->x, &e));
    for (int64_t u = 0; u < b->x.layout.units; u++)
        for (int64_t i = 0; i < b->x.shards[u].elems; i++)
            sum += b->x.shards[u].master[i] * b->x.shards[u].master[i];
    return sum;
}

/* Steps 1 to n, one after the other or with the next one begun. */
static void run_steps(struct bench *b, int64_t n, bool ahead, struct outcome *o)
{
    struct sdp_step s = plan_step(b, 1), next;
    sdp_step_clock(&b->x);
    o->clocked = seconds();
    for (int64_t k = 1; k <= n; k++) {
        bool begin_next = ahead && k < n;
        next = plan_step(b, k + 1);
        o->last_call = seconds();
        CHECK_OK(sdp_step_run(&b->x, &b->data, &s, begin_next ? &next : NULL, &o->step[k - 1], &e));
        s = next;
    }
    o->parameters = sum_parameters(b);
}

static void run(const struct sdp_config *c, bool behind, bool ahead, int64_t n, struct outcome *o)
{
    struct bench b;
    bench_open(&b, c, behind);
    run_steps(&b, n, ahead, o);
    bench_close(&b);
}

static void check_same(const struct outcome *got, const struct outcome *want, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        CHECK(got->step[k].loss == want->step[k].loss);
        CHECK(got->step[k].grad_norm == want->step[k].grad_norm);
        CHECK(got->step[k].digest == want->step[k].digest);
        CHECK(!got->step[k].skipped && got->step[k].loss > 0);
    }
    CHECK(got->parameters == want->parameters);
}

static void wait_at_gate(void *arg)
{
    sem_wait(arg);
}

/* --- the tests ---------------------------------------------------------------------------------
 */

static void test_order(void)
{
    const char *want[][2] = {{"muWmuWmuWmuW", "mumWumWumWuW"},
                             {"mmmuWmmmuWmmmuWmmmuW", "mmmummmWummmWummmWuW"}};
    int64_t accumulation[] = {1, 3};
    for (int i = 0; i < 2; i++)
        for (int ahead = 0; ahead < 2; ahead++) {
            struct sdp_config c = small_config(accumulation[i]);
            struct bench b;
            struct outcome o;
            bench_open(&b, &c, true);
            run_steps(&b, 4, ahead, &o);
            size_t last = strlen(trace); /* sum_parameters waits for five streams */
            CHECK(last > 5 && strcmp(trace + last - 5, "WWWWW") == 0);
            trace[last - 5] = '\0';
            CHECK_STR(trace, want[i][ahead]);
            bench_close(&b);
        }
}

/* The device does nothing at all until the host waits for it: everything before the wait must have
 * been queued by then, and nothing the host wrote for it may have been overwritten. */
static void test_stopped_device(void)
{
    struct sdp_config c = small_config(2);
    struct outcome want, got;
    struct bench b;
    sem_t closed;
    run(&c, false, false, 2, &want);
    bench_open(&b, &c, true);
    sem_init(&closed, 0, 0);
    gate = &closed;
    b.dev->ops->host_call(b.dev, b.dev->compute, wait_at_gate, &closed);
    run_steps(&b, 2, true, &got);
    CHECK(strncmp(trace, "mmummW", 6) == 0);
    check_same(&got, &want, 2);
    bench_close(&b);
    sem_destroy(&closed);
}

static void test_same_results(void)
{
    struct sdp_config plain = small_config(3), lean = small_config(2), narrow = small_config(1);
    lean.saver =
        (struct sdp_saver){.keep = GPT2_KEEP_INPUT, .group = 1, .offload = true, .horizon = 1};
    narrow.dt = DTYPE_BF16;
    narrow.overlap = false;
    struct sdp_config all[] = {plain, lean, narrow};
    for (int i = 0; i < 3; i++) {
        struct outcome want, got;
        run(&all[i], false, false, STEPS_MAX, &want);
        run(&all[i], true, true, STEPS_MAX, &got);
        check_same(&got, &want, STEPS_MAX);
        run(&all[i], false, true, STEPS_MAX, &got);
        check_same(&got, &want, STEPS_MAX);
    }
}

/* More micro-steps than are held in host memory: uploads are waited for, results stay. */
static void test_many_micro_steps(void)
{
    struct sdp_config c = small_config(70);
    struct outcome want, got;
    c.model.layers = 1;
    c.batch = 1;
    run(&c, false, false, 3, &want);
    run(&c, true, true, 3, &got);
    check_same(&got, &want, 3);
    CHECK(strstr(trace, "mWm") != NULL);
}

static void test_discard(void)
{
    struct sdp_config c = small_config(2);
    struct outcome want, got;
    struct sdp_step next;
    struct bench b;
    run(&c, false, false, 4, &want);
    bench_open(&b, &c, true);
    struct sdp_step s = plan_step(&b, 1);
    for (int64_t k = 1; k <= 4; k++) {
        next = plan_step(&b, k + 1);
        CHECK_OK(sdp_step_run(&b.x, &b.data, &s, &next, &got.step[k - 1], &e));
        if (k == 2 || k == 4) {
            CHECK_OK(sdp_step_discard(&b.x, &next, &e));
            CHECK_INT(next.digest, 0);
            sdp_data_close(&b.data);
            open_data(&b, k * b.plan.step_samples);
        }
        s = next;
    }
    got.parameters = sum_parameters(&b);
    check_same(&got, &want, 4);
    bench_close(&b);
}

static void test_times(void)
{
    struct sdp_config c = small_config(2);
    for (int behind = 0; behind < 2; behind++) {
        struct outcome o;
        struct bench b;
        double sum = 0;
        bench_open(&b, &c, behind);
        double before = seconds();
        run_steps(&b, STEPS_MAX, true, &o);
        double after = seconds();
        for (int k = 0; k < STEPS_MAX; k++) {
            const struct sdp_step_result *r = &o.step[k];
            CHECK(r->device_ms > 0 && r->interval_ms >= r->device_ms);
            CHECK(r->exposed_ms >= 0 && r->exposed_ms <= r->device_ms);
            sum += r->interval_ms;
        }
        CHECK(sum <= (after - before) * 1e3); /* nothing is counted twice */
        /* nor left out; only where the clock event does not wait for a thread */
        CHECK(behind || sum >= (o.last_call - o.clocked) * 1e3);
        bench_close(&b);
    }
}

static void test_who_runs_ahead(void)
{
    struct sdp_config c[] = {small_config(1), small_config(1), small_config(1), small_config(1)};
    c[1].dt = DTYPE_BF16;
    c[2].dt = DTYPE_F16;
    c[3].debug_nonfinite = true;
    for (int i = 0; i < 4; i++) {
        struct bench b;
        bench_open(&b, &c[i], false);
        CHECK_INT(sdp_step_runs_ahead(&b.x), i < 2);
        bench_close(&b);
    }
}

/* Every degree of this number of ranks, with and without streams of their own. */
static void test_ranks(void)
{
    for (int degree = 1; degree <= world->size; degree++)
        for (int overlap = 0; overlap < 2 && world->size % degree == 0; overlap++) {
            struct sdp_config c = small_config(2);
            struct outcome want, got;
            c.degree = degree;
            c.overlap = overlap;
            c.bucket_elems = 500;
            run(&c, false, false, STEPS_MAX, &want);
            run(&c, true, true, STEPS_MAX, &got);
            check_same(&got, &want, STEPS_MAX);
        }
}

/* Rank 0 prints; the exit status is every rank's own. */
static int rank_main(void)
{
    if (world->rank != 0 && !freopen("/dev/null", "w", stdout))
        return 1;
    CASE("samples") write_samples();
    CASE("sharded, replicated and overlapped: a device behind the host computes the same")
    test_ranks();
    return tap_done();
}

static int one_main(void)
{
    CASE("samples") write_samples();
    CASE("a step's micro-steps are queued before the host waits for the step before, once a step")
    test_order();
    CASE("a device that stands still until it is waited for computes the same")
    test_stopped_device();
    CASE("losses, norms and parameters do not depend on how far the host is ahead")
    test_same_results();
    CASE("more micro-steps than are held in memory") test_many_micro_steps();
    CASE("a discarded step leaves no trace") test_discard();
    CASE("intervals of steps add up to time that passed") test_times();
    CASE("fp16, whose loss scale follows from each step, and a search for NaN wait for every step")
    test_who_runs_ahead();
    return tap_done();
}

int main(void)
{
    struct world_options w = {.launcher = getenv("OMPI_COMM_WORLD_SIZE") ? "mpi" : "self",
                              .timeout_ms = 60000};
    if (world_open(&world, &w, &e) != STATUS_OK) {
        printf("Bail out! %s\n", e.message);
        return 1;
    }
    work_begin("sdp-step");
    int code = world->size > 1 ? rank_main() : one_main();
    work_end();
    world_close(world);
    return code;
}
