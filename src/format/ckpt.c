/* ckpt.c - opens a checkpoint, proves its files, and reads element ranges of tensors. */
#include "format/ckpt_private.h"
#include "base/checked.h"
#include "base/le.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA_ELEMS ((int64_t)(CKPT_DATA_BYTES / 4))

/* --- files against the manifest --------------------------------------------------------------- */

/* The key in which a SEGM block's segment differs from the manifest's; NULL when in none. */
static const char *segm_difference(const struct ckpt *c, const struct ckpt_piece *p,
                                   const json_t *segment)
{
    const char *tensor = json_string_value(json_object_get(segment, "tensor"));
    const char *kind = json_string_value(json_object_get(segment, "kind"));
    const json_t *first = json_object_get(segment, "first"),
                 *count = json_object_get(segment, "count");
    if (!tensor || strcmp(tensor, c->tensors[p->tensor].name) != 0)
        return "tensor";
    if (!kind || strcmp(kind, ckpt_kind_names[p->kind]) != 0)
        return "kind";
    if (!json_is_integer(first) || json_integer_value(first) != p->first)
        return "first";
    if (!json_is_integer(count) || json_integer_value(count) != p->count)
        return "count";
    return NULL;
}

enum status ckpt_check_segm(const struct ckpt *c, size_t file, const char *text, size_t bytes,
                            struct error *e)
{
    const struct ckpt_file *f = &c->files[file];
    json_error_t why;
    json_t *list = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    enum status st = STATUS_OK;
    if (!list)
        return error_set(e, STATUS_DATA, "%s: SEGM block is not JSON: %s", f->path, why.text);
    if (json_array_size(list) != f->segments)
        TRY_OUT(error_set(e, STATUS_DATA, "%s holds %zu segments, the manifest says %zu", f->path,
                          json_array_size(list), f->segments));
    for (size_t i = 0; i < f->segments; i++) {
        const char *key =
            segm_difference(c, &c->pieces[f->first_piece + i], json_array_get(list, i));
        if (key)
            TRY_OUT(error_set(e, STATUS_DATA, "%s: segment %zu differs from the manifest in \"%s\"",
                              f->path, i, key));
    }
out:
    json_decref(list);
    return st;
}

enum status ckpt_check_ends(const struct ckpt *c, size_t file, const struct container_header *h,
                            const struct container_trailer *t, struct error *e)
{
    const struct ckpt_file *f = &c->files[file];
    if (h->dtype != DTYPE_F32)
        return error_set(e, STATUS_DATA, "%s holds elements of type %s, expected fp32", f->path,
                         dtype_name(h->dtype));
    if (h->set_id != c->set_id)
        return error_set(e, STATUS_DATA,
                         "%s belongs to set %016" PRIx64 ", the manifest says %016" PRIx64, f->path,
                         h->set_id, c->set_id);
    if (t->file_bytes != f->bytes || t->digest != f->digest || t->count != (uint64_t)f->elems)
        return error_set(e, STATUS_DATA,
                         "%s has %" PRIu64 " elements, %" PRIu64 " bytes and digest %016" PRIx64
                         ", the manifest says %" PRId64 ", %" PRIu64 " and %016" PRIx64,
                         f->path, t->count, t->file_bytes, t->digest, f->elems, f->bytes,
                         f->digest);
    return STATUS_OK;
}

static enum status read_segm(const struct ckpt *c, size_t file, int fd,
                             const struct container_block *b, struct error *e)
{
    const char *path = c->files[file].path;
    enum status st;
    if (b->payload_bytes > CKPT_JSON_LIMIT)
        return error_set(e, STATUS_DATA, "%s: SEGM block of %" PRIu64 " bytes at byte %" PRIu64,
                         path, b->payload_bytes, b->payload_offset);
    char *text = malloc(b->payload_bytes + 1);
    if (!text)
        return error_memory(e, b->payload_bytes, "segments");
    TRY_OUT(fd_read_at(fd, path, b->payload_offset, text, b->payload_bytes, e));
    TRY_OUT(container_check_payload(b, path, text, e));
    TRY_OUT(ckpt_check_segm(c, file, text, b->payload_bytes, e));
out:
    free(text);
    return st;
}

/* Keeps the DATA blocks, which are all full but the last. blocks is taken over. */
static enum status take_data(struct ckpt_file *f, struct container_block *blocks, uint32_t n,
                             struct error *e)
{
    uint32_t kept = 0;
    f->data = blocks;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(blocks[i].tag, "DATA") == 0)
            blocks[kept++] = blocks[i];
    f->data_count = kept;
    for (uint32_t i = 0; i < kept; i++) {
        uint64_t bytes = blocks[i].payload_bytes;
        if (bytes == 0 || bytes % 4 || bytes > CKPT_DATA_BYTES ||
            (i + 1 < kept && bytes != CKPT_DATA_BYTES))
            return error_set(e, STATUS_DATA,
                             "%s: block at byte %" PRIu64 " has %" PRIu64
                             " bytes, expected %u in all but the last",
                             f->path, blocks[i].payload_offset, bytes, CKPT_DATA_BYTES);
    }
    f->verified = calloc(kept + 1, sizeof *f->verified);
    return f->verified ? STATUS_OK : error_memory(e, kept, "block states");
}

