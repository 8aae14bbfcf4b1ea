/* mpi_wait.c - batches of non-blocking transfers and waiting for them with an end. */
#define _GNU_SOURCE
#include "comm/mpi_private.h"
#include "base/progress.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Waiting first gives the processor away without sleeping, which is what short collectives need,
 * then sleeps a little between polls: ranks that share cores must let each other compute. Once
 * every member is known to be in the call, what is missing is bytes, and moving them through shared
 * memory takes this rank's polling: no sleep then, for a while. */
#define YIELD_SECONDS 0.001
#define TRANSFER_SECONDS 0.5
#define SLEEP_NS 20000
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

int mpi_batch_send(struct mpi_batch *b, const void *buf, size_t bytes, int world_rank, int tag,
                   MPI_Comm comm)
{
    assert(b->count < b->capacity && bytes <= MPI_MESSAGE_BYTES);
    int rc = MPI_Isend(buf, (int)bytes, MPI_BYTE, world_rank, tag, comm, &b->requests[b->count]);
    b->count += rc == MPI_SUCCESS;
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

enum mpi_wait mpi_batch_wait(struct mpi_batch *b, struct world *w, const struct comm *c,
                             uint64_t call, int *mpi_error)
{
    double start = monotonic_seconds(), looked = start, awake_until = start + YIELD_SECONDS;
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
            awake_until = now + TRANSFER_SECONDS;
        }
        if (now < awake_until)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
}

void mpi_batch_missing(const struct mpi_batch *b, bool *missing)
{
    for (int i = 0; i < b->receives; i++) {
        int done = 1;
        if (b->requests[i] != MPI_REQUEST_NULL)
            MPI_Request_get_status(b->requests[i], &done, MPI_STATUS_IGNORE);
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
