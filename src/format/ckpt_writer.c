/* ckpt_writer.c - one rank's file, and the manifest that makes a checkpoint exist. */
#include "format/ckpt_private.h"
#include "format/jsonl.h"
#include "base/checked.h"
#include "base/le.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA_ELEMS ((int64_t)(CKPT_DATA_BYTES / 4))

struct ckpt_writer {
    struct output out;
    struct container_writer container;
    char name[64];
    json_t *segments; /* as the manifest holds them */
    float *buffer;
    int64_t used, put, total; /* elements */
    bool committed;
};

/* The SEGM payload and, with offsets, the manifest's array. */
static enum status describe(struct ckpt_writer *w, const struct ckpt_segment *segments, size_t n,
                            struct strbuf *segm, struct error *e)
{
    bool ok = strbuf_putc(segm, '[');
    for (size_t i = 0; ok && i < n; i++) {
        const struct ckpt_segment *s = &segments[i];
        if (s->first < 0 || s->count <= 0 || !checked_add_i64(w->total, s->count, &w->total))
            return error_set(e, STATUS_USAGE,
                             "%s: segment of \"%s\" from %" PRId64 " has %" PRId64 " elements",
                             w->out.name, s->tensor, s->first, s->count);
        ok = strbuf_puts(segm, i ? ",\n{\"tensor\":" : "{\"tensor\":") &&
             jsonl_append_string(segm, s->tensor, strlen(s->tensor)) &&
             strbuf_printf(segm, ",\"kind\":\"%s\",\"first\":%" PRId64 ",\"count\":%" PRId64 "}",
                           ckpt_kind_names[s->kind], s->first, s->count);
        json_t *entry =
            json_pack("{s:s, s:s, s:I, s:I, s:I}", "tensor", s->tensor, "kind",
                      ckpt_kind_names[s->kind], "first", (json_int_t)s->first, "count",
                      (json_int_t)s->count, "offset", (json_int_t)(w->total - s->count));
        ok = ok && entry && json_array_append_new(w->segments, entry) == 0;
    }
    return ok && strbuf_putc(segm, ']') ? STATUS_OK : error_memory(e, segm->length, "segments");
}

static enum status write_preamble(struct ckpt_writer *w, const struct container_header *h,
                                  const char *provenance, const struct strbuf *segm,
                                  struct error *e)
{
    struct container_writer *c = &w->container;
    TRY(container_write_header(c, &w->out, h, e));
    if (provenance)
        TRY(container_write_block(c, "prov", provenance, strlen(provenance), NULL, e));
    return container_write_block(c, "SEGM", segm->data, segm->length, NULL, e);
}

enum status ckpt_writer_open(struct ckpt_writer **out_w, const char *dir, uint32_t rank,
                             uint32_t ranks, uint64_t set_id, const struct ckpt_segment *segments,
                             size_t n, const char *provenance, struct error *e)
{
    struct strbuf segm = {0};
    char *path = NULL;
    enum status st = STATUS_OK;
    struct ckpt_writer *w = calloc(1, sizeof *w);
    *out_w = NULL;
    if (!w)
        return error_memory(e, sizeof *w, "a checkpoint writer");
    w->out.fd = -1;
    snprintf(w->name, sizeof w->name, "rank-%05" PRIu32 "-of-%05" PRIu32 ".ckp", rank, ranks);
    path = path_join(dir, w->name);
    w->buffer = malloc(CKPT_DATA_BYTES);
    w->segments = json_array();
    if (!path || !w->buffer || !w->segments)
        TRY_OUT(error_memory(e, CKPT_DATA_BYTES, "a checkpoint buffer"));
    TRY_OUT(output_open(&w->out, path, OUTPUT_BINARY, e));
    TRY_OUT(describe(w, segments, n, &segm, e));
    struct container_header h = {.kind = "CKP",
                                 .major = CKPT_MAJOR,
                                 .dtype = DTYPE_F32,
                                 .count = (uint64_t)w->total,
                                 .set_id = set_id,
                                 .part = rank,
                                 .parts = ranks};
    TRY_OUT(write_preamble(w, &h, provenance, &segm, e));
    *out_w = w;
    w = NULL;
out:
    free(path);
    strbuf_release(&segm);
    ckpt_writer_free(w);
    return st;
}

