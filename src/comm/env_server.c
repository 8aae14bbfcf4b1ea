/* env_server.c - rank 0's thread that joins the parts of all ranks and tells everyone when one is
 * gone. Connections that do not speak the protocol are dropped without a word: a port scanner must
 * not end a training run. */
#define _GNU_SOURCE
#include "comm/env_frame.h"
#include "base/le.h"
#include "base/progress.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEND_TIMEOUT_MS 30000
#define POLL_MS 100
enum { EXTRA_CONNECTIONS = 64 }; /* strangers, and ranks that have not said hello */

struct peer {
    int fd, rank; /* rank -1 before hello */
    struct strbuf in;
    struct strbuf part;
    bool has_part;
    bool refused; /* told why; what it still sends is read and ignored until it closes */
};

struct env_server {
    pthread_t thread;
    int listener, size, capacity;
    struct peer *peers; /* [capacity], fd -1 when free */
    struct pollfd *polled;
    bool *seen, *left; /* [size] said hello; said goodbye */
    atomic_int stop;   /* 1: stop when all have left; 2: now */
    bool lost;
};

static struct peer *peer_of_rank(struct env_server *s, int rank)
{
    for (int i = 0; i < s->capacity; i++)
        if (s->peers[i].fd >= 0 && s->peers[i].rank == rank)
            return &s->peers[i];
    return NULL;
}

static void drop(struct peer *p)
{
    close(p->fd);
    strbuf_release(&p->in);
    strbuf_release(&p->part);
    *p = (struct peer){.fd = -1, .rank = -1};
}

static void tell_lost(struct env_server *s, const char *text)
{
    if (s->lost)
        return;
    s->lost = true;
    for (int i = 0; i < s->capacity; i++)
        if (s->peers[i].fd >= 0 && s->peers[i].rank >= 0)
            (void)frame_send(s->peers[i].fd, FRAME_LOST, text, strlen(text), 1000);
}

/* The connection is over: in order after goodbye, otherwise the rank is gone. */
static void disconnected(struct env_server *s, struct peer *p)
{
    char text[128];
    int rank = p->rank;
    drop(p);
    if (rank < 0 || s->left[rank])
        return;
    snprintf(text, sizeof text, "rank %d has ended or cannot be reached", rank);
    tell_lost(s, text);
}

static void add_peer(struct env_server *s, int fd)
{
    for (int i = 0; i < s->capacity; i++) {
        if (s->peers[i].fd >= 0)
            continue;
        s->peers[i] = (struct peer){.fd = fd, .rank = -1};
        frame_tune_socket(fd);
        return;
    }
    close(fd);
}

static void on_hello(struct env_server *s, struct peer *p, const struct frame *f)
{
    char text[160];
    if (f->bytes != 8) {
        drop(p);
        return;
    }
    uint32_t rank = le32_get(f->payload), size = le32_get(f->payload + 4);
    if (size != (uint32_t)s->size)
        snprintf(text, sizeof text, "rank %u has world size %u, rank 0 has %d", rank, size,
                 s->size);
    else if (rank >= size)
        snprintf(text, sizeof text, "rank %u is outside a world of %u", rank, size);
    else if (s->seen[rank])
        snprintf(text, sizeof text, "two processes both say that they are rank %u", rank);
    else {
        s->seen[rank] = true;
        p->rank = (int)rank;
        return;
    }
    /* Closing with its next message unread would reset the connection and lose the reason. */
    (void)frame_send(p->fd, FRAME_LOST, text, strlen(text), 1000);
    (void)shutdown(p->fd, SHUT_WR);
    p->refused = true;
}

static void send_result(struct env_server *s)
{
    struct strbuf all = {0};
    bool ok = true;
    for (int r = 0; r < s->size; r++) {
        struct peer *p = peer_of_rank(s, r);
        ok = ok && p && strbuf_append(&all, p->part.data, p->part.length);
    }
    for (int r = 0; r < s->size && ok; r++) {
        struct peer *p = peer_of_rank(s, r);
        p->has_part = false;
        strbuf_clear(&p->part);
        /* A rank that does not take its result is found when its connection breaks. */
        (void)frame_send(p->fd, FRAME_RESULT, all.data, all.length, SEND_TIMEOUT_MS);
    }
    strbuf_release(&all);
    if (!ok)
        tell_lost(s, "rank 0 ran out of memory joining the ranks' messages");
}

static void on_gather(struct env_server *s, struct peer *p, const struct frame *f)
{
    char text[200];
    if (p->has_part || !strbuf_append(&p->part, f->payload, f->bytes)) {
        snprintf(text, sizeof text, "rank %d broke the order of messages", p->rank);
        tell_lost(s, text);
        return;
    }
    p->has_part = true;
    for (int r = 0; r < s->size; r++) {
        struct peer *other = peer_of_rank(s, r);
        if (!other || !other->has_part)
            return;
        if (other->part.length != p->part.length) {
            snprintf(text, sizeof text,
                     "ranks are in different places: rank %d sent %zu bytes, rank %d %zu", p->rank,
                     p->part.length, r, other->part.length);
            tell_lost(s, text);
            return;
        }
    }
    send_result(s);
}

