/* mpi.c - collectives in host memory over point-to-point messages.
 *
 * Every member exchanges directly with every other (no ring, no tree): the same bytes cross each
 * link's ends, a call has one or two message delays, and an unfinished receive names the rank that
 * did not arrive. Reductions take parts in rank order, accumulate in fp32 and round once, so that a
 * result has the same bits each time and on each rank; MPI's own operations promise less.
 *
 * Host devices: the call is a host function of the stream, so it runs beside compute. Other
 * devices: buffers are staged through pinned memory and the call completes before it returns. A GPU
 * runtime may run the host functions of all streams on one thread; two ranks whose threads each
 * wait inside a different collective would then wait for ever. */
#include "comm/mpi_private.h"
#include "comm/mpi_sum.h"
#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Received parts wait in two sets of pieces: one arrives while the other is summed. */
#define PIECE_BYTES ((size_t)1 << 20)
#define PIECES_BYTES ((size_t)32 << 20) /* bound on one set, whatever the number of ranks */
#define SMALL_BYTES \
    ((size_t)256 << 10) /* all_reduce: parts of all ranks together, in one exchange */
#define SMALL_BROADCAST_BYTES ((size_t)64 << 10)

struct mpi_comm {
    struct comm head;
    MPI_Comm comm;
    bool host_memory;
    size_t message_bytes, piece_bytes;
    struct mpi_batch batch[2];
    bool *missing;      /* [size] */
    const void **parts; /* [size] */
    char *scratch;      /* 2 sets of (size-1) pieces, or one small exchange */
    size_t scratch_bytes;
    char *stage; /* pinned; for devices whose memory MPI cannot reach */
    size_t stage_bytes;
};

struct mpi_op {
    struct mpi_comm *c;
    enum collective which;
    uint64_t call;
    char *recv;
    const char *send;
    size_t bytes; /* all_gather: of one member; broadcast: of all; else of recv */
    int64_t count;
    enum dtype dt;
    enum comm_reduce reduce;
    int root;
};

/* A buffer cut in equal chunks, one a member; the last ones may be short or empty. */
struct split {
    size_t chunk, total;
};

static size_t split_length(const struct split *s, int member)
{
    size_t begin = (size_t)member * s->chunk;
    return begin >= s->total ? 0 : s->total - begin < s->chunk ? s->total - begin : s->chunk;
}

/* Bytes of the piece at `at` of a chunk of n bytes. */
static size_t piece_length(size_t n, size_t at, size_t piece)
{
    return at >= n ? 0 : n - at < piece ? n - at : piece;
}

/* --- transfers
 * -------------------------------------------------------------------------------------- */

static bool check_code(const struct mpi_op *op, int rc)
{
    char text[512];
    if (rc == MPI_SUCCESS)
        return true;
    mpi_error_text(rc, text, sizeof text);
    comm_fail(&op->c->head, collective_name(op->which), "call %llu: %s",
              (unsigned long long)op->call, text);
    return false;
}

static bool receive(const struct mpi_op *op, int slot, void *buf, size_t bytes, int member)
{
    struct mpi_comm *c = op->c;
    return bytes == 0 ||
           check_code(op, mpi_batch_receive(&c->batch[slot], buf, bytes, c->head.members[member],
                                            member, (int)(op->call & 0x7fff), c->comm));
}

static bool send(const struct mpi_op *op, int slot, const void *buf, size_t bytes, int member)
{
    struct mpi_comm *c = op->c;
    return bytes == 0 ||
           check_code(op, mpi_batch_send(&c->batch[slot], buf, bytes, c->head.members[member],
                                         member, (int)(op->call & 0x7fff), c->comm));
}

