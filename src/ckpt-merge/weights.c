/* weights.c - the tensors: headers first, which fix every element's place, then pieces in the order
 * of the rank files, each read, verified, digested, converted and written by whichever thread is
 * free. */
#define _GNU_SOURCE
#include "base/io.h"
#include "base/progress.h"
#include "ckpt-merge/merge.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct writing {
    struct merge_plan *p;
    const volatile int *stop;
    int *fds; /* [shard_count] */
    char **paths;
    float **buffers;           /* [threads] a block of fp32 */
    _Atomic uint64_t *digests; /* [count] by checkpoint index */
    _Atomic uint64_t written;
    atomic_int failed;
    pthread_mutex_t lock; /* of error and progress */
    struct error error;
    struct progress progress;
};

static void convert(void *to, const float *from, int64_t n, enum dtype t)
{
    uint16_t *out = to; /* may be the same memory: element i is read before place i is written */
    for (int64_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, (const char *)from + 4 * i, 4);
        uint16_t h = t == DTYPE_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
        memcpy(&out[i], &h, 2);
    }
}

static enum status write_at(int fd, const char *path, uint64_t offset, const void *data, size_t n,
                            struct error *e)
{
    const char *p = data;
    while (n > 0) {
        ssize_t got = pwrite(fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_errno(e, "writing %s at byte %" PRIu64, path, offset);
        p += got;
        /* writing to disk begins now, beside the rest of the work; fsync waits for it at the end */
        (void)sync_file_range(fd, (off_t)offset, got, SYNC_FILE_RANGE_WRITE);
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return STATUS_OK;
}

/* Every bit is zero. Ends at once on almost any data. */
static bool is_zero(const float *x, int64_t n)
{
    uint32_t first;
    memcpy(&first, x, sizeof first);
    return first == 0 && memcmp(x, x + 1, (size_t)(n - 1) * sizeof *x) == 0;
}

static enum status write_piece(struct writing *w, const struct merge_piece *piece, float *buffer,
                               struct error *e)
{
    struct merge_plan *p = w->p;
    const struct safetensor *out = &p->outputs[p->place[piece->tensor]];
    size_t elem = dtype_bytes(p->dtype);
    TRY(tensor_set_read(p->set, piece->tensor, piece->first, piece->count, buffer, e));
    atomic_fetch_add(&w->digests[piece->tensor],
                     ckpt_digest_add(0, piece->first, buffer, piece->count));
    if (is_zero(buffer, piece->count)) /* stays a hole, as cp leaves one */
        return STATUS_OK;
    if (p->dtype != DTYPE_F32)
        convert(buffer, buffer, piece->count, p->dtype);
    return write_at(w->fds[out->file], w->paths[out->file],
                    out->offset + (uint64_t)piece->first * elem, buffer,
                    (size_t)piece->count * elem, e);
}

static void run_piece(void *arg, size_t i, int worker)
{
    struct writing *w = arg;
    const struct merge_piece *piece = &w->p->pieces[i];
    struct error e = {0};
    if (atomic_load(&w->failed) || *w->stop)
        return;
    enum status st = write_piece(w, piece, w->buffers[worker], &e);
    uint64_t done = atomic_fetch_add(&w->written, (uint64_t)piece->count) + (uint64_t)piece->count;
    pthread_mutex_lock(&w->lock);
    if (st != STATUS_OK && !atomic_exchange(&w->failed, 1))
        w->error = e;
    progress_update(&w->progress, done * dtype_bytes(w->p->dtype));
    pthread_mutex_unlock(&w->lock);
}

/* Header of one file; fixes the offsets of its tensors, and the file's size. */
static enum status start_shard(struct writing *w, size_t k, const char *dir, struct error *e)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    struct merge_shard *s = &w->p->shards[k];
    struct output out = {0};
    w->paths[k] = path_join(dir, s->name);
    if (!w->paths[k])
        return error_memory(e, strlen(dir) + sizeof s->name, "a file name");
    TRY(output_open(&out, w->paths[k], OUTPUT_BINARY, e));
    enum status st =
        safetensors_write_header(&out, w->p->outputs + s->first, s->count, metadata, e);
    s->header_bytes = out.offset;
    if (st == STATUS_OK)
        st = output_commit(&out, e);
    output_close(&out);
    TRY(st);
    w->fds[k] = open(w->paths[k], O_WRONLY | O_CLOEXEC);
    if (w->fds[k] < 0)
        return error_errno(e, "cannot write %s", w->paths[k]);
    off_t size = (off_t)(s->header_bytes + s->bytes);
    if (ftruncate(w->fds[k], size) != 0)
        return error_errno(e, "cannot make %s %lld bytes long", w->paths[k], (long long)size);
    return STATUS_OK;
}

static enum status check_digests(const struct writing *w, struct error *e)
{
    const struct ckpt *c = w->p->set->ckpt;
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(c, i);
        uint64_t got = atomic_load(&w->digests[i]);
        if (got != t->digest[CKPT_MASTER])
            return error_set(e, STATUS_DATA,
                             "%s: tensor \"%s\" has digest %016" PRIx64
                             ", the manifest says %016" PRIx64,
                             ckpt_path(c), t->name, got, t->digest[CKPT_MASTER]);
    }
    return STATUS_OK;
}

