/* test_comm.c - launchers and collectives. Alone it tests the self engine and ranks joined through
 * environment variables (it forks them); under mpirun it tests the mpi engine (tests/comm.bats):
 *   test_comm                 collectives with what launched it
 *   test_comm stall|kill|late-agree|two-comms   faults; the process ends through world_abort
 *   test_comm late-end     a rank that does not come to the end
 * Inputs are small integers, so that every sum is exact and "close" is "equal". */
#include "comm/comm.h"
#include "comm/mpi_private.h"
#include "comm/mpi_sum.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/pool.h"
#include "tap.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static float value(int rank, int64_t i)
{
    return (float)((i * 7 + rank * 13) % 17 - 8);
}

static void put(void *buf, int64_t i, enum dtype dt, float v)
{
    if (dt == DTYPE_BF16)
        ((uint16_t *)buf)[i] = f32_to_bf16(v);
    else
        ((float *)buf)[i] = v;
}

static float get(const void *buf, int64_t i, enum dtype dt)
{
    return dt == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)buf)[i]) : ((const float *)buf)[i];
}

struct bench {
    struct world *w;
    struct device *dev;
    struct stream *s;
    struct comm *c;
};

static void settle(struct bench *b)
{
    struct error e;
    error_clear(&e);
    if (b->dev->ops->stream_sync(b->dev, b->s, &e) != STATUS_OK ||
        b->c->ops->check(b->c, &e) != STATUS_OK)
        tap_fail_(__FILE__, __LINE__, "%s", e.message);
}

static int64_t wrong_after_gather(struct bench *b, int64_t count, bool in_place)
{
    struct comm *c = b->c;
    float *all = calloc((size_t)(count * c->size) + 1, sizeof *all);
    float *own = in_place ? all + count * c->rank : calloc((size_t)count + 1, sizeof *own);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++)
        own[i] = value(b->w->rank, i);
    c->ops->all_gather(c, b->s, all, own, (size_t)count * sizeof *own);
    settle(b);
    for (int r = 0; r < c->size; r++)
        for (int64_t i = 0; i < count; i++)
            wrong += all[r * count + i] != value(c->members[r], i);
    if (!in_place)
        free(own);
    free(all);
    return wrong;
}

static int64_t wrong_after_scatter(struct bench *b, int64_t count, enum dtype dt, bool in_place)
{
    struct comm *c = b->c;
    size_t width = dtype_bytes(dt);
    char *send = calloc((size_t)(count * c->size) + 1, width);
    char *recv =
        in_place ? send + (size_t)(count * c->rank) * width : calloc((size_t)count + 1, width);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count * c->size; i++)
        put(send, i, dt, value(b->w->rank, i));
    c->ops->reduce_scatter(c, b->s, recv, send, count, dt);
    settle(b);
    for (int64_t i = 0; i < count; i++) {
        float want = 0;
        for (int r = 0; r < c->size; r++)
            want += value(c->members[r], c->rank * count + i);
        wrong += get(recv, i, dt) != want;
    }
    if (!in_place)
        free(recv);
    free(send);
    return wrong;
}

static int64_t wrong_after_reduce(struct bench *b, int64_t count, enum dtype dt,
                                  enum comm_reduce op)
{
    struct comm *c = b->c;
    char *buf = calloc((size_t)count + 1, dtype_bytes(dt));
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++)
        put(buf, i, dt, value(b->w->rank, i));
    c->ops->all_reduce(c, b->s, buf, count, dt, op);
    settle(b);
    for (int64_t i = 0; i < count; i++) {
        float want = value(c->members[0], i);
        for (int r = 1; r < c->size; r++) {
            float x = value(c->members[r], i);
            want = op == COMM_SUM ? want + x : fmaxf(want, x);
        }
        wrong += get(buf, i, dt) != want;
    }
    free(buf);
    return wrong;
}

static int64_t wrong_after_broadcast(struct bench *b, int64_t count, int root)
{
    struct comm *c = b->c;
    uint8_t *buf = calloc((size_t)count + 1, 1);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++)
        buf[i] = (uint8_t)(i * 31 + c->rank * 7);
    c->ops->broadcast(c, b->s, buf, (size_t)count, root);
    settle(b);
    for (int64_t i = 0; i < count; i++)
        wrong += buf[i] != (uint8_t)(i * 31 + root * 7);
    free(buf);
    return wrong;
}

