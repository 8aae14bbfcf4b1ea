#include "sdp/manifest.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Texts of all ranks together move this much at a time, however many ranks there are. */
#define ROUND_BYTES (16 << 20)

static void free_texts(char **texts, int n)
{
    for (int i = 0; texts && i < n; i++)
        free(texts[i]);
    free(texts);
}

/* *texts: every rank's text, on rank 0; NULL elsewhere. */
static enum status gather_texts(struct world *w, const char *text, char ***texts, struct error *e)
{
    enum status st = STATUS_OK;
    int64_t length = text ? (int64_t)strlen(text) : 0, longest = 0;
    int64_t room = max_i64(1024, ROUND_BYTES / w->size);
    int64_t *lengths = calloc((size_t)w->size, sizeof *lengths);
    char *mine = calloc(1, (size_t)room), *all = calloc((size_t)w->size, (size_t)room);
    *texts = calloc((size_t)w->size, sizeof **texts);
    if (!lengths || !mine || !all || !*texts)
        st = error_memory(e, (size_t)(w->size * room), "the parts of a manifest");
    TRY_OUT(world_agree(w, st, e));
    TRY_OUT(world_all_gather(w, &length, sizeof length, lengths, e));
    for (int r = 0; r < w->size; r++) {
        longest = max_i64(longest, lengths[r]);
        if (w->rank == 0 && !((*texts)[r] = calloc(1, (size_t)lengths[r] + 1)))
            st = error_memory(e, (size_t)lengths[r], "a part of a manifest");
    }
    TRY_OUT(world_agree(w, st, e));
    for (int64_t at = 0; at < longest; at += room) {
        if (at < length)
            memcpy(mine, text + at, (size_t)min_i64(room, length - at));
        TRY_OUT(world_all_gather(w, mine, (size_t)room, all, e));
        for (int r = 0; r < w->size && w->rank == 0; r++)
            if (at < lengths[r])
                memcpy((*texts)[r] + at, all + r * room, (size_t)min_i64(room, lengths[r] - at));
    }
out:
    free(lengths);
    free(mine);
    free(all);
    if (st != STATUS_OK || w->rank != 0) {
        free_texts(*texts, w->size);
        *texts = NULL;
    }
    return st;
}

/* Wrapping sums over ranks, on every rank. */
static enum status sum_digests(struct world *w, const uint64_t *mine, uint64_t *sums, size_t n,
                               struct error *e)
{
    enum { AT_ONCE = 512 };
    uint64_t part[AT_ONCE], *all = calloc((size_t)w->size, sizeof part);
    enum status st = all ? STATUS_OK : error_memory(e, (size_t)w->size * sizeof part, "digests");
    TRY_OUT(world_agree(w, st, e));
    memset(sums, 0, n * sizeof *sums);
    for (size_t at = 0; at < n; at += AT_ONCE) {
        size_t k = n - at < AT_ONCE ? n - at : AT_ONCE;
        memcpy(part, mine + at, k * sizeof *mine);
        TRY_OUT(world_all_gather(w, part, k * sizeof *part, all, e));
        for (int r = 0; r < w->size; r++)
            for (size_t i = 0; i < k; i++)
                sums[at + i] += all[(size_t)r * k + i];
    }
out:
    free(all);
    return st;
}

static json_t *tensor_entry(const struct gpt2_tensor *t, const uint64_t *digests)
{
    char hex[CKPT_KINDS][20];
    for (int k = 0; k < CKPT_KINDS; k++)
        snprintf(hex[k], sizeof hex[k], "%016llx", (unsigned long long)digests[k]);
    json_t *shape = json_array();
    for (int d = 0; shape && d < t->dims; d++)
        json_array_append_new(shape, json_integer(t->shape[d]));
    return json_pack("{s:s, s:o, s:{s:s, s:s, s:s}}", "name", t->name, "shape", shape, "digest",
                     ckpt_kind_names[0], hex[0], ckpt_kind_names[1], hex[1], ckpt_kind_names[2],
                     hex[2]);
}

static json_t *vocabulary(const struct vocab_info *v)
{
    struct strbuf text = {0};
    struct error e = {0};
    json_t *out = NULL;
    if (vocab_info_to_json(v, &text, &e) == STATUS_OK)
        out = json_loads(text.data, 0, NULL);
    strbuf_release(&text);
    return out;
}

static json_t *build(const struct sdp_manifest *m, char **texts, const uint64_t *sums)
{
    char id[20];
    json_t *tensors = json_array(), *files = json_array();
    snprintf(id, sizeof id, "%016llx", (unsigned long long)m->set_id);
    for (int64_t i = 0; i < m->x->tensors.count; i++)
        json_array_append_new(tensors,
                              tensor_entry(&m->x->tensors.tensors[i], &sums[i * CKPT_KINDS]));
    for (int r = 0; r < m->x->world->size; r++)
        json_array_append_new(files, json_loads(texts[r], 0, NULL));
    return json_pack("{s:s, s:i, s:s, s:I, s:o, s:o, s:o, s:o, s:O, s:o}", "format",
                     "sdp-checkpoint", "version", 1, "set_id", id, "step", (json_int_t)m->step,
                     "model", gpt2_config_to_json(&m->x->config.model, "float32"), "tensors",
                     tensors, "files", files, "vocabulary", vocabulary(m->vocab), "state", m->state,
                     "provenance", json_loads(m->provenance, 0, NULL));
}

enum status sdp_manifest_write(const struct sdp_manifest *m, const char *dir, struct error *e)
{
    struct world *w = m->x->world;
    size_t n = (size_t)m->x->tensors.count * CKPT_KINDS;
    char *text = json_dumps(m->entry, JSON_COMPACT), **texts = NULL;
    uint64_t *sums = calloc(n, sizeof *sums);
    json_t *manifest = NULL;
    enum status st = STATUS_OK;
    if (!text || !sums)
        st = error_memory(e, n * sizeof *sums, "a manifest");
    TRY_OUT(world_agree(w, st, e));
    TRY_OUT(gather_texts(w, text, &texts, e));
    TRY_OUT(sum_digests(w, m->digests, sums, n, e));
    if (w->rank == 0) {
        manifest = build(m, texts, sums);
        st = manifest ? ckpt_manifest_write(dir, manifest, e) : error_memory(e, n, "a manifest");
    }
    st = world_agree(w, st, e);
out:
    json_decref(manifest);
    free_texts(texts, w->size);
    free(text);
    free(sums);
    return st;
}