static void to_file_order(float *x, int64_t n)
{
    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
        return;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        le32_put((uint8_t *)&x[i], bits);
    }
}

static enum status write_buffer(struct ckpt_writer *w, struct error *e)
{
    to_file_order(w->buffer, w->used);
    TRY(container_write_block(&w->container, "DATA", w->buffer, (uint64_t)w->used * 4, NULL, e));
    w->used = 0;
    return STATUS_OK;
}

enum status ckpt_writer_put(struct ckpt_writer *w, const float *elements, int64_t n,
                            struct error *e)
{
    if (n < 0 || n > w->total - w->put)
        return error_set(e, STATUS_USAGE,
                         "%s: %" PRId64 " elements put, the segments have %" PRId64, w->out.name,
                         w->put + n, w->total);
    w->put += n;
    while (n > 0) {
        int64_t take = min_i64(n, DATA_ELEMS - w->used);
        if (take == DATA_ELEMS && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) {
            /* A whole block: written from where it is. */
            TRY(container_write_block(&w->container, "DATA", elements, CKPT_DATA_BYTES, NULL, e));
        } else {
            memcpy(w->buffer + w->used, elements, (size_t)take * 4);
            w->used += take;
            if (w->used == DATA_ELEMS)
                TRY(write_buffer(w, e));
        }
        elements += take;
        n -= take;
    }
    return STATUS_OK;
}

enum status ckpt_writer_finish(struct ckpt_writer *w, json_t **entry, struct error *e)
{
    struct container_trailer t;
    char digest[20];
    *entry = NULL;
    if (w->put != w->total)
        return error_set(e, STATUS_USAGE,
                         "%s: %" PRId64 " elements put, the segments have %" PRId64, w->out.name,
                         w->put, w->total);
    if (w->used)
        TRY(write_buffer(w, e));
    TRY(container_write_trailer(&w->container, (uint64_t)w->total, &t, e));
    TRY(output_commit(&w->out, e));
    w->committed = true;
    snprintf(digest, sizeof digest, "%016" PRIx64, t.digest);
    *entry = json_pack("{s:s, s:I, s:s, s:O}", "file", w->name, "bytes", (json_int_t)t.file_bytes,
                       "digest", digest, "segments", w->segments);
    return *entry ? STATUS_OK : error_memory(e, 1024, "a manifest entry");
}

void ckpt_writer_free(struct ckpt_writer *w)
{
    if (!w)
        return;
    container_writer_release(&w->container);
    output_close(&w->out);
    json_decref(w->segments);
    free(w->buffer);
    free(w);
}

enum status ckpt_manifest_write(const char *dir, const json_t *manifest, struct error *e)
{
    enum status st = STATUS_OK;
    char *path = path_join(dir, CKPT_MANIFEST_NAME), *text = NULL;
    struct ckpt *c = calloc(1, sizeof *c);
    if (!path || !c || !(c->path = strdup(dir)))
        TRY_OUT(error_memory(e, sizeof *c, "a manifest"));
    c->manifest = json_incref((json_t *)manifest);
    TRY_OUT(ckpt_manifest_parse(c, NULL, e));
    text = json_dumps(manifest, JSON_INDENT(1));
    if (!text)
        TRY_OUT(error_memory(e, 1024, "a manifest"));
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in place of the NUL: a text file ends with a newline */
    TRY_OUT(file_write_atomic(path, text, bytes + 1, e));
out:
    free(text);
    free(path);
    ckpt_close(c);
    return st;
}
