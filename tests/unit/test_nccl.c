/* test_nccl.c - the nccl engine: one process a GPU (as many as there are, at most 8), joined
 * without MPI. Inputs are small integers, so sums are exact in any order. Skips where there is no
 * GPU or no NCCL. Each process forks before it touches CUDA. */
#include "comm/comm.h"
#include "tap.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FINE, STALL, DIE, FAULTS };
enum { MAX_GPUS = 8 };

struct rank {
    struct world *w;
    struct device *dev;
    struct comm *c;
    struct stream *s;
    void *device_buf, *host_buf; /* BYTES each */
    int wrong;
};
#define BYTES ((size_t)16 << 20)

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

static void complain(struct rank *k, const char *what, const char *message)
{
    printf("# rank %d: %s: %s\n", k->w ? k->w->rank : -1, what, message);
    fflush(stdout);
    k->wrong++;
}

static void settle(struct rank *k, const char *what)
{
    struct error e;
    if (k->dev->ops->stream_sync(k->dev, k->s, &e) != STATUS_OK ||
        k->c->ops->check(k->c, &e) != STATUS_OK)
        complain(k, what, e.message);
}

static void up(struct rank *k, size_t bytes)
{
    k->dev->ops->copy(k->dev, k->s, k->device_buf, k->host_buf, bytes);
}

static void down(struct rank *k, size_t bytes, const char *what)
{
    settle(k, what);
    memset(k->host_buf, 0x5a, bytes);
    k->dev->ops->copy(k->dev, k->s, k->host_buf, k->device_buf, bytes);
    settle(k, what);
}

static void check_counts(struct rank *k, int64_t bad, const char *what, int64_t count)
{
    char text[96];
    snprintf(text, sizeof text, "%lld wrong of %lld", (long long)bad, (long long)count);
    if (bad)
        complain(k, what, text);
}

static void try_gather(struct rank *k, int64_t count)
{
    struct comm *c = k->c;
    float *h = k->host_buf, *d = k->device_buf;
    int64_t bad = 0, all = count * c->size;
    memset(h, 0, (size_t)all * sizeof *h);
    for (int64_t i = 0; i < count; i++)
        h[c->rank * count + i] = value(c->members[c->rank], i);
    up(k, (size_t)all * sizeof *h);
    c->ops->all_gather(c, k->s, d, d + c->rank * count, (size_t)count * sizeof *h);
    down(k, (size_t)all * sizeof *h, "all_gather");
    for (int r = 0; r < c->size; r++)
        for (int64_t i = 0; i < count; i++)
            bad += h[r * count + i] != value(c->members[r], i);
    check_counts(k, bad, "all_gather", all);
}

static void try_scatter(struct rank *k, int64_t count, enum dtype dt)
{
    struct comm *c = k->c;
    size_t width = dtype_bytes(dt);
    int64_t bad = 0, all = count * c->size;
    for (int64_t i = 0; i < all; i++)
        put(k->host_buf, i, dt, value(c->members[c->rank], i));
    up(k, (size_t)all * width);
    char *own = (char *)k->device_buf + (size_t)(c->rank * count) * width;
    c->ops->reduce_scatter(c, k->s, own, k->device_buf, count, dt);
    down(k, (size_t)all * width, "reduce_scatter");
    for (int64_t i = c->rank * count; i < (c->rank + 1) * count; i++) {
        float want = 0;
        for (int r = 0; r < c->size; r++)
            want += value(c->members[r], i);
        bad += get(k->host_buf, i, dt) != want;
    }
    check_counts(k, bad, "reduce_scatter", count);
}

static void try_reduce(struct rank *k, int64_t count, enum dtype dt, enum comm_reduce op)
{
    struct comm *c = k->c;
    int64_t bad = 0;
    for (int64_t i = 0; i < count; i++)
        put(k->host_buf, i, dt, value(c->members[c->rank], i));
    up(k, (size_t)count * dtype_bytes(dt));
    c->ops->all_reduce(c, k->s, k->device_buf, count, dt, op);
    down(k, (size_t)count * dtype_bytes(dt), "all_reduce");
    for (int64_t i = 0; i < count; i++) {
        float want = value(c->members[0], i);
        for (int r = 1; r < c->size; r++) {
            float x = value(c->members[r], i);
            want = op == COMM_SUM ? want + x : fmaxf(want, x);
        }
        bad += get(k->host_buf, i, dt) != want;
    }
    check_counts(k, bad, "all_reduce", count);
}

