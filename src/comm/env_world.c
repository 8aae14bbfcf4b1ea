/* env_world.c - ranks that something else started: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
 * (or Slurm's, translated by main) say who and where. Every rank keeps one TCP connection to rank
 * 0. */
#define _GNU_SOURCE
#include "comm/comm_private.h"
#include "comm/env_frame.h"
#include "base/le.h"
#include "base/options.h"
#include "base/progress.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_PORT "29500"
#define MAX_RANKS 65536
#define GOODBYE_MS 10000

struct env_world {
    struct world_state head;
    struct env_server *server; /* rank 0 only */
    int fd;                    /* to the server; -1 for a world of one */
    pthread_mutex_t lock;      /* of what follows: lost() comes from other threads */
    struct strbuf in;
    struct strbuf result;
    struct strbuf missing;
    bool has_result, has_missing, is_lost;
    char why[512];
    uint64_t calls;
};

static struct env_world *mine(const struct world *w)
{
    return w->state;
}

/* --- receiving (lock held)
 * ------------------------------------------------------------------------- */

static void note_lost(struct env_world *m, const char *text, size_t bytes)
{
    if (m->is_lost)
        return;
    m->is_lost = true;
    snprintf(m->why, sizeof m->why, "%.*s", (int)(bytes < 500 ? bytes : 500), text);
}

static bool keep(struct strbuf *to, const struct frame *f)
{
    strbuf_clear(to);
    return strbuf_append(to, f->payload, f->bytes);
}

static void pump(struct env_world *m)
{
    struct frame f;
    size_t at = 0;
    int came = frame_pump(m->fd, &m->in), found;
    while ((found = frame_next(&m->in, &at, &f)) > 0) {
        if (f.type == FRAME_LOST)
            note_lost(m, (const char *)f.payload, f.bytes);
        else if (f.type == FRAME_RESULT)
            m->has_result = keep(&m->result, &f);
        else if (f.type == FRAME_MISSING)
            m->has_missing = keep(&m->missing, &f);
    }
    frame_drop(&m->in, at);
    static const char gone[] = "rank 0, which connects the ranks, has ended or cannot be reached";
    if (came < 0 || found < 0)
        note_lost(m, gone, sizeof gone - 1);
}

/* Until *flag, a loss or the deadline. */
static void pump_until(struct env_world *m, const bool *flag, double deadline)
{
    for (;;) {
        pump(m);
        double left = deadline - monotonic_seconds();
        if (*flag || m->is_lost || left <= 0)
            return;
        struct pollfd p = {.fd = m->fd, .events = POLLIN};
        (void)poll(&p, 1, left < 0.2 ? (int)(left * 1000) + 1 : 200);
    }
}

static void describe_missing(struct world *w, char *out, size_t room)
{
    struct env_world *m = mine(w);
    snprintf(out, room, "some ranks");
    m->has_missing = false;
    if (!frame_send(m->fd, FRAME_WHO, "", 0, 1000))
        return;
    pump_until(m, &m->has_missing, monotonic_seconds() + 2);
    if (m->has_missing && m->missing.length == (size_t)w->size)
        ranks_describe((const bool *)m->missing.data, w->size, NULL, out, room);
}

static int send_timeout_ms(const struct world *w)
{
    return w->timeout_ms < 30000 ? (int)w->timeout_ms : 30000;
}

static enum status gather_locked(struct world *w, const void *in, size_t bytes, void *out,
                                 struct error *e)
{
    struct env_world *m = mine(w);
    static const char unsent[] = "sending to rank 0, which connects the ranks, failed";
    char who[400];
    unsigned long long call = ++m->calls;
    m->has_result = false;
    if (!m->is_lost && !frame_send(m->fd, FRAME_GATHER, in, bytes, send_timeout_ms(w)))
        note_lost(m, unsent, sizeof unsent - 1);
    pump_until(m, &m->has_result, monotonic_seconds() + (double)w->timeout_ms / 1000);
    if (m->has_result && m->result.length == bytes * (size_t)w->size) {
        if (bytes)
            memcpy(out, m->result.data, m->result.length);
        return STATUS_OK;
    }
    if (m->is_lost)
        return error_set(e, STATUS_DEVICE, "rank %d: agreement %llu between ranks: %s", w->rank,
                         call, m->why);
    describe_missing(w, who, sizeof who);
    return error_set(e, STATUS_DEVICE,
                     "rank %d: time-out: agreement %llu between ranks did not complete within %lld "
                     "ms; waiting for %s",
                     w->rank, call, (long long)w->timeout_ms, who);
}

