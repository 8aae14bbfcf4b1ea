#include "gpt2/load.h"

#include "base/checked.h"
#include "base/io.h"
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

#define STAGING_BYTES ((int64_t)16 << 20)
#define PLACE_ALIGN 256 /* bytes; of each tensor in device memory */

/* One tensor on its way in. */
struct place {
    const struct safetensor *source;
    const void **pointer; /* where the model keeps its address */
    int64_t elems;        /* in memory: wte's padded rows included */
    int64_t offset;       /* in w->memory, -1 = used from the file */
};

/* Whether the device can read t where it lies in the file. Old files do not align their data. */
static bool readable_in_place(const struct gpt2_weights *w, const struct safetensor *t)
{
    return w->dev->ops->reads_host_memory &&
           (uintptr_t)safetensors_data(w->file, t) % dtype_bytes(t->dtype) == 0;
}

static enum status check_tensor(const struct gpt2_weights *w, const struct gpt2_tensor *want,
                                const struct safetensor *t, const char *path, struct error *e)
{
    if (!t)
        return error_set(e, STATUS_DATA, "%s has no tensor \"%s\"", path, want->name);
    const char *file = safetensors_file_name(w->file, t->file);
    bool same = t->dims == want->dims;
    for (int d = 0; same && d < want->dims; d++)
        same = t->shape[d] == want->shape[d];
    if (!same)
        return error_set(e, STATUS_DATA,
                         "%s: tensor \"%s\" has %d dimensions [%lld, %lld], config.json asks for "
                         "%d [%lld, %lld]",
                         file, t->name, t->dims, (long long)(t->dims > 0 ? t->shape[0] : 1),
                         (long long)(t->dims > 1 ? t->shape[1] : 1), want->dims,
                         (long long)want->shape[0], (long long)want->shape[1]);
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16)
        return error_set(e, STATUS_DATA, "%s: tensor \"%s\" is %s, expected fp32, bf16 or fp16",
                         file, t->name, dtype_name(t->dtype));
    return STATUS_OK;
}

/* The model's pointer for tensor `index` of the table, in the order tensors.c lists a block. */
static const void **pointer_of(struct gpt2_weights *w, const struct gpt2_tensors *table,
                               int64_t index)
{
    const struct gpt2_tensor *t = &table->tensors[index];
    int64_t in_unit = index - table->unit_first[t->unit];
    if (t->unit == 0)
        return in_unit == 0 ? &w->wte : &w->wpe;
    if (t->unit == table->units - 1)
        return in_unit == 0 ? &w->lnf_w : &w->lnf_b;
    return gpt2_block_param(&w->blocks[t->unit - 1], t->name);
}

/* Decide for every tensor where it will be; *bytes of device memory are needed. */
static enum status plan(struct gpt2_weights *w, const struct gpt2_tensors *table, const char *path,
                        struct place *places, int64_t *bytes, struct error *e)
{
    *bytes = 0;
    for (int64_t i = 0; i < table->count; i++) {
        const struct gpt2_tensor *want = &table->tensors[i];
        struct place *p = &places[i];
        p->source = safetensors_find(w->file, want->name);
        TRY(check_tensor(w, want, p->source, path, e));
        p->pointer = pointer_of(w, table, i);
        p->offset = -1;
        p->elems = want->elems;
        if (p->source->dtype == w->dt && readable_in_place(w, p->source)) {
            *p->pointer = safetensors_data(w->file, p->source);
            w->mapped_bytes += (int64_t)p->source->bytes;
            continue;
        }
        if (i == 0) { /* wte: products run at full speed over padded rows */
            w->wte_rows = gpt2_vocab_padded(&w->config);
            p->elems = w->wte_rows * w->config.channels;
        }
        p->offset = *bytes;
        *bytes += round_up_i64(p->elems * (int64_t)dtype_bytes(w->dt), PLACE_ALIGN);
    }
    w->copied_bytes = *bytes;
    return STATUS_OK;
}

/* One tensor through the staging buffers, converted on the device when its dtype differs. */
static enum status copy_staged(struct gpt2_weights *w, const struct place *p, char *to,
                               struct error *e)
{
    struct device *dev = w->dev;
    const struct safetensor *t = p->source;
    int64_t from_bytes = (int64_t)dtype_bytes(t->dtype), to_bytes = (int64_t)dtype_bytes(w->dt);
    const char *from = safetensors_data(w->file, t);
    int64_t piece = STAGING_BYTES / from_bytes;
    for (int64_t first = 0; first < t->elems; first += piece) {
        int64_t n = min_i64(piece, t->elems - first);
        size_t bytes = (size_t)(n * from_bytes);
        char *dst = to + first * to_bytes;
        memcpy(w->staging, from + first * from_bytes, bytes);
        if (t->dtype == w->dt) {
            dev->ops->copy(dev, dev->compute, dst, w->staging, bytes);
        } else {
            dev->ops->copy(dev, dev->compute, w->device_staging, w->staging, bytes);
            dev->ops->cast(dev, dev->compute, dst, w->dt, w->device_staging, t->dtype, n);
        }
        TRY(dev->ops->stream_sync(dev, dev->compute, e));
    }
    return STATUS_OK;
}

