/* ckpt_cover.c - the proof that segments hold every element of every tensor and kind exactly once.
 */
#include "format/ckpt_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int by_place(const void *a, const void *b)
{
    const struct ckpt_piece *x = *(const struct ckpt_piece *const *)a;
    const struct ckpt_piece *y = *(const struct ckpt_piece *const *)b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->file < y->file ? -1 : x->file > y->file;
}

/* Elements [from, to) of one tensor and kind, in words. */
static enum status fault(const struct ckpt *c, size_t tensor, int kind, int64_t from, int64_t to,
                         const char *what, struct error *e)
{
    const struct ckpt_tensor *t = &c->tensors[tensor];
    return error_set(e, STATUS_DATA,
                     "%s: elements %" PRId64 " to %" PRId64 " of tensor \"%s\" (%s, %" PRId64
                     " elements) are %s",
                     c->path, from, to - 1, t->name, ckpt_kind_names[kind], t->elems, what);
}

static enum status doubled(const struct ckpt *c, const struct ckpt_piece *a,
                           const struct ckpt_piece *b, struct error *e)
{
    int64_t a_end = a->first + a->count, b_end = b->first + b->count;
    char what[512];
    snprintf(what, sizeof what, "stored twice, in %s and %s", c->files[a->file].name,
             c->files[b->file].name);
    return fault(c, b->tensor, b->kind, b->first, a_end < b_end ? a_end : b_end, what, e);
}

/* The places [begin, end) of one tensor and kind. */
static enum status cover_one(const struct ckpt *c, size_t tensor, int kind, size_t begin,
                             size_t end, struct error *e)
{
    int64_t next = 0;
    for (size_t i = begin; i < end; i++) {
        const struct ckpt_piece *p = c->places[i];
        if (p->first > next)
            return fault(c, tensor, kind, next, p->first, "in no file", e);
        if (p->first < next)
            return doubled(c, c->places[i - 1], p, e);
        next = p->first + p->count;
    }
    if (next < c->tensors[tensor].elems)
        return fault(c, tensor, kind, next, c->tensors[tensor].elems, "in no file", e);
    return STATUS_OK;
}

enum status ckpt_cover(struct ckpt *c, struct error *e)
{
    size_t at = 0;
    c->place_of = malloc((c->tensor_count * CKPT_KINDS + 1) * sizeof *c->place_of);
    c->places = malloc((c->piece_count + 1) * sizeof *c->places);
    if (!c->place_of || !c->places)
        return error_memory(e, c->piece_count * sizeof *c->places, "an index of segments");
    for (size_t i = 0; i < c->piece_count; i++)
        c->places[i] = &c->pieces[i];
    qsort(c->places, c->piece_count, sizeof *c->places, by_place);
    for (size_t t = 0; t < c->tensor_count; t++) {
        for (int k = 0; k < CKPT_KINDS; k++) {
            size_t begin = at;
            c->place_of[t * CKPT_KINDS + (size_t)k] = begin;
            while (at < c->piece_count && c->places[at]->tensor == t &&
                   (int)c->places[at]->kind == k)
                at++;
            if (c->tensors[t].present[k])
                TRY(cover_one(c, t, k, begin, at, e));
        }
    }
    c->place_of[c->tensor_count * CKPT_KINDS] = at;
    return STATUS_OK;
}
