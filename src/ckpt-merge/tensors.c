#include "ckpt-merge/tensors.h"

#include "base/io.h"
#include "gpt2/tensors.h"

#include <stdlib.h>
#include <string.h>

static bool folder_has(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    bool there = path && path_exists(path);
    free(path);
    return there;
}

enum status tensor_set_open(struct tensor_set *s, const char *path, enum ckpt_kind kind,
                            struct error *e)
{
    *s = (struct tensor_set){.path = path, .kind = kind};
    if (!path_exists(path))
        return error_set(e, STATUS_FAILED, "%s does not exist", path);
    bool model = !path_is_dir(path) || folder_has(path, "model.safetensors") ||
                 folder_has(path, "model.safetensors.index.json");
    return model ? safetensors_open(&s->file, path, e) : ckpt_open(&s->ckpt, path, e);
}

void tensor_set_close(struct tensor_set *s)
{
    ckpt_close(s->ckpt);
    safetensors_close(s->file);
}

size_t tensor_set_count(const struct tensor_set *s)
{
    return s->ckpt ? ckpt_tensor_count(s->ckpt) : safetensors_count(s->file);
}

struct tensor_view tensor_set_at(const struct tensor_set *s, size_t i)
{
    if (s->ckpt) {
        const struct ckpt_tensor *t = ckpt_tensor_at(s->ckpt, i);
        return (struct tensor_view){t->name, DTYPE_F32, t->dims, t->shape, t->elems};
    }
    const struct safetensor *t = safetensors_at(s->file, i);
    return (struct tensor_view){t->name, t->dtype, t->dims, t->shape, t->elems};
}

int64_t tensor_set_find(const struct tensor_set *s, const char *name)
{
    if (s->ckpt) {
        static const char prefix[] = "transformer.";
        char longer[256];
        const struct ckpt_tensor *t = ckpt_tensor_find(s->ckpt, name);
        if (!t && strlen(name) + sizeof prefix < sizeof longer) {
            strcpy(longer, prefix);
            t = ckpt_tensor_find(s->ckpt, strcat(longer, name));
        }
        return t ? t - ckpt_tensor_at(s->ckpt, 0) : -1;
    }
    const struct safetensor *t = safetensors_find(s->file, name);
    return t ? t - safetensors_at(s->file, 0) : -1;
}

bool tensor_set_is_real(const struct tensor_set *s, size_t i)
{
    enum dtype t = tensor_set_at(s, i).dtype;
    if (s->ckpt)
        return ckpt_tensor_at(s->ckpt, i)->present[s->kind];
    return t == DTYPE_F32 || t == DTYPE_BF16 || t == DTYPE_F16 || t == DTYPE_F64;
}

enum status tensor_set_read(const struct tensor_set *s, size_t i, int64_t first, int64_t n,
                            float *out, struct error *e)
{
    if (s->ckpt)
        return ckpt_read(s->ckpt, ckpt_tensor_at(s->ckpt, i), s->kind, first, n, out, e);
    return safetensors_pread_f32(s->file, safetensors_at(s->file, i), first, n, out, e);
}

enum status tensor_set_config(const struct tensor_set *s, struct gpt2_config *c, bool *found,
                              struct error *e)
{
    *found = true;
    if (s->ckpt) {
        const json_t *model = json_object_get(ckpt_manifest(s->ckpt), "model");
        return gpt2_config_from_json(c, model, ckpt_path(s->ckpt), e);
    }
    char *path = path_is_dir(s->path) ? path_join(s->path, "config.json") : NULL;
    *found = path && path_exists(path);
    enum status st = *found ? gpt2_config_load(c, path, e) : STATUS_OK;
    free(path);
    return st;
}

static enum status check_shape(const struct tensor_set *s, const struct gpt2_tensor *want,
                               const struct tensor_view *t, struct error *e)
{
    bool same = t->dims == want->dims;
    for (int d = 0; same && d < want->dims; d++)
        same = t->shape[d] == want->shape[d];
    if (same)
        return STATUS_OK;
    return error_set(e, STATUS_DATA,
                     "%s: tensor \"%s\" has %d dimensions [%lld, %lld], the model's configuration "
                     "asks for %d [%lld, %lld]",
                     s->path, t->name, t->dims, (long long)t->shape[0],
                     (long long)(t->dims > 1 ? t->shape[1] : 1), want->dims,
                     (long long)want->shape[0], (long long)want->shape[1]);
}

enum status tensor_set_check_model(const struct tensor_set *s, const struct gpt2_config *c,
                                   struct error *e)
{
    struct gpt2_tensors table;
    enum status st = STATUS_OK;
    TRY(gpt2_tensors_create(&table, c, e));
    for (int64_t i = 0; i < table.count; i++) {
        const struct gpt2_tensor *want = &table.tensors[i];
        int64_t at = tensor_set_find(s, want->name);
        if (at < 0)
            TRY_OUT(error_set(e, STATUS_DATA, "%s has no tensor \"%s\", which the model needs",
                              s->path, want->name));
        struct tensor_view t = tensor_set_at(s, (size_t)at);
        TRY_OUT(check_shape(s, want, &t, e));
    }
    for (size_t i = 0; s->ckpt && i < tensor_set_count(s); i++)
        if (!gpt2_tensors_find(&table, tensor_set_at(s, i).name))
            TRY_OUT(error_set(e, STATUS_DATA, "%s: tensor \"%s\" is not one of the model's",
                              s->path, tensor_set_at(s, i).name));
out:
    gpt2_tensors_release(&table);
    return st;
}