static const int64_t sizes[] = {0, 1, 2, 3, 63, 64, 65, 1000, 4099, 100003};
#define EACH_SIZE(n)                                                                            \
    for (size_t k_ = 0, n = 0; k_ < sizeof sizes / sizeof *sizes && (n = (size_t)sizes[k_], 1); \
         k_++)

static void test_all(struct bench *b, const char *what)
{
    static char names[4][128]; /* they outlive this call: a case is reported when the next begins */
    snprintf(names[0], sizeof names[0], "%s: all_gather", what);
    CASE(names[0])
    {
        EACH_SIZE(n)
        {
            CHECK_INT(wrong_after_gather(b, (int64_t)n, false), 0);
            CHECK_INT(wrong_after_gather(b, (int64_t)n, true), 0);
        }
    }
    snprintf(names[1], sizeof names[1], "%s: reduce_scatter in fp32 and bf16", what);
    CASE(names[1])
    {
        EACH_SIZE(n)
        {
            for (int in_place = 0; in_place < 2; in_place++) {
                CHECK_INT(wrong_after_scatter(b, (int64_t)n, DTYPE_F32, in_place), 0);
                CHECK_INT(wrong_after_scatter(b, (int64_t)n, DTYPE_BF16, in_place), 0);
            }
        }
    }
    snprintf(names[2], sizeof names[2], "%s: all_reduce, sum and max", what);
    CASE(names[2])
    {
        EACH_SIZE(n)
        {
            CHECK_INT(wrong_after_reduce(b, (int64_t)n, DTYPE_F32, COMM_SUM), 0);
            CHECK_INT(wrong_after_reduce(b, (int64_t)n, DTYPE_BF16, COMM_SUM), 0);
            CHECK_INT(wrong_after_reduce(b, (int64_t)n, DTYPE_F32, COMM_MAX), 0);
            CHECK_INT(wrong_after_reduce(b, (int64_t)n, DTYPE_BF16, COMM_MAX), 0);
        }
    }
    snprintf(names[3], sizeof names[3], "%s: broadcast from every root", what);
    CASE(names[3])
    {
        EACH_SIZE(n)
        {
            for (int root = 0; root < b->c->size; root++)
                CHECK_INT(wrong_after_broadcast(b, (int64_t)n, root), 0);
        }
    }
}

/* Not exact on purpose: the same bits as adding in rank order, for sizes on both sides of each
 * limit. */
static void test_order(struct bench *b)
{
    CASE("sums are taken in rank order in fp32, to the bit")
    {
        static const int64_t counts[] = {5, 4099, 300007};
        for (int k = 0; k < 3; k++) {
            int64_t n = counts[k], wrong = 0;
            float *buf = calloc((size_t)n, sizeof *buf);
            for (int64_t i = 0; i < n; i++)
                buf[i] = sinf((float)i) * powf(10, (float)(b->w->rank % 5));
            b->c->ops->all_reduce(b->c, b->s, buf, n, DTYPE_F32, COMM_SUM);
            settle(b);
            for (int64_t i = 0; i < n; i++) {
                float want = 0;
                for (int r = 0; r < b->c->size; r++) {
                    float x = sinf((float)i) * powf(10, (float)(b->c->members[r] % 5));
                    want = r == 0 ? x : want + x;
                }
                wrong += buf[i] != want;
            }
            CHECK_INT(wrong, 0);
            free(buf);
        }
    }
    CASE("max keeps NaN, whoever has it")
    {
        float x[3] = {1, b->c->rank == b->c->size - 1 ? NAN : 2, 3};
        b->c->ops->all_reduce(b->c, b->s, x, 3, DTYPE_F32, COMM_MAX);
        settle(b);
        CHECK(x[0] == 1 && isnan(x[1]) && x[2] == 3);
    }
}

