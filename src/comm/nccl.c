/* nccl.c - collectives between GPUs, one rank a GPU, queued on the caller's streams.
 *
 * Communicators are non-blocking: a call returns at once, also when it has to connect to peers, and
 * nccl_settle waits for its host part with an end. nccl_watch.c watches what runs on the GPU.
 *
 * Sums: NCCL adds in the order of its rings and trees, which is fixed for a communicator, a size
 * and a topology; bf16 is added in fp32 at each hop and rounded between hops. That is weaker than
 * the rank order and single rounding of mpi.c; results agree to rounding, not to the bit. */
#define _GNU_SOURCE
#include "comm/nccl_private.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- usable
 * ------------------------------------------------------------------------------------------ */

struct gpu_identity {
    uint64_t host;
    unsigned char uuid[16];
    int32_t is_cuda;
    int32_t version; /* of the NCCL library: a mixture cannot talk */
};

static enum status identify(const struct world *w, const struct device *dev,
                            struct gpu_identity *id, struct error *e)
{
    int ordinal = 0;
    struct cudaDeviceProp properties;
    memset(id, 0, sizeof *id);
    id->host = world_state(w)->hosts[w->rank];
    if (!dev || strcmp(dev->ops->name, "cuda") != 0 || !dev->ops->native_stream)
        return STATUS_OK;
    cudaError_t rc = cudaGetDevice(&ordinal);
    if (rc == cudaSuccess)
        rc = cudaGetDeviceProperties(&properties, ordinal);
    if (rc != cudaSuccess)
        return error_set(e, STATUS_DEVICE, "identifying the GPU: %s", cudaGetErrorString(rc));
    memcpy(id->uuid, properties.uuid.bytes, sizeof id->uuid);
    id->is_cuda = 1;
    int version = 0;
    if (ncclGetVersion(&version) == ncclSuccess)
        id->version = version;
    return STATUS_OK;
}

static enum status compare(const struct world *w, const struct gpu_identity *all, struct error *e)
{
    for (int r = 0; r < w->size; r++) {
        if (!all[r].is_cuda)
            return error_set(e, STATUS_USAGE,
                             "nccl needs a CUDA device on every rank; rank %d has none", r);
        if (all[r].version != all[0].version)
            return error_set(e, STATUS_USAGE,
                             "nccl needs one version everywhere; rank 0 has %d, rank %d has %d",
                             all[0].version, r, all[r].version);
        for (int other = 0; other < r; other++)
            if (memcmp(all[r].uuid, all[other].uuid, sizeof all[r].uuid) == 0)
                return error_set(e, STATUS_USAGE,
                                 "nccl needs a GPU a rank; ranks %d and %d share one", other, r);
    }
    return STATUS_OK;
}

/* Collective over the world, so that every rank comes to the same answer. */
static enum status nccl_usable(const struct world *w, const struct device *dev, struct error *e)
{
    struct gpu_identity mine, *all = calloc((size_t)w->size, sizeof *all);
    struct error why;
    if (!all)
        return error_memory(e, (size_t)w->size * sizeof *all, "GPU identities");
    /* A rank that cannot identify its GPU still takes part, or the others would wait for it. */
    enum status own = identify(w, dev, &mine, &why);
    /* The world's messages change nothing that a caller can see. */
    enum status st = world_all_gather((struct world *)w, &mine, sizeof mine, all, e);
    if (st == STATUS_OK && own != STATUS_OK) {
        *e = why;
        st = own;
    }
    if (st == STATUS_OK)
        st = compare(w, all, e);
    free(all);
    return st;
}

/* --- life
 * --------------------------------------------------------------------------------------------- */

/* The group's first member makes the id; everyone hears every rank's and takes that one. */
static enum status share_id(struct nccl_comm *c, ncclUniqueId *id, struct error *e)
{
    struct world *w = c->head.world;
    struct offer {
        ncclUniqueId id;
        int32_t ok;
    } mine, *all = calloc((size_t)w->size, sizeof *all);
    enum status st = STATUS_OK;
    if (!all)
        return error_memory(e, (size_t)w->size * sizeof *all, "NCCL ids");
    memset(&mine, 0, sizeof mine);
    mine.ok = c->head.rank != 0 || ncclGetUniqueId(&mine.id) == ncclSuccess;
    TRY_OUT(world_all_gather(w, &mine, sizeof mine, all, e));
    for (int i = 0; i < w->size; i++)
        if (!all[i].ok)
            TRY_OUT(error_set(e, STATUS_DEVICE, "rank %d could not make an NCCL id: %s", i,
                              i == w->rank ? ncclGetLastError(NULL) : "see that rank"));
    *id = all[c->head.members[0]].id;
out:
    free(all);
    return st;
}