static bool finish(const struct mpi_op *op, int slot)
{
    struct mpi_comm *c = op->c;
    struct world *w = c->head.world;
    char why[256];
    int rc = MPI_SUCCESS;
    enum mpi_wait result = mpi_batch_wait(&c->batch[slot], w, &c->head, op->call, &rc);
    if (result == MPI_WAIT_DONE) {
        mpi_batch_clear(&c->batch[slot]);
        return true;
    }
    if (result == MPI_WAIT_ERROR)
        return check_code(op, rc);
    if (result == MPI_WAIT_LOST && !world_lost(w, why, sizeof why)) {
        comm_fail(&c->head, collective_name(op->which),
                  "call %llu given up: another collective of this rank failed",
                  (unsigned long long)op->call);
        return false;
    }
    memset(c->missing, 0, (size_t)c->head.size * sizeof *c->missing);
    mpi_batch_missing(&c->batch[0], c->missing);
    mpi_batch_missing(&c->batch[1], c->missing);
    comm_fail_late(&c->head, op->which, op->call, w->timeout_ms, c->missing);
    return false;
}

/* The member that is i places after this one: everyone starts with a different peer. */
static int peer_of(const struct mpi_comm *c, int i)
{
    return (c->head.rank + i) % c->head.size;
}

/* Everyone's own chunk of buf reaches everyone. */
static bool gather_chunks(const struct mpi_op *op, char *buf, const struct split *s)
{
    struct mpi_comm *c = op->c;
    size_t own = split_length(s, c->head.rank);
    const char *mine = buf + (size_t)c->head.rank * s->chunk;
    for (size_t at = 0; at < s->chunk; at += c->message_bytes) {
        for (int i = 1; i < c->head.size; i++) {
            int p = peer_of(c, c->head.size - i);
            size_t n = piece_length(split_length(s, p), at, c->message_bytes);
            if (!receive(op, 0, buf + (size_t)p * s->chunk + at, n, p))
                return false;
        }
        for (int i = 1; i < c->head.size; i++)
            if (!send(op, 0, mine + at, piece_length(own, at, c->message_bytes), peer_of(c, i)))
                return false;
        if (!finish(op, 0))
            return false;
    }
    return true;
}

static bool need_scratch(const struct mpi_op *op, size_t bytes)
{
    struct mpi_comm *c = op->c;
    if (bytes <= c->scratch_bytes)
        return true;
    free(c->scratch);
    c->scratch = aligned_alloc(64, (size_t)round_up_i64((int64_t)bytes, 64));
    c->scratch_bytes = c->scratch ? bytes : 0;
    if (!c->scratch)
        comm_fail(&c->head, collective_name(op->which), "out of memory allocating %zu bytes",
                  bytes);
    return c->scratch != NULL;
}

static char *piece_of(const struct mpi_comm *c, int slot, int peer_index)
{
    return c->scratch +
           ((size_t)slot * (size_t)(c->head.size - 1) + (size_t)peer_index) * c->piece_bytes;
}

/* Starts the exchange of the pieces at `at`: mine from everyone, everyone's from me. */
static bool start_pieces(const struct mpi_op *op, const char *from, const struct split *s,
                         size_t at)
{
    struct mpi_comm *c = op->c;
    int slot = (int)(at / c->piece_bytes & 1);
    size_t own = piece_length(split_length(s, c->head.rank), at, c->piece_bytes);
    for (int i = 1; i < c->head.size; i++)
        if (!receive(op, slot, piece_of(c, slot, i - 1), own, peer_of(c, c->head.size - i)))
            return false;
    for (int i = 1; i < c->head.size; i++) {
        int p = peer_of(c, i);
        size_t n = piece_length(split_length(s, p), at, c->piece_bytes);
        if (!send(op, slot, from + (size_t)p * s->chunk + at, n, p))
            return false;
    }
    return true;
}