/* Two communicators on two streams, queued without waiting: they must not block each other. */
static void test_streams(struct world *w, struct device *dev, const struct comm_ops *ops)
{
    enum { ROUNDS = 50, COUNT = 3001 };
    struct comm *c[2] = {NULL, NULL};
    struct stream *s[2] = {NULL, NULL};
    struct error e;
    CASE("two communicators on two streams run side by side")
    {
        float *gathered = calloc((size_t)ROUNDS * COUNT * (size_t)w->size, sizeof *gathered);
        float *reduced = calloc((size_t)ROUNDS * COUNT, sizeof *reduced);
        float *own = calloc(COUNT, sizeof *own);
        for (int k = 0; k < 2; k++) {
            CHECK(ops->create(&c[k], w, dev, 0, w->rank, k ? "scatter" : "gather", &e) ==
                  STATUS_OK);
            CHECK(dev->ops->stream_create(dev, &s[k], &e) == STATUS_OK);
        }
        for (int i = 0; i < COUNT; i++)
            own[i] = value(w->rank, i);
        for (int64_t i = 0; i < ROUNDS * COUNT; i++)
            reduced[i] = value(w->rank, i);
        for (int r = 0; r < ROUNDS; r++) {
            c[0]->ops->all_gather(c[0], s[0], gathered + (int64_t)r * COUNT * w->size, own,
                                  COUNT * sizeof *own);
            c[1]->ops->all_reduce(c[1], s[1], reduced + (int64_t)r * COUNT, COUNT, DTYPE_F32,
                                  COMM_SUM);
        }
        int64_t wrong = 0;
        for (int k = 0; k < 2; k++) {
            CHECK(dev->ops->stream_sync(dev, s[k], &e) == STATUS_OK);
            CHECK(c[k]->ops->check(c[k], &e) == STATUS_OK);
            CHECK_INT(c[k]->calls, ROUNDS);
        }
        for (int64_t r = 0; r < (int64_t)ROUNDS * w->size; r++)
            for (int i = 0; i < COUNT; i++)
                wrong += gathered[r * COUNT + i] != value((int)(r % w->size), i);
        for (int64_t i = 0; i < ROUNDS * COUNT; i++) {
            float want = 0;
            for (int r = 0; r < w->size; r++)
                want += value(r, i);
            wrong += reduced[i] != want;
        }
        CHECK_INT(wrong, 0);
        CHECK_INT(c[0]->bytes_sent, (int64_t)ROUNDS * COUNT * 4 * (w->size - 1));
        for (int k = 0; k < 2; k++) {
            ops->free(c[k]);
            dev->ops->stream_free(dev, s[k]);
        }
        free(gathered);
        free(reduced);
        free(own);
    }
}

static void test_world(struct world *w)
{
    struct error e;
    CASE("all_gather keeps rank order")
    {
        int64_t mine = 1000 + w->rank, all[64] = {0};
        CHECK(w->size <= 64);
        CHECK(world_all_gather(w, &mine, sizeof mine, all, &e) == STATUS_OK);
        for (int r = 0; r < w->size; r++)
            CHECK_INT(all[r], 1000 + r);
    }
    CASE("agreement: all well")
    {
        CHECK(world_agree(w, STATUS_OK, &e) == STATUS_OK);
        CHECK_STR(e.message, "");
    }
    CASE("agreement: the worst status and its first rank's message reach everyone")
    {
        int culprit = w->size > 2 ? 2 : w->size - 1;
        enum status mine = w->rank >= culprit ? STATUS_DATA : STATUS_FAILED;
        char want[64];
        error_set(&e, mine, "trouble of %d", w->rank);
        CHECK(world_agree(w, mine, &e) == STATUS_DATA);
        if (w->size == 1)
            snprintf(want, sizeof want, "trouble of 0");
        else
            snprintf(want, sizeof want, "rank %d: trouble of %d", culprit, culprit);
        CHECK_STR(e.message, want);
        CHECK(world_agree(w, STATUS_OK, &e) == STATUS_OK);
    }
    CASE("each rank has a share of the host's processors, and all together no more than there are")
    {
        int cpus[64], sum = 0, online = (int)sysconf(_SC_NPROCESSORS_ONLN);
        CHECK(world_all_gather(w, &w->cpus, sizeof w->cpus, cpus, &e) == STATUS_OK);
        for (int r = 0; r < w->size; r++)
            sum += cpus[r];
        CHECK(w->cpus >= 1 && w->cpus <= cpu_count());
        CHECK(sum <= (online > w->size ? online : w->size));
        if (w->size == 1)
            CHECK_INT(w->cpus, cpu_count());
    }
    CASE("ranks know their places on the host")
    {
        CHECK_INT(w->nodes, 1);
        CHECK_INT(w->local_rank, w->rank);
        CHECK_INT(w->local_size, w->size);
        CHECK_INT(w->host_size, w->size);
    }
}