/* Waits, at most for the time-out, for an operation that ends the communicator in order. */
static bool finalized(struct nccl_comm *c)
{
    ncclResult_t state = ncclInProgress;
    double waited_ms = 0;
    ncclResult_t rc = ncclCommFinalize(c->comm);
    if (rc != ncclSuccess && rc != ncclInProgress)
        return false;
    while (ncclCommGetAsyncError(c->comm, &state) == ncclSuccess && state == ncclInProgress &&
           waited_ms < (double)c->head.world->timeout_ms) {
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        waited_ms += 0.2;
    }
    return state == ncclSuccess;
}

static void nccl_free(struct comm *head)
{
    struct nccl_comm *c = (struct nccl_comm *)head;
    if (!c)
        return;
    nccl_watch_stop(c);
    if (c->comm && !comm_failed(head) && !world_is_broken(head->world)) {
        for (int i = 0; i < c->registered_count; i++)
            (void)ncclCommDeregister(c->comm, c->registered[i]);
        if (finalized(c)) {
            (void)ncclCommDestroy(c->comm);
            c->comm = NULL;
        }
    }
    nccl_abort(c);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->lock);
    comm_release(head);
    free(c);
}

static void init_locks(struct nccl_comm *c)
{
    pthread_condattr_t attributes;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wake, &attributes);
    pthread_condattr_destroy(&attributes);
}

static enum status connect_peers(struct nccl_comm *c, struct error *e)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    TRY(share_id(c, &id, e));
    config.blocking = 0;
    ncclResult_t rc = ncclCommInitRankConfig(&c->comm, c->head.size, id, c->head.rank, &config);
    pthread_mutex_lock(&c->lock);
    bool ok = nccl_settle(c, COLLECTIVE_AGREE, 0, rc);
    pthread_mutex_unlock(&c->lock);
    if (ok)
        return STATUS_OK;
    comm_first_error(&c->head, e);
    return error_context(e, "connecting %d GPUs", c->head.size);
}

static enum status nccl_create(struct comm **out, struct world *w, struct device *dev, int color,
                               int key, const char *name, struct error *e)
{
    struct nccl_comm *c = calloc(1, sizeof *c);
    enum status st;
    *out = NULL;
    if (!c)
        return error_memory(e, sizeof *c, "a communicator");
    init_locks(c);
    TRY_OUT(comm_init(&c->head, &nccl_comm_ops, w, dev, color, key, name, e));
    cudaError_t rc = cudaGetDevice(&c->ordinal);
    if (rc != cudaSuccess)
        TRY_OUT(error_set(e, STATUS_DEVICE, "creating communicator %s: %s", name,
                          cudaGetErrorString(rc)));
    TRY_OUT(connect_peers(c, e));
    TRY_OUT(nccl_watch_start(c, e));
    *out = &c->head;
    c = NULL;
out:
    nccl_free((struct comm *)c);
    return st;
}

/* --- collectives
 * --------------------------------------------------------------------------------------- */

static cudaStream_t native(struct nccl_comm *c, struct stream *s)
{
    return c->head.dev->ops->native_stream(c->head.dev, s);
}

/* Takes the lock when it returns true; nccl_leave gives it back. */
static bool nccl_enter(struct nccl_comm *c, struct stream *s, enum collective which,
                       int64_t bytes_sent)
{
    uint64_t call = (uint64_t)++c->head.calls;
    c->head.bytes_sent += bytes_sent;
    pthread_mutex_lock(&c->lock);
    if (!comm_failed(&c->head) && c->comm && nccl_flight_begin(c, native(c, s), which, call))
        return true;
    pthread_mutex_unlock(&c->lock);
    return false;
}