/* to = reduction of everyone's chunk for this member; to may be that chunk of `from`. */
static bool reduce_chunks(const struct mpi_op *op, char *to, const char *from,
                          const struct split *s)
{
    struct mpi_comm *c = op->c;
    size_t own = split_length(s, c->head.rank);
    const char *mine = from + (size_t)c->head.rank * s->chunk;
    if (!need_scratch(op, 2 * (size_t)(c->head.size - 1) * c->piece_bytes) ||
        !start_pieces(op, from, s, 0))
        return false;
    for (size_t at = 0; at < s->chunk; at += c->piece_bytes) {
        size_t next = at + c->piece_bytes, n = piece_length(own, at, c->piece_bytes);
        int slot = (int)(at / c->piece_bytes & 1);
        if (next < s->chunk && !start_pieces(op, from, s, next))
            return false;
        if (!finish(op, slot))
            return false;
        c->parts[c->head.rank] = mine + at;
        for (int i = 1; i < c->head.size; i++)
            c->parts[peer_of(c, c->head.size - i)] = piece_of(c, slot, i - 1);
        reduce_in_order(to + at, c->parts, c->head.size, (int64_t)(n / dtype_bytes(op->dt)), op->dt,
                        op->reduce);
    }
    return true;
}

/* --- the collectives, in host memory
 * ---------------------------------------------------------------- */

static void run_all_gather(const struct mpi_op *op)
{
    char *own = op->recv + (size_t)op->c->head.rank * op->bytes;
    if (op->send != own && op->bytes)
        memcpy(own, op->send, op->bytes);
    gather_chunks(op, op->recv, &(struct split){op->bytes, op->bytes * (size_t)op->c->head.size});
}

static void run_reduce_scatter(const struct mpi_op *op)
{
    if (op->bytes)
        reduce_chunks(op, op->recv, op->send,
                      &(struct split){op->bytes, op->bytes * (size_t)op->c->head.size});
}

/* Few bytes: everyone gets every part and reduces all of it. */
static void all_reduce_small(const struct mpi_op *op)
{
    struct mpi_comm *c = op->c;
    size_t size = (size_t)c->head.size;
    if (!need_scratch(op, size * op->bytes))
        return;
    memcpy(c->scratch + (size_t)c->head.rank * op->bytes, op->recv, op->bytes);
    if (!gather_chunks(op, c->scratch, &(struct split){op->bytes, op->bytes * size}))
        return;
    for (size_t r = 0; r < size; r++)
        c->parts[r] = c->scratch + r * op->bytes;
    reduce_in_order(op->recv, c->parts, c->head.size, op->count, op->dt, op->reduce);
}

static void run_all_reduce(const struct mpi_op *op)
{
    struct mpi_comm *c = op->c;
    if (op->bytes == 0)
        return;
    if (op->bytes * (size_t)c->head.size <= SMALL_BYTES) {
        all_reduce_small(op);
        return;
    }
    size_t width = dtype_bytes(op->dt);
    struct split s = {(size_t)ceil_div_i64(op->count, c->head.size) * width, op->bytes};
    size_t begin = (size_t)c->head.rank * s.chunk;
    char *own = op->recv + (begin < op->bytes ? begin : op->bytes);
    if (reduce_chunks(op, own, op->recv, &s))
        gather_chunks(op, op->recv, &s);
}

/* Root sends every member a chunk; large buffers then complete by an all-gather of the chunks, so
 * that root sends each byte about once instead of size - 1 times. */
static void run_broadcast(const struct mpi_op *op)
{
    struct mpi_comm *c = op->c;
    bool large = op->bytes > SMALL_BROADCAST_BYTES && c->head.size > 2,
         is_root = c->head.rank == op->root;
    struct split s = {op->bytes, op->bytes};
    if (large)
        s.chunk = (size_t)round_up_i64(ceil_div_i64((int64_t)op->bytes, c->head.size), 64);
    for (size_t at = 0; at < s.chunk; at += c->message_bytes) {
        for (int p = 0; p < c->head.size; p++) {
            int place = large ? p : 0;
            char *chunk = op->recv + (size_t)place * s.chunk + at;
            size_t n = piece_length(split_length(&s, place), at, c->message_bytes);
            if (p == op->root || (!is_root && p != c->head.rank))
                continue;
            if (is_root ? !send(op, 0, chunk, n, p) : !receive(op, 0, chunk, n, op->root))
                return;
        }
        if (!finish(op, 0))
            return;
    }
    if (large)
        gather_chunks(op, op->recv, &s);
}