static enum status env_gather(struct world *w, const void *in, size_t bytes, void *out,
                              struct error *e)
{
    struct env_world *m = mine(w);
    if (w->size == 1) {
        if (bytes && out != in)
            memcpy(out, in, bytes);
        return STATUS_OK;
    }
    pthread_mutex_lock(&m->lock);
    enum status st = gather_locked(w, in, bytes, out, e);
    pthread_mutex_unlock(&m->lock);
    return st;
}

static bool env_lost(struct world *w, char *why, size_t room)
{
    struct env_world *m = mine(w);
    if (w->size == 1 || pthread_mutex_trylock(&m->lock) != 0)
        return false; /* whoever holds it is receiving and will see the loss */
    pump(m);
    bool lost = m->is_lost;
    if (lost)
        snprintf(why, room, "%s", m->why);
    pthread_mutex_unlock(&m->lock);
    return lost;
}

/* --- meeting
 * ---------------------------------------------------------------------------------------- */

static enum status listen_on(const char *port, int *listener, struct error *e)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(NULL, port, &hints, &list), on = 1, off = 0;
    if (rc != 0)
        return error_set(e, STATUS_USAGE, "MASTER_PORT %s: %s", port, gai_strerror(rc));
    errno = 0;
    *listener = -1;
    /* IPv6 first, which takes IPv4 as well; hosts without IPv6 get the second round. */
    for (int round = 0; round < 2 && *listener < 0; round++) {
        for (struct addrinfo *a = list; a && *listener < 0; a = a->ai_next) {
            if ((a->ai_family == AF_INET6) != (round == 0))
                continue;
            int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (fd < 0)
                continue;
            (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
            if (a->ai_family == AF_INET6)
                (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
            if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1024) == 0) {
                *listener = fd;
            } else {
                int saved = errno;
                close(fd);
                errno = saved;
            }
        }
    }
    freeaddrinfo(list);
    return *listener >= 0 ? STATUS_OK
                          : error_errno(e, "rank 0 cannot listen on MASTER_PORT %s", port);
}

/* A host that answers nothing must not take longer than the deadline. Leaves errno. */
static bool connect_before(int fd, const struct addrinfo *a, double deadline)
{
    int failed = 0;
    socklen_t length = sizeof failed;
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
        return true;
    if (errno != EINPROGRESS)
        return false;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    double left = deadline - monotonic_seconds();
    int rc = poll(&p, 1, left > 0 ? (int)(left < 86400 ? left * 1000 : 86400000) + 1 : 0);
    if (rc == 0)
        errno = ETIMEDOUT;
    if (rc <= 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &length) != 0)
        return false;
    errno = failed;
    return failed == 0;
}

static int try_connect(const char *host, const char *port, double deadline, int *resolve_error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    *resolve_error = getaddrinfo(host, port, &hints, &list);
    int fd = -1;
    for (struct addrinfo *a = *resolve_error ? NULL : list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || connect_before(fd, a, deadline))
            continue;
        int saved = errno;
        close(fd);
        fd = -1;
        errno = saved;
    }
    if (!*resolve_error)
        freeaddrinfo(list);
    return fd;
}

/* Rank 0 may start last: keep trying. */
static enum status connect_to(struct world *w, const char *host, const char *port, struct error *e)
{
    struct env_world *m = mine(w);
    double deadline = monotonic_seconds() + (double)w->timeout_ms / 1000;
    int resolve_error = 0;
    do {
        m->fd = try_connect(host, port, deadline, &resolve_error);
        if (m->fd >= 0) {
            frame_tune_socket(m->fd);
            return STATUS_OK;
        }
        int saved = errno;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        errno = saved;
    } while (monotonic_seconds() < deadline);
    if (resolve_error)
        return error_set(e, STATUS_DEVICE, "rank %d cannot find MASTER_ADDR %s: %s", w->rank, host,
                         gai_strerror(resolve_error));
    error_errno(e, "rank %d cannot reach rank 0 at MASTER_ADDR %s, MASTER_PORT %s within %lld ms",
                w->rank, host, port, (long long)w->timeout_ms);
    return e->status = STATUS_DEVICE;
}

