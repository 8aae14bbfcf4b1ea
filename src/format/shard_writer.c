/* shard_writer.c - samples into blocks, blocks into shards, shards into a set that appears at once.
 */
#define _GNU_SOURCE
#include "format/shard_set.h"
#include "format/jsonl.h"
#include "format/shard_private.h"
#include "format/shard_queue.h"
#include "format/token_ids.h"
#include "base/hash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITEBACK_BYTES ((uint64_t)8 << 20)

struct shard_writer {
    char *dir, *partial;
    bool made_dir, locked, finished;
    int lock_fd;
    struct vocab_info vocab;
    uint32_t block_size, id_bytes;
    uint64_t shard_bytes;
    char *group_documents, *separator, *provenance;
    /* of the thread that puts samples */
    struct shard_queue *queue;
    uint8_t *block;               /* of the queue, being filled; NULL when none is */
    uint64_t block_samples, used; /* capacity and contents of a block, in samples */
    uint64_t samples;             /* in the blocks before it */
    struct hash_state *digest;
    /* of the queue's thread, and the caller's when that is idle: the shard being written */
    struct output out;
    uint64_t set_id; /* 0 until the first block is known */
    bool shard_open;
    struct container_writer container;
    uint64_t shard_samples;
    uint64_t begun_bytes; /* of the shard, whose way to the disk has begun */
    json_t *shards;       /* complete ones */
};

/* --- opening ---------------------------------------------------------------------------------- */

static enum status check_options(const struct shard_options *o, struct error *e)
{
    if (o->block_size < 2 || o->block_size > SHARD_BLOCK_SIZE_MAX)
        return error_set(e, STATUS_USAGE, "block size %u, expected 2 to %u tokens", o->block_size,
                         SHARD_BLOCK_SIZE_MAX);
    return STATUS_OK;
}