static enum status copy_all(struct gpt2_weights *w, struct place *places, int64_t count,
                            struct error *e)
{
    struct device *dev = w->dev;
    if (w->copied_bytes == 0)
        return STATUS_OK;
    TRY(dev->ops->alloc(dev, MEMORY_DEVICE, (size_t)w->copied_bytes, &w->memory, e));
    TRY(dev->ops->alloc(dev, MEMORY_HOST, STAGING_BYTES, &w->staging, e));
    TRY(dev->ops->alloc(dev, MEMORY_DEVICE, STAGING_BYTES, &w->device_staging, e));
    for (int64_t i = 0; i < count; i++) {
        struct place *p = &places[i];
        if (p->offset < 0)
            continue;
        char *to = (char *)w->memory + p->offset;
        *p->pointer = to;
        if (!readable_in_place(w, p->source))
            TRY(copy_staged(w, p, to, e));
        else
            dev->ops->cast(dev, dev->compute, to, w->dt, safetensors_data(w->file, p->source),
                           p->source->dtype, p->source->elems);
    }
    return dev->ops->stream_sync(dev, dev->compute, e);
}

/* Some files store the output projection too; a model where it differs is not the one we compute.
 */
static enum status check_tied(const struct gpt2_weights *w, const struct safetensor *wte,
                              struct error *e)
{
    const struct safetensor *head = safetensors_find(w->file, "lm_head.weight");
    if (!head)
        return STATUS_OK;
    if (head->bytes != wte->bytes || head->dtype != wte->dtype ||
        memcmp(safetensors_data(w->file, head), safetensors_data(w->file, wte), wte->bytes) != 0)
        return error_set(e, STATUS_DATA,
                         "%s: lm_head.weight differs from wte.weight; only models whose output "
                         "projection is tied to the embedding are supported",
                         safetensors_file_name(w->file, head->file));
    return STATUS_OK;
}

static enum status load(struct gpt2_weights *w, const char *path, struct error *e)
{
    enum status st;
    struct gpt2_tensors table = {0};
    struct place *places = NULL;
    int64_t bytes;
    char *config = path_join(path, "config.json");

    if (!config)
        TRY_OUT(error_memory(e, strlen(path), "a file name"));
    TRY_OUT(gpt2_config_load(&w->config, config, e));
    TRY_OUT(gpt2_tensors_create(&table, &w->config, e));
    TRY_OUT(safetensors_open(&w->file, path, e));
    w->wte_rows = w->config.vocab;
    w->blocks = calloc((size_t)w->config.layers, sizeof *w->blocks);
    places = calloc((size_t)table.count, sizeof *places);
    if (!w->blocks || !places)
        TRY_OUT(error_memory(e, (size_t)table.count * sizeof *places, "the list of weights"));
    TRY_OUT(plan(w, &table, path, places, &bytes, e));
    TRY_OUT(check_tied(w, places[0].source, e));
    TRY_OUT(copy_all(w, places, table.count, e));
out:
    gpt2_tensors_release(&table);
    free(places);
    free(config);
    return st;
}

/* What only loading needs. The file stays open while tensors are used from it. */
static void release_staging(struct gpt2_weights *w)
{
    if (w->staging)
        w->dev->ops->free(w->dev, MEMORY_HOST, w->staging);
    if (w->device_staging)
        w->dev->ops->free(w->dev, MEMORY_DEVICE, w->device_staging);
    w->staging = w->device_staging = NULL;
    if (w->mapped_bytes == 0) {
        safetensors_close(w->file);
        w->file = NULL;
    }
}

enum status gpt2_weights_load(struct gpt2_weights **out, struct device *dev, const char *path,
                              enum dtype dt, struct error *e)
{
    struct gpt2_weights *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return error_memory(e, sizeof *w, "the weights");
    w->dev = dev;
    w->dt = dt;
    enum status st = load(w, path, e);
    if (st != STATUS_OK) {
        gpt2_weights_free(w);
        return st;
    }
    release_staging(w);
    *out = w;
    return STATUS_OK;
}

void gpt2_weights_free(struct gpt2_weights *w)
{
    if (!w)
        return;
    release_staging(w);
    if (w->memory)
        w->dev->ops->free(w->dev, MEMORY_DEVICE, w->memory);
    safetensors_close(w->file);
    free(w->blocks);
    free(w);
}
