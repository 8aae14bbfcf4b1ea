/* mpi_wait.c - batches of non-blocking transfers and waiting for them with an end. */
#define _GNU_SOURCE
#include "comm/mpi_private.h"
#include "base/progress.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

/* Waiting polls for a moment, because short exchanges end at once; then it sleeps between polls,
 * for a part of the time waited so far: ranks that share processors must let each other compute,
 * and a wait is found over soon after. Once every member is known to be in the call, what is
 * missing is bytes, and moving them through shared memory takes this rank's polling: sleeps are
 * short and rare then, for a while. Ranks without a processor each never poll on.
 *
 * Never sched_yield: some kernels take what a task yields as time it has had, and what runs beside
 * a task that yields in a loop - the launcher that should pass on a signal, a shell - then waits
 * for seconds, or minutes. */
#define SPIN_SECONDS 20e-6
#define TRANSFER_SECONDS 0.5
#define TRANSFER_SPIN_SECONDS 50e-6
#define SLEEP_PART 0.25
#define SLEEP_SECONDS 500e-6 /* at most */
#define TRANSFER_SLEEP_SECONDS 50e-6
#define LOST_PERIOD_SECONDS 0.05

enum status mpi_batch_init(struct mpi_batch *b, int capacity, struct error *e)
{
    *b = (struct mpi_batch){.capacity = capacity};
    b->requests = calloc((size_t)capacity + 1, sizeof(MPI_Request));
    b->peer = calloc((size_t)capacity + 1, sizeof *b->peer);
    if (b->requests && b->peer)
        return STATUS_OK;
    mpi_batch_release(b);
    return error_memory(e, (unsigned long long)capacity * sizeof(MPI_Request), "MPI requests");
}

void mpi_batch_release(struct mpi_batch *b)
{
    free(b->requests);
    free(b->peer);
    *b = (struct mpi_batch){0};
}

void mpi_batch_clear(struct mpi_batch *b)
{
    b->count = b->receives = 0;
}

int mpi_batch_receive(struct mpi_batch *b, void *buf, size_t bytes, int world_rank, int peer,
                      int tag, MPI_Comm comm)
{
    assert(b->count < b->capacity && b->count == b->receives && bytes <= MPI_MESSAGE_BYTES);
    int rc = MPI_Irecv(buf, (int)bytes, MPI_BYTE, world_rank, tag, comm, &b->requests[b->count]);
    if (rc == MPI_SUCCESS) {
        b->peer[b->count++] = peer;
        b->receives++;
    }
    return rc;
}

int mpi_batch_send(struct mpi_batch *b, const void *buf, size_t bytes, int world_rank, int peer,
                   int tag, MPI_Comm comm)
{
    assert(b->count < b->capacity && bytes <= MPI_MESSAGE_BYTES);
    int rc = MPI_Isend(buf, (int)bytes, MPI_BYTE, world_rank, tag, comm, &b->requests[b->count]);
    if (rc == MPI_SUCCESS)
        b->peer[b->count++] = peer;
    return rc;
}

/* False also when it cannot be known: members on other hosts move bytes without this processor. */
static bool all_arrived(const struct comm *c, uint64_t call)
{
    if (!c)
        return false;
    const struct board *board = world_state(c->world)->board;
    for (int i = 0; i < c->size; i++)
        if (board_entered(board, c->members[i], c->slot, call) <= 0)
            return false;
    return true;
}

/* When to poll on and when to sleep. */
struct patience {
    bool crowded; /* ranks share processors */
    bool slept;
    double since; /* the wait began, or its transfers */
    double spin_until;
    double transfer_until;
};

static struct patience patience_begin(const struct world *w, double now)
{
    return (struct patience){
        .crowded = w->crowded, .since = now, .spin_until = w->crowded ? now : now + SPIN_SECONDS};
}

static void patience_transfer(struct patience *p, double now)
{
    p->since = now;
    p->transfer_until = now + TRANSFER_SECONDS;
    p->spin_until = p->crowded ? now : now + TRANSFER_SPIN_SECONDS;
}

static void patience_pause(struct patience *p, double now)
{
    if (now < p->spin_until)
        return;
    if (!p->slept) /* the kernel would make each sleep 50 us longer */
        (void)prctl(PR_SET_TIMERSLACK, 1UL);
    p->slept = true;
    bool transfer = now < p->transfer_until;
    double most = transfer ? TRANSFER_SLEEP_SECONDS : SLEEP_SECONDS;
    double sleep = (now - p->since) * SLEEP_PART;
    nanosleep(&(struct timespec){.tv_nsec = (long)((sleep < most ? sleep : most) * 1e9) + 1}, NULL);
    if (transfer && !p->crowded)
        p->spin_until = monotonic_seconds() + TRANSFER_SPIN_SECONDS;
}

enum mpi_wait mpi_batch_wait(struct mpi_batch *b, struct world *w, const struct comm *c,
                             uint64_t call, int *mpi_error)
{
    double start = monotonic_seconds(), looked = start;
    struct patience patience = patience_begin(w, start);
    bool arrived = false;
    char why[256];
    for (;;) {
        int done = 0;
        *mpi_error = MPI_Testall(b->count, b->requests, &done, MPI_STATUSES_IGNORE);
        if (*mpi_error != MPI_SUCCESS)
            return MPI_WAIT_ERROR;
        if (done)
            return MPI_WAIT_DONE;
        double now = monotonic_seconds();
        if ((now - start) * 1000 > (double)w->timeout_ms)
            return MPI_WAIT_LATE;
        if (now - looked > LOST_PERIOD_SECONDS) {
            looked = now;
            if (world_is_broken(w) || world_lost(w, why, sizeof why))
                return MPI_WAIT_LOST;
        }
        if (!arrived && all_arrived(c, call)) {
            arrived = true;
            patience_transfer(&patience, now);
        }
        patience_pause(&patience, now);
    }
}

void mpi_batch_missing(const struct mpi_batch *b, bool *missing)
{
    bool found = false;
    for (int i = 0; i < b->count; i++) {
        int done = 1;
        if (i == b->receives && found)
            return; /* who sent nothing is to blame before who took nothing */
        if (b->requests[i] != MPI_REQUEST_NULL)
            MPI_Request_get_status(b->requests[i], &done, MPI_STATUS_IGNORE);
        found = found || !done;
        if (!done)
            missing[b->peer[i]] = true;
    }
}

void mpi_error_text(int code, char *out, size_t room)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS || length <= 0)
        snprintf(out, room, "MPI error %d", code);
    else
        snprintf(out, room, "%.*s", length, text);
}