static void on_who(struct env_server *s, struct peer *p)
{
    uint8_t *missing = calloc((size_t)s->size, 1);
    if (!missing)
        return;
    for (int r = 0; r < s->size; r++) {
        struct peer *other = peer_of_rank(s, r);
        missing[r] = !other || !other->has_part;
    }
    (void)frame_send(p->fd, FRAME_MISSING, missing, (size_t)s->size, 1000);
    free(missing);
}

static void on_frame(struct env_server *s, struct peer *p, const struct frame *f)
{
    char text[512];
    if (p->refused)
        return;
    if (f->type == FRAME_HELLO && p->rank < 0) {
        on_hello(s, p, f);
    } else if (p->rank < 0) {
        drop(p);
    } else if (f->type == FRAME_GATHER) {
        on_gather(s, p, f);
    } else if (f->type == FRAME_WHO) {
        on_who(s, p);
    } else if (f->type == FRAME_BYE) {
        s->left[p->rank] = true;
    } else if (f->type == FRAME_ABORT && f->bytes >= 4) {
        snprintf(text, sizeof text, "rank %d ended the job with status %u%s%.*s", p->rank,
                 le32_get(f->payload), f->bytes > 4 ? ": " : "",
                 (int)(f->bytes - 4 < 400 ? f->bytes - 4 : 400), (const char *)f->payload + 4);
        s->left[p->rank] = true;
        tell_lost(s, text);
    }
}

static void serve(struct env_server *s, struct peer *p)
{
    struct frame f;
    size_t at = 0;
    int came = frame_pump(p->fd, &p->in), found = 0;
    while (p->fd >= 0 && (found = frame_next(&p->in, &at, &f)) > 0)
        on_frame(s, p, &f);
    if (p->fd < 0)
        return;
    frame_drop(&p->in, at);
    if (came < 0 || found < 0)
        disconnected(s, p);
}

static bool all_left(const struct env_server *s)
{
    for (int r = 0; r < s->size; r++)
        if (!s->left[r])
            return false;
    return true;
}

static void *server_main(void *arg)
{
    struct env_server *s = arg;
    for (;;) {
        int stop = atomic_load(&s->stop);
        if (stop == 2 || (stop == 1 && (all_left(s) || s->lost)))
            return NULL;
        for (int i = 0; i < s->capacity; i++) /* poll skips negative descriptors */
            s->polled[i] = (struct pollfd){.fd = s->peers[i].fd, .events = POLLIN};
        s->polled[s->capacity] = (struct pollfd){.fd = s->listener, .events = POLLIN};
        if (poll(s->polled, (nfds_t)s->capacity + 1, POLL_MS) <= 0)
            continue;
        for (int i = 0; i < s->capacity; i++)
            if (s->polled[i].revents && s->peers[i].fd == s->polled[i].fd)
                serve(s, &s->peers[i]);
        if (s->polled[s->capacity].revents & POLLIN) {
            int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0)
                add_peer(s, fd);
        }
    }
}

static void server_free(struct env_server *s)
{
    for (int i = 0; s->peers && i < s->capacity; i++)
        if (s->peers[i].fd >= 0)
            drop(&s->peers[i]);
    close(s->listener);
    free(s->peers);
    free(s->polled);
    free(s->seen);
    free(s->left);
    free(s);
}

enum status env_server_start(struct env_server **out, int listener, int own, int size,
                             struct error *e)
{
    struct env_server *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) {
        close(listener);
        close(own);
        return error_memory(e, sizeof *s, "the meeting point of ranks");
    }
    s->listener = listener;
    s->size = size;
    s->capacity = size + EXTRA_CONNECTIONS;
    s->peers = calloc((size_t)s->capacity, sizeof *s->peers);
    s->polled = calloc((size_t)s->capacity + 1, sizeof *s->polled);
    s->seen = calloc((size_t)size, sizeof *s->seen);
    s->left = calloc((size_t)size, sizeof *s->left);
    atomic_init(&s->stop, 0);
    if (!s->peers || !s->polled || !s->seen || !s->left) {
        close(own);
        free(s->peers);
        s->peers = NULL;
        server_free(s);
        return error_memory(e, (size_t)size * sizeof *s->peers, "the meeting point of ranks");
    }
    for (int i = 0; i < s->capacity; i++)
        s->peers[i] = (struct peer){.fd = -1, .rank = -1};
    add_peer(s, own);
    int rc = pthread_create(&s->thread, NULL, server_main, s);
    if (rc != 0) {
        server_free(s);
        return error_set(e, STATUS_FAILED, "starting the meeting point of ranks: %s", strerror(rc));
    }
    *out = s;
    return STATUS_OK;
}

void env_server_stop(struct env_server *s, int wait_ms)
{
    if (!s)
        return;
    struct timespec until;
    atomic_store(&s->stop, 1);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    if (pthread_timedjoin_np(s->thread, NULL, &until) != 0) {
        atomic_store(&s->stop, 2);
        pthread_join(s->thread, NULL);
    }
    server_free(s);
}