static enum status prepare(struct writing *w, int threads, struct error *e)
{
    struct merge_plan *p = w->p;
    w->fds = malloc(p->shard_count * sizeof *w->fds);
    w->paths = calloc(p->shard_count, sizeof *w->paths);
    w->digests = calloc(p->count, sizeof *w->digests);
    w->buffers = calloc((size_t)threads, sizeof *w->buffers);
    if (!w->fds || !w->paths || !w->digests || !w->buffers)
        return error_memory(e, p->count * sizeof *w->digests, "the state of merging");
    for (size_t k = 0; k < p->shard_count; k++)
        w->fds[k] = -1;
    for (int i = 0; i < threads; i++)
        if (!(w->buffers[i] = malloc(CKPT_DATA_BYTES)))
            return error_memory(e, CKPT_DATA_BYTES, "a buffer");
    return STATUS_OK;
}

static void release(struct writing *w, int threads)
{
    for (size_t k = 0; w->fds && w->paths && k < w->p->shard_count; k++) {
        if (w->fds[k] >= 0)
            close(w->fds[k]);
        free(w->paths[k]);
    }
    for (int i = 0; w->buffers && i < threads; i++)
        free(w->buffers[i]);
    free(w->fds);
    free(w->paths);
    free(w->digests);
    free(w->buffers);
    pthread_mutex_destroy(&w->lock);
}

enum status merge_write_weights(struct merge_plan *p, const struct merge_options *o,
                                const char *dir, struct pool *pool, const volatile int *stop,
                                struct error *e)
{
    enum status st;
    struct writing w = {.p = p, .stop = stop};
    int threads = pool_threads(pool);
    pthread_mutex_init(&w.lock, NULL);
    TRY_OUT(prepare(&w, threads, e));
    for (size_t k = 0; k < p->shard_count; k++)
        TRY_OUT(start_shard(&w, k, dir, e));
    progress_start(&w.progress, "merge", "B", p->total_bytes, o->quiet);
    pool_run(pool, p->piece_count, run_piece, &w);
    if (atomic_load(&w.failed)) {
        *e = w.error;
        st = e->status;
        goto out;
    }
    if (*stop)
        TRY_OUT(error_set(e, STATUS_FAILED, "interrupted by signal %d", *stop));
    TRY_OUT(check_digests(&w, e));
    for (size_t k = 0; k < p->shard_count; k++)
        if (fsync(w.fds[k]) != 0)
            TRY_OUT(error_errno(e, "cannot make %s durable", w.paths[k]));
    progress_finish(&w.progress);
out:
    release(&w, threads);
    return st;
}