static enum status meet(struct world *w, const char *host, const char *port, struct error *e)
{
    struct env_world *m = mine(w);
    uint8_t hello[8];
    if (w->rank == 0) {
        int pair[2], listener = -1;
        TRY(listen_on(port, &listener, e));
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
            close(listener);
            return error_errno(e, "creating a socket pair");
        }
        m->fd = pair[0];
        TRY(env_server_start(&m->server, listener, pair[1], w->size, e));
    } else {
        TRY(connect_to(w, host, port, e));
    }
    le32_put(hello, (uint32_t)w->rank);
    le32_put(hello + 4, (uint32_t)w->size);
    if (!frame_send(m->fd, FRAME_HELLO, hello, sizeof hello, 10000))
        return error_errno(e, "rank %d: greeting rank 0", w->rank);
    return STATUS_OK;
}

/* The others hear why, so that whoever speaks tells what happened and not who left first. */
static void say_abort(struct world *w, int exit_status)
{
    struct error cause = {0};
    uint8_t payload[4 + 300];
    (void)world_cause(w, &cause);
    size_t n = strnlen(cause.message, sizeof payload - 4);
    le32_put(payload, (uint32_t)exit_status);
    memcpy(payload + 4, cause.message, n);
    (void)frame_send(mine(w)->fd, FRAME_ABORT, payload, 4 + n, 1000);
}

static void env_close(struct world *w)
{
    struct env_world *m = mine(w);
    if (m->fd >= 0 && world_is_broken(w))
        say_abort(w, STATUS_DEVICE);
    else if (m->fd >= 0)
        (void)frame_send(m->fd, FRAME_BYE, "", 0, 1000);
    env_server_stop(m->server, world_is_broken(w) ? 1000 : GOODBYE_MS);
    if (m->fd >= 0)
        close(m->fd);
    strbuf_release(&m->in);
    strbuf_release(&m->result);
    strbuf_release(&m->missing);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static void env_abort(struct world *w, int exit_status)
{
    struct env_world *m = mine(w);
    if (m->fd >= 0)
        say_abort(w, exit_status);
    env_server_stop(m->server, 1000); /* lets the server pass the news on */
}

static const struct world_ops env_world_ops = {
    .name = "env",
    .all_gather = env_gather,
    .lost = env_lost,
    .close = env_close,
    .abort = env_abort,
};

static enum status read_variable(const char *text, const char *name, int64_t low, int64_t high,
                                 int64_t *out, struct error *e)
{
    if (!text)
        return error_set(e, STATUS_USAGE,
                         "%s is not set; ranks without MPI need RANK, WORLD_SIZE and MASTER_ADDR",
                         name);
    TRY(parse_i64(text, name, out, e));
    if (*out < low || *out > high)
        return error_set(e, STATUS_USAGE, "%s is %s, expected %lld to %lld", name, text,
                         (long long)low, (long long)high);
    return STATUS_OK;
}

enum status env_world_open(struct world *w, const struct world_options *o, struct error *e)
{
    int64_t rank = 0, size = 0, port_number = 0;
    const char *port = o->env_master_port ? o->env_master_port : DEFAULT_PORT;
    TRY(read_variable(o->env_world_size, "WORLD_SIZE", 1, MAX_RANKS, &size, e));
    TRY(read_variable(o->env_rank, "RANK", 0, size - 1, &rank, e));
    TRY(read_variable(port, "MASTER_PORT", 1, 65535, &port_number, e));
    if (size > 1 && !o->env_master_addr)
        return error_set(e, STATUS_USAGE,
                         "MASTER_ADDR is not set; it names the host of rank 0 for the other ranks");
    struct env_world *m = calloc(1, sizeof *m);
    if (!m)
        return error_memory(e, sizeof *m, "the world of ranks");
    m->head.ops = &env_world_ops;
    m->fd = -1;
    pthread_mutex_init(&m->lock, NULL);
    w->rank = (int)rank;
    w->size = (int)size;
    w->launcher = env_world_ops.name;
    w->state = m;
    return size > 1 ? meet(w, o->env_master_addr, port, e) : STATUS_OK;
}
