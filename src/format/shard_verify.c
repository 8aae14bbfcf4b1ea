/* shard_verify.c - reads a whole set once, sequentially and through a buffer, so that memory stays
 * small however large the set is. */
#include "format/shard_set_private.h"
#include "base/hash.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_LIMIT ((uint64_t)16 << 20)

struct verify {
    struct shard_set *set;
    struct hash_state *digest;
    uint8_t *buffer;
    uint64_t capacity;
    void (*progress)(void *, uint64_t);
    void *arg;
};

static enum status reserve(struct verify *v, uint64_t bytes, struct error *e)
{
    if (bytes <= v->capacity)
        return STATUS_OK;
    free(v->buffer);
    v->capacity = 0;
    v->buffer = malloc(bytes);
    if (!v->buffer)
        return error_memory(e, bytes, "a block");
    v->capacity = bytes;
    return STATUS_OK;
}

static enum status verify_block(struct verify *v, uint32_t shard, struct container_reader *r,
                                const struct container_block *b, struct error *e)
{
    bool data = strcmp(b->tag, "DATA") == 0;
    uint64_t limit = data ? v->set->shards[shard].data[0].payload_bytes : TEXT_LIMIT;
    if (!data && container_tag_optional(b->tag) && strcmp(b->tag, "vocb") != 0 &&
        strcmp(b->tag, "shrd") != 0)
        return container_skip_payload(r, b, e);
    if (b->payload_bytes > limit)
        return error_set(e, STATUS_DATA,
                         "%s: block \"%s\" at byte %" PRIu64 " has %" PRIu64
                         " bytes, the limit is %" PRIu64,
                         r->in->name, b->tag, b->payload_offset, b->payload_bytes, limit);
    TRY(reserve(v, b->payload_bytes + 1, e));
    TRY(container_read_payload(r, b, v->buffer, e));
    if (data) {
        hash_update(v->digest, v->buffer, b->payload_bytes);
        return shard_check_ids(v->set, shard, b, v->buffer, e);
    }
    v->buffer[b->payload_bytes] = '\0';
    return shard_check_text(v->set, shard, b->tag, (const char *)v->buffer, b->payload_bytes, e);
}

static enum status verify_shard(struct verify *v, uint32_t number, uint64_t before, struct error *e)
{
    const struct shard *shard = &v->set->shards[number];
    struct input in = {.fd = -1};
    struct container_reader r = {0};
    struct container_block b;
    struct container_trailer t = {0};
    bool done = false;
    enum status st;
    TRY_OUT(input_open(&in, shard->path, e));
    TRY_OUT(container_read_header(&r, &in, "SHD", SHARD_MAJOR, e));
    TRY_OUT(shard_check_header(v->set, number, &r.header, e));
    for (;;) {
        TRY_OUT(container_next_block(&r, UINT64_MAX, &b, &done, &t, e));
        if (done)
            break;
        TRY_OUT(verify_block(v, number, &r, &b, e));
        if (v->progress)
            v->progress(v->arg, before + in.offset);
    }
    if (t.digest != shard->digest)
        TRY_OUT(error_set(e, STATUS_DATA, "%s: digest %016" PRIx64 ", the index says %016" PRIx64,
                          shard->path, t.digest, shard->digest));
out:
    container_reader_release(&r);
    input_close(&in);
    return st;
}

enum status shard_set_verify(struct shard_set *s, void (*progress)(void *, uint64_t bytes),
                             void *arg, struct error *e)
{
    struct verify v = {.set = s, .digest = hash_new(), .progress = progress, .arg = arg};
    enum status st = STATUS_OK;
    uint64_t before = 0;
    if (!v.digest)
        TRY_OUT(error_memory(e, 1024, "a digest"));
    for (uint32_t i = 0; i < s->shard_count; i++) {
        TRY_OUT(verify_shard(&v, i, before, e));
        before += s->shards[i].bytes;
    }
    if (hash_digest(v.digest) != s->digest)
        TRY_OUT(error_set(e, STATUS_DATA,
                          "%s: the digest of all samples is %016" PRIx64
                          ", index.json says %016" PRIx64,
                          s->dir, hash_digest(v.digest), s->digest));
out:
    hash_free(v.digest);
    free(v.buffer);
    return st;
}
