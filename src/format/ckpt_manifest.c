/* ckpt_manifest.c - manifest.json: every claim checked before it is used. */
#include "format/ckpt_private.h"
#include "base/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const ckpt_kind_names[CKPT_KINDS] = {"master", "m", "v"};

bool ckpt_kind_parse(const char *text, enum ckpt_kind *kind)
{
    for (int k = 0; text && k < CKPT_KINDS; k++)
        if (strcmp(text, ckpt_kind_names[k]) == 0) {
            *kind = (enum ckpt_kind)k;
            return true;
        }
    return false;
}

/* Every message names the manifest. */
static enum status wrong(const struct ckpt *c, struct error *e, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
static enum status wrong(const struct ckpt *c, struct error *e, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return error_set(e, STATUS_DATA, "%s/" CKPT_MANIFEST_NAME ": %s", c->path, text);
}

static bool get_i64(const json_t *object, const char *key, int64_t min, int64_t *out)
{
    const json_t *v = json_object_get(object, key);
    *out = json_integer_value(v);
    return json_is_integer(v) && *out >= min;
}

static bool get_hex(const json_t *object, const char *key, uint64_t *out)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || strspn(text, "0123456789abcdefABCDEF") != 16 || text[16])
        return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

/* --- tensors ---------------------------------------------------------------------------------- */

static enum status parse_shape(const struct ckpt *c, struct ckpt_tensor *t, const json_t *shape,
                               struct error *e)
{
    t->dims = (int)json_array_size(shape);
    t->elems = 1;
    if (!json_is_array(shape) || t->dims < 1 || t->dims > 4)
        return wrong(c, e, "tensor \"%s\" has no shape of 1 to 4 dimensions", t->name);
    for (int d = 0; d < t->dims; d++) {
        const json_t *n = json_array_get(shape, (size_t)d);
        t->shape[d] = json_integer_value(n);
        if (!json_is_integer(n) || t->shape[d] < 1 ||
            !checked_mul_i64(t->elems, t->shape[d], &t->elems) || t->elems > INT64_MAX / 16)
            return wrong(c, e, "tensor \"%s\": dimension %d is not a possible size", t->name, d);
    }
    return STATUS_OK;
}

static enum status parse_tensor(const struct ckpt *c, struct ckpt_tensor *t, const json_t *entry,
                                struct error *e)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    const json_t *digest = json_object_get(entry, "digest");
    if (!name || !*name)
        return wrong(c, e, "a tensor has no name");
    t->name = strdup(name);
    if (!t->name)
        return error_memory(e, strlen(name) + 1, "a tensor name");
    TRY(parse_shape(c, t, json_object_get(entry, "shape"), e));
    for (int k = 0; k < CKPT_KINDS; k++) {
        t->present[k] = json_object_get(digest, ckpt_kind_names[k]) != NULL;
        if (t->present[k] && !get_hex(digest, ckpt_kind_names[k], &t->digest[k]))
            return wrong(c, e, "tensor \"%s\": digest of %s is not 16 hexadecimal digits", name,
                         ckpt_kind_names[k]);
    }
    if (!t->present[CKPT_MASTER])
        return wrong(c, e, "tensor \"%s\" has no digest of its master weights", name);
    return STATUS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct ckpt_tensor *const *)a)->name,
                  (*(const struct ckpt_tensor *const *)b)->name);
}

static enum status parse_tensors(struct ckpt *c, struct error *e)
{
    const json_t *list = json_object_get(c->manifest, "tensors");
    size_t n = json_array_size(list);
    if (n == 0 || n > UINT32_MAX)
        return wrong(c, e, "\"tensors\" is missing or empty");
    c->tensors = calloc(n, sizeof *c->tensors);
    c->by_name = malloc(n * sizeof *c->by_name);
    if (!c->tensors || !c->by_name)
        return error_memory(e, n * sizeof *c->tensors, "a list of tensors");
    c->tensor_count = n;
    for (size_t i = 0; i < n; i++) {
        TRY(parse_tensor(c, &c->tensors[i], json_array_get(list, i), e));
        c->by_name[i] = &c->tensors[i];
    }
    qsort(c->by_name, n, sizeof *c->by_name, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(c->by_name[i - 1]->name, c->by_name[i]->name) == 0)
            return wrong(c, e, "tensor \"%s\" is listed twice", c->by_name[i]->name);
    return STATUS_OK;
}

