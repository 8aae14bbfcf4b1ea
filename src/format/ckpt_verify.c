/* ckpt_verify.c - reads a whole checkpoint through a buffer and recomputes every digest. */
#include "format/ckpt_private.h"
#include "base/checked.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct verify {
    struct ckpt *c;
    uint8_t *buffer;  /* CKPT_DATA_BYTES */
    uint64_t *digest; /* [tensors * CKPT_KINDS]; NULL: not wanted */
    /* place in the current file: segment, and elements of it done */
    size_t segment;
    int64_t done;
    uint32_t block; /* DATA blocks of it done */
};

/* One DATA payload: its elements belong to the file's segments in order. */
static enum status add_payload(struct verify *v, size_t file, uint64_t bytes, struct error *e)
{
    const struct ckpt_file *f = &v->c->files[file];
    const float *x = (const float *)v->buffer;
    int64_t n = (int64_t)(bytes / 4);
    while (n > 0) {
        if (v->segment == f->segments)
            return error_set(e, STATUS_DATA, "%s has more elements than its segments", f->path);
        const struct ckpt_piece *p = &v->c->pieces[f->first_piece + v->segment];
        int64_t take = min_i64(n, p->count - v->done);
        uint64_t *sum = &v->digest[p->tensor * CKPT_KINDS + (size_t)p->kind];
        *sum = ckpt_digest_add(*sum, p->first + v->done, x, take);
        v->done += take;
        x += take;
        n -= take;
        if (v->done == p->count) {
            v->segment++;
            v->done = 0;
        }
    }
    return STATUS_OK;
}

static enum status verify_block(struct verify *v, size_t file, struct container_reader *r,
                                const struct container_block *b, struct error *e)
{
    if (strcmp(b->tag, "SEGM") == 0) {
        char *text = malloc(b->payload_bytes + 1);
        if (!text)
            return error_memory(e, b->payload_bytes, "segments");
        enum status st = container_read_payload(r, b, text, e);
        if (st == STATUS_OK)
            st = ckpt_check_segm(v->c, file, text, b->payload_bytes, e);
        free(text);
        return st;
    }
    if (strcmp(b->tag, "DATA") != 0)
        return container_skip_payload(r, b, e);
    if (b->payload_bytes > CKPT_DATA_BYTES)
        return error_set(e, STATUS_DATA, "%s: block at byte %" PRIu64 " has %" PRIu64 " bytes",
                         r->in->name, b->payload_offset, b->payload_bytes);
    TRY(container_read_payload(r, b, v->buffer, e));
    struct ckpt_file *f = &v->c->files[file];
    if (v->block < f->data_count)
        atomic_store_explicit(&f->verified[v->block++], 1, memory_order_release);
    if (!v->digest)
        return STATUS_OK;
    return add_payload(v, file, b->payload_bytes, e);
}

static enum status verify_file(struct verify *v, size_t file, uint64_t before,
                               void (*progress)(void *, uint64_t), void *arg, struct error *e)
{
    struct input in = {.fd = -1};
    struct container_reader r = {0};
    struct container_block b;
    struct container_trailer t = {0};
    bool done = false;
    enum status st;
    v->segment = 0;
    v->done = 0;
    v->block = 0;
    TRY_OUT(input_open(&in, v->c->files[file].path, e));
    TRY_OUT(container_read_header(&r, &in, "CKP", CKPT_MAJOR, e));
    for (;;) {
        TRY_OUT(container_next_block(&r, CKPT_JSON_LIMIT, &b, &done, &t, e));
        if (done)
            break;
        TRY_OUT(verify_block(v, file, &r, &b, e));
        if (progress)
            progress(arg, before + in.offset);
    }
    TRY_OUT(ckpt_check_ends(v->c, file, &r.header, &t, e));
out:
    container_reader_release(&r);
    input_close(&in);
    return st;
}

static enum status compare_digests(const struct verify *v, struct error *e)
{
    for (size_t t = 0; t < v->c->tensor_count; t++) {
        const struct ckpt_tensor *tensor = &v->c->tensors[t];
        for (size_t k = 0; k < CKPT_KINDS; k++)
            if (tensor->present[k] && tensor->digest[k] != v->digest[t * CKPT_KINDS + k])
                return error_set(e, STATUS_DATA,
                                 "%s: digest of tensor \"%s\" (%s) is %016" PRIx64
                                 ", the manifest says %016" PRIx64,
                                 v->c->path, tensor->name, ckpt_kind_names[k],
                                 v->digest[t * CKPT_KINDS + k], tensor->digest[k]);
    }
    return STATUS_OK;
}

enum status ckpt_verify(struct ckpt *c, void (*progress)(void *, uint64_t bytes), void *arg,
                        struct error *e)
{
    struct verify v = {.c = c,
                       .buffer = malloc(CKPT_DATA_BYTES),
                       .digest = calloc(c->tensor_count * CKPT_KINDS, sizeof *v.digest)};
    enum status st = STATUS_OK;
    uint64_t before = 0;
    if (!v.buffer || !v.digest)
        TRY_OUT(error_memory(e, CKPT_DATA_BYTES, "a block"));
    for (size_t i = 0; i < c->file_count; i++) {
        TRY_OUT(verify_file(&v, i, before, progress, arg, e));
        before += c->files[i].bytes;
    }
    TRY_OUT(compare_digests(&v, e));
out:
    free(v.buffer);
    free(v.digest);
    return st;
}

enum status ckpt_verify_file(struct ckpt *c, size_t file, struct error *e)
{
    struct verify v = {.c = c, .buffer = malloc(CKPT_DATA_BYTES)};
    if (!v.buffer)
        return error_memory(e, CKPT_DATA_BYTES, "a block");
    enum status st = verify_file(&v, file, 0, NULL, NULL, e);
    free(v.buffer);
    return st;
}
