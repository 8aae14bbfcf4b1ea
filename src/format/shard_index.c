/* shard_index.c - index.json: what a shard set claims to be. */
#include "format/shard_private.h"
#include "format/shard_set_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_LIMIT ((size_t)256 << 20)

struct index {
    const char *path;
    const json_t *root;
};

static enum status get_count(const char *path, const json_t *object, const char *key, uint64_t min,
                             uint64_t max, uint64_t *out, struct error *e)
{
    const json_t *v = json_object_get(object, key);
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0 || (uint64_t)n < min || (uint64_t)n > max)
        return error_set(e, STATUS_DATA,
                         "%s: \"%s\" is missing or is not a number between %" PRIu64
                         " and %" PRIu64,
                         path, key, min, max);
    *out = (uint64_t)n;
    return STATUS_OK;
}

static enum status get_hex(const char *path, const json_t *object, const char *key, uint64_t *out,
                           struct error *e)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || strspn(text, "0123456789abcdefABCDEF") != 16 || text[16])
        return error_set(e, STATUS_DATA, "%s: \"%s\" is missing or is not 16 hexadecimal digits",
                         path, key);
    *out = strtoull(text, NULL, 16);
    return STATUS_OK;
}

static enum status get_text(const char *path, const json_t *object, const char *key, char **out,
                            struct error *e)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text)
        return error_set(e, STATUS_DATA, "%s: \"%s\" is missing or is not a string", path, key);
    *out = strdup(text);
    return *out ? STATUS_OK : error_memory(e, strlen(text) + 1, "a string");
}

static enum status read_vocabulary(struct shard_set *s, const struct index *in, struct error *e)
{
    const json_t *v = json_object_get(in->root, "vocabulary");
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    if (!text)
        return error_set(e, STATUS_DATA, "%s: \"vocabulary\" is missing", in->path);
    enum status st = vocab_info_from_json(text, strlen(text), in->path, &s->vocab, e);
    free(text);
    return st;
}

static enum status read_header(struct shard_set *s, const struct index *in, struct error *e)
{
    uint64_t n = 0;
    char *text = NULL;
    const json_t *provenance = json_object_get(in->root, "provenance");
    const char *format = json_string_value(json_object_get(in->root, "format"));
    if (!format || strcmp(format, "shard-set") != 0)
        return error_set(e, STATUS_DATA, "%s: \"format\" is \"%.40s\", expected \"shard-set\"",
                         in->path, format ? format : "");
    TRY(get_count(in->path, in->root, "version", 1, UINT32_MAX, &n, e));
    if (n != 1)
        return error_set(e, STATUS_DATA, "%s: version %" PRIu64 ", this program reads 1", in->path,
                         n);
    TRY(get_hex(in->path, in->root, "set_id", &s->set_id, e));
    TRY(get_hex(in->path, in->root, "digest", &s->digest, e));
    TRY(get_count(in->path, in->root, "block_size", 2, SHARD_BLOCK_SIZE_MAX, &n, e));
    s->block_size = (uint32_t)n;
    TRY(get_text(in->path, in->root, "dtype", &text, e));
    s->dtype = strcmp(text, "u16") == 0 ? DTYPE_U16 : DTYPE_U32;
    s->id_bytes = (uint32_t)dtype_bytes(s->dtype);
    bool known = s->dtype == DTYPE_U16 || strcmp(text, "u32") == 0;
    free(text);
    if (!known)
        return error_set(e, STATUS_DATA, "%s: \"dtype\" is neither u16 nor u32", in->path);
    TRY(get_text(in->path, in->root, "group_documents", &s->group_documents, e));
    TRY(get_text(in->path, in->root, "separator", &s->separator, e));
    TRY(read_vocabulary(s, in, e));
    if (provenance && !(s->provenance = json_dumps(provenance, JSON_COMPACT)))
        return error_memory(e, 1024, "the provenance");
    return STATUS_OK;
}

