/* dump.c - the mean gradients of a step as a safetensors file, for comparison with other software.
 * It passes every unit through rank 0's memory, which training never does: a tool for small models.
 */
#include "base/checked.h"
#include "base/io.h"
#include "sdp-train/train.h"

#include <stdlib.h>
#include <string.h>

/* unit[elems] = the whole unit's accumulated gradient, on every rank. */
static enum status gather_unit(struct sdp_engine *x, int64_t u, float **unit, struct error *e)
{
    struct world *w = x->world;
    const struct sdp_shard *p = &x->shards[u];
    size_t bytes = (size_t)p->elems * sizeof(float);
    struct owner {
        int32_t replica, place;
    } me = {x->groups.replica, x->groups.place}, *owners = calloc((size_t)w->size, sizeof me);
    float *mine = calloc(1, bytes + 1), *all = calloc((size_t)w->size, bytes + 1);
    enum status st = STATUS_OK;
    *unit = calloc((size_t)x->layout.unit[u].elems + 1, sizeof **unit);
    if (!owners || !mine || !all || !*unit)
        st = error_memory(e, bytes * (size_t)w->size, "gradients");
    TRY_OUT(world_agree(w, st, e));
    x->dev->ops->copy(x->dev, x->streams.compute, mine, p->grad, bytes);
    TRY_OUT(x->dev->ops->stream_sync(x->dev, x->streams.compute, e));
    TRY_OUT(world_all_gather(w, &me, sizeof me, owners, e));
    if (bytes > 0)
        TRY_OUT(world_all_gather(w, mine, bytes, all, e));
    for (int r = 0; r < w->size; r++)
        if (owners[r].replica == 0)
            memcpy(*unit + owners[r].place * p->elems, (char *)all + (size_t)r * bytes, bytes);
out:
    free(owners);
    free(mine);
    free(all);
    return st;
}

/* Host copies of every unit. */
static enum status gather_units(struct sdp_engine *x, float **units, struct error *e)
{
    for (int64_t u = 0; u < x->layout.units; u++)
        TRY(gather_unit(x, u, &units[u], e));
    return STATUS_OK;
}

static enum status write_file(struct sdp_engine *x, float **units, const char *dir, double unscale,
                              struct error *e)
{
    size_t n = (size_t)x->tensors.count;
    struct output out = {0};
    struct safetensor *list = calloc(n, sizeof *list);
    char *path = path_join(dir, "gradients.safetensors");
    enum status st = STATUS_OK;
    if (!list || !path)
        TRY_OUT(error_memory(e, n * sizeof *list, "a list of gradients"));
    for (size_t i = 0; i < n; i++) {
        struct gpt2_tensor *t = &x->tensors.tensors[i];
        list[i] = (struct safetensor){.name = t->name,
                                      .dtype = DTYPE_F32,
                                      .dims = t->dims,
                                      .shape = {t->shape[0], t->shape[1]},
                                      .elems = t->elems,
                                      .bytes = (uint64_t)t->elems * 4};
    }
    TRY_OUT(dir_create(dir, e));
    TRY_OUT(output_open(&out, path, OUTPUT_BINARY, e));
    TRY_OUT(safetensors_write_header(&out, list, n, NULL, e));
    for (size_t i = 0; i < n; i++) {
        float *g = units[x->layout.tensor_unit[i]] + x->layout.tensor_offset[i];
        for (int64_t j = 0; j < list[i].elems; j++)
            g[j] = (float)(g[j] * unscale);
        TRY_OUT(output_write(&out, g, (size_t)list[i].bytes, e));
    }
    TRY_OUT(output_commit(&out, e));
out:
    output_close(&out);
    free(list);
    free(path);
    return st;
}

enum status train_dump_gradients(struct sdp_engine *x, const char *dir, double unscale,
                                 struct error *e)
{
    float **units = calloc((size_t)x->layout.units, sizeof *units);
    enum status st = units ? STATUS_OK : error_memory(e, 64, "gradients");
    TRY_OUT(world_agree(x->world, st, e));
    TRY_OUT(gather_units(x, units, e));
    if (x->world->rank == 0)
        st = write_file(x, units, dir, unscale, e);
    st = world_agree(x->world, st, e);
out:
    for (int64_t u = 0; units && u < x->layout.units; u++)
        free(units[u]);
    free(units);
    return st == STATUS_OK ? st : error_context(e, "writing gradients to %s", dir);
}
