/* shard_set_private.h - what shard_index.c, shard_set.c and shard_verify.c share; not for other
 * folders.
 */
#ifndef FORMAT_SHARD_SET_PRIVATE_H
#define FORMAT_SHARD_SET_PRIVATE_H

#include "format/shard_set.h"
#include <jansson.h>
#include <stdatomic.h>

struct shard {
    char *file, *path;
    uint64_t samples, bytes, digest; /* as the index says; proved when the shard is opened */
    uint64_t first_sample;
    const uint8_t *map;
    struct container_block *data; /* the DATA blocks */
    uint32_t data_count;
    uint64_t block_samples; /* in every DATA block but the last */
    atomic_uchar *verified; /* [data_count] payload checksum and ids were right */
};

struct shard_set {
    char *dir;
    struct vocab_info vocab;
    uint32_t block_size;
    enum dtype dtype;
    uint32_t id_bytes;
    uint64_t set_id, samples, digest;
    char *group_documents, *separator, *provenance;
    struct shard *shards;
    uint32_t shard_count;
};

/* Fills everything but what lies in the shards themselves. */
enum status shard_index_read(struct shard_set *s, struct error *e) MUST_CHECK;
/* A header of a shard against the set. */
enum status shard_check_header(const struct shard_set *s, uint32_t shard,
                               const struct container_header *h, struct error *e) MUST_CHECK;
/* The "vocb" and "shrd" payloads against the set; other tags pass. text is NUL-terminated. */
enum status shard_check_text(const struct shard_set *s, uint32_t shard, const char *tag,
                             const char *text, size_t bytes, struct error *e) MUST_CHECK;
/* Ids of a payload, in file order, against the vocabulary. */
enum status shard_check_ids(const struct shard_set *s, uint32_t shard,
                            const struct container_block *b, const void *payload,
                            struct error *e) MUST_CHECK;

#endif
