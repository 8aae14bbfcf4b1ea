/* safetensors_header.c - the JSON header: parsing with every claim checked, and writing. */
#include "format/safetensors_private.h"
#include "format/jsonl.h"
#include "base/checked.h"
#include "base/io.h"
#include "base/le.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_LIMIT ((uint64_t)100000000) /* the reference implementation's */
#define DATA_ALIGN 64                      /* of the data in files we write; a reader needs none */

/* Types that enum dtype lacks map to one of the same width; nobody reads those as numbers. */
static const struct {
    const char *name;
    enum dtype dtype;
} dtypes[] = {
    {"F32", DTYPE_F32}, {"BF16", DTYPE_BF16}, {"F16", DTYPE_F16}, {"F64", DTYPE_F64},
    {"I64", DTYPE_I64}, {"I32", DTYPE_I32},   {"U32", DTYPE_U32}, {"U16", DTYPE_U16},
    {"U8", DTYPE_U8},   {"BOOL", DTYPE_U8},   {"I8", DTYPE_U8},   {"I16", DTYPE_U16},
    {"U64", DTYPE_I64},
};

const char *safetensors_dtype_name(enum dtype t)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].dtype == t)
            return dtypes[i].name;
    return NULL;
}

/* --- parsing ---------------------------------------------------------------------------------- */

static enum status parse_dtype(const json_t *v, struct safetensor *t, const char *file,
                               struct error *e)
{
    const char *name = json_string_value(v);
    for (size_t i = 0; name && i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            t->dtype = dtypes[i].dtype;
            return STATUS_OK;
        }
    return error_set(e, STATUS_DATA,
                     "%s: tensor \"%s\" has dtype \"%.20s\", which is not supported", file, t->name,
                     name ? name : "(none)");
}

static enum status parse_shape(const json_t *v, struct safetensor *t, const char *file,
                               struct error *e)
{
    if (!json_is_array(v) || json_array_size(v) > SAFETENSORS_MAX_DIMS)
        return error_set(e, STATUS_DATA, "%s: tensor \"%s\" has no shape of at most %d dimensions",
                         file, t->name, SAFETENSORS_MAX_DIMS);
    t->dims = (int)json_array_size(v);
    t->elems = 1;
    for (int i = 0; i < t->dims; i++) {
        const json_t *n = json_array_get(v, (size_t)i);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return error_set(e, STATUS_DATA, "%s: tensor \"%s\": dimension %d is not a size", file,
                             t->name, i);
        t->shape[i] = json_integer_value(n);
        if (!checked_mul_i64(t->elems, t->shape[i], &t->elems))
            return error_set(e, STATUS_DATA, "%s: tensor \"%s\": the shape overflows", file,
                             t->name);
    }
    int64_t bytes;
    if (!checked_mul_i64(t->elems, (int64_t)dtype_bytes(t->dtype), &bytes))
        return error_set(e, STATUS_DATA, "%s: tensor \"%s\": the shape overflows", file, t->name);
    t->bytes = (uint64_t)bytes;
    return STATUS_OK;
}

static enum status parse_offsets(const json_t *v, struct safetensor *t, uint64_t data_bytes,
                                 const char *file, struct error *e)
{
    const json_t *b = json_array_get(v, 0), *z = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(b) || !json_is_integer(z) ||
        json_integer_value(b) < 0 || json_integer_value(z) < json_integer_value(b))
        return error_set(e, STATUS_DATA, "%s: tensor \"%s\" has no data_offsets [begin, end]", file,
                         t->name);
    uint64_t begin = (uint64_t)json_integer_value(b), end = (uint64_t)json_integer_value(z);
    if (end > data_bytes)
        return error_set(e, STATUS_DATA,
                         "%s: tensor \"%s\" ends at data byte %llu, but the file holds %llu: it is "
                         "cut or damaged",
                         file, t->name, (unsigned long long)end, (unsigned long long)data_bytes);
    if (end - begin != t->bytes)
        return error_set(e, STATUS_DATA,
                         "%s: tensor \"%s\" has %llu bytes of data, its shape and dtype need %llu",
                         file, t->name, (unsigned long long)(end - begin),
                         (unsigned long long)t->bytes);
    t->offset = begin; /* relative to the data until the order is checked */
    return STATUS_OK;
}