static void try_broadcast(struct rank *k, int64_t count, int root)
{
    uint8_t *h = k->host_buf;
    int64_t bad = 0;
    for (int64_t i = 0; i < count; i++)
        h[i] = (uint8_t)(i * 31 + k->c->rank * 7);
    up(k, (size_t)count);
    k->c->ops->broadcast(k->c, k->s, k->device_buf, (size_t)count, root);
    down(k, (size_t)count, "broadcast");
    for (int64_t i = 0; i < count; i++)
        bad += h[i] != (uint8_t)(i * 31 + root * 7);
    check_counts(k, bad, "broadcast", count);
}

static void try_all(struct rank *k)
{
    static const int64_t counts[] = {1, 3, 64, 4099, 100003};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        try_gather(k, counts[i]);
        try_scatter(k, counts[i], DTYPE_F32);
        try_scatter(k, counts[i], DTYPE_BF16);
        try_reduce(k, counts[i], DTYPE_F32, COMM_SUM);
        try_reduce(k, counts[i], DTYPE_BF16, COMM_SUM);
        try_reduce(k, counts[i], DTYPE_F32, COMM_MAX);
        for (int root = 0; root < k->c->size; root++)
            try_broadcast(k, counts[i], root);
    }
    /* More calls than the watcher has places, without waiting in between. */
    for (int i = 0; i < 1000; i++)
        k->c->ops->all_reduce(k->c, k->s, k->device_buf, 16, DTYPE_F32, COMM_MAX);
    settle(k, "many calls");
    if (k->c->calls < 1000)
        complain(k, "many calls", "not counted");
}

/* The others call a collective that rank 1 does not: they must get their streams back, and a
 * reason. */
static void try_fault(struct rank *k, int fault)
{
    struct error e;
    struct comm *c = k->c;
    k->w->timeout_ms = 2000;
    world_note_step(k->w, 17);
    c->ops->all_reduce(c, k->s, k->device_buf, 16, DTYPE_F32, COMM_SUM); /* connects */
    settle(k, "before the fault");
    if (c->rank == 1) {
        if (fault == DIE)
            _exit(0);
        sleep_ms(6000);
        _exit(0);
    }
    time_t start = time(NULL);
    c->ops->all_reduce(c, k->s, k->device_buf, 16, DTYPE_F32, COMM_SUM);
    (void)!k->dev->ops->stream_sync(k->dev, k->s, &e); /* must return; with or without an error */
    while (c->ops->check(c, &e) == STATUS_OK && time(NULL) - start < 20)
        sleep_ms(20);
    enum status st = c->ops->check(c, &e);
    const char *want = fault == DIE ? "rank 1" : "waiting for rank 1";
    if (st != STATUS_DEVICE || !strstr(e.message, "all_reduce on communicator all") ||
        !strstr(e.message, want))
        complain(k, "fault", st == STATUS_OK ? "nothing was noticed" : e.message);
    sleep_ms(300);
    _exit(k->wrong ? 1 : 0);
}

