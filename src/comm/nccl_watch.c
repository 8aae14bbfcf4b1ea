/* nccl_watch.c - a thread a communicator that sees what a host waiting on a stream cannot: a peer
 * that does not come. NCCL has no time-outs; a collective whose peer is gone spins on the GPU for
 * ever. */
#define _GNU_SOURCE
#include "comm/nccl_private.h"
#include "base/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define PERIOD_NS 5000000L
#define SETTLE_NS 20000L
#define LOST_PERIOD_SECONDS 0.05

void nccl_error_text(struct nccl_comm *c, ncclResult_t result, char *out, size_t room)
{
    const char *detail = c->comm ? ncclGetLastError(c->comm) : NULL;
    snprintf(out, room, "NCCL: %s%s%s", ncclGetErrorString(result), detail && *detail ? ": " : "",
             detail ? detail : "");
}

void nccl_abort(struct nccl_comm *c)
{
    if (!c->comm)
        return;
    (void)ncclCommAbort(c->comm); /* the communicator has failed already; nothing more to learn */
    c->comm = NULL;
}

/* NCCL sees a broken connection before the launcher says whose process ended: give that a moment,
 * for the sake of the name. */
static void fail(struct nccl_comm *c, enum collective which, uint64_t call, ncclResult_t result)
{
    char text[1024], lost[300];
    nccl_error_text(c, result, text, sizeof text);
    bool known = false;
    for (int i = 0; i < 25 && !known; i++) {
        known = world_lost(c->head.world, lost, sizeof lost);
        if (!known)
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    comm_fail(&c->head, collective_name(which), "call %llu: %s%s%s", (unsigned long long)call,
              known ? lost : "", known ? "; " : "", text);
    nccl_abort(c);
}

bool nccl_settle(struct nccl_comm *c, enum collective which, uint64_t call, ncclResult_t result)
{
    struct world *w = c->head.world;
    double start = monotonic_seconds(), looked = start;
    char text[1024];
    while (result == ncclInProgress) {
        ncclResult_t state = ncclSuccess;
        result = ncclCommGetAsyncError(c->comm, &state);
        if (result == ncclSuccess)
            result = state;
        if (result != ncclInProgress)
            break;
        double now = monotonic_seconds();
        bool late = (now - start) * 1000 > (double)w->timeout_ms, lost = false;
        if (now - looked > LOST_PERIOD_SECONDS) {
            looked = now;
            lost = world_lost(w, text, sizeof text);
        }
        if (late || lost) {
            comm_fail_late(&c->head, which, call, w->timeout_ms, NULL);
            nccl_abort(c);
            return false;
        }
        if (now - start > 0.001)
            nanosleep(&(struct timespec){.tv_nsec = SETTLE_NS}, NULL);
    }
    if (result == ncclSuccess)
        return true;
    fail(c, which, call, result);
    return false;
}

static bool check_cuda(struct nccl_comm *c, const struct nccl_flight *f, cudaError_t rc)
{
    if (rc == cudaSuccess)
        return true;
    comm_fail(&c->head, collective_name(f->which), "call %llu: CUDA: %s",
              (unsigned long long)f->call, cudaGetErrorString(rc));
    nccl_abort(c);
    return false;
}

bool nccl_flight_begin(struct nccl_comm *c, cudaStream_t s, enum collective which, uint64_t call)
{
    if (c->count == NCCL_WATCHED) {
        /* The newest entry takes this collective in as well: its end moves. */
        struct nccl_flight *last = &c->flights[(c->first + c->count - 1) % NCCL_WATCHED];
        last->which = which;
        last->call = call;
        last->started = 0;
        return check_cuda(c, last, cudaEventRecord(last->begin, s));
    }
    struct nccl_flight *f = &c->flights[(c->first + c->count) % NCCL_WATCHED];
    f->which = which;
    f->call = call;
    f->started = 0;
    if (!check_cuda(c, f, cudaEventRecord(f->begin, s)))
        return false;
    c->count++;
    /* Until nccl_flight_end the end event is the one of an older use, and complete; the lock keeps
     * the watcher from looking. */
    return true;
}

bool nccl_flight_end(struct nccl_comm *c, cudaStream_t s)
{
    struct nccl_flight *f = &c->flights[(c->first + c->count - 1) % NCCL_WATCHED];
    if (!check_cuda(c, f, cudaEventRecord(f->end, s)))
        return false;
    pthread_cond_signal(&c->wake);
    return true;
}

/* True when the oldest flight has landed. Lock held. */
static bool oldest_landed(struct nccl_comm *c, double now)
{
    struct nccl_flight *f = &c->flights[c->first];
    struct board *board = world_state(c->head.world)->board;
    cudaError_t rc;
    if (f->started == 0) {
        rc = cudaEventQuery(f->begin);
        if (rc == cudaErrorNotReady)
            return false;
        if (!check_cuda(c, f, rc))
            return false;
        f->started = now;
        board_enter(board, c->head.slot, f->which, f->call);
    }
    rc = cudaEventQuery(f->end);
    if (rc == cudaSuccess) {
        board_leave(board, c->head.slot, f->call);
        return true;
    }
    if (rc != cudaErrorNotReady) {
        check_cuda(c, f, rc);
    } else if ((now - f->started) * 1000 > (double)c->head.world->timeout_ms) {
        comm_fail_late(&c->head, f->which, f->call, c->head.world->timeout_ms, NULL);
        nccl_abort(c);
    }
    return false;
}

/* Errors that NCCL's own threads met, and ranks known to be gone. Lock held. */
static void look_around(struct nccl_comm *c)
{
    const struct nccl_flight *f = &c->flights[c->first];
    char text[1024];
    ncclResult_t state = ncclSuccess;
    ncclResult_t rc = ncclCommGetAsyncError(c->comm, &state);
    if (rc == ncclSuccess)
        rc = state;
    if (rc != ncclSuccess && rc != ncclInProgress) {
        fail(c, f->which, f->call, rc);
    } else if (world_lost(c->head.world, text, sizeof text)) {
        comm_fail_late(&c->head, f->which, f->call, c->head.world->timeout_ms, NULL);
        nccl_abort(c);
    } else if (world_is_broken(c->head.world)) {
        comm_fail(&c->head, collective_name(f->which),
                  "call %llu given up: another collective of this rank failed",
                  (unsigned long long)f->call);
        nccl_abort(c);
    }
}

static void sleep_locked(struct nccl_comm *c)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PERIOD_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(&c->wake, &c->lock, &until);
}

