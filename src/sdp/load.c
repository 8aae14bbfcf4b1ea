#include "sdp/load.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/pool.h"

#include <stdlib.h>
#include <string.h>

/* The host's pieces, used in turn: one is filled or read while the copy of the other is under way.
 */
struct pieces {
    struct sdp_engine *x;
    struct event *copied[SDP_PIECES]; /* the piece's last copy has ended */
    int turn;
};

static void pieces_close(struct pieces *p)
{
    const struct device_ops *ops = p->x->dev->ops;
    for (int i = 0; i < SDP_PIECES; i++)
        if (p->copied[i])
            ops->event_free(p->x->dev, p->copied[i]);
}

static enum status pieces_open(struct pieces *p, struct sdp_engine *x, struct error *e)
{
    enum status st = STATUS_OK;
    *p = (struct pieces){.x = x};
    for (int i = 0; i < SDP_PIECES && st == STATUS_OK; i++)
        st = x->dev->ops->event_create(x->dev, &p->copied[i], e);
    if (st != STATUS_OK)
        pieces_close(p);
    return st;
}

static float *piece_of(const struct pieces *p, int turn)
{
    return p->x->pieces + (int64_t)turn * SDP_PIECE_ELEMS;
}

/* Behind the copy of the piece whose turn it is; the turn is the next one's. */
static void pieces_turn(struct pieces *p)
{
    p->x->dev->ops->event_record(p->x->dev, p->copied[p->turn], p->x->streams.compute);
    p->turn = (p->turn + 1) % SDP_PIECES;
}

static enum status piece_wait(const struct pieces *p, int turn, struct error *e)
{
    return p->x->dev->ops->event_sync(p->x->dev, p->copied[turn], e);
}

/* Where elements come from: out[n] = elements first.. of tensor number `tensor`, of one kind. */
struct source {
    struct sdp_engine *x;
    enum ckpt_kind kind;
    uint64_t seed;
    struct pool *pool;
    const struct safetensors *safetensors;
    struct ckpt *ckpt;
    enum status (*read)(const struct source *s, int64_t tensor, int64_t first, int64_t n,
                        float *out, struct error *e);
};

static float *destination(const struct source *s, int64_t unit)
{
    const struct sdp_shard *p = &s->x->shards[unit];
    return s->kind == CKPT_MASTER ? p->master : s->kind == CKPT_M ? p->m : p->v;
}

static enum status load_segment(const struct source *s, int64_t unit, const struct sdp_segment *g,
                                struct pieces *pieces, struct error *e)
{
    struct sdp_engine *x = s->x;
    const struct sdp_shard *p = &x->shards[unit];
    for (int64_t done = 0; done < g->count; done += SDP_PIECE_ELEMS) {
        int64_t n = min_i64(SDP_PIECE_ELEMS, g->count - done);
        float *piece = piece_of(pieces, pieces->turn);
        TRY(piece_wait(pieces, pieces->turn, e));
        TRY(s->read(s, g->tensor, g->first + done, n, piece, e));
        x->dev->ops->copy(x->dev, x->streams.compute,
                          destination(s, unit) + (g->at - p->begin) + done, piece,
                          (size_t)n * sizeof *piece);
        pieces_turn(pieces);
    }
    return STATUS_OK;
}

static enum status load_all(const struct source *s, struct error *e)
{
    struct sdp_engine *x = s->x;
    struct pieces pieces;
    struct error late;
    TRY(pieces_open(&pieces, x, e));
    enum status st = STATUS_OK;
    for (int64_t u = 0; u < x->layout.units && st == STATUS_OK; u++) {
        const struct sdp_shard *p = &x->shards[u];
        struct sdp_segment g;
        int64_t cursor = 0;
        while (st == STATUS_OK &&
               sdp_layout_next(&x->layout, u, p->begin, p->begin + p->elems, &cursor, &g))
            st = load_segment(s, u, &g, &pieces, e);
    }
    /* The pieces are free again, however it ended. */
    enum status sync = x->dev->ops->stream_sync(x->dev, x->streams.compute, &late);
    pieces_close(&pieces);
    if (st == STATUS_OK && sync != STATUS_OK) {
        *e = late;
        st = sync;
    }
    return st;
}

