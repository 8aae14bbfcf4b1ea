/* sparse_ckpt.c - a checkpoint of any model's shape that costs next to no disk: matrices and
 * AdamW's moments are zeros, which stay holes in the rank files; biases and LayerNorms carry
 * numbers. Every checksum and digest is right. usage: sparse_ckpt DIR MODEL.json RANKS     writes
 * DIR/step-00000001 and prints its name */
#include "base/checked.h"
#include "base/hash.h"
#include "base/strbuf.h"
#include "format/ckpt.h"
#include "format/container_private.h"
#include "gpt2/tensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_ELEMS ((int64_t)(CKPT_DATA_BYTES / 4))

static struct error err;
static const float zeros[CKPT_DATA_BYTES / 4];
static float block[CKPT_DATA_BYTES / 4];
static uint64_t zero_block_hash;

struct segment {
    const struct gpt2_tensor *tensor;
    enum ckpt_kind kind;
    int64_t first, count;
};

static void must(bool ok)
{
    if (!ok) {
        perror(err.status == STATUS_OK ? "sparse_ckpt" : err.message);
        exit(1);
    }
}

static bool has_numbers(const struct gpt2_tensor *t, enum ckpt_kind kind)
{
    return t->dims == 1 && kind == CKPT_MASTER;
}

static void numbers(int64_t first, int64_t n, float *x)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = 1.0f + (float)((first + i) % 1000) / 1024.0f;
}

static uint64_t digest_of(const struct gpt2_tensor *t, enum ckpt_kind kind)
{
    static struct {
        int64_t elems;
        uint64_t digest;
    } known[64]; /* of zeros: the blocks of a model repeat the same few sizes */
    uint64_t sum = 0;
    size_t k = 0;
    for (; !has_numbers(t, kind) && k < 64 && known[k].elems; k++)
        if (known[k].elems == t->elems)
            return known[k].digest;
    for (int64_t i = 0; i < t->elems; i += BLOCK_ELEMS) {
        int64_t n = min_i64(BLOCK_ELEMS, t->elems - i);
        numbers(i, has_numbers(t, kind) ? n : 0, block);
        sum = ckpt_digest_add(sum, i, has_numbers(t, kind) ? block : zeros, n);
    }
    if (!has_numbers(t, kind) && k < 64) {
        known[k].elems = t->elems;
        known[k].digest = sum;
    }
    return sum;
}

/* What a rank owns: an equal part of every unit. */
static size_t segments_of(const struct gpt2_tensors *t, int64_t rank, int64_t ranks,
                          struct segment *out)
{
    size_t n = 0;
    for (int kind = 0; kind < CKPT_KINDS; kind++)
        for (int64_t i = 0; i < t->count; i++) {
            const struct gpt2_tensor *x = &t->tensors[i];
            int64_t part = ceil_div_i64(t->unit_elems[x->unit], ranks);
            int64_t begin = max_i64(rank * part, x->offset) - x->offset;
            int64_t end = min_i64((rank + 1) * part, x->offset + x->elems) - x->offset;
            if (begin < end)
                out[n++] = (struct segment){x, (enum ckpt_kind)kind, begin, end - begin};
        }
    return n;
}

static void put_segments(struct strbuf *out, const struct segment *s, size_t n, bool offsets)
{
    int64_t offset = 0;
    must(strbuf_putc(out, '['));
    for (size_t i = 0; i < n; offset += s[i++].count) {
        must(strbuf_printf(
            out, "%s{\"tensor\":\"%s\",\"kind\":\"%s\",\"first\":%" PRId64 ",\"count\":%" PRId64,
            i ? ",\n" : "", s[i].tensor->name, ckpt_kind_names[s[i].kind], s[i].first, s[i].count));
        must(!offsets || strbuf_printf(out, ",\"offset\":%" PRId64, offset));
        must(strbuf_putc(out, '}'));
    }
    must(strbuf_putc(out, ']'));
}

struct rank_file {
    int fd;
    uint64_t offset;
    uint32_t blocks;
    struct hash_state *digest; /* of DATA payloads */
};

static void write_at(const struct rank_file *f, uint64_t offset, const void *data, size_t n)
{
    must(pwrite(f->fd, data, n, (off_t)offset) == (ssize_t)n);
}

/* payload NULL: zeros that are not written. */
static void write_block(struct rank_file *f, const char *tag, const void *payload, uint64_t bytes)
{
    uint8_t head[CONTAINER_BLOCK_BYTES];
    struct container_block b = {.sequence = f->blocks++, .payload_bytes = bytes};
    bool data = strcmp(tag, "DATA") == 0;
    memcpy(b.tag, tag, 4);
    b.checksum = !payload && bytes == CKPT_DATA_BYTES ? zero_block_hash
                                                      : hash64(payload ? payload : zeros, bytes);
    container_encode_block(head, &b);
    write_at(f, f->offset, head, sizeof head);
    if (payload)
        write_at(f, f->offset + sizeof head, payload, bytes);
    if (data)
        hash_update(f->digest, payload ? payload : zeros, bytes);
    f->offset += sizeof head + bytes + container_padding(bytes);
}

