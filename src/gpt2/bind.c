/* bind.c - from a flat unit to pointers, by the tensor table. */
#include "gpt2/model.h"

#include <string.h>

/* Address of a block's tensor by the end of its name; the table holds every name asked for here. */
static const void *at(const struct gpt2_tensors *t, int64_t layer, const void *unit,
                      size_t elem_bytes, const char *suffix)
{
    size_t want = strlen(suffix);
    for (int64_t i = t->unit_first[layer + 1]; i < t->unit_first[layer + 2]; i++) {
        size_t have = strlen(t->tensors[i].name);
        const char *tail = t->tensors[i].name + have - want;
        /* "ln_1.weight" must not match inside another word: a dot stands before it */
        if (have > want && tail[-1] == '.' && strcmp(tail, suffix) == 0)
            return (const char *)unit + (size_t)t->tensors[i].offset * elem_bytes;
    }
    return NULL;
}

void gpt2_bind_block(const struct gpt2_tensors *t, int64_t layer, const void *unit, enum dtype dt,
                     struct gpt2_block_params *p)
{
    size_t b = dtype_bytes(dt);
    *p = (struct gpt2_block_params){
        .ln1_w = at(t, layer, unit, b, "ln_1.weight"),
        .ln1_b = at(t, layer, unit, b, "ln_1.bias"),
        .qkv_w = at(t, layer, unit, b, "attn.c_attn.weight"),
        .qkv_b = at(t, layer, unit, b, "attn.c_attn.bias"),
        .proj_w = at(t, layer, unit, b, "attn.c_proj.weight"),
        .proj_b = at(t, layer, unit, b, "attn.c_proj.bias"),
        .ln2_w = at(t, layer, unit, b, "ln_2.weight"),
        .ln2_b = at(t, layer, unit, b, "ln_2.bias"),
        .fc_w = at(t, layer, unit, b, "mlp.c_fc.weight"),
        .fc_b = at(t, layer, unit, b, "mlp.c_fc.bias"),
        .fcproj_w = at(t, layer, unit, b, "mlp.c_proj.weight"),
        .fcproj_b = at(t, layer, unit, b, "mlp.c_proj.bias"),
    };
}

void gpt2_bind_block_grads(const struct gpt2_tensors *t, int64_t layer, float *unit,
                           struct gpt2_block_grads *g)
{
    struct gpt2_block_params p;
    gpt2_bind_block(t, layer, unit, DTYPE_F32, &p);
    *g = (struct gpt2_block_grads){
        .ln1_w = (float *)p.ln1_w,
        .ln1_b = (float *)p.ln1_b,
        .qkv_w = (float *)p.qkv_w,
        .qkv_b = (float *)p.qkv_b,
        .proj_w = (float *)p.proj_w,
        .proj_b = (float *)p.proj_b,
        .ln2_w = (float *)p.ln2_w,
        .ln2_b = (float *)p.ln2_b,
        .fc_w = (float *)p.fc_w,
        .fc_b = (float *)p.fc_b,
        .fcproj_w = (float *)p.fcproj_w,
        .fcproj_b = (float *)p.fcproj_b,
    };
}

const void *gpt2_wte(const struct gpt2_tensors *t, const void *unit0, enum dtype dt)
{
    return (const char *)unit0 + (size_t)t->tensors[0].offset * dtype_bytes(dt);
}

const void *gpt2_wpe(const struct gpt2_tensors *t, const void *unit0, enum dtype dt)
{
    return (const char *)unit0 + (size_t)t->tensors[1].offset * dtype_bytes(dt);
}