/* DIR/.partial, locked. What a killed writer left there is removed. */
static enum status lock_partial(struct shard_writer *w, struct error *e)
{
    if (mkdir(w->partial, 0777) != 0 && errno != EEXIST)
        return error_errno(e, "cannot create folder %s", w->partial);
    w->lock_fd = open(w->partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->lock_fd < 0)
        return error_errno(e, "cannot open folder %s", w->partial);
    if (flock(w->lock_fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return error_set(e, STATUS_FAILED, "another program is writing a shard set to %s", w->dir);
    w->locked = true;
    return shard_remove_files(w->partial, e);
}

static enum status prepare_folder(struct shard_writer *w, bool overwrite, struct error *e)
{
    char *index = path_join(w->dir, SHARD_INDEX_NAME);
    enum status st = STATUS_OK;
    if (!index)
        return error_memory(e, strlen(w->dir), "a file name");
    if (!overwrite && path_exists(index))
        TRY_OUT(error_set(e, STATUS_FAILED,
                          "%s already holds a shard set and overwriting it was not asked for",
                          w->dir));
    w->made_dir = !path_exists(w->dir);
    TRY_OUT(dir_create(w->dir, e));
    TRY_OUT(lock_partial(w, e));
out:
    free(index);
    return st;
}

static enum status write_block(void *arg, const uint8_t *block, uint64_t samples, struct error *e);

/* Copies what the options point to and makes the queue of blocks. */
static enum status take_options(struct shard_writer *w, const char *dir,
                                const struct shard_options *o, struct error *e)
{
    uint64_t sample_bytes = (uint64_t)o->block_size * w->id_bytes;
    /* Small shards get small blocks, so that a shard's size is met within a sixteenth. */
    uint64_t target = (uint64_t)min_i64((int64_t)(o->shard_bytes / 16), SHARD_DATA_BYTES);
    w->block_size = o->block_size;
    w->shard_bytes = o->shard_bytes;
    w->block_samples = target / sample_bytes ? target / sample_bytes : 1;
    w->dir = strdup(dir);
    w->partial = path_join(dir, ".partial");
    w->group_documents = strdup(o->group_documents ? o->group_documents : "all");
    w->separator = strdup(o->separator ? o->separator : "none");
    w->provenance = o->provenance ? strdup(o->provenance) : NULL;
    w->digest = hash_new();
    w->shards = json_array();
    if (!w->dir || !w->partial || !w->group_documents || !w->separator || !w->digest ||
        !w->shards || (o->provenance && !w->provenance))
        return error_memory(e, 1024, "a shard writer");
    struct shard_queue_sink sink = {write_block, w};
    return shard_queue_new(&w->queue, w->block_samples * sample_bytes, &sink, e);
}

enum status shard_writer_open(struct shard_writer **out_w, const char *dir, bool overwrite,
                              const struct vocab_info *vocab, const struct shard_options *o,
                              struct error *e)
{
    enum status st;
    *out_w = NULL;
    TRY(check_options(o, e));
    struct shard_writer *w = calloc(1, sizeof *w);
    if (!w)
        return error_memory(e, sizeof *w, "a shard writer");
    w->lock_fd = w->out.fd = -1;
    w->vocab = *vocab;
    w->id_bytes = vocab->size <= 65536 ? 2 : 4;
    TRY_OUT(take_options(w, dir, o, e));
    TRY_OUT(prepare_folder(w, overwrite, e));
    *out_w = w;
    w = NULL;
out:
    shard_writer_free(w);
    return st;
}

/* --- one shard -------------------------------------------------------------------------------- */

/* {"block_size":...,...}: the "shrd" block. */
static bool describe(const struct shard_writer *w, struct strbuf *json)
{
    return strbuf_printf(json, "{\"block_size\":%" PRIu32 ",\"group_documents\":", w->block_size) &&
           jsonl_append_string(json, w->group_documents, strlen(w->group_documents)) &&
           strbuf_puts(json, ",\"separator\":") &&
           jsonl_append_string(json, w->separator, strlen(w->separator)) && strbuf_putc(json, '}');
}

/* From what the set is and the block that begins it, so that the same work gives the same bytes. */
static enum status choose_set_id(struct shard_writer *w, const uint8_t *first, uint64_t bytes,
                                 struct error *e)
{
    struct strbuf text = {0};
    enum status st;
    uint64_t block = hash64(first, bytes);
    TRY_OUT(vocab_info_to_json(&w->vocab, &text, e));
    if (!describe(w, &text) || !strbuf_printf(&text, "%016" PRIx64, block) ||
        !strbuf_puts(&text, w->provenance ? w->provenance : ""))
        TRY_OUT(error_memory(e, text.length, "a shard description"));
    w->set_id = hash64(text.data, text.length);
    w->set_id += w->set_id == 0;
out:
    strbuf_release(&text);
    return st;
}

static enum status write_preamble(struct shard_writer *w, struct error *e)
{
    struct strbuf json = {0};
    struct container_writer *c = &w->container;
    struct container_header h = {.kind = "SHD",
                                 .major = SHARD_MAJOR,
                                 .dtype = w->id_bytes == 2 ? DTYPE_U16 : DTYPE_U32,
                                 .count = CONTAINER_COUNT_UNKNOWN,
                                 .set_id = w->set_id,
                                 .part = (uint32_t)json_array_size(w->shards),
                                 .parts = CONTAINER_PARTS_UNKNOWN};
    enum status st;
    TRY_OUT(container_write_header(c, &w->out, &h, e));
    TRY_OUT(vocab_info_to_json(&w->vocab, &json, e));
    TRY_OUT(container_write_block(c, "vocb", json.data, json.length, NULL, e));
    if (w->provenance)
        TRY_OUT(container_write_block(c, "prov", w->provenance, strlen(w->provenance), NULL, e));
    strbuf_clear(&json);
    if (!describe(w, &json))
        TRY_OUT(error_memory(e, 128, "a shard description"));
    TRY_OUT(container_write_block(c, "shrd", json.data, json.length, NULL, e));
out:
    strbuf_release(&json);
    return st;
}

static enum status begin_shard(struct shard_writer *w, const uint8_t *block, uint64_t bytes,
                               struct error *e)
{
    char name[32];
    snprintf(name, sizeof name, SHARD_NAME_FORMAT, json_array_size(w->shards));
    char *path = path_join(w->partial, name);
    if (!path)
        return error_memory(e, strlen(w->partial) + sizeof name, "a file name");
    enum status st = output_open(&w->out, path, OUTPUT_BINARY, e);
    free(path);
    if (st != STATUS_OK)
        return st;
    w->shard_open = true;
    w->shard_samples = w->begun_bytes = 0;
    if (!w->set_id)
        TRY(choose_set_id(w, block, bytes, e));
    return write_preamble(w, e);
}

/* The shard is durable after this, under its final name inside .partial. */
static enum status end_shard(struct shard_writer *w, struct error *e)
{
    struct container_trailer t;
    char name[32], digest[20];
    TRY(container_write_trailer(&w->container, w->shard_samples * w->block_size, &t, e));
    TRY(output_commit(&w->out, e));
    snprintf(name, sizeof name, SHARD_NAME_FORMAT, json_array_size(w->shards));
    snprintf(digest, sizeof digest, "%016" PRIx64, t.digest);
    json_t *entry =
        json_pack("{s:s, s:I, s:I, s:s}", "file", name, "samples", (json_int_t)w->shard_samples,
                  "bytes", (json_int_t)t.file_bytes, "digest", digest);
    if (!entry || json_array_append_new(w->shards, entry) != 0)
        return error_memory(e, 256, "an index entry");
    container_writer_release(&w->container);
    output_close(&w->out);
    w->shard_open = false;
    return STATUS_OK;
}

/* Writing to disk begins while the rest is made; fsync only waits for what is left of it. */
static void begin_writeback(struct shard_writer *w)
{
    uint64_t there = w->out.offset - w->out.used;
    if (there - w->begun_bytes < WRITEBACK_BYTES)
        return;
    (void)sync_file_range(w->out.fd, (off_t)w->begun_bytes, (off_t)(there - w->begun_bytes),
                          SYNC_FILE_RANGE_WRITE);
    w->begun_bytes = there;
}

/* On the queue's thread. The ids are in the order of the file already. */
static enum status write_block(void *arg, const uint8_t *block, uint64_t samples, struct error *e)
{
    struct shard_writer *w = arg;
    uint64_t bytes = samples * w->block_size * w->id_bytes;
    if (!w->shard_open)
        TRY(begin_shard(w, block, bytes, e));
    TRY(container_write_block(&w->container, "DATA", block, bytes, NULL, e));
    begin_writeback(w);
    w->shard_samples += samples;
    uint64_t next = 2 * CONTAINER_BLOCK_BYTES + round_up_i64((int64_t)bytes, CONTAINER_ALIGN);
    return w->out.offset + next > w->shard_bytes ? end_shard(w, e) : STATUS_OK;
}

/* --- samples ---------------------------------------------------------------------------------- */

static void put_block(struct shard_writer *w)
{
    uint64_t n = w->used * w->block_size;
    token_swap(w->block, n, w->id_bytes);
    hash_update(w->digest, w->block, n * w->id_bytes);
    shard_queue_put(w->queue, w->used);
    w->samples += w->used;
    w->used = 0;
    w->block = NULL;
}

enum status shard_writer_put_native(struct shard_writer *w, const void *ids, uint32_t id_bytes,
                                    uint64_t samples, struct error *e)
{
    size_t sample_bytes = (size_t)w->block_size * w->id_bytes;
    const uint8_t *p = ids;
    if (samples && token_max(ids, samples * w->block_size, id_bytes) >= w->vocab.size) {
        size_t bad = token_first_over(ids, samples * w->block_size, id_bytes, w->vocab.size);
        return error_set(e, STATUS_DATA, "sample %" PRIu64 ": id %u, but the vocabulary has %u ids",
                         w->samples + w->used + bad / w->block_size, token_at(ids, bad, id_bytes),
                         w->vocab.size);
    }
    while (samples > 0) {
        uint64_t room = w->block_samples - w->used, take = samples < room ? samples : room;
        size_t n = take * w->block_size;
        if (!w->block)
            TRY(shard_queue_take(w->queue, &w->block, e));
        token_convert(w->block + w->used * sample_bytes, w->id_bytes, p, id_bytes, n);
        w->used += take;
        p += n * id_bytes;
        samples -= take;
        if (w->used == w->block_samples)
            put_block(w);
    }
    return STATUS_OK;
}

enum status shard_writer_put(struct shard_writer *w, const uint32_t *ids, struct error *e)
{
    return shard_writer_put_native(w, ids, 4, 1, e);
}

/* --- the set ---------------------------------------------------------------------------------- */

static enum status write_index(const struct shard_writer *w, const char *path, struct error *e)
{
    struct strbuf vocab = {0};
    char set_id[20], digest[20], *text = NULL;
    json_t *root = NULL, *vocabulary = NULL, *provenance = NULL;
    enum status st;
    snprintf(set_id, sizeof set_id, "%016" PRIx64, w->set_id);
    snprintf(digest, sizeof digest, "%016" PRIx64, hash_digest(w->digest));
    TRY_OUT(vocab_info_to_json(&w->vocab, &vocab, e));
    vocabulary = json_loadb(vocab.data, vocab.length, 0, NULL);
    root = json_pack(
        "{s:s, s:i, s:s, s:I, s:s, s:I, s:I, s:s, s:s, s:s, s:O, s:O}", "format", "shard-set",
        "version", 1, "set_id", set_id, "block_size", (json_int_t)w->block_size, "dtype",
        w->id_bytes == 2 ? "u16" : "u32", "samples", (json_int_t)w->samples, "tokens",
        (json_int_t)(w->samples * w->block_size), "group_documents", w->group_documents,
        "separator", w->separator, "digest", digest, "vocabulary", vocabulary, "shards", w->shards);
    if (!root)
        TRY_OUT(error_memory(e, 1024, "an index"));
    if (w->provenance) {
        provenance = json_loads(w->provenance, JSON_ALLOW_NUL, NULL);
        if (!provenance || json_object_set(root, "provenance", provenance) != 0)
            TRY_OUT(error_set(e, STATUS_FAILED, "the provenance is not a JSON object"));
    }
    text = json_dumps(root, JSON_INDENT(1));
    if (!text)
        TRY_OUT(error_memory(e, 1024, "an index"));
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in place of the NUL: a text file ends with a newline */
    TRY_OUT(file_write_atomic(path, text, bytes + 1, e));
out:
    free(text);
    json_decref(root);
    json_decref(vocabulary);
    json_decref(provenance);
    strbuf_release(&vocab);
    return st;
}

static enum status move_shards(const struct shard_writer *w, struct error *e)
{
    enum status st = STATUS_OK;
    char *from = NULL, *to = NULL, name[32];
    for (size_t i = 0; i < json_array_size(w->shards); i++) {
        snprintf(name, sizeof name, SHARD_NAME_FORMAT, i);
        free(from);
        free(to);
        from = path_join(w->partial, name);
        to = path_join(w->dir, name);
        if (!from || !to)
            TRY_OUT(error_memory(e, strlen(w->partial) + sizeof name, "a file name"));
        if (rename(from, to) != 0)
            TRY_OUT(error_errno(e, "renaming the finished %s into place", to));
    }
    st = dir_sync(w->dir, e);
out:
    free(from);
    free(to);
    return st;
}

/* The old index goes first and the new one comes last: at every moment the folder is the old set,
 * no set, or the new set. */
static enum status publish(struct shard_writer *w, struct error *e)
{
    char *index = path_join(w->dir, SHARD_INDEX_NAME);
    enum status st = STATUS_OK;
    if (!index)
        return error_memory(e, strlen(w->dir), "a file name");
    if (unlink(index) != 0 && errno != ENOENT)
        TRY_OUT(error_errno(e, "removing the old %s", index));
    TRY_OUT(dir_sync(w->dir, e));
    TRY_OUT(shard_remove_files(w->dir, e));
    TRY_OUT(move_shards(w, e));
    TRY_OUT(write_index(w, index, e));
out:
    free(index);
    return st;
}

enum status shard_writer_finish(struct shard_writer *w, uint64_t *samples, uint32_t *shards,
                                struct error *e)
{
    if (w->used)
        put_block(w);
    TRY(shard_queue_drain(w->queue, e));
    if (w->shard_open)
        TRY(end_shard(w, e));
    if (w->samples == 0)
        return error_set(e, STATUS_DATA, "%s: no sample of %u tokens to write", w->dir,
                         w->block_size);
    TRY(publish(w, e));
    w->finished = true;
    if (samples)
        *samples = w->samples;
    if (shards)
        *shards = (uint32_t)json_array_size(w->shards);
    return STATUS_OK;
}

void shard_writer_free(struct shard_writer *w)
{
    struct error ignored;
    if (!w)
        return;
    shard_queue_free(w->queue);
    container_writer_release(&w->container);
    output_close(&w->out);
    if (w->locked && (w->finished || shard_remove_files(w->partial, &ignored) == STATUS_OK))
        rmdir(w->partial);
    if (w->lock_fd >= 0)
        close(w->lock_fd);
    if (w->made_dir && !w->finished)
        rmdir(w->dir); /* fails, rightly, when something else is in it */
    json_decref(w->shards);
    hash_free(w->digest);
    free(w->dir);
    free(w->partial);
    free(w->group_documents);
    free(w->separator);
    free(w->provenance);
    free(w);
}