static void run(const struct mpi_op *op)
{
    struct comm *c = &op->c->head;
    struct board *board = world_state(c->world)->board;
    if (comm_failed(c))
        return;
    board_enter(board, c->slot, op->which, op->call);
    switch (op->which) {
    case COLLECTIVE_ALL_GATHER:
        run_all_gather(op);
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        run_reduce_scatter(op);
        break;
    case COLLECTIVE_ALL_REDUCE:
        run_all_reduce(op);
        break;
    case COLLECTIVE_BROADCAST:
        run_broadcast(op);
        break;
    default:
        break;
    }
    if (!comm_failed(c))
        board_leave(board, c->slot, op->call);
}

static void run_in_stream(void *arg)
{
    run(arg);
    free(arg);
}

/* --- streams and staging
 * --------------------------------------------------------------------------- */

static bool need_stage(struct mpi_comm *c, const char *collective, size_t bytes)
{
    struct device *dev = c->head.dev;
    struct error e;
    if (bytes <= c->stage_bytes)
        return true;
    if (c->stage)
        dev->ops->free(dev, MEMORY_HOST, c->stage);
    void *p = NULL;
    c->stage = NULL;
    c->stage_bytes = 0;
    if (dev->ops->alloc(dev, MEMORY_HOST, bytes, &p, &e) != STATUS_OK) {
        comm_fail(&c->head, collective, "%s", e.message);
        return false;
    }
    c->stage = p;
    c->stage_bytes = bytes;
    return true;
}

static bool stream_done(struct mpi_comm *c, struct stream *s, const char *collective)
{
    struct error e;
    if (c->head.dev->ops->stream_sync(c->head.dev, s, &e) == STATUS_OK)
        return true;
    comm_fail(&c->head, collective, "%s", e.message);
    return false;
}

/* Down: what this rank contributes. Up: what it gets. Offsets are the same in stage and buffer. */
struct staged {
    size_t bytes;               /* of the stage */
    size_t down_at, down_bytes; /* within the stage */
    const char *down_from;
    size_t up_at, up_bytes;
    char *up_to;
};

static void run_staged(struct mpi_op *op, struct stream *s, const struct staged *t)
{
    struct mpi_comm *c = op->c;
    struct device *dev = c->head.dev;
    const char *name = collective_name(op->which);
    if (!need_stage(c, name, t->bytes))
        return;
    if (t->down_bytes)
        dev->ops->copy(dev, s, c->stage + t->down_at, t->down_from, t->down_bytes);
    if (!stream_done(c, s, name))
        return;
    op->recv = c->stage + t->up_at;
    op->send = c->stage + t->down_at;
    run(op);
    if (comm_failed(&c->head))
        return;
    if (t->up_bytes)
        dev->ops->copy(dev, s, t->up_to, c->stage + t->up_at, t->up_bytes);
    stream_done(c, s, name); /* the stage is free for the next call, on whatever stream */
}

static void submit(struct mpi_op *op, struct stream *s, int64_t bytes_sent, const struct staged *t)
{
    struct mpi_comm *c = op->c;
    op->call = (uint64_t)++c->head.calls;
    c->head.bytes_sent += bytes_sent;
    if (comm_failed(&c->head))
        return;
    if (!c->host_memory) {
        run_staged(op, s, t);
        return;
    }
    struct mpi_op *queued = malloc(sizeof *queued);
    if (!queued) {
        comm_fail(&c->head, collective_name(op->which), "out of memory queueing the call");
        return;
    }
    *queued = *op;
    c->head.dev->ops->host_call(c->head.dev, s, run_in_stream, queued);
}