static enum status read_shard(struct shard_set *s, const struct index *in, const json_t *entry,
                              struct shard *shard, struct error *e)
{
    TRY(get_text(in->path, entry, "file", &shard->file, e));
    if (!*shard->file || strchr(shard->file, '/'))
        return error_set(e, STATUS_DATA, "%s: \"%s\" is not the name of a file in the folder",
                         in->path, shard->file);
    shard->path = path_join(s->dir, shard->file);
    if (!shard->path)
        return error_memory(e, strlen(s->dir), "a file name");
    uint64_t most = (uint64_t)INT64_MAX / s->block_size / 8;
    TRY(get_count(in->path, entry, "samples", 1, most, &shard->samples, e));
    TRY(get_count(in->path, entry, "bytes", 128, INT64_MAX, &shard->bytes, e));
    TRY(get_hex(in->path, entry, "digest", &shard->digest, e));
    if (shard->samples * s->block_size * s->id_bytes > shard->bytes)
        return error_set(e, STATUS_DATA,
                         "%s: %s cannot hold %" PRIu64 " samples in %" PRIu64 " bytes", in->path,
                         shard->file, shard->samples, shard->bytes);
    shard->first_sample = s->samples;
    s->samples += shard->samples;
    if (s->samples > most)
        return error_set(e, STATUS_DATA, "%s: the shards' samples overflow", in->path);
    return STATUS_OK;
}

static enum status read_shards(struct shard_set *s, const struct index *in, struct error *e)
{
    const json_t *list = json_object_get(in->root, "shards");
    size_t n = json_array_size(list);
    uint64_t samples = 0, tokens = 0;
    if (n == 0 || n >= CONTAINER_PARTS_UNKNOWN)
        return error_set(e, STATUS_DATA, "%s: \"shards\" is missing or is not a list of shards",
                         in->path);
    s->shards = calloc(n, sizeof *s->shards);
    if (!s->shards)
        return error_memory(e, n * sizeof *s->shards, "a list of shards");
    s->shard_count = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        TRY(read_shard(s, in, json_array_get(list, i), &s->shards[i], e));
    TRY(get_count(in->path, in->root, "samples", 1, INT64_MAX, &samples, e));
    TRY(get_count(in->path, in->root, "tokens", 1, INT64_MAX, &tokens, e));
    if (samples != s->samples || tokens != samples * s->block_size)
        return error_set(e, STATUS_DATA,
                         "%s: \"samples\" %" PRIu64 " and \"tokens\" %" PRIu64
                         " do not agree with the shards, which have %" PRIu64
                         " samples of %" PRIu32,
                         in->path, samples, tokens, s->samples, s->block_size);
    return STATUS_OK;
}

enum status shard_index_read(struct shard_set *s, struct error *e)
{
    enum status st = STATUS_OK;
    char *path = path_join(s->dir, SHARD_INDEX_NAME), *text = NULL;
    size_t bytes;
    json_error_t why;
    json_t *root = NULL;
    if (!path)
        return error_memory(e, strlen(s->dir), "a file name");
    if (!path_is_dir(s->dir))
        TRY_OUT(error_set(e, path_exists(s->dir) ? STATUS_DATA : STATUS_FAILED,
                          "%s is not a folder, expected a shard set", s->dir));
    if (!path_exists(path))
        TRY_OUT(error_set(e, STATUS_DATA,
                          "%s is not a shard set: it has no " SHARD_INDEX_NAME
                          " (which is written last, so packing may not have finished)",
                          s->dir));
    TRY_OUT(file_read_all(path, INDEX_LIMIT, &text, &bytes, e));
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!root)
        TRY_OUT(error_set(e, STATUS_DATA, "%s line %d column %d: not JSON: %s", path, why.line,
                          why.column, why.text));
    struct index in = {path, root};
    TRY_OUT(read_header(s, &in, e));
    TRY_OUT(read_shards(s, &in, e));
out:
    json_decref(root);
    free(text);
    free(path);
    return st;
}
