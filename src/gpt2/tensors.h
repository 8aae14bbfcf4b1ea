/* tensors.h - the parameters of a GPT-2: names, shapes, and where each lies in its unit.
 *
 * A unit is what sharding gathers at once: unit 0 the embeddings (wte, wpe), units 1..L the blocks,
 * unit L+1 the final norm. A unit is one flat buffer: matrices first (weight decay), then biases
 * and norms (no decay), every tensor at a multiple of GPT2_TENSOR_ALIGN elements; gaps and padded
 * vocabulary rows hold zeros and get zero gradients. No device here: ckpt-merge and --plan use this
 * file alone. */
#ifndef GPT2_TENSORS_H
#define GPT2_TENSORS_H

#include "gpt2/config.h"
#include <stdbool.h>

#define GPT2_TENSOR_ALIGN 64

enum gpt2_init {
    GPT2_INIT_NORMAL,
    GPT2_INIT_RESIDUAL /* normal / sqrt(2 layers) */,
    GPT2_INIT_ZERO,
    GPT2_INIT_ONE
};

struct gpt2_tensor {
    char name[64]; /* "transformer.h.0.attn.c_attn.weight" */
    int dims;
    int64_t shape[2]; /* as in Hugging Face's file (Conv1D: [in, out]) */
    int64_t elems;    /* product of shape: padding excluded */
    int32_t unit;
    int64_t offset; /* first element in the unit */
    enum gpt2_init init;
    bool decay; /* weight decay applies */
};

struct gpt2_tensors {
    struct gpt2_tensor *tensors; /* in unit order, then offset order */
    int64_t count;
    int64_t units;             /* layers + 2 */
    int64_t *unit_elems;       /* [units], a multiple of GPT2_TENSOR_ALIGN, padding included */
    int64_t *unit_decay_elems; /* [units]: elements [0, n) are decayed, the rest not */
    int64_t *unit_first;       /* [units + 1]: index of the unit's first tensor */
};

enum status gpt2_tensors_create(struct gpt2_tensors *t, const struct gpt2_config *c,
                                struct error *e) MUST_CHECK;
void gpt2_tensors_release(struct gpt2_tensors *t);
const struct gpt2_tensor *gpt2_tensors_find(const struct gpt2_tensors *t, const char *name);
/* out[n] = initial values of elements first .. of tensor number `index`: a function of (seed,
 * index, element) only. normal(0, 0.02) by Box-Muller on Philox; element e is output e % 2 of
 * counter e / 2. */
void gpt2_init_values(const struct gpt2_tensors *t, const struct gpt2_config *c, int64_t index,
                      uint64_t seed, int64_t first, int64_t n, float *out);

#endif
