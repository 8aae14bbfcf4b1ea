/* mpi_world.c - ranks that mpirun or srun started. */
#include "comm/mpi_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mpi_world {
    struct world_state head;
    MPI_Comm comm; /* a duplicate of MPI_COMM_WORLD: its messages meet nobody else's */
    bool own_mpi;  /* this world initialised MPI and finalises it */
    uint64_t calls;
    void (*waiting)(void *arg, const char *what);
    void *waiting_arg;
};

static struct mpi_world *mine(const struct world *w)
{
    return w->state;
}

/* what NULL: no longer. */
static void tell_waiting(const struct mpi_world *m, const char *what)
{
    if (m->waiting)
        m->waiting(m->waiting_arg, what);
}

MPI_Comm mpi_world_comm(const struct world *w)
{
    return strcmp(w->launcher, "mpi") == 0 ? mine(w)->comm : MPI_COMM_NULL;
}

static enum status report(struct world *w, const struct mpi_batch *b, enum mpi_wait result,
                          int mpi_error, struct error *e)
{
    char text[512] = "some ranks";
    if (result == MPI_WAIT_ERROR) {
        mpi_error_text(mpi_error, text, sizeof text);
        return error_set(e, STATUS_DEVICE, "rank %d: agreement %llu between ranks: %s", w->rank,
                         (unsigned long long)mine(w)->calls, text);
    }
    if (world_lost(w, text, sizeof text))
        return error_set(e, STATUS_DEVICE, "rank %d: agreement %llu between ranks: %s", w->rank,
                         (unsigned long long)mine(w)->calls, text);
    if (world_is_broken(w) && world_cause(w, e))
        return e->status;
    if (world_is_broken(w))
        return error_set(
            e, STATUS_DEVICE,
            "rank %d: agreement %llu between ranks: another collective failed meanwhile", w->rank,
            (unsigned long long)mine(w)->calls);
    bool *missing = calloc((size_t)w->size, sizeof *missing);
    if (missing) {
        mpi_batch_missing(b, missing);
        ranks_describe(missing, w->size, NULL, text, sizeof text);
    }
    free(missing);
    return error_set(e, STATUS_DEVICE,
                     "rank %d: time-out: agreement %llu between ranks did not complete within %lld "
                     "ms; waiting for %s",
                     w->rank, (unsigned long long)mine(w)->calls, (long long)w->timeout_ms, text);
}

/* Everyone sends to everyone: small messages, and who did not send is who is missing. */
static enum status gather_piece(struct world *w, const char *in, size_t bytes, char *out,
                                size_t stride, struct error *e)
{
    struct mpi_world *m = mine(w);
    struct mpi_batch b;
    int rc = MPI_SUCCESS, tag = (int)(m->calls & 0x7fff);
    TRY(mpi_batch_init(&b, 2 * w->size, e));
    for (int i = 1; i < w->size && rc == MPI_SUCCESS; i++) {
        int peer = (w->rank + i) % w->size;
        rc = mpi_batch_receive(&b, out + (size_t)peer * stride, bytes, peer, peer, tag, m->comm);
    }
    for (int i = 1; i < w->size && rc == MPI_SUCCESS; i++) {
        int peer = (w->rank + i) % w->size;
        rc = mpi_batch_send(&b, in, bytes, peer, peer, tag, m->comm);
    }
    enum mpi_wait result = MPI_WAIT_ERROR;
    if (rc == MPI_SUCCESS)
        result = mpi_batch_wait(&b, w, NULL, 0, &rc);
    enum status st = STATUS_OK;
    if (result != MPI_WAIT_DONE)
        st = report(w, &b, result, rc, e);
    mpi_batch_release(&b);
    return st;
}

static enum status mpi_gather(struct world *w, const void *in, size_t bytes, void *out,
                              struct error *e)
{
    struct mpi_world *m = mine(w);
    char *to = out;
    uint64_t call = ++m->calls;
    if (bytes)
        memmove(to + (size_t)w->rank * bytes, in, bytes);
    board_enter(m->head.board, 0, COLLECTIVE_AGREE, call);
    for (size_t at = 0; at < bytes; at += MPI_MESSAGE_BYTES) {
        size_t n = bytes - at < MPI_MESSAGE_BYTES ? bytes - at : MPI_MESSAGE_BYTES;
        TRY(gather_piece(w, to + (size_t)w->rank * bytes + at, n, to + at, bytes, e));
    }
    board_leave(m->head.board, 0, call);
    return STATUS_OK;
}

static void mpi_close(struct world *w)
{
    struct mpi_world *m = mine(w);
    /* After a failure peers are in unknown places, and finalising would wait for them. */
    if (!world_is_broken(w)) {
        tell_waiting(m, "the end of MPI");
        if (m->comm != MPI_COMM_NULL)
            MPI_Comm_free(&m->comm);
        if (m->own_mpi)
            MPI_Finalize();
        tell_waiting(m, NULL);
    }
    free(m);
}

static void mpi_abort(struct world *w, int exit_status)
{
    (void)w;
    MPI_Abort(MPI_COMM_WORLD, exit_status);
}

static const struct world_ops mpi_world_ops = {
    .name = "mpi",
    .all_gather = mpi_gather,
    .close = mpi_close,
    .abort = mpi_abort,
};

/* Everything here waits for all ranks. */
static int start(struct world *w, struct mpi_world *m, int *provided)
{
    int initialized = 0, rc = MPI_SUCCESS;
    MPI_Initialized(&initialized);
    if (initialized) {
        MPI_Query_thread(provided);
    } else {
        tell_waiting(m, "the start of MPI");
        rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, provided);
        m->own_mpi = rc == MPI_SUCCESS;
    }
    if (rc == MPI_SUCCESS && *provided >= MPI_THREAD_MULTIPLE) {
        tell_waiting(m, "the start of the world's communicator");
        rc = MPI_Comm_dup(MPI_COMM_WORLD, &m->comm);
    }
    tell_waiting(m, NULL);
    if (rc != MPI_SUCCESS || m->comm == MPI_COMM_NULL)
        return rc;
    rc = MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_rank(m->comm, &w->rank);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_size(m->comm, &w->size);
    return rc;
}

enum status mpi_world_open(struct world *w, const struct world_options *o, struct error *e)
{
    int provided = MPI_THREAD_SINGLE;
    char text[256];
    struct mpi_world *m = calloc(1, sizeof *m);
    if (!m)
        return error_memory(e, sizeof *m, "the world of ranks");
    m->head.ops = &mpi_world_ops;
    m->comm = MPI_COMM_NULL;
    w->launcher = mpi_world_ops.name;
    w->state = m;
    m->waiting = o->waiting;
    m->waiting_arg = o->waiting_arg;
    int rc = start(w, m, &provided);
    /* Communication streams are threads of their own. */
    if (rc == MPI_SUCCESS && provided < MPI_THREAD_MULTIPLE)
        return error_set(e, STATUS_DEVICE,
                         "MPI gives thread level %d, needed is MPI_THREAD_MULTIPLE (%d)", provided,
                         MPI_THREAD_MULTIPLE);
    if (rc == MPI_SUCCESS)
        return STATUS_OK;
    mpi_error_text(rc, text, sizeof text);
    return error_set(e, STATUS_DEVICE, "starting MPI: %s", text);
}
