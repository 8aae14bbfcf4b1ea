#include "base/checked.h"
#include "ckpt-merge/merge.h"
#include "gpt2/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_ELEMS ((int64_t)(CKPT_DATA_BYTES / 4))

/* Hugging Face's order is the model's: embeddings, blocks in order, final norm. */
static enum status order_tensors(struct merge_plan *p, const struct gpt2_config *c, struct error *e)
{
    struct gpt2_tensors table;
    TRY(gpt2_tensors_create(&table, c, e));
    p->count = (size_t)table.count;
    p->order = malloc(p->count * sizeof *p->order);
    p->place = malloc(p->count * sizeof *p->place);
    p->outputs = calloc(p->count, sizeof *p->outputs);
    enum status st = STATUS_OK;
    if (!p->order || !p->place || !p->outputs)
        TRY_OUT(error_memory(e, p->count * sizeof *p->outputs, "the list of tensors"));
    for (size_t i = 0; i < p->count; i++) {
        int64_t at = tensor_set_find(p->set, table.tensors[i].name); /* proved to be there */
        struct tensor_view t = tensor_set_at(p->set, (size_t)at);
        struct safetensor *out = &p->outputs[i];
        p->order[i] = (uint32_t)at;
        p->place[at] = (uint32_t)i;
        out->name = (char *)t.name; /* borrowed from the checkpoint */
        out->dtype = p->dtype;
        out->dims = t.dims;
        memcpy(out->shape, t.shape, (size_t)t.dims * sizeof *t.shape);
        out->elems = t.elems;
        out->bytes = (uint64_t)t.elems * dtype_bytes(p->dtype);
        p->total_bytes += out->bytes;
    }
out:
    gpt2_tensors_release(&table);
    return st;
}

/* As many tensors a file as fit, at least one. */
static enum status cut_shards(struct merge_plan *p, uint64_t max_bytes, struct error *e)
{
    p->shards = calloc(p->count, sizeof *p->shards);
    if (!p->shards)
        return error_memory(e, p->count * sizeof *p->shards, "the list of files");
    for (size_t i = 0; i < p->count; i++) {
        struct merge_shard *s = p->shard_count ? &p->shards[p->shard_count - 1] : NULL;
        if (!s || s->bytes + p->outputs[i].bytes > max_bytes) {
            s = &p->shards[p->shard_count++];
            s->first = i;
        }
        s->count++;
        s->bytes += p->outputs[i].bytes;
        p->outputs[i].file = (uint32_t)(p->shard_count - 1);
    }
    for (size_t k = 0; k < p->shard_count; k++) {
        if (p->shard_count == 1)
            snprintf(p->shards[k].name, sizeof p->shards[k].name, "model.safetensors");
        else
            snprintf(p->shards[k].name, sizeof p->shards[k].name,
                     "model-%05zu-of-%05zu.safetensors", k + 1, p->shard_count);
    }
    return STATUS_OK;
}

static enum status put_piece(struct merge_plan *p, size_t *capacity, struct merge_piece piece,
                             struct error *e)
{
    if (p->piece_count == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 1024;
        struct merge_piece *more = realloc(p->pieces, *capacity * sizeof *more);
        if (!more)
            return error_memory(e, *capacity * sizeof *more, "the list of pieces");
        p->pieces = more;
    }
    p->pieces[p->piece_count++] = piece;
    return STATUS_OK;
}

/* The master segments of all files, cut where blocks end, so that every block is read once and its
 * file from start to end. */
static enum status cut_pieces(struct merge_plan *p, struct error *e)
{
    const struct ckpt *c = p->set->ckpt;
    size_t capacity = 0;
    for (size_t f = 0; f < ckpt_file_count(c); f++) {
        for (size_t i = 0; i < ckpt_file_at(c, f).segments; i++) {
            struct ckpt_segment s = ckpt_segment_at(c, f, i);
            if (s.kind != CKPT_MASTER)
                continue;
            uint32_t tensor = (uint32_t)tensor_set_find(p->set, s.tensor);
            while (s.count > 0) {
                int64_t n = min_i64(s.count, BLOCK_ELEMS - (int64_t)s.offset % BLOCK_ELEMS);
                TRY(put_piece(p, &capacity, (struct merge_piece){tensor, s.first, n}, e));
                s.first += n;
                s.offset += (uint64_t)n;
                s.count -= n;
            }
        }
    }
    return STATUS_OK;
}

enum status merge_plan_create(struct merge_plan *p, struct tensor_set *set,
                              const struct gpt2_config *c, enum dtype dtype,
                              int64_t max_shard_bytes, struct error *e)
{
    *p = (struct merge_plan){.set = set, .dtype = dtype};
    TRY(order_tensors(p, c, e));
    TRY(cut_shards(p, (uint64_t)max_shard_bytes, e));
    return cut_pieces(p, e);
}

void merge_plan_release(struct merge_plan *p)
{
    free(p->order);
    free(p->place);
    free(p->outputs);
    free(p->shards);
    free(p->pieces);
}

size_t merge_plan_shard_of(const struct merge_plan *p, size_t i)
{
    return p->outputs[i].file;
}