/* Elements [from, from + n) of the file's data into block; false when all are zero. */
static bool fill(const struct segment *s, size_t count, int64_t from, int64_t n)
{
    bool any = false;
    int64_t at = 0;
    for (size_t i = 0; i < count && at < from + n; at += s[i++].count) {
        int64_t begin = max_i64(at, from), end = min_i64(at + s[i].count, from + n);
        if (begin >= end || !has_numbers(s[i].tensor, s[i].kind))
            continue;
        if (!any)
            memset(block, 0, sizeof block);
        numbers(s[i].first + begin - at, end - begin, block + (begin - from));
        any = true;
    }
    return any;
}

static void write_rank(const char *dir, const struct gpt2_tensors *t, uint32_t rank, uint32_t ranks,
                       uint64_t set, struct strbuf *manifest)
{
    struct segment *s = calloc((size_t)t->count * CKPT_KINDS, sizeof *s);
    size_t n = segments_of(t, rank, ranks, s);
    struct container_header h = {"CKP", CKPT_MAJOR, 0, DTYPE_F32, 0, 0, set, rank, ranks};
    struct container_trailer end;
    struct strbuf segm = {0};
    char name[64];
    uint8_t p[64];
    snprintf(name, sizeof name, "rank-%05" PRIu32 "-of-%05" PRIu32 ".ckp", rank, ranks);
    char *path = path_join(dir, name);
    struct rank_file f = {.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666),
                          .digest = hash_new()};
    must(f.fd >= 0);
    for (size_t i = 0; i < n; i++)
        h.count += (uint64_t)s[i].count;
    container_encode_header(p, &h);
    write_at(&f, 0, p, sizeof p);
    f.offset = sizeof p;
    put_segments(&segm, s, n, false);
    write_block(&f, "SEGM", segm.data, segm.length);
    for (int64_t at = 0; at < (int64_t)h.count; at += BLOCK_ELEMS) {
        int64_t take = min_i64(BLOCK_ELEMS, (int64_t)h.count - at);
        write_block(&f, "DATA", fill(s, n, at, take) ? block : NULL, (uint64_t)take * 4);
    }
    end = (struct container_trailer){f.blocks, h.count, f.offset + sizeof p, hash_digest(f.digest)};
    container_encode_trailer(p, h.kind, &end);
    write_at(&f, f.offset, p, sizeof p);
    must(close(f.fd) == 0);
    must(strbuf_printf(manifest,
                       "%s{\"file\":\"%s\",\"bytes\":%" PRIu64 ",\"digest\":\"%016" PRIx64
                       "\",\"segments\":",
                       rank ? ",\n" : "", name, end.file_bytes, end.digest));
    put_segments(manifest, s, n, true);
    must(strbuf_putc(manifest, '}'));
    hash_free(f.digest);
    strbuf_release(&segm);
    free(path);
    free(s);
}

static void put_tensors(struct strbuf *out, const struct gpt2_tensors *t)
{
    for (int64_t i = 0; i < t->count; i++) {
        const struct gpt2_tensor *x = &t->tensors[i];
        must(strbuf_printf(out, "%s{\"name\":\"%s\",\"shape\":[%" PRId64, i ? ",\n" : "", x->name,
                           x->shape[0]));
        must(x->dims == 1 || strbuf_printf(out, ",%" PRId64, x->shape[1]));
        must(strbuf_puts(out, "],\"digest\":{"));
        for (int k = 0; k < CKPT_KINDS; k++)
            must(strbuf_printf(out, "%s\"%s\":\"%016" PRIx64 "\"", k ? "," : "", ckpt_kind_names[k],
                               digest_of(x, (enum ckpt_kind)k)));
        must(strbuf_puts(out, "}}"));
    }
}

int main(int argc, char **argv)
{
    struct gpt2_config c;
    struct gpt2_tensors t;
    struct strbuf manifest = {0};
    uint64_t set = container_new_set_id();
    uint32_t ranks = argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    if (ranks == 0) {
        fprintf(stderr, "usage: sparse_ckpt DIR MODEL.json RANKS\n");
        return 2;
    }
    zero_block_hash = hash64(zeros, sizeof zeros);
    char *dir = ckpt_step_path(argv[1], 1), *path = path_join(dir, "manifest.json");
    must(gpt2_config_load(&c, argv[2], &err) == STATUS_OK);
    must(gpt2_tensors_create(&t, &c, &err) == STATUS_OK);
    must(dir_create(dir, &err) == STATUS_OK);
    char *model = json_dumps(gpt2_config_to_json(&c, "float32"), JSON_COMPACT);
    must(strbuf_printf(&manifest,
                       "{\"format\":\"sdp-checkpoint\",\"version\":1,\"set_id\":\"%016" PRIx64
                       "\",\"step\":1,\n\"model\":%s,\n\"vocabulary\":{\"size\":%" PRId64
                       ",\"fingerprint\":\"0000000000000000\",\"eot\":%" PRId64
                       "},\"state\":{},\n\"files\":[",
                       set, model, c.vocab, (int64_t)c.eot));
    for (uint32_t r = 0; r < ranks; r++)
        write_rank(dir, &t, r, ranks, set, &manifest);
    must(strbuf_puts(&manifest, "],\n\"tensors\":["));
    put_tensors(&manifest, &t);
    must(strbuf_puts(&manifest, "]}\n"));
    must(file_write_atomic(path, manifest.data, manifest.length, &err) == STATUS_OK);
    puts(dir);
    free(model);
    free(path);
    free(dir);
    strbuf_release(&manifest);
    gpt2_tensors_release(&t);
    return 0;
}
