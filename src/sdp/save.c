#include "sdp/save.h"

#include "base/checked.h"
#include "base/io.h"
#include "sdp/manifest.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct sdp_save {
    struct sdp_engine *x;
    struct sdp_save_options o;
    char *dir, *provenance;
    struct ckpt_segment *segments; /* of this rank, in file order */
    struct sdp_segment *places;    /* beside segments: tensor number and place in the unit */
    int64_t *units;                /* beside segments */
    size_t segment_count;
    char *last;
    /* the checkpoint under way */
    bool pending;
    int64_t step;
    uint64_t set_id;
    char *path;
    json_t *state;
    pthread_t thread;
    bool joined;
    int finished; /* atomic: the thread is through */
    enum status status;
    struct error error;
    json_t *entry;
    uint64_t *digests; /* [tensors * CKPT_KINDS], of this rank's elements */
};

static const float *source(const struct sdp_engine *x, int64_t unit, enum ckpt_kind kind)
{
    const struct sdp_shard *p = &x->shards[unit];
    return kind == CKPT_MASTER ? p->master : kind == CKPT_M ? p->m : p->v;
}

/* Fills the list when out is not NULL; returns how many segments there are. */
static size_t list_segments(struct sdp_save *s, bool fill)
{
    struct sdp_engine *x = s->x;
    size_t n = 0;
    for (int kind = 0; kind < CKPT_KINDS; kind++)
        for (int64_t u = 0; u < x->layout.units; u++) {
            int64_t begin, end, cursor = 0;
            struct sdp_segment g;
            sdp_engine_saved_range(x, u, &begin, &end);
            while (sdp_layout_next(&x->layout, u, begin, end, &cursor, &g)) {
                if (fill) {
                    s->segments[n] =
                        (struct ckpt_segment){.tensor = x->tensors.tensors[g.tensor].name,
                                              .kind = (enum ckpt_kind)kind,
                                              .first = g.first,
                                              .count = g.count};
                    s->places[n] = g;
                    s->units[n] = u;
                }
                n++;
            }
        }
    return n;
}

enum status sdp_save_open(struct sdp_save **out, struct sdp_engine *x,
                          const struct sdp_save_options *o, struct error *e)
{
    enum status st = STATUS_OK;
    struct sdp_save *s = calloc(1, sizeof *s);
    *out = NULL;
    if (s) {
        s->x = x;
        s->o = *o;
        s->joined = true;
        s->segment_count = list_segments(s, false);
        s->dir = strdup(o->dir);
        s->provenance = strdup(o->provenance ? o->provenance : "{}");
        s->segments = calloc(s->segment_count + 1, sizeof *s->segments);
        s->places = calloc(s->segment_count + 1, sizeof *s->places);
        s->units = calloc(s->segment_count + 1, sizeof *s->units);
        s->digests = calloc((size_t)x->tensors.count * CKPT_KINDS, sizeof *s->digests);
    }
    if (!s || !s->dir || !s->provenance || !s->segments || !s->places || !s->units || !s->digests) {
        st = error_memory(e, sizeof *s, "the list of checkpoint segments");
    } else {
        list_segments(s, true);
        st = dir_create(s->dir, e);
    }
    st = world_agree(x->world, st, e);
    if (st != STATUS_OK) {
        sdp_save_free(s);
        return error_context(e, "preparing checkpoints");
    }
    *out = s;
    return STATUS_OK;
}

static void join(struct sdp_save *s)
{
    if (!s->joined)
        pthread_join(s->thread, NULL);
    s->joined = true;
}

static void forget(struct sdp_save *s)
{
    join(s);
    json_decref(s->state);
    json_decref(s->entry);
    free(s->path);
    s->state = s->entry = NULL;
    s->path = NULL;
    s->pending = false;
}

void sdp_save_free(struct sdp_save *s)
{
    if (!s)
        return;
    forget(s);
    free(s->dir);
    free(s->provenance);
    free(s->segments);
    free(s->places);
    free(s->units);
    free(s->digests);
    free(s->last);
    free(s);
}

bool sdp_save_pending(const struct sdp_save *s)
{
    return s->pending;
}

const char *sdp_save_last(const struct sdp_save *s)
{
    return s->last;
}

