/* merge.h - a checkpoint to a Hugging Face model folder, in bounded memory. */
#ifndef CKPT_MERGE_MERGE_H
#define CKPT_MERGE_MERGE_H

#include "base/pool.h"
#include "ckpt-merge/options.h"
#include "ckpt-merge/tensors.h"

/* Proves coverage, writes everything under a temporary name beside o->output, renames it last.
 * stop: set by a signal handler; the work ends and is removed. */
enum status merge_run(const struct merge_options *o, struct pool *pool, const volatile int *stop,
                      struct error *e) MUST_CHECK;

/* --- plan.c: what goes where --- */

/* Elements first .. first+count-1 of a tensor, inside one block of one rank file, in file order. */
struct merge_piece {
    uint32_t tensor; /* index in the checkpoint */
    int64_t first, count;
};

/* One output file. */
struct merge_shard {
    char name[64];
    size_t first, count; /* of the order */
    uint64_t header_bytes, bytes;
};

struct merge_plan {
    struct tensor_set *set;
    enum dtype dtype;
    uint32_t *order; /* [count] checkpoint's index of output tensor i, in the model's order */
    uint32_t *place; /* [count] the inverse */
    struct safetensor *outputs; /* [count] in output order; offset is filled in with the header */
    size_t count;
    struct merge_shard *shards;
    size_t shard_count;
    struct merge_piece *pieces;
    size_t piece_count;
    uint64_t total_bytes; /* of tensors */
};

enum status merge_plan_create(struct merge_plan *p, struct tensor_set *set,
                              const struct gpt2_config *c, enum dtype dtype,
                              int64_t max_shard_bytes, struct error *e) MUST_CHECK;
void merge_plan_release(struct merge_plan *p);
/* Which shard output tensor i is in. */
size_t merge_plan_shard_of(const struct merge_plan *p, size_t i);

/* --- weights.c: headers, then all pieces in parallel --- */
enum status merge_write_weights(struct merge_plan *p, const struct merge_options *o,
                                const char *dir, struct pool *pool, const volatile int *stop,
                                struct error *e) MUST_CHECK;

/* --- folder.c: the small files --- */
enum status merge_write_config(const struct merge_plan *p, const struct gpt2_config *c,
                               const char *dir, struct error *e) MUST_CHECK;
enum status merge_write_index(const struct merge_plan *p, const char *dir,
                              struct error *e) MUST_CHECK;
enum status merge_write_tokenizer(const struct tensor_set *set, const struct merge_options *o,
                                  const char *dir, struct error *e) MUST_CHECK;

#endif
