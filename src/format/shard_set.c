/* shard_set.c - maps the shards of a set and hands out samples, each block proved on first use. */
#include "format/shard_set_private.h"
#include "format/shard_private.h"
#include "format/token_ids.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TEXT_LIMIT ((uint64_t)16 << 20)

/* --- checks shared with shard_verify.c -------------------------------------------------------- */

enum status shard_check_header(const struct shard_set *s, uint32_t shard,
                               const struct container_header *h, struct error *e)
{
    const char *path = s->shards[shard].path;
    if (h->set_id != s->set_id)
        return error_set(e, STATUS_DATA,
                         "%s belongs to set %016" PRIx64 ", the index says %016" PRIx64, path,
                         h->set_id, s->set_id);
    if (h->part != shard)
        return error_set(e, STATUS_DATA, "%s is shard %u of its set, the index says %u", path,
                         h->part, shard);
    if (h->dtype != s->dtype)
        return error_set(e, STATUS_DATA, "%s holds ids of type %s, the index says %s", path,
                         dtype_name(h->dtype), dtype_name(s->dtype));
    return STATUS_OK;
}

static enum status check_block_size(const struct shard_set *s, const char *path, const char *text,
                                    size_t bytes, struct error *e)
{
    json_t *root = json_loadb(text, bytes, 0, NULL);
    json_int_t n = json_integer_value(json_object_get(root, "block_size"));
    json_decref(root);
    if (n == (json_int_t)s->block_size)
        return STATUS_OK;
    return error_set(e, STATUS_DATA, "%s has samples of %lld tokens, the index says %u", path,
                     (long long)n, s->block_size);
}

enum status shard_check_text(const struct shard_set *s, uint32_t shard, const char *tag,
                             const char *text, size_t bytes, struct error *e)
{
    const char *path = s->shards[shard].path;
    struct vocab_info vocab;
    if (strcmp(tag, "shrd") == 0)
        return check_block_size(s, path, text, bytes, e);
    if (strcmp(tag, "vocb") != 0)
        return STATUS_OK;
    TRY(vocab_info_from_json(text, bytes, path, &vocab, e));
    return vocab_info_match(&vocab, path, &s->vocab, "the index", e);
}

enum status shard_check_ids(const struct shard_set *s, uint32_t shard,
                            const struct container_block *b, const void *payload, struct error *e)
{
    size_t n = b->payload_bytes / s->id_bytes, i = 0;
    if (HOST_IS_LITTLE_ENDIAN && token_max(payload, n, s->id_bytes) < s->vocab.size)
        return STATUS_OK;
    for (const uint8_t *p = payload; i < n; i++, p += s->id_bytes) {
        uint32_t id = s->id_bytes == 2 ? le16_get(p) : le32_get(p);
        if (id >= s->vocab.size)
            return error_set(
                e, STATUS_DATA, "%s: id %u at byte %" PRIu64 ", but the vocabulary has %u ids",
                s->shards[shard].path, id, b->payload_offset + i * s->id_bytes, s->vocab.size);
    }
    return STATUS_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* The small blocks, read and compared with the index. */
static enum status check_texts(const struct shard_set *s, uint32_t shard, int fd,
                               const struct container_block *blocks, uint32_t n, struct error *e)
{
    const char *path = s->shards[shard].path;
    enum status st = STATUS_OK;
    char *text = NULL;
    unsigned seen = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct container_block *b = &blocks[i];
        if (strcmp(b->tag, "DATA") == 0 || strcmp(b->tag, "prov") == 0)
            continue;
        bool vocb = strcmp(b->tag, "vocb") == 0, shrd = strcmp(b->tag, "shrd") == 0;
        if (!vocb && !shrd && container_tag_optional(b->tag))
            continue;
        if ((!vocb && !shrd) || b->payload_bytes > TEXT_LIMIT)
            TRY_OUT(error_set(e, STATUS_DATA,
                              "%s: block \"%s\" at byte %" PRIu64 " is not expected", path, b->tag,
                              b->payload_offset));
        free(text);
        text = malloc(b->payload_bytes + 1);
        if (!text)
            TRY_OUT(error_memory(e, b->payload_bytes, "a block"));
        text[b->payload_bytes] = '\0';
        TRY_OUT(fd_read_at(fd, path, b->payload_offset, text, b->payload_bytes, e));
        TRY_OUT(container_check_payload(b, path, text, e));
        TRY_OUT(shard_check_text(s, shard, b->tag, text, b->payload_bytes, e));
        seen |= vocb ? 1u : 2u;
    }
    if (seen != 3)
        TRY_OUT(
            error_set(e, STATUS_DATA, "%s has no \"%s\" block", path, seen & 1 ? "shrd" : "vocb"));
out:
    free(text);
    return st;
}