const struct ckpt_tensor *ckpt_tensor_find(const struct ckpt *c, const char *name)
{
    struct ckpt_tensor key = {.name = (char *)name};
    const struct ckpt_tensor *want = &key, **found;
    found = bsearch(&want, c->by_name, c->tensor_count, sizeof *c->by_name, by_name);
    return found ? *found : NULL;
}

/* --- files and segments ----------------------------------------------------------------------- */

static enum status parse_segment(struct ckpt *c, size_t file, size_t number, const json_t *entry,
                                 struct error *e)
{
    struct ckpt_file *f = &c->files[file];
    const char *name = json_string_value(json_object_get(entry, "tensor"));
    const char *kind = json_string_value(json_object_get(entry, "kind"));
    const struct ckpt_tensor *t = name ? ckpt_tensor_find(c, name) : NULL;
    struct ckpt_piece p = {.file = (uint32_t)file};
    int64_t offset;
    if (!t)
        return wrong(c, e, "segment %zu of %s is of tensor \"%s\", which is not listed", number,
                     f->name, name ? name : "(none)");
    if (!ckpt_kind_parse(kind, &p.kind) || !t->present[p.kind])
        return wrong(c, e, "segment %zu of %s is of kind \"%s\", which tensor \"%s\" does not have",
                     number, f->name, kind ? kind : "(none)", name);
    if (!get_i64(entry, "first", 0, &p.first) || !get_i64(entry, "count", 1, &p.count) ||
        p.first > t->elems || p.count > t->elems - p.first)
        return wrong(c, e,
                     "segment %zu of %s claims %" PRId64 " elements from %" PRId64
                     " of tensor \"%s\", which has %" PRId64,
                     number, f->name, p.count, p.first, name, t->elems);
    if (!get_i64(entry, "offset", 0, &offset) || offset != f->elems)
        return wrong(c, e, "segment %zu of %s has offset %" PRId64 ", expected %" PRId64, number,
                     f->name, offset, f->elems);
    p.tensor = (uint32_t)(t - c->tensors);
    p.offset = (uint64_t)offset;
    if (!checked_add_i64(f->elems, p.count, &f->elems) || (uint64_t)f->elems > f->bytes / 4)
        return wrong(c, e, "the segments of %s do not fit into its %" PRIu64 " bytes", f->name,
                     f->bytes);
    c->pieces[c->piece_count++] = p;
    return STATUS_OK;
}

/* Room for one more file and n more segments. */
static enum status reserve(struct ckpt *c, size_t n, struct error *e)
{
    if (c->file_count == c->file_capacity) {
        size_t next = c->file_capacity ? 2 * c->file_capacity : 16;
        struct ckpt_file *more = realloc(c->files, next * sizeof *more);
        if (!more)
            return error_memory(e, next * sizeof *more, "a list of files");
        c->files = more;
        c->file_capacity = next;
    }
    if (n > c->piece_capacity - c->piece_count) {
        size_t next = c->piece_count + n + c->piece_count / 2;
        struct ckpt_piece *more = realloc(c->pieces, next * sizeof *more);
        if (!more)
            return error_memory(e, next * sizeof *more, "a list of segments");
        c->pieces = more;
        c->piece_capacity = next;
    }
    return STATUS_OK;
}