static int run_rank(int rank, int size, const char *port, int fault, bool share)
{
    struct rank k = {0};
    struct error e;
    const struct comm_ops *ops = NULL;
    char rank_text[16], size_text[16];
    struct world_options o = {.launcher = "env",
                              .timeout_ms = 60000,
                              .env_rank = rank_text,
                              .env_world_size = size_text,
                              .env_local_rank = rank_text,
                              .env_master_addr = "127.0.0.1",
                              .env_master_port = port};
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(size_text, sizeof size_text, "%d", size);
    for (int i = 0; comm_engines[i]; i++)
        if (strcmp(comm_engines[i]->name, "nccl") == 0)
            ops = comm_engines[i];
    if (share)
        setenv("NCCL_HOSTID", rank_text, 1);
    if (world_open(&k.w, &o, &e) != STATUS_OK ||
        device_open(&k.dev, "cuda", share ? 0 : k.w->host_rank, &e) != STATUS_OK) {
        complain(&k, "opening", e.message);
        return 1;
    }
    enum status usable = ops->usable(k.w, k.dev, &e);
    if (usable != (share && size > 1 ? STATUS_USAGE : STATUS_OK))
        complain(&k, "usable", usable == STATUS_OK ? "ranks share a GPU unnoticed" : e.message);
    if (ops->create(&k.c, k.w, k.dev, 0, rank, "all", &e) != STATUS_OK ||
        k.dev->ops->stream_create(k.dev, &k.s, &e) != STATUS_OK ||
        k.dev->ops->alloc(k.dev, MEMORY_DEVICE, BYTES, &k.device_buf, &e) != STATUS_OK ||
        k.dev->ops->alloc(k.dev, MEMORY_HOST, BYTES, &k.host_buf, &e) != STATUS_OK) {
        complain(&k, "opening", e.message);
        return 1;
    }
    if (fault != FINE)
        try_fault(&k, fault);
    if (ops->register_buffer)
        ops->register_buffer(k.c, k.device_buf, BYTES);
    try_all(&k);
    ops->free(k.c);
    if (size > 2) { /* two groups, in reversed order */
        if (ops->create(&k.c, k.w, k.dev, rank % 2, -rank, "half", &e) != STATUS_OK) {
            complain(&k, "groups", e.message);
            return 1;
        }
        try_all(&k);
        ops->free(k.c);
    }
    k.dev->ops->free(k.dev, MEMORY_DEVICE, k.device_buf);
    k.dev->ops->free(k.dev, MEMORY_HOST, k.host_buf);
    k.dev->ops->stream_free(k.dev, k.s);
    device_close(k.dev);
    world_close(k.w);
    return k.wrong ? 1 : 0;
}

/* In a child, so that this process stays without a CUDA context and may fork. */
static int count_gpus(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        bool engine = false;
        int n = 0;
        for (int i = 0; comm_engines[i]; i++)
            engine = engine || strcmp(comm_engines[i]->name, "nccl") == 0;
        for (int i = 0; device_backends[i] && engine; i++)
            if (strcmp(device_backends[i]->name, "cuda") == 0)
                n = device_backends[i]->count();
        _exit(n > MAX_GPUS ? MAX_GPUS : n);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static void run(int size, int fault, bool share)
{
    char port[16];
    pid_t pids[MAX_GPUS];
    snprintf(port, sizeof port, "%d", 20000 + (int)(getpid() * 7 + fault * 11) % 20000);
    fflush(stdout);
    for (int r = 0; r < size; r++) {
        pids[r] = fork();
        if (pids[r] == 0)
            _exit(run_rank(r, size, port, fault, share));
    }
    for (int r = 0; r < size; r++) {
        int status = -1;
        waitpid(pids[r], &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            tap_fail_(__FILE__, __LINE__, "rank %d ended with wait status %#x", r, status);
    }
}

int main(int argc, char **argv)
{
    static const char *const names[FAULTS] = {
        "collectives between all GPUs",
        "a rank that does not come ends the others' collective with its name",
        "a rank that dies ends the others' collective with its name"};
    bool share = argc == 3 && strcmp(argv[1], "share") == 0;
    int gpus = count_gpus();
    if (share && gpus)
        gpus = atoi(argv[2]) < MAX_GPUS ? atoi(argv[2]) : MAX_GPUS;
    for (int fault = FINE; fault < FAULTS; fault++) {
        CASE(names[fault])
        {
            if (gpus < (fault == FINE ? 1 : 2))
                SKIP(fault == FINE ? "needs a GPU and NCCL" : "needs two GPUs and NCCL");
            else
                run(gpus, fault, share);
        }
    }
    return tap_done();
}