/* Working copies from the masters; everything gathered before is stale. */
static enum status publish(struct sdp_engine *x, struct error *e)
{
    for (int64_t u = 0; u < x->layout.units; u++) {
        const struct sdp_shard *p = &x->shards[u];
        if (p->working != p->master)
            x->dev->ops->cast(x->dev, x->streams.compute, p->working, x->config.dt, p->master,
                              DTYPE_F32, p->elems);
    }
    sdp_units_invalidate(x);
    return sdp_engine_sync(x, e);
}

/* A piece of initial values, drawn by all threads in parts of this size. */
#define DRAW_ELEMS 16384

struct draw {
    const struct source *source;
    int64_t tensor, first, n;
    float *out;
};

static void draw_part(void *arg, size_t i, int worker)
{
    const struct draw *d = arg;
    const struct sdp_engine *x = d->source->x;
    int64_t at = (int64_t)i * DRAW_ELEMS;
    (void)worker;
    gpt2_init_values(&x->tensors, &x->config.model, d->tensor, d->source->seed, d->first + at,
                     min_i64(DRAW_ELEMS, d->n - at), d->out + at);
}

static enum status read_init(const struct source *s, int64_t tensor, int64_t first, int64_t n,
                             float *out, struct error *e)
{
    struct draw d = {s, tensor, first, n, out};
    (void)e;
    pool_run(s->pool, (size_t)ceil_div_i64(n, DRAW_ELEMS), draw_part, &d);
    return STATUS_OK;
}

/* This rank's share of the host's processors, as far as there are parts for them. */
static int draw_threads(const struct world *w)
{
    return (int)min_i64(SDP_PIECE_ELEMS / DRAW_ELEMS, w->cpus);
}

enum status sdp_load_init(struct sdp_engine *x, uint64_t seed, struct error *e)
{
    struct source s = {.x = x, .kind = CKPT_MASTER, .seed = seed, .read = read_init};
    TRY(pool_create(&s.pool, draw_threads(x->world), e));
    enum status st = load_all(&s, e);
    pool_free(s.pool);
    TRY(st);
    return publish(x, e);
}

static enum status read_safetensors(const struct source *s, int64_t tensor, int64_t first,
                                    int64_t n, float *out, struct error *e)
{
    const struct gpt2_tensor *t = &s->x->tensors.tensors[tensor];
    const struct safetensor *found = safetensors_find(s->safetensors, t->name);
    return safetensors_read_f32(s->safetensors, found, first, n, out, e);
}

static enum status check_safetensors(struct sdp_engine *x, const struct safetensors *s,
                                     struct error *e)
{
    for (int64_t i = 0; i < x->tensors.count; i++) {
        const struct gpt2_tensor *t = &x->tensors.tensors[i];
        const struct safetensor *f = safetensors_find(s, t->name);
        if (!f)
            return error_set(e, STATUS_DATA, "%s: no tensor \"%s\"", safetensors_file_name(s, 0),
                             t->name);
        bool same = f->dims == t->dims && f->shape[0] == t->shape[0] &&
                    (t->dims < 2 || f->shape[1] == t->shape[1]);
        if (!same)
            return error_set(e, STATUS_DATA,
                             "%s: tensor \"%s\" has %d dimensions, %lld x %lld; the model needs "
                             "%d, %lld x %lld",
                             safetensors_file_name(s, f->file), t->name, f->dims,
                             (long long)f->shape[0], (long long)(f->dims > 1 ? f->shape[1] : 1),
                             t->dims, (long long)t->shape[0], (long long)t->shape[1]);
    }
    return STATUS_OK;
}

enum status sdp_load_safetensors(struct sdp_engine *x, const struct safetensors *s, struct error *e)
{
    struct source source = {
        .x = x, .kind = CKPT_MASTER, .safetensors = s, .read = read_safetensors};
    TRY(check_safetensors(x, s, e));
    TRY(load_all(&source, e));
    return publish(x, e);
}

static enum status read_checkpoint(const struct source *s, int64_t tensor, int64_t first, int64_t n,
                                   float *out, struct error *e)
{
    const struct gpt2_tensor *t = &s->x->tensors.tensors[tensor];
    return ckpt_read(s->ckpt, ckpt_tensor_find(s->ckpt, t->name), s->kind, first, n, out, e);
}

