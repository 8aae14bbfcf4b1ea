/* shard_set.h - fixed-length samples of token ids in a folder of shards: what sdp-train reads.
 *
 * DIR/shard-00000.shd ...: containers of kind "SHD", version 1.0, number k of a set whose size is
 * not known while writing: "vocb", "prov", "shrd" (JSON:
 * {"block_size","group_documents","separator"}), then "DATA" blocks of whole samples (all but the
 * last of equal size, at most 1 MiB unless one sample is larger). The count is of tokens; samples
 * are count / block size. DIR/index.json is renamed in last; a folder without it is not a shard
 * set. index.json:
 * {"format":"shard-set","version":1,"set_id":"hex","block_size","dtype":"u16|u32","samples","tokens",
 * "group_documents","separator","digest":"hex","vocabulary":{...},
 * "shards":[{"file","samples","bytes","digest":"hex"}],"provenance":{...}}.
 * "digest" is the XXH3-64 of all samples' bytes in order: it does not depend on where shards begin.
 */
#ifndef FORMAT_SHARD_SET_H
#define FORMAT_SHARD_SET_H

#include "format/container.h"
#include "format/vocab_info.h"

#define SHARD_MAJOR 1
#define SHARD_DATA_BYTES (1u << 20)
#define SHARD_BLOCK_SIZE_MAX (1u << 20) /* tokens a sample */

struct shard_writer;
struct shard_options {
    uint32_t block_size;         /* tokens a sample, >= 2 */
    uint64_t shard_bytes;        /* start a new shard beyond this */
    const char *group_documents; /* recorded: "1000", "all" */
    const char *separator;       /* recorded: "eot", "none" */
    const char *provenance;      /* JSON or NULL */
};
/* dir is created; an existing shard set there is refused unless overwrite, and is replaced only on
 * finish. Shards are written into DIR/.partial, which is locked: a second writer is refused, and
 * what a killed one left is cleared. Blocks are written by a thread of the writer, so a put may
 * fail with what an earlier one met. */
enum status shard_writer_open(struct shard_writer **w, const char *dir, bool overwrite,
                              const struct vocab_info *vocab, const struct shard_options *o,
                              struct error *e) MUST_CHECK;
/* One sample of block_size ids. */
enum status shard_writer_put(struct shard_writer *w, const uint32_t *ids,
                             struct error *e) MUST_CHECK;
/* Several samples in a row, ids in host order of 2 or 4 bytes: the same without widening. */
enum status shard_writer_put_native(struct shard_writer *w, const void *ids, uint32_t id_bytes,
                                    uint64_t samples, struct error *e) MUST_CHECK;
/* The counts may be NULL. A set without samples is refused. */
enum status shard_writer_finish(struct shard_writer *w, uint64_t *samples, uint32_t *shards,
                                struct error *e) MUST_CHECK;
void shard_writer_free(struct shard_writer *w); /* removes what was not finished */

struct shard_set;
/* Reads index.json, maps every shard, verifies headers, block heads and trailers. Payload checksums
 * are verified once per block on first use, or all at once by shard_set_verify. */
enum status shard_set_open(struct shard_set **s, const char *dir, struct error *e) MUST_CHECK;
void shard_set_close(struct shard_set *s);
const struct vocab_info *shard_set_vocab(const struct shard_set *s);
uint64_t shard_set_samples(const struct shard_set *s);
uint32_t shard_set_block_size(const struct shard_set *s);
uint64_t
shard_set_digest(const struct shard_set *s); /* of all samples, in order; for resume checks */
/* ids[block_size] of sample index < samples. Thread-safe. */
enum status shard_set_get(struct shard_set *s, uint64_t index, int32_t *ids,
                          struct error *e) MUST_CHECK;
/* Reads every file again from start to end and checks all there is to check. */
enum status shard_set_verify(struct shard_set *s, void (*progress)(void *, uint64_t bytes),
                             void *arg, struct error *e) MUST_CHECK;
/* For --list: file names and sizes by shard number. */
uint32_t shard_set_shards(const struct shard_set *s);
struct shard_info {
    const char *file;
    uint64_t samples, bytes, digest;
};
struct shard_info shard_set_info(const struct shard_set *s, uint32_t shard);
const char *shard_set_provenance(const struct shard_set *s); /* JSON; NULL when there is none */
const char *shard_set_group_documents(const struct shard_set *s);
const char *shard_set_separator(const struct shard_set *s);
uint64_t shard_set_id(const struct shard_set *s);
enum dtype shard_set_dtype(const struct shard_set *s);

#endif