static void nccl_leave(struct nccl_comm *c, struct stream *s, enum collective which,
                       ncclResult_t result)
{
    if (nccl_settle(c, which, (uint64_t)c->head.calls, result))
        (void)nccl_flight_end(c, native(c, s)); /* a failure is recorded in the comm */
    pthread_mutex_unlock(&c->lock);
}

static void nccl_all_gather(struct comm *head, struct stream *s, void *recv, const void *send,
                            size_t bytes)
{
    struct nccl_comm *c = (struct nccl_comm *)head;
    if (!nccl_enter(c, s, COLLECTIVE_ALL_GATHER, (int64_t)bytes * (head->size - 1)))
        return;
    nccl_leave(c, s, COLLECTIVE_ALL_GATHER,
               ncclAllGather(send, recv, bytes, ncclUint8, c->comm, native(c, s)));
}

static bool reduction_type(struct comm *c, enum collective which, enum dtype dt,
                           ncclDataType_t *type)
{
    *type = dt == DTYPE_F32 ? ncclFloat32 : ncclBfloat16;
    if (dt == DTYPE_F32 || dt == DTYPE_BF16)
        return true;
    comm_fail(c, collective_name(which), "cannot reduce %s, only fp32 and bf16", dtype_name(dt));
    return false;
}

static void nccl_reduce_scatter(struct comm *head, struct stream *s, void *recv, const void *send,
                                int64_t count, enum dtype dt)
{
    struct nccl_comm *c = (struct nccl_comm *)head;
    ncclDataType_t type;
    int64_t bytes = count * (int64_t)dtype_bytes(dt);
    if (!reduction_type(head, COLLECTIVE_REDUCE_SCATTER, dt, &type) ||
        !nccl_enter(c, s, COLLECTIVE_REDUCE_SCATTER, bytes * (head->size - 1)))
        return;
    nccl_leave(c, s, COLLECTIVE_REDUCE_SCATTER,
               ncclReduceScatter(send, recv, (size_t)count, type, ncclSum, c->comm, native(c, s)));
}

static void nccl_all_reduce(struct comm *head, struct stream *s, void *buf, int64_t count,
                            enum dtype dt, enum comm_reduce op)
{
    struct nccl_comm *c = (struct nccl_comm *)head;
    ncclDataType_t type;
    int64_t bytes = count * (int64_t)dtype_bytes(dt);
    if (!reduction_type(head, COLLECTIVE_ALL_REDUCE, dt, &type) ||
        !nccl_enter(c, s, COLLECTIVE_ALL_REDUCE, 2 * bytes * (head->size - 1) / head->size))
        return;
    nccl_leave(c, s, COLLECTIVE_ALL_REDUCE,
               ncclAllReduce(buf, buf, (size_t)count, type, op == COMM_SUM ? ncclSum : ncclMax,
                             c->comm, native(c, s)));
}

static void nccl_broadcast(struct comm *head, struct stream *s, void *buf, size_t bytes, int root)
{
    struct nccl_comm *c = (struct nccl_comm *)head;
    bool sends = head->rank == root && head->size > 1;
    if (!nccl_enter(c, s, COLLECTIVE_BROADCAST, sends ? (int64_t)bytes : 0))
        return;
    nccl_leave(c, s, COLLECTIVE_BROADCAST,
               ncclBroadcast(buf, buf, bytes, ncclUint8, root, c->comm, native(c, s)));
}

/* Only an optimisation: what cannot be registered is sent through NCCL's own buffers. */
static void nccl_register(struct comm *head, void *buf, size_t bytes)
{
    struct nccl_comm *c = (struct nccl_comm *)head;
    void *handle = NULL;
    pthread_mutex_lock(&c->lock);
    if (c->comm && c->registered_count < NCCL_BUFFERS &&
        ncclCommRegister(c->comm, buf, bytes, &handle) == ncclSuccess && handle)
        c->registered[c->registered_count++] = handle;
    pthread_mutex_unlock(&c->lock);
}

const struct comm_ops nccl_comm_ops = {
    .name = "nccl",
    .usable = nccl_usable,
    .create = nccl_create,
    .free = nccl_free,
    .all_gather = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .all_reduce = nccl_all_reduce,
    .broadcast = nccl_broadcast,
    .register_buffer = nccl_register,
    .check = comm_first_error,
};