static void mpi_all_gather(struct comm *head, struct stream *s, void *recv, const void *send_buf,
                           size_t bytes)
{
    struct mpi_comm *c = (struct mpi_comm *)head;
    size_t own = (size_t)head->rank * bytes, all = (size_t)head->size * bytes;
    struct mpi_op op = {
        .c = c, .which = COLLECTIVE_ALL_GATHER, .recv = recv, .send = send_buf, .bytes = bytes};
    struct staged t = {.bytes = all,
                       .down_at = own,
                       .down_bytes = bytes,
                       .down_from = send_buf,
                       .up_bytes = all,
                       .up_to = recv};
    submit(&op, s, (int64_t)(all - bytes), &t);
}

static bool reducible(struct comm *c, enum collective which, enum dtype dt)
{
    if (dt == DTYPE_F32 || dt == DTYPE_BF16)
        return true;
    comm_fail(c, collective_name(which), "cannot reduce %s, only fp32 and bf16", dtype_name(dt));
    return false;
}

static void mpi_reduce_scatter(struct comm *head, struct stream *s, void *recv,
                               const void *send_buf, int64_t count, enum dtype dt)
{
    struct mpi_comm *c = (struct mpi_comm *)head;
    if (!reducible(head, COLLECTIVE_REDUCE_SCATTER, dt))
        return;
    size_t bytes = (size_t)count * dtype_bytes(dt), all = (size_t)head->size * bytes;
    struct mpi_op op = {.c = c,
                        .which = COLLECTIVE_REDUCE_SCATTER,
                        .recv = recv,
                        .send = send_buf,
                        .bytes = bytes,
                        .count = count,
                        .dt = dt,
                        .reduce = COMM_SUM};
    struct staged t = {.bytes = all,
                       .down_bytes = all,
                       .down_from = send_buf,
                       .up_at = (size_t)head->rank * bytes,
                       .up_bytes = bytes,
                       .up_to = recv};
    submit(&op, s, (int64_t)(all - bytes), &t);
}

static void mpi_all_reduce(struct comm *head, struct stream *s, void *buf, int64_t count,
                           enum dtype dt, enum comm_reduce reduce)
{
    struct mpi_comm *c = (struct mpi_comm *)head;
    if (!reducible(head, COLLECTIVE_ALL_REDUCE, dt))
        return;
    size_t bytes = (size_t)count * dtype_bytes(dt);
    struct mpi_op op = {.c = c,
                        .which = COLLECTIVE_ALL_REDUCE,
                        .recv = buf,
                        .send = buf,
                        .bytes = bytes,
                        .count = count,
                        .dt = dt,
                        .reduce = reduce};
    struct staged t = {
        .bytes = bytes, .down_bytes = bytes, .down_from = buf, .up_bytes = bytes, .up_to = buf};
    submit(&op, s, 2 * (int64_t)bytes * (head->size - 1) / head->size, &t);
}

static void mpi_broadcast(struct comm *head, struct stream *s, void *buf, size_t bytes, int root)
{
    struct mpi_comm *c = (struct mpi_comm *)head;
    bool is_root = head->rank == root;
    struct mpi_op op = {.c = c,
                        .which = COLLECTIVE_BROADCAST,
                        .recv = buf,
                        .send = buf,
                        .bytes = bytes,
                        .root = root};
    struct staged t = {.bytes = bytes,
                       .down_bytes = is_root ? bytes : 0,
                       .down_from = buf,
                       .up_bytes = is_root ? 0 : bytes,
                       .up_to = buf};
    submit(&op, s, is_root && head->size > 1 ? (int64_t)bytes : 0, &t);
}

/* --- life
 * ------------------------------------------------------------------------------------------- */

static enum status mpi_usable(const struct world *w, const struct device *dev, struct error *e)
{
    (void)dev;
    if (strcmp(w->launcher, "mpi") != 0)
        return error_set(
            e, STATUS_USAGE,
            "mpi collectives need ranks started by mpirun or srun; these come from \"%s\"",
            w->launcher);
    return STATUS_OK;
}