static void *watch(void *arg)
{
    struct nccl_comm *c = arg;
    double looked = 0;
    (void)cudaSetDevice(c->ordinal);
    pthread_mutex_lock(&c->lock);
    while (!c->stop && c->comm) {
        if (c->count == 0) {
            pthread_cond_wait(&c->wake, &c->lock);
            continue;
        }
        double now = monotonic_seconds();
        if (oldest_landed(c, now)) {
            c->first = (c->first + 1) % NCCL_WATCHED;
            c->count--;
            continue;
        }
        if (c->comm && now - looked > LOST_PERIOD_SECONDS) {
            looked = now;
            look_around(c);
        }
        if (c->comm)
            sleep_locked(c);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static enum status create_events(struct nccl_comm *c, struct error *e)
{
    for (int i = 0; i < NCCL_WATCHED; i++) {
        cudaError_t rc = cudaEventCreateWithFlags(&c->flights[i].begin, cudaEventDisableTiming);
        if (rc == cudaSuccess)
            rc = cudaEventCreateWithFlags(&c->flights[i].end, cudaEventDisableTiming);
        if (rc != cudaSuccess)
            return error_set(e, STATUS_DEVICE, "creating events of communicator %s: %s",
                             c->head.name, cudaGetErrorString(rc));
    }
    return STATUS_OK;
}

enum status nccl_watch_start(struct nccl_comm *c, struct error *e)
{
    TRY(create_events(c, e));
    int rc = pthread_create(&c->watcher, NULL, watch, c);
    if (rc != 0)
        return error_set(e, STATUS_FAILED, "starting the watcher of communicator %s: %s",
                         c->head.name, strerror(rc));
    c->watching = true;
    return STATUS_OK;
}

void nccl_watch_stop(struct nccl_comm *c)
{
    if (c->watching) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->wake);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->watcher, NULL);
        c->watching = false;
    }
    for (int i = 0; i < NCCL_WATCHED; i++) {
        if (c->flights[i].begin)
            (void)cudaEventDestroy(c->flights[i].begin);
        if (c->flights[i].end)
            (void)cudaEventDestroy(c->flights[i].end);
    }
}