static enum status check_checkpoint(struct sdp_engine *x, struct ckpt *c, int kinds,
                                    struct error *e)
{
    for (int64_t i = 0; i < x->tensors.count; i++) {
        const struct gpt2_tensor *t = &x->tensors.tensors[i];
        const struct ckpt_tensor *f = ckpt_tensor_find(c, t->name);
        if (!f)
            return error_set(e, STATUS_DATA, "%s: no tensor \"%s\"", ckpt_path(c), t->name);
        if (f->elems != t->elems || f->shape[0] != t->shape[0])
            return error_set(e, STATUS_DATA,
                             "%s: tensor \"%s\" has %lld elements in rows of another shape; the "
                             "model needs %lld x %lld",
                             ckpt_path(c), t->name, (long long)f->elems, (long long)t->shape[0],
                             (long long)t->shape[1]);
        for (int k = 0; k < kinds; k++)
            if (!f->present[k])
                return error_set(e, STATUS_DATA, "%s: tensor \"%s\" has no \"%s\"", ckpt_path(c),
                                 t->name, ckpt_kind_names[k]);
    }
    return STATUS_OK;
}

enum status sdp_load_checkpoint(struct sdp_engine *x, struct ckpt *c, bool moments, struct error *e)
{
    int kinds = moments ? CKPT_KINDS : 1;
    TRY(check_checkpoint(x, c, kinds, e));
    for (int k = 0; k < kinds; k++) {
        struct source s = {.x = x, .kind = (enum ckpt_kind)k, .ckpt = c, .read = read_checkpoint};
        TRY(load_all(&s, e));
    }
    return publish(x, e);
}

/* One hash over this rank's masters, in the units' order: a piece is hashed while the next comes.
 */
static enum status hash_pieces(struct pieces *p, struct hash_state *h, struct error *e)
{
    struct sdp_engine *x = p->x;
    size_t bytes[SDP_PIECES] = {0};
    for (int64_t u = 0; u < x->layout.units; u++) {
        const struct sdp_shard *shard = &x->shards[u];
        for (int64_t at = 0; at < shard->elems; at += SDP_PIECE_ELEMS) {
            int turn = p->turn, before = (turn + SDP_PIECES - 1) % SDP_PIECES;
            bytes[turn] = (size_t)min_i64(SDP_PIECE_ELEMS, shard->elems - at) * sizeof(float);
            x->dev->ops->copy(x->dev, x->streams.compute, piece_of(p, turn), shard->master + at,
                              bytes[turn]);
            pieces_turn(p);
            TRY(piece_wait(p, before, e));
            hash_update(h, piece_of(p, before), bytes[before]); /* the first time none */
        }
    }
    int last = (p->turn + SDP_PIECES - 1) % SDP_PIECES;
    TRY(piece_wait(p, last, e));
    hash_update(h, piece_of(p, last), bytes[last]);
    return STATUS_OK;
}

static enum status hash_masters(struct sdp_engine *x, uint64_t *hash, struct error *e)
{
    struct pieces pieces;
    struct hash_state *h = hash_new();
    if (!h)
        return error_memory(e, 64, "a hash");
    enum status st = pieces_open(&pieces, x, e);
    if (st == STATUS_OK) {
        st = hash_pieces(&pieces, h, e);
        pieces_close(&pieces);
        *hash = hash_digest(h);
    }
    hash_free(h);
    return st;
}

enum status sdp_load_compare_replicas(struct sdp_engine *x, struct error *e)
{
    struct entry {
        int32_t place, rank;
        uint64_t hash;
    } mine = {.place = x->groups.place, .rank = x->world->rank};
    enum status st = STATUS_OK;
    if (x->groups.replicas == 1)
        return STATUS_OK;
    struct entry *all = calloc((size_t)x->world->size, sizeof *all);
    if (!all)
        st = error_memory(e, (size_t)x->world->size * sizeof *all, "the replicas' hashes");
    else
        st = hash_masters(x, &mine.hash, e);
    TRY_OUT(world_agree(x->world, st, e));
    TRY_OUT(world_all_gather(x->world, &mine, sizeof mine, all, e));
    for (int a = 0; a < x->world->size; a++)
        for (int b = a + 1; b < x->world->size; b++)
            if (all[a].place == all[b].place && all[a].hash != all[b].hash) {
                st = error_set(e, STATUS_FAILED,
                               "replicas start from different parameters: rank %d has hash "
                               "%016llx, rank %d has %016llx",
                               a, (unsigned long long)all[a].hash, b,
                               (unsigned long long)all[b].hash);
                goto out;
            }
out:
    free(all);
    return st;
}