/* Keeps the DATA blocks; proves that a sample's place can be computed. Takes blocks over. */
static enum status take_data(const struct shard_set *s, struct shard *shard,
                             struct container_block *blocks, uint32_t n, struct error *e)
{
    uint64_t sample_bytes = (uint64_t)s->block_size * s->id_bytes;
    uint32_t kept = 0;
    shard->data = blocks;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(blocks[i].tag, "DATA") == 0)
            blocks[kept++] = blocks[i];
    shard->data_count = kept;
    for (uint32_t i = 0; i < kept; i++) {
        uint64_t bytes = blocks[i].payload_bytes;
        if (bytes == 0 || bytes % sample_bytes || bytes > blocks[0].payload_bytes ||
            (i + 1 < kept && bytes != blocks[0].payload_bytes))
            return error_set(e, STATUS_DATA,
                             "%s: block at byte %" PRIu64 " has %" PRIu64
                             " bytes, expected whole samples of %" PRIu64 " bytes and equal blocks",
                             shard->path, blocks[i].payload_offset, bytes, sample_bytes);
    }
    shard->block_samples = kept ? blocks[0].payload_bytes / sample_bytes : 1;
    shard->verified = calloc(kept + 1, sizeof *shard->verified);
    return shard->verified ? STATUS_OK : error_memory(e, kept, "block states");
}