static void test_sum(void)
{
    CASE("reduce_in_order rounds bf16 once")
    {
        /* In bf16 each 1 would vanish beside 256; the fp32 sum of 256 + 8*1 is exact. */
        uint16_t big = f32_to_bf16(256), one = f32_to_bf16(1), out = 0;
        const void *parts[9] = {&big, &one, &one, &one, &one, &one, &one, &one, &one};
        reduce_in_order(&out, parts, 9, 1, DTYPE_BF16, COMM_SUM);
        CHECK_NEAR(bf16_to_f32(out), 264, 0);
    }
    CASE("lists of ranks are short")
    {
        bool set[8] = {true, false, false, true, true, true, false, true};
        char text[64];
        ranks_describe(set, 8, NULL, text, sizeof text);
        CHECK_STR(text, "ranks 0, 3-5, 7");
        int members[8] = {9, 8, 7, 6, 5, 4, 3, 2};
        bool single[8] = {[1] = true};
        ranks_describe(single, 8, members, text, sizeof text);
        CHECK_STR(text, "rank 8");
    }
}

static void test_engine(struct world *w, struct device *dev, const struct comm_ops *ops)
{
    struct bench b = {.w = w, .dev = dev};
    struct error e;
    CASE("create")
    {
        CHECK(dev->ops->stream_create(dev, &b.s, &e) == STATUS_OK);
        CHECK(ops->create(&b.c, w, dev, 0, w->rank, "all", &e) == STATUS_OK);
    }
    test_all(&b, ops->name);
    test_order(&b);
    ops->free(b.c);
    if (w->size > 1) {
        CASE("groups by color, ordered by key")
        {
            CHECK(ops->create(&b.c, w, dev, w->rank % 2, -w->rank, "half", &e) == STATUS_OK);
            CHECK_INT(b.c->size, (w->size + (w->rank % 2 == 0)) / 2);
            CHECK_INT(b.c->members[b.c->rank], w->rank);
            for (int i = 1; i < b.c->size; i++)
                CHECK(b.c->members[i] < b.c->members[i - 1]);
        }
        test_all(&b, "half the ranks, reversed");
        ops->free(b.c);
    }
    if (strcmp(ops->name, "mpi") == 0) {
        CASE("create with messages of 1000 bytes and pieces of 128")
        CHECK(mpi_comm_create_limited(&b.c, w, dev, 0, w->rank, "small", 1000, 128, &e) ==
              STATUS_OK);
        test_all(&b, "many messages");
        ops->free(b.c);
    }
    test_streams(w, dev, ops);
    dev->ops->stream_free(dev, b.s);
}

static struct world_options from_environment(int64_t timeout_ms)
{
    return (struct world_options){
        .launcher = "auto",
        .timeout_ms = timeout_ms,
        .mpi_launched = getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE"),
        .env_rank = getenv("RANK"),
        .env_world_size = getenv("WORLD_SIZE"),
        .env_local_rank = getenv("LOCAL_RANK"),
        .env_master_addr = getenv("MASTER_ADDR"),
        .env_master_port = getenv("MASTER_PORT"),
    };
}

/* --- ranks joined by environment variables: forked here
 * --------------------------------------------- */

enum env_fault { ENV_FINE, ENV_STALL, ENV_DIE, ENV_DISAGREE, ENV_ABORT };