static enum status check_blocks(const struct ckpt *c, size_t file, int fd,
                                const struct container_block *blocks, uint32_t n, struct error *e)
{
    const char *path = c->files[file].path;
    bool segm = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct container_block *b = &blocks[i];
        if (strcmp(b->tag, "SEGM") == 0 && !segm) {
            TRY(read_segm(c, file, fd, b, e));
            segm = true;
        } else if (strcmp(b->tag, "DATA") != 0 && !container_tag_optional(b->tag)) {
            return error_set(e, STATUS_DATA, "%s: block \"%s\" at byte %" PRIu64 " is not expected",
                             path, b->tag, b->payload_offset);
        }
    }
    return segm ? STATUS_OK : error_set(e, STATUS_DATA, "%s has no \"SEGM\" block", path);
}

static enum status open_file(struct ckpt *c, size_t file, struct error *e)
{
    struct ckpt_file *f = &c->files[file];
    struct container_header h;
    struct container_trailer t;
    struct container_block *blocks = NULL;
    uint32_t n;
    enum status st;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return error_set(e, STATUS_DATA, "%s is missing: file %zu of %zu of the checkpoint",
                         f->path, file + 1, c->file_count);
    if (fd < 0)
        return error_errno(e, "cannot open %s", f->path);
    TRY_OUT(container_index(fd, f->path, "CKP", CKPT_MAJOR, &h, &t, &blocks, &n, e));
    TRY_OUT(ckpt_check_ends(c, file, &h, &t, e));
    TRY_OUT(check_blocks(c, file, fd, blocks, n, e));
    st = take_data(f, blocks, n, e);
    blocks = NULL;
out:
    free(blocks);
    close(fd);
    return st;
}

static enum status open_one(struct ckpt **out_c, const char *path, struct error *e)
{
    struct ckpt *c = NULL;
    enum status st;
    *out_c = NULL;
    TRY_OUT(ckpt_manifest_load(&c, path, e));
    for (size_t i = 0; i < c->file_count; i++)
        TRY_OUT(open_file(c, i, e));
    *out_c = c;
    c = NULL;
out:
    ckpt_close(c);
    return st;
}

/* --- choosing a checkpoint -------------------------------------------------------------------- */

/* The newest step that opens; what is wrong with the first that does not goes to c->skipped. */
static enum status open_newest(struct ckpt **out_c, const char *parent, const int64_t *steps,
                               size_t n, struct error *e)
{
    struct error first = {0};
    for (size_t i = n; i-- > 0;) {
        char *path = ckpt_step_path(parent, steps[i]);
        if (!path)
            return error_memory(e, strlen(parent) + 32, "a file name");
        enum status st = open_one(out_c, path, e);
        free(path);
        if (st == STATUS_OK && first.status != STATUS_OK)
            (*out_c)->skipped = strdup(first.message); /* a warning less when out of memory */
        if (st == STATUS_OK)
            return st;
        if (first.status == STATUS_OK)
            first = *e;
    }
    *e = first;
    return error_context(e, "no valid checkpoint in %s", parent);
}

enum status ckpt_open(struct ckpt **out_c, const char *dir, struct error *e)
{
    int64_t *steps = NULL;
    size_t n = 0;
    *out_c = NULL;
    char *manifest = path_join(dir, CKPT_MANIFEST_NAME);
    if (!manifest)
        return error_memory(e, strlen(dir), "a file name");
    bool single = path_exists(manifest);
    free(manifest);
    if (single)
        return open_one(out_c, dir, e);
    if (!path_is_dir(dir))
        return error_set(e, path_exists(dir) ? STATUS_DATA : STATUS_FAILED,
                         "%s is not a folder, expected a checkpoint", dir);
    TRY(ckpt_scan_steps(dir, true, &steps, &n, e));
    enum status st = n ? open_newest(out_c, dir, steps, n, e)
                       : error_set(e, STATUS_DATA,
                                   "%s holds no checkpoint: neither " CKPT_MANIFEST_NAME
                                   " nor a folder step-* that has one",
                                   dir);
    free(steps);
    return st;
}

void ckpt_close(struct ckpt *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->tensor_count; i++)
        free(c->tensors[i].name);
    for (size_t i = 0; i < c->file_count; i++) {
        free(c->files[i].name);
        free(c->files[i].path);
        free(c->files[i].data);
        free(c->files[i].verified);
    }
    json_decref(c->manifest);
    free(c->path);
    free(c->skipped);
    free(c->tensors);
    free(c->by_name);
    free(c->files);
    free(c->pieces);
    free(c->places);
    free(c->place_of);
    free(c);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* One DATA block of an open file, proved on its first use. */