static void mpi_free(struct comm *head)
{
    struct mpi_comm *c = (struct mpi_comm *)head;
    if (!c)
        return;
    /* After a failure transfers may still be under way into these buffers; the process is about to
     * end, and its memory with it. */
    if (comm_failed(head) || world_is_broken(head->world))
        return;
    if (c->comm != MPI_COMM_NULL)
        MPI_Comm_free(&c->comm);
    if (c->stage)
        head->dev->ops->free(head->dev, MEMORY_HOST, c->stage);
    mpi_batch_release(&c->batch[0]);
    mpi_batch_release(&c->batch[1]);
    free(c->scratch);
    free(c->missing);
    free(c->parts);
    comm_release(head);
    free(c);
}

/* A context of its own, so that messages of different communicators never meet. */
static enum status duplicate_context(struct mpi_comm *c, struct error *e)
{
    struct mpi_batch *b = &c->batch[0];
    struct world *w = c->head.world;
    char text[256];
    int rc = MPI_Comm_idup(mpi_world_comm(w), &c->comm, &b->requests[0]);
    enum mpi_wait result = MPI_WAIT_ERROR;
    if (rc == MPI_SUCCESS) {
        b->count = 1;
        result = mpi_batch_wait(b, w, NULL, 0, &rc);
    }
    if (result == MPI_WAIT_ERROR)
        mpi_error_text(rc, text, sizeof text);
    else if (result == MPI_WAIT_LATE)
        snprintf(text, sizeof text, "time-out after %lld ms", (long long)w->timeout_ms);
    else if (result == MPI_WAIT_LOST && !world_lost(w, text, sizeof text))
        snprintf(text, sizeof text, "another collective failed");
    mpi_batch_clear(b);
    if (result != MPI_WAIT_DONE) {
        error_set(e, STATUS_DEVICE, "rank %d: creating communicator %s: %s", w->rank, c->head.name,
                  text);
        world_keep_cause(w, e);
        world_mark_broken(w);
        return e->status;
    }
    MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN);
    return STATUS_OK;
}

enum status mpi_comm_create_limited(struct comm **out, struct world *w, struct device *dev,
                                    int color, int key, const char *name, size_t message_bytes,
                                    size_t piece_bytes, struct error *e)
{
    struct mpi_comm *c = calloc(1, sizeof *c);
    enum status st;
    *out = NULL;
    if (!c)
        return error_memory(e, sizeof *c, "a communicator");
    c->comm = MPI_COMM_NULL;
    c->host_memory = strcmp(dev->ops->name, "cuda") != 0;
    TRY_OUT(comm_init(&c->head, &mpi_comm_ops, w, dev, color, key, name, e));
    size_t size = (size_t)c->head.size, share = PIECES_BYTES / size;
    c->message_bytes = message_bytes ? message_bytes : MPI_MESSAGE_BYTES;
    c->piece_bytes = piece_bytes ? piece_bytes : share < PIECE_BYTES ? share : PIECE_BYTES;
    c->piece_bytes = (size_t)round_up_i64((int64_t)c->piece_bytes, 64);
    c->missing = calloc(size, sizeof *c->missing);
    c->parts = calloc(size, sizeof *c->parts);
    if (!c->missing || !c->parts)
        TRY_OUT(error_memory(e, size * sizeof *c->parts, "a communicator"));
    TRY_OUT(mpi_batch_init(&c->batch[0], 2 * c->head.size, e));
    TRY_OUT(mpi_batch_init(&c->batch[1], 2 * c->head.size, e));
    TRY_OUT(duplicate_context(c, e));
    *out = &c->head;
    c = NULL;
out:
    mpi_free((struct comm *)c);
    return st;
}

static enum status mpi_create(struct comm **out, struct world *w, struct device *dev, int color,
                              int key, const char *name, struct error *e)
{
    return mpi_comm_create_limited(out, w, dev, color, key, name, 0, 0, e);
}

const struct comm_ops mpi_comm_ops = {
    .name = "mpi",
    .usable = mpi_usable,
    .create = mpi_create,
    .free = mpi_free,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .all_reduce = mpi_all_reduce,
    .broadcast = mpi_broadcast,
    .check = comm_first_error,
};