static enum status append(struct safetensors *s, const struct safetensor *t, struct error *e)
{
    if (s->count == s->capacity) {
        size_t next = s->capacity ? s->capacity * 2 : 64;
        struct safetensor *more = realloc(s->tensors, next * sizeof *more);
        if (!more)
            return error_memory(e, next * sizeof *more, "a list of tensors");
        s->tensors = more;
        s->capacity = next;
    }
    s->tensors[s->count++] = *t;
    return STATUS_OK;
}

static enum status parse_tensor(struct safetensors *s, uint32_t file, const char *name,
                                const json_t *v, uint64_t data_bytes, struct error *e)
{
    const char *path = s->files[file].name;
    struct safetensor t = {.name = strdup(name), .file = file};
    enum status st;
    if (!t.name)
        return error_memory(e, strlen(name) + 1, "a tensor name");
    TRY_OUT(parse_dtype(json_object_get(v, "dtype"), &t, path, e));
    TRY_OUT(parse_shape(json_object_get(v, "shape"), &t, path, e));
    TRY_OUT(parse_offsets(json_object_get(v, "data_offsets"), &t, data_bytes, path, e));
    TRY_OUT(append(s, &t, e));
    t.name = NULL;
out:
    free(t.name);
    return st;
}

static int by_place(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

/* The tensors first.. of one file lie one after another from 0 to data_bytes. */
static enum status check_order(struct safetensors *s, size_t first, uint64_t data_begin,
                               uint64_t data_bytes, const char *file, struct error *e)
{
    uint64_t at = 0;
    if (s->count > first)
        qsort(s->tensors + first, s->count - first, sizeof *s->tensors, by_place);
    for (size_t i = first; i < s->count; i++) {
        struct safetensor *t = &s->tensors[i];
        if (t->offset != at)
            return error_set(
                e, STATUS_DATA,
                "%s: tensor \"%s\" begins at data byte %llu, expected %llu: the data %s", file,
                t->name, (unsigned long long)t->offset, (unsigned long long)at,
                t->offset < at ? "of two tensors overlap" : "have a gap");
        at += t->bytes;
        t->offset += data_begin;
    }
    if (at != data_bytes)
        return error_set(e, STATUS_DATA,
                         "%s: the tensors end at data byte %llu, but the file holds %llu", file,
                         (unsigned long long)at, (unsigned long long)data_bytes);
    return STATUS_OK;
}

/* The header's JSON text; its length is proved against the file's size. */
static enum status header_text(const struct safetensors_file *f, const char **text, size_t *length,
                               struct error *e)
{
    if (f->bytes < 8)
        return error_set(e, STATUS_DATA, "%s is cut: %llu bytes, a safetensors file begins with 8",
                         f->name, (unsigned long long)f->bytes);
    uint64_t n = le64_get(f->map);
    if (n > HEADER_LIMIT || n < 2)
        return error_set(e, STATUS_DATA,
                         "%s is not a safetensors file: bytes 0-7 give a header of %llu bytes",
                         f->name, (unsigned long long)n);
    if (n > f->bytes - 8)
        return error_set(e, STATUS_DATA,
                         "%s is cut: its header has %llu bytes, but the file ends after %llu",
                         f->name, (unsigned long long)n, (unsigned long long)(f->bytes - 8));
    *text = (const char *)f->map + 8;
    *length = (size_t)n;
    if (**text != '{')
        return error_set(e, STATUS_DATA,
                         "%s is not a safetensors file: byte 8 is 0x%02x, expected '{'", f->name,
                         (uint8_t) * *text);
    return STATUS_OK;
}

enum status safetensors_parse_header(struct safetensors *s, uint32_t file, struct error *e)
{
    struct safetensors_file *f = &s->files[file];
    const char *text = NULL, *name;
    size_t length = 0, first = s->count;
    json_error_t why;
    json_t *root = NULL, *v;
    enum status st;
    TRY_OUT(header_text(f, &text, &length, e));
    root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        TRY_OUT(error_set(e, STATUS_DATA, "%s: header is not JSON: %s (byte %d)", f->name, why.text,
                          why.position + 8));
    uint64_t data_bytes = f->bytes - 8 - length;
    json_object_foreach(root, name, v)
    {
        if (strcmp(name, "__metadata__") == 0)
            f->metadata = json_incref(v);
        else
            TRY_OUT(parse_tensor(s, file, name, v, data_bytes, e));
    }
    TRY_OUT(check_order(s, first, 8 + length, data_bytes, f->name, e));
out:
    json_decref(root);
    return st;
}

/* --- writing ---------------------------------------------------------------------------------- */

static bool append_metadata(struct strbuf *out, const char *const *pairs)
{
    if (!pairs || !pairs[0])
        return true;
    if (!strbuf_puts(out, "\"__metadata__\":{"))
        return false;
    for (size_t i = 0; pairs[i]; i += 2)
        if ((i > 0 && !strbuf_putc(out, ',')) ||
            !jsonl_append_string(out, pairs[i], strlen(pairs[i])) || !strbuf_putc(out, ':') ||
            !jsonl_append_string(out, pairs[i + 1], strlen(pairs[i + 1])))
            return false;
    return strbuf_putc(out, '}');
}

static bool append_tensor(struct strbuf *out, const struct safetensor *t, uint64_t begin)
{
    if (!jsonl_append_string(out, t->name, strlen(t->name)) ||
        !strbuf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_dtype_name(t->dtype)))
        return false;
    for (int i = 0; i < t->dims; i++)
        if (!strbuf_printf(out, "%s%lld", i ? "," : "", (long long)t->shape[i]))
            return false;
    return strbuf_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                         (unsigned long long)(begin + t->bytes));
}