static enum status read_block_part(struct ckpt_file *f, int fd, uint32_t block, int64_t first,
                                   int64_t n, float *out, struct error *e)
{
    const struct container_block *b = &f->data[block];
    enum status st;
    if (atomic_load_explicit(&f->verified[block], memory_order_acquire))
        return fd_read_at(fd, f->path, b->payload_offset + (uint64_t)first * 4, out, (size_t)n * 4,
                          e);
    bool whole = (uint64_t)n * 4 == b->payload_bytes;
    float *buffer = whole ? out : malloc(b->payload_bytes);
    if (!buffer)
        return error_memory(e, b->payload_bytes, "a block");
    TRY_OUT(fd_read_at(fd, f->path, b->payload_offset, buffer, b->payload_bytes, e));
    TRY_OUT(container_check_payload(b, f->path, buffer, e));
    if (!whole)
        memcpy(out, buffer + first, (size_t)n * 4);
    atomic_store_explicit(&f->verified[block], 1, memory_order_release);
out:
    if (!whole)
        free(buffer);
    return st;
}

/* Elements first.. of a file. */
static enum status read_file_part(struct ckpt_file *f, uint64_t first, int64_t n, float *out,
                                  struct error *e)
{
    enum status st = STATUS_OK;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(e, "cannot open %s", f->path);
    while (n > 0) {
        uint32_t block = (uint32_t)(first / DATA_ELEMS);
        int64_t inside = (int64_t)(first % DATA_ELEMS), take = min_i64(n, DATA_ELEMS - inside);
        TRY_OUT(read_block_part(f, fd, block, inside, take, out, e));
        first += (uint64_t)take;
        out += take;
        n -= take;
    }
out:
    close(fd);
    return st;
}

static void from_file_order(float *x, int64_t n)
{
    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
        return;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = le32_get((const uint8_t *)&x[i]);
        memcpy(&x[i], &bits, 4);
    }
}

/* The place of [begin, end) that holds element first; together they cover all. */
static size_t place_at(const struct ckpt *c, size_t begin, size_t end, int64_t first)
{
    while (end - begin > 1) {
        size_t middle = begin + (end - begin) / 2;
        if (c->places[middle]->first <= first)
            begin = middle;
        else
            end = middle;
    }
    return begin;
}

enum status ckpt_read(struct ckpt *c, const struct ckpt_tensor *t, enum ckpt_kind kind,
                      int64_t first, int64_t n, float *out, struct error *e)
{
    if (!t->present[kind])
        return error_set(e, STATUS_DATA, "%s has no %s of tensor \"%s\"", c->path,
                         ckpt_kind_names[kind], t->name);
    if (first < 0 || n < 0 || first > t->elems || n > t->elems - first)
        return error_set(e, STATUS_USAGE,
                         "%s: tensor \"%s\" has %" PRId64 " elements, wanted %" PRId64
                         " from %" PRId64,
                         c->path, t->name, t->elems, n, first);
    size_t slot = (size_t)(t - c->tensors) * CKPT_KINDS + (size_t)kind;
    size_t i = place_at(c, c->place_of[slot], c->place_of[slot + 1], first);
    for (; n > 0; i++) {
        const struct ckpt_piece *p = c->places[i];
        int64_t skip = first - p->first, take = min_i64(n, p->count - skip);
        TRY(read_file_part(&c->files[p->file], p->offset + (uint64_t)skip, take, out, e));
        from_file_order(out, take);
        first += take;
        out += take;
        n -= take;
    }
    return STATUS_OK;
}

/* --- looking ---------------------------------------------------------------------------------- */

const char *ckpt_path(const struct ckpt *c)
{
    return c->path;
}

const char *ckpt_skipped(const struct ckpt *c)
{
    return c->skipped;
}

const json_t *ckpt_manifest(const struct ckpt *c)
{
    return c->manifest;
}

int64_t ckpt_step(const struct ckpt *c)
{
    return c->step;
}

const struct vocab_info *ckpt_vocab(const struct ckpt *c)
{
    return &c->vocab;
}

size_t ckpt_tensor_count(const struct ckpt *c)
{
    return c->tensor_count;
}

const struct ckpt_tensor *ckpt_tensor_at(const struct ckpt *c, size_t i)
{
    return &c->tensors[i];
}

size_t ckpt_file_count(const struct ckpt *c)
{
    return c->file_count;
}

struct ckpt_file_info ckpt_file_at(const struct ckpt *c, size_t i)
{
    const struct ckpt_file *f = &c->files[i];
    return (struct ckpt_file_info){f->name, f->bytes, f->elems, f->segments};
}

struct ckpt_segment ckpt_segment_at(const struct ckpt *c, size_t file, size_t i)
{
    const struct ckpt_piece *p = &c->pieces[c->files[file].first_piece + i];
    return (struct ckpt_segment){c->tensors[p->tensor].name, p->kind, p->first, p->count,
                                 p->offset};
}