static enum status map_shard(struct shard *shard, int fd, struct error *e)
{
    void *map = mmap(NULL, shard->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return error_errno(e, "cannot map %s", shard->path);
    shard->map = map;
    return STATUS_OK;
}

static enum status open_shard(struct shard_set *s, uint32_t number, struct error *e)
{
    struct shard *shard = &s->shards[number];
    struct container_header h;
    struct container_trailer t;
    struct container_block *blocks = NULL;
    uint32_t n;
    enum status st;
    int fd = open(shard->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return error_set(e, STATUS_DATA, "%s is missing: shard %u of the set in %s", shard->path,
                         number, s->dir);
    if (fd < 0)
        return error_errno(e, "cannot open %s", shard->path);
    TRY_OUT(container_index(fd, shard->path, "SHD", SHARD_MAJOR, &h, &t, &blocks, &n, e));
    TRY_OUT(shard_check_header(s, number, &h, e));
    if (t.file_bytes != shard->bytes || t.digest != shard->digest ||
        t.count != shard->samples * s->block_size)
        TRY_OUT(error_set(e, STATUS_DATA,
                          "%s has %" PRIu64 " tokens, %" PRIu64 " bytes and digest %016" PRIx64
                          ", the index says %" PRIu64 ", %" PRIu64 " and %016" PRIx64,
                          shard->path, t.count, t.file_bytes, t.digest,
                          shard->samples * s->block_size, shard->bytes, shard->digest));
    TRY_OUT(check_texts(s, number, fd, blocks, n, e));
    TRY_OUT(map_shard(shard, fd, e));
    st = take_data(s, shard, blocks, n, e);
    blocks = NULL;
out:
    free(blocks);
    close(fd);
    return st;
}

enum status shard_set_open(struct shard_set **out_s, const char *dir, struct error *e)
{
    enum status st;
    struct shard_set *s = calloc(1, sizeof *s);
    *out_s = NULL;
    if (!s || !(s->dir = strdup(dir)))
        TRY_OUT(error_memory(e, sizeof *s, "a shard set"));
    TRY_OUT(shard_index_read(s, e));
    for (uint32_t i = 0; i < s->shard_count; i++)
        TRY_OUT(open_shard(s, i, e));
    *out_s = s;
    s = NULL;
out:
    shard_set_close(s);
    return st;
}

void shard_set_close(struct shard_set *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->shard_count; i++) {
        struct shard *shard = &s->shards[i];
        if (shard->map)
            munmap((void *)shard->map, shard->bytes);
        free(shard->file);
        free(shard->path);
        free(shard->data);
        free(shard->verified);
    }
    free(s->shards);
    free(s->dir);
    free(s->group_documents);
    free(s->separator);
    free(s->provenance);
    free(s);
}

/* --- samples ---------------------------------------------------------------------------------- */

static uint32_t shard_of(const struct shard_set *s, uint64_t index)
{
    uint32_t low = 0, high = s->shard_count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (s->shards[middle].first_sample <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Two threads may both prove a block; both find the same. */
static enum status prove_block(struct shard_set *s, uint32_t number, uint32_t block,
                               struct error *e)
{
    struct shard *shard = &s->shards[number];
    const struct container_block *b = &shard->data[block];
    if (atomic_load_explicit(&shard->verified[block], memory_order_acquire))
        return STATUS_OK;
    TRY(container_check_payload(b, shard->path, shard->map + b->payload_offset, e));
    TRY(shard_check_ids(s, number, b, shard->map + b->payload_offset, e));
    atomic_store_explicit(&shard->verified[block], 1, memory_order_release);
    return STATUS_OK;
}

enum status shard_set_get(struct shard_set *s, uint64_t index, int32_t *ids, struct error *e)
{
    if (index >= s->samples)
        return error_set(e, STATUS_USAGE, "%s has %" PRIu64 " samples, wanted number %" PRIu64,
                         s->dir, s->samples, index);
    uint32_t number = shard_of(s, index);
    const struct shard *shard = &s->shards[number];
    uint64_t local = index - shard->first_sample;
    uint32_t block = (uint32_t)(local / shard->block_samples);
    TRY(prove_block(s, number, block, e));
    const uint8_t *p = shard->map + shard->data[block].payload_offset +
                       local % shard->block_samples * s->block_size * s->id_bytes;
    if (HOST_IS_LITTLE_ENDIAN) {
        token_convert(ids, 4, p, s->id_bytes, s->block_size);
        return STATUS_OK;
    }
    for (uint32_t i = 0; i < s->block_size; i++, p += s->id_bytes)
        ids[i] = (int32_t)(s->id_bytes == 2 ? le16_get(p) : le32_get(p));
    return STATUS_OK;
}

/* --- looking ---------------------------------------------------------------------------------- */

const struct vocab_info *shard_set_vocab(const struct shard_set *s)
{
    return &s->vocab;
}

uint64_t shard_set_samples(const struct shard_set *s)
{
    return s->samples;
}

uint32_t shard_set_block_size(const struct shard_set *s)
{
    return s->block_size;
}

uint64_t shard_set_digest(const struct shard_set *s)
{
    return s->digest;
}

uint32_t shard_set_shards(const struct shard_set *s)
{
    return s->shard_count;
}

struct shard_info shard_set_info(const struct shard_set *s, uint32_t shard)
{
    const struct shard *x = &s->shards[shard];
    return (struct shard_info){x->file, x->samples, x->bytes, x->digest};
}

const char *shard_set_provenance(const struct shard_set *s)
{
    return s->provenance;
}

const char *shard_set_group_documents(const struct shard_set *s)
{
    return s->group_documents;
}

const char *shard_set_separator(const struct shard_set *s)
{
    return s->separator;
}

uint64_t shard_set_id(const struct shard_set *s)
{
    return s->set_id;
}

enum dtype shard_set_dtype(const struct shard_set *s)
{
    return s->dtype;
}