/* Sizes from shapes; offsets relative to the data. */
static enum status lay_out(struct safetensor *tensors, size_t n, struct error *e)
{
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        struct safetensor *t = &tensors[i];
        int64_t bytes = (int64_t)dtype_bytes(t->dtype);
        assert(safetensors_dtype_name(t->dtype) && t->dims <= SAFETENSORS_MAX_DIMS);
        t->elems = 1;
        for (int d = 0; d < t->dims; d++)
            if (!checked_mul_i64(t->elems, t->shape[d], &t->elems))
                return error_set(e, STATUS_USAGE, "tensor \"%s\": the shape overflows", t->name);
        if (!checked_mul_i64(bytes, t->elems, &bytes))
            return error_set(e, STATUS_USAGE, "tensor \"%s\": the shape overflows", t->name);
        t->bytes = (uint64_t)bytes;
        t->offset = at;
        at += t->bytes;
    }
    return STATUS_OK;
}

enum status safetensors_write_header(struct output *out, struct safetensor *tensors, size_t n,
                                     const char *const *metadata, struct error *e)
{
    struct strbuf json = {0};
    uint8_t length[8];
    bool ok = strbuf_putc(&json, '{') && append_metadata(&json, metadata);
    enum status st;
    TRY_OUT(lay_out(tensors, n, e));
    for (size_t i = 0; ok && i < n; i++)
        ok = (json.length == 1 || strbuf_putc(&json, ',')) &&
             append_tensor(&json, &tensors[i], tensors[i].offset);
    ok = ok && strbuf_putc(&json, '}');
    while (ok && (json.length + 8) % DATA_ALIGN) /* the specification allows spaces at the end */
        ok = strbuf_putc(&json, ' ');
    if (!ok)
        TRY_OUT(error_memory(e, json.length, "a safetensors header"));
    le64_put(length, json.length);
    for (size_t i = 0; i < n; i++)
        tensors[i].offset += 8 + json.length;
    TRY_OUT(output_write(out, length, 8, e));
    TRY_OUT(output_write(out, json.data, json.length, e));
out:
    strbuf_release(&json);
    return st;
}