static enum status write_file(struct sdp_save *s, struct error *e)
{
    const struct world *w = s->x->world;
    struct ckpt_writer *writer = NULL;
    const float *at = s->x->staging;
    enum status st;
    memset(s->digests, 0, (size_t)s->x->tensors.count * CKPT_KINDS * sizeof *s->digests);
    TRY_OUT(ckpt_writer_open(&writer, s->path, (uint32_t)w->rank, (uint32_t)w->size, s->set_id,
                             s->segments, s->segment_count, s->provenance, e));
    for (size_t i = 0; i < s->segment_count; i++) {
        const struct ckpt_segment *g = &s->segments[i];
        uint64_t *digest = &s->digests[s->places[i].tensor * CKPT_KINDS + g->kind];
        *digest = ckpt_digest_add(*digest, g->first, at, g->count);
        TRY_OUT(ckpt_writer_put(writer, at, g->count, e));
        at += g->count;
    }
    TRY_OUT(ckpt_writer_finish(writer, &s->entry, e));
out:
    ckpt_writer_free(writer);
    return st;
}

static void *write_thread(void *arg)
{
    struct sdp_save *s = arg;
    s->status = write_file(s, &s->error);
    __atomic_store_n(&s->finished, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* An older folder of this step (another run's, or half-written) must not mix with the new files. */
static enum status make_folder(struct sdp_save *s, struct error *e)
{
    enum status st = STATUS_OK;
    if (s->x->world->rank == 0) {
        if (path_exists(s->path))
            st = dir_remove(s->path, e);
        if (st == STATUS_OK)
            st = dir_create(s->path, e);
    }
    return world_agree(s->x->world, st, e);
}

static enum status copy_out(struct sdp_save *s, struct error *e)
{
    struct sdp_engine *x = s->x;
    float *at = x->staging;
    for (size_t i = 0; i < s->segment_count; i++) {
        const struct sdp_segment *g = &s->places[i];
        const float *from = source(x, s->units[i], s->segments[i].kind);
        x->dev->ops->copy(x->dev, x->streams.compute, at,
                          from + (g->at - x->shards[s->units[i]].begin),
                          (size_t)g->count * sizeof *at);
        at += g->count;
    }
    return x->dev->ops->stream_sync(x->dev, x->streams.compute, e);
}

enum status sdp_save_start(struct sdp_save *s, int64_t step, json_t *state, struct error *e)
{
    struct world *w = s->x->world;
    enum status st = STATUS_OK;
    TRY(sdp_save_complete(s, e));
    s->pending = true;
    s->step = step;
    s->finished = 0;
    s->status = STATUS_OK;
    s->state = json_incref(state);
    s->path = ckpt_step_path(s->dir, step);
    /* One number for all files of the set: rank 0's. */
    uint64_t id = container_new_set_id(), *ids = calloc((size_t)w->size, sizeof *ids);
    if (!s->path || !ids)
        st = error_memory(e, (size_t)w->size * sizeof *ids, "a checkpoint");
    st = world_agree(w, st, e);
    if (st == STATUS_OK)
        st = world_all_gather(w, &id, sizeof id, ids, e);
    if (st == STATUS_OK) {
        s->set_id = ids[0];
        st = make_folder(s, e);
    }
    free(ids);
    if (st == STATUS_OK)
        st = copy_out(s, e);
    if (st == STATUS_OK && pthread_create(&s->thread, NULL, write_thread, s) != 0)
        st = error_set(e, STATUS_FAILED, "cannot start the thread that writes");
    else if (st == STATUS_OK)
        s->joined = false;
    st = world_agree(w, st, e);
    if (st != STATUS_OK)
        return error_context(e, "starting the checkpoint of step %lld", (long long)step);
    return STATUS_OK;
}

static enum status complete(struct sdp_save *s, struct error *e)
{
    struct world *w = s->x->world;
    struct sdp_manifest m = {.x = s->x,
                             .step = s->step,
                             .set_id = s->set_id,
                             .entry = s->entry,
                             .digests = s->digests,
                             .state = s->state,
                             .vocab = &s->o.vocab,
                             .provenance = s->provenance};
    TRY(sdp_manifest_write(&m, s->path, e));
    free(s->last);
    s->last = strdup(s->path);
    enum status st = STATUS_OK;
    if (!s->last)
        st = error_memory(e, strlen(s->path), "a path");
    else if (w->rank == 0)
        st = ckpt_prune(s->dir, s->o.keep, s->step, e);
    return world_agree(w, st, e);
}

bool sdp_save_written(const struct sdp_save *s)
{
    return s->pending && __atomic_load_n(&s->finished, __ATOMIC_ACQUIRE);
}

enum status sdp_save_complete(struct sdp_save *s, struct error *e)
{
    if (!s->pending)
        return STATUS_OK;
    join(s);
    if (s->status != STATUS_OK)
        *e = s->error;
    enum status st = world_agree(s->x->world, s->status, e);
    if (st == STATUS_OK)
        st = complete(s, e);
    if (st != STATUS_OK)
        error_context(e, "writing checkpoint %s", s->path);
    forget(s);
    return st;
}
