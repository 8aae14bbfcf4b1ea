/* bind.c - from names of the tensor table to the pointers of a block. */
#include "gpt2/model.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

/* A block's tensors by the end of their names; the dot keeps "ln_1" from matching inside a word. */
static const struct {
    const char *suffix;
    size_t param, grad;
} fields[] = {
#define FIELD(name, suffix)                                   \
    {                                                         \
        "." suffix, offsetof(struct gpt2_block_params, name), \
            offsetof(struct gpt2_block_grads, name)           \
    }
    FIELD(qkv_w, "attn.c_attn.weight"), FIELD(proj_w, "attn.c_proj.weight"),
    FIELD(fc_w, "mlp.c_fc.weight"),     FIELD(fcproj_w, "mlp.c_proj.weight"),
    FIELD(ln1_w, "ln_1.weight"),        FIELD(ln1_b, "ln_1.bias"),
    FIELD(qkv_b, "attn.c_attn.bias"),   FIELD(proj_b, "attn.c_proj.bias"),
    FIELD(ln2_w, "ln_2.weight"),        FIELD(ln2_b, "ln_2.bias"),
    FIELD(fc_b, "mlp.c_fc.bias"),       FIELD(fcproj_b, "mlp.c_proj.bias"),
#undef FIELD
};

static size_t field_of(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        size_t n = strlen(fields[i].suffix);
        if (length > n && strcmp(name + length - n, fields[i].suffix) == 0)
            return i;
    }
    assert(!"the tensor table holds no other name in a block");
    return 0;
}

const void **gpt2_block_param(struct gpt2_block_params *p, const char *name)
{
    return (const void **)((char *)p + fields[field_of(name)].param);
}

void gpt2_bind_block(const struct gpt2_tensors *t, int64_t layer, gpt2_place *place,
                     const void *context, struct gpt2_block_params *p)
{
    for (int64_t i = t->unit_first[layer + 1]; i < t->unit_first[layer + 2]; i++)
        *gpt2_block_param(p, t->tensors[i].name) = place(context, i);
}

void gpt2_bind_block_grads(const struct gpt2_tensors *t, int64_t layer, gpt2_place *place,
                           const void *context, struct gpt2_block_grads *g)
{
    for (int64_t i = t->unit_first[layer + 1]; i < t->unit_first[layer + 2]; i++)
        *(float **)((char *)g + fields[field_of(t->tensors[i].name)].grad) = place(context, i);
}

const void *gpt2_wte(const struct gpt2_tensors *t, const void *unit0, enum dtype dt)
{
    return (const char *)unit0 + (size_t)t->tensors[0].offset * dtype_bytes(dt);
}

const void *gpt2_wpe(const struct gpt2_tensors *t, const void *unit0, enum dtype dt)
{
    return (const char *)unit0 + (size_t)t->tensors[1].offset * dtype_bytes(dt);
}
