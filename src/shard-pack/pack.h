/* pack.h - the work of shard-pack: inputs in, a shard set out. */
#ifndef SHARD_PACK_PACK_H
#define SHARD_PACK_PACK_H

#include "shard-pack/source.h"
#include "format/shard_set.h"

struct pack_options {
    const char *output;
    bool overwrite, quiet;
    struct shard_options shard; /* provenance is made here */
    struct source_options source;
    const struct vocab_info *expected; /* of every input; NULL = whatever the first one has */
    const char *expected_name;
    uint64_t group_documents; /* 0 = all */
    bool separator_eot;
    bool shuffle;
    uint64_t seed, shuffle_memory_bytes;
    const char *temporary_dir; /* NULL: the output folder */
    char *const *inputs;
    size_t input_count; /* 0 = stdin */
};

struct pack_result {
    uint64_t tokens, documents, separators, dropped, samples, bad;
    uint32_t shards;
};

enum status pack_run(const struct pack_options *o, struct pack_result *result,
                     struct error *e) MUST_CHECK;

#endif