static void env_child(int rank, int size, const char *port, enum env_fault fault)
{
    char rank_text[16], size_text[16];
    struct world_options o = {.launcher = "env",
                              .timeout_ms = fault == ENV_DISAGREE ? 3000 : 30000,
                              .env_rank = rank_text,
                              .env_world_size = size_text,
                              .env_master_addr = "127.0.0.1",
                              .env_master_port = port};
    struct world *w = NULL;
    struct error e;
    bool ok = true;
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(size_text, sizeof size_text, "%d",
             fault == ENV_DISAGREE && rank == 2 ? size + 1 : size);
    enum status st = world_open(&w, &o, &e);
    if (fault == ENV_DISAGREE) /* rank 2 hears why; the others miss it */
        _exit(st == STATUS_DEVICE && (rank != 2 || strstr(e.message, "world size 4")) ? 0 : 1);
    if (st != STATUS_OK)
        _exit(2);
    for (int round = 0; round < 20; round++) {
        int mine[3] = {rank, round, 7}, all[3 * 8];
        ok = ok && world_all_gather(w, mine, sizeof mine, all, &e) == STATUS_OK;
        for (int r = 0; r < size; r++)
            ok = ok && all[3 * r] == r && all[3 * r + 1] == round;
    }
    if (fault == ENV_FINE) {
        ok = ok && world_agree(w, rank == 1 ? STATUS_DATA : STATUS_OK,
                               (error_set(&e, STATUS_DATA, "bad"), &e)) == STATUS_DATA;
        ok = ok && strcmp(e.message, "rank 1: bad") == 0;
        ok = ok && w->host_rank == rank && w->host_size == size;
        ok = ok && w->cpus == (cpu_count() > size ? cpu_count() / size : 1);
        world_close(w);
        _exit(ok ? 0 : 3);
    }
    if (rank == 2) {
        if (fault == ENV_ABORT)
            world_abort(w, 0);
        if (fault == ENV_DIE)
            _exit(0);
        sleep_ms(1500);
        _exit(0);
    }
    if (fault == ENV_STALL)
        w->timeout_ms = 500;
    st = world_barrier(w, &e);
    const char *want = fault == ENV_STALL ? "waiting for rank 2" : "rank 2";
    ok = ok && st == STATUS_DEVICE && strstr(e.message, want);
    if (!ok)
        printf("# rank %d: %d %s\n", rank, st, e.message);
    sleep_ms(100); /* rank 0 carries the news: let the others hear it */
    world_close(w);
    _exit(ok ? 0 : 4);
}

