#include "gpt2/tensors.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One row per tensor of a block; widths in units of C, dims 1 means [width]. Matrices come first so
 * that weight decay is one contiguous range of the unit. */
struct block_tensor {
    const char *name;
    int dims, in, out;
    enum gpt2_init init;
    bool decay;
};
static const struct block_tensor block_table[] = {
    {"attn.c_attn.weight", 2, 1, 3, GPT2_INIT_NORMAL, true},
    {"attn.c_proj.weight", 2, 1, 1, GPT2_INIT_RESIDUAL, true},
    {"mlp.c_fc.weight", 2, 1, 4, GPT2_INIT_NORMAL, true},
    {"mlp.c_proj.weight", 2, 4, 1, GPT2_INIT_RESIDUAL, true},
    {"ln_1.weight", 1, 0, 1, GPT2_INIT_ONE, false},
    {"ln_1.bias", 1, 0, 1, GPT2_INIT_ZERO, false},
    {"attn.c_attn.bias", 1, 0, 3, GPT2_INIT_ZERO, false},
    {"attn.c_proj.bias", 1, 0, 1, GPT2_INIT_ZERO, false},
    {"ln_2.weight", 1, 0, 1, GPT2_INIT_ONE, false},
    {"ln_2.bias", 1, 0, 1, GPT2_INIT_ZERO, false},
    {"mlp.c_fc.bias", 1, 0, 4, GPT2_INIT_ZERO, false},
    {"mlp.c_proj.bias", 1, 0, 1, GPT2_INIT_ZERO, false},
};
#define BLOCK_TENSORS ((int64_t)(sizeof block_table / sizeof block_table[0]))

/* Appends one tensor to the unit being filled. rows_padded counts rows that exist only in memory.
 */
static void add_tensor(struct gpt2_tensors *t, int32_t unit, const char *name, int dims,
                       int64_t rows, int64_t columns, int64_t rows_padded, enum gpt2_init init,
                       bool decay)
{
    struct gpt2_tensor *x = &t->tensors[t->count++];
    snprintf(x->name, sizeof x->name, "%s", name);
    x->dims = dims;
    x->shape[0] = dims == 2 ? rows : columns;
    x->shape[1] = dims == 2 ? columns : 1;
    x->elems = x->shape[0] * x->shape[1];
    x->unit = unit;
    x->offset = t->unit_elems[unit];
    x->init = init;
    x->decay = decay;
    t->unit_elems[unit] += round_up_i64(rows_padded * columns, GPT2_TENSOR_ALIGN);
    if (decay)
        t->unit_decay_elems[unit] = t->unit_elems[unit];
}

static void add_block(struct gpt2_tensors *t, const struct gpt2_config *c, int64_t layer)
{
    int64_t n = c->channels;
    for (int64_t i = 0; i < BLOCK_TENSORS; i++) {
        const struct block_tensor *b = &block_table[i];
        char name[64];
        snprintf(name, sizeof name, "transformer.h.%d.%s", (int)layer, b->name);
        int64_t rows = b->dims == 2 ? b->in * n : 1;
        add_tensor(t, (int32_t)(layer + 1), name, b->dims, rows, b->out * n, rows, b->init,
                   b->decay);
    }
}

enum status gpt2_tensors_create(struct gpt2_tensors *t, const struct gpt2_config *c,
                                struct error *e)
{
    memset(t, 0, sizeof *t);
    TRY(gpt2_config_check(c, e));
    int64_t total = 4 + c->layers * BLOCK_TENSORS;
    t->units = c->layers + 2;
    t->tensors = calloc((size_t)total, sizeof *t->tensors);
    t->unit_elems = calloc((size_t)t->units, sizeof *t->unit_elems);
    t->unit_decay_elems = calloc((size_t)t->units, sizeof *t->unit_decay_elems);
    t->unit_first = calloc((size_t)t->units + 1, sizeof *t->unit_first);
    if (!t->tensors || !t->unit_elems || !t->unit_decay_elems || !t->unit_first) {
        gpt2_tensors_release(t);
        return error_memory(e, (unsigned long long)total * sizeof *t->tensors, "the tensor table");
    }
    add_tensor(t, 0, "transformer.wte.weight", 2, c->vocab, c->channels, gpt2_vocab_padded(c),
               GPT2_INIT_NORMAL, true);
    add_tensor(t, 0, "transformer.wpe.weight", 2, c->context, c->channels, c->context,
               GPT2_INIT_NORMAL, true);
    for (int64_t l = 0; l < c->layers; l++) {
        t->unit_first[l + 1] = t->count;
        add_block(t, c, l);
    }
    int32_t last = (int32_t)(t->units - 1);
    t->unit_first[last] = t->count;
    add_tensor(t, last, "transformer.ln_f.weight", 1, 1, c->channels, 1, GPT2_INIT_ONE, false);
    add_tensor(t, last, "transformer.ln_f.bias", 1, 1, c->channels, 1, GPT2_INIT_ZERO, false);
    t->unit_first[t->units] = t->count;
    return STATUS_OK;
}

void gpt2_tensors_release(struct gpt2_tensors *t)
{
    free(t->tensors);
    free(t->unit_elems);
    free(t->unit_decay_elems);
    free(t->unit_first);
    memset(t, 0, sizeof *t);
}

const struct gpt2_tensor *gpt2_tensors_find(const struct gpt2_tensors *t, const char *name)
{
    for (int64_t i = 0; i < t->count; i++)
        if (strcmp(t->tensors[i].name, name) == 0)
            return &t->tensors[i];
    return NULL;
}