static enum status parse_file(struct ckpt *c, const json_t *entry, struct error *e)
{
    const char *name = json_string_value(json_object_get(entry, "file"));
    const json_t *segments = json_object_get(entry, "segments");
    const size_t file = c->file_count, n = json_array_size(segments);
    int64_t bytes;
    if (!name || !*name || strchr(name, '/'))
        return wrong(c, e, "file %zu is \"%s\", expected the name of a file in the folder", file,
                     name ? name : "");
    if (file == UINT32_MAX)
        return wrong(c, e, "more than %zu files", file);
    TRY(reserve(c, n, e));
    struct ckpt_file *f = &c->files[c->file_count++];
    *f = (struct ckpt_file){.name = strdup(name),
                            .path = path_join(c->path, name),
                            .first_piece = c->piece_count,
                            .segments = n};
    if (!f->name || !f->path)
        return error_memory(e, strlen(c->path) + strlen(name), "a file name");
    if (!get_i64(entry, "bytes", 128, &bytes) || !get_hex(entry, "digest", &f->digest))
        return wrong(c, e, "%s has no size of at least 128 bytes, or no digest", name);
    f->bytes = (uint64_t)bytes;
    if (!json_is_array(segments))
        return wrong(c, e, "%s has no list of segments", name);
    for (size_t i = 0; i < n; i++)
        TRY(parse_segment(c, file, i, json_array_get(segments, i), e));
    return STATUS_OK;
}

static enum status parse_files(struct ckpt *c, struct ckpt_text *text, struct error *e)
{
    const json_t *list = json_object_get(c->manifest, "files");
    json_t *entry;
    enum status st = STATUS_OK;
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(parse_file(c, json_array_get(list, i), e));
    while (text && st == STATUS_OK) {
        TRY(ckpt_text_next(text, &entry, e));
        if (!entry)
            break;
        st = parse_file(c, entry, e);
        json_decref(entry);
    }
    if (st == STATUS_OK && c->file_count == 0)
        return wrong(c, e, "\"files\" is missing or empty");
    return st;
}

/* --- the whole -------------------------------------------------------------------------------- */

static enum status parse_vocabulary(struct ckpt *c, struct error *e)
{
    char name[512];
    char *text = json_dumps(json_object_get(c->manifest, "vocabulary"), JSON_COMPACT);
    if (!text)
        return wrong(c, e, "\"vocabulary\" is missing");
    snprintf(name, sizeof name, "%s/" CKPT_MANIFEST_NAME, c->path);
    enum status st = vocab_info_from_json(text, strlen(text), name, &c->vocab, e);
    free(text);
    return st;
}

enum status ckpt_manifest_parse(struct ckpt *c, struct ckpt_text *text, struct error *e)
{
    const char *format = json_string_value(json_object_get(c->manifest, "format"));
    int64_t version;
    if (!format || strcmp(format, "sdp-checkpoint") != 0)
        return wrong(c, e, "\"format\" is \"%.40s\", expected \"sdp-checkpoint\"",
                     format ? format : "");
    if (!get_i64(c->manifest, "version", 0, &version) || version != 1)
        return wrong(c, e, "version %" PRId64 ", this program reads 1", version);
    if (!get_i64(c->manifest, "step", 0, &c->step))
        return wrong(c, e, "\"step\" is missing or is not a number");
    if (!get_hex(c->manifest, "set_id", &c->set_id))
        return wrong(c, e, "\"set_id\" is missing or is not 16 hexadecimal digits");
    TRY(parse_vocabulary(c, e));
    TRY(parse_tensors(c, e));
    TRY(parse_files(c, text, e));
    return ckpt_cover(c, e);
}

enum status ckpt_manifest_load(struct ckpt **out_c, const char *path, struct error *e)
{
    enum status st = STATUS_OK;
    char *file = path_join(path, CKPT_MANIFEST_NAME), *text = NULL;
    size_t bytes;
    struct ckpt_text whole;
    struct ckpt *c = calloc(1, sizeof *c);
    *out_c = NULL;
    if (!file || !c || !(c->path = strdup(path)))
        TRY_OUT(error_memory(e, sizeof *c, "a checkpoint"));
    TRY_OUT(file_read_all(file, CKPT_JSON_LIMIT, &text, &bytes, e));
    TRY_OUT(ckpt_text_open(&whole, file, text, bytes, &c->manifest, e));
    TRY_OUT(ckpt_manifest_parse(c, &whole, e));
    *out_c = c;
    c = NULL;
out:
    free(text);
    free(file);
    ckpt_close(c);
    return st;
}