static void env_run(enum env_fault fault)
{
    enum { SIZE = 3 };
    char port[16];
    pid_t pids[SIZE];
    snprintf(port, sizeof port, "%d", 20000 + (int)(getpid() * 7 + (int)fault * 11) % 20000);
    fflush(stdout);
    for (int r = 0; r < SIZE; r++) {
        pids[r] = fork();
        if (pids[r] == 0)
            env_child(r, SIZE, port, fault);
    }
    for (int r = 0; r < SIZE; r++) {
        int status = -1;
        waitpid(pids[r], &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            tap_fail_(__FILE__, __LINE__, "rank %d ended with wait status %#x", r, status);
    }
}

static void test_env(void)
{
    CASE("ranks from environment variables meet and agree")
    env_run(ENV_FINE);
    CASE("a rank that stalls is named")
    env_run(ENV_STALL);
    CASE("a rank that dies is named")
    env_run(ENV_DIE);
    CASE("a rank that aborts is named")
    env_run(ENV_ABORT);
    CASE("ranks with different world sizes do not meet")
    env_run(ENV_DISAGREE);
    CASE("bad variables are refused")
    {
        struct world *w;
        struct error e;
        struct world_options o = {.launcher = "env",
                                  .env_rank = "4",
                                  .env_world_size = "4",
                                  .env_master_addr = "localhost"};
        CHECK(world_open(&w, &o, &e) == STATUS_USAGE);
        CHECK_CONTAINS(e.message, "RANK is 4, expected 0 to 3");
        o.env_rank = "x";
        CHECK(world_open(&w, &o, &e) == STATUS_USAGE);
        o.env_rank = "1", o.env_master_addr = NULL;
        CHECK(world_open(&w, &o, &e) == STATUS_USAGE);
        CHECK_CONTAINS(e.message, "MASTER_ADDR");
        o.launcher = "pigeon";
        CHECK(world_open(&w, &o, &e) == STATUS_USAGE);
        CHECK_CONTAINS(e.message, "pigeon");
    }
}

/* --- faults under mpirun
 * ----------------------------------------------------------------------------- */

/* The second communicator gives up because the first timed out; both, and the world, tell what the
 * first one saw. */
static enum status two_comms(struct comm *first, struct comm *second, float *x, struct error *e)
{
    struct world *w = first->world;
    struct device *dev = first->dev;
    struct error others[2];
    first->ops->all_gather(first, dev->compute, x, x + first->rank, sizeof *x);
    while (first->ops->check(first, e) == STATUS_OK)
        sleep_ms(10);
    w->timeout_ms = 600000; /* what follows must not time out by itself */
    second->ops->all_reduce(second, dev->compute, x, 4, DTYPE_F32, COMM_SUM);
    while (second->ops->check(second, &others[0]) == STATUS_OK)
        sleep_ms(10);
    enum status st = world_barrier(w, &others[1]);
    for (int i = 0; i < 2; i++)
        if (strcmp(others[i].message, e->message) != 0)
            return error_set(e, STATUS_FAILED, "not the first failure: %s", others[i].message);
    return st;
}

static int run_fault(struct world *w, struct device *dev, const struct comm_ops *ops,
                     const char *mode)
{
    struct comm *c = NULL, *other = NULL;
    struct error e;
    float x[64] = {0};
    world_note_step(w, 16);
    if (ops->create(&c, w, dev, 0, w->rank, "gather", &e) != STATUS_OK ||
        ops->create(&other, w, dev, 0, w->rank, "scatter", &e) != STATUS_OK)
        world_abort(w, log_error(&e));
    c->ops->all_reduce(c, dev->compute, x, 4, DTYPE_F32, COMM_SUM);
    w->timeout_ms = 1000; /* from here on: starting up may be slow on a busy machine */
    if (w->rank != 1)
        world_note_step(w, 17);
    if (w->rank == 1 && strcmp(mode, "kill") == 0)
        raise(SIGKILL);
    if (w->rank == 1)
        sleep_ms(60000);
    enum status st;
    if (strcmp(mode, "late-agree") == 0) {
        st = world_agree(w, STATUS_OK, &e);
    } else if (strcmp(mode, "two-comms") == 0) {
        st = two_comms(c, other, x, &e);
    } else {
        c->ops->all_gather(c, dev->compute, x, x + w->rank, sizeof *x);
        st = c->ops->check(c, &e);
    }
    if (st == STATUS_OK)
        error_set(&e, STATUS_FAILED, "nothing was noticed");
    log_error(&e);
    sleep_ms(200); /* every rank's message, not only the first one's */
    world_abort(w, (int)e.status);
}

static void give_up(int signal_number)
{
    static const char text[] = "gave up waiting for the end of MPI\n";
    (void)signal_number;
    _exit(write(STDERR_FILENO, text, sizeof text - 1) < 0 ? 1 : 4);
}

/* What a caller can do about a wait that cannot be given up. */
static void limit_end(void *arg, const char *what)
{
    (void)arg;
    if (!what)
        alarm(0);
    else if (strcmp(what, "the end of MPI") == 0)
        alarm(1);
}

int main(int argc, char **argv)
{
    struct error e;
    struct world *w = NULL;
    struct device *dev = NULL;
    const struct comm_ops *ops = NULL;
    const char *mode = argc > 1 ? argv[1] : NULL;
    struct world_options o = from_environment(60000);
    o.waiting = limit_end;
    if (!mode && !o.mpi_launched && !o.env_rank)
        test_env(); /* forks: before any thread exists */
    if (mode)
        signal(SIGTERM,
               SIG_IGN); /* mpirun ends the job at once when a rank dies; say first what was seen */
    if (world_open(&w, &o, &e) != STATUS_OK)
        return log_error(&e);
    char prefix[32];
    snprintf(prefix, sizeof prefix, "test_comm[%d]", w->rank);
    log_set_prefix(prefix);
    if (device_open(&dev, "cpu", -1, &e) != STATUS_OK ||
        comm_choose("auto", w, dev, &ops, &e) != STATUS_OK)
        world_abort(w, log_error(&e));
    if (mode && strcmp(mode, "late-end") == 0) {
        signal(SIGALRM, give_up);
        if (w->rank == 1)
            sleep_ms(60000);
        world_close(w);
        return 0;
    }
    if (mode)
        return run_fault(w, dev, ops, mode);
    if (w->rank != 0 && !freopen("/dev/null", "w", stdout))
        return 1;
    CASE("the engine fits the launcher")
    CHECK_STR(ops->name, w->size == 1 && !o.mpi_launched ? "self" : w->size == 1 ? "self" : "mpi");
    test_sum();
    test_world(w);
    test_engine(w, dev, ops);
    int32_t failures[64] = {0};
    CASE("every rank passed")
    {
        int32_t mine = tap_.failed_cases + (tap_.failed_checks != 0);
        CHECK(world_all_gather(w, &mine, sizeof mine, failures, &e) == STATUS_OK);
        for (int r = 0; r < w->size; r++)
            CHECK_INT(failures[r], 0);
    }
    int status = tap_done();
    device_close(dev);
    world_close(w);
    return status;
}
