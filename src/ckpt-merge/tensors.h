/* tensors.h - one view of a checkpoint, a model folder and a safetensors file: named tensors whose
 * elements are read as fp32. */
#ifndef CKPT_MERGE_TENSORS_H
#define CKPT_MERGE_TENSORS_H

#include "format/ckpt.h"
#include "format/safetensors.h"
#include "gpt2/config.h"

struct tensor_view {
    const char *name;
    enum dtype dtype; /* as stored */
    int dims;
    const int64_t *shape;
    int64_t elems;
};

struct tensor_set {
    const char *path; /* as given */
    enum ckpt_kind kind;
    /* exactly one of the two: */
    struct ckpt *ckpt;
    struct safetensors *file;
};

enum status tensor_set_open(struct tensor_set *s, const char *path, enum ckpt_kind kind,
                            struct error *e) MUST_CHECK;
void tensor_set_close(struct tensor_set *s);
size_t tensor_set_count(const struct tensor_set *s);
struct tensor_view tensor_set_at(const struct tensor_set *s, size_t i);
/* Index of a tensor by name (with or without "transformer."), -1 = none. */
int64_t tensor_set_find(const struct tensor_set *s, const char *name);
/* out[n] = elements first.. of tensor i. Thread-safe. */
enum status tensor_set_read(const struct tensor_set *s, size_t i, int64_t first, int64_t n,
                            float *out, struct error *e) MUST_CHECK;
/* Whether tensor i can be read as numbers (a mask of booleans cannot). */
bool tensor_set_is_real(const struct tensor_set *s, size_t i);
/* The model's shape: the manifest's, or config.json beside the tensors. *found is false for a lone
 * file without config.json. */
enum status tensor_set_config(const struct tensor_set *s, struct gpt2_config *c, bool *found,
                              struct error *e) MUST_CHECK;
/* Every tensor that the configuration asks for is there with its shape; others are refused in a
 * checkpoint and passed over in a file. */
enum status tensor_set_check_model(const struct tensor_set *s, const struct gpt2_config *c,
                                   struct error *e) MUST_CHECK;

#endif
