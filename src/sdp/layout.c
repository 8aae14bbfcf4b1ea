#include "sdp/layout.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

/* Elements a tensor takes in memory: to the next tensor of its unit (vocabulary padding included).
 */
static int64_t reserved_elems(const struct gpt2_tensors *t, int64_t i)
{
    const struct gpt2_tensor *x = &t->tensors[i];
    bool last = i + 1 == t->unit_first[x->unit + 1];
    return (last ? t->unit_elems[x->unit] : t->tensors[i + 1].offset) - x->offset;
}

/* Small block tensors and the final norm go to the last unit; the embeddings are held as they are.
 */
static int32_t unit_of(const struct gpt2_tensors *t, const struct gpt2_tensor *x, int64_t threshold)
{
    if (x->unit != 0 && x->elems < threshold)
        return (int32_t)(t->units - 1);
    return x->unit;
}

/* Places the tensors of one unit: those with weight decay, then the others, in the table's order.
 */
static void fill_unit(struct sdp_layout *l, int64_t unit, int64_t *next)
{
    const struct gpt2_tensors *t = l->tensors;
    struct sdp_unit *u = &l->unit[unit];
    int64_t used = 0;
    u->first = *next;
    for (int decay = 1; decay >= 0; decay--) {
        for (int64_t i = 0; i < t->count; i++) {
            if (l->tensor_unit[i] != unit || t->tensors[i].decay != (bool)decay)
                continue;
            l->order[(*next)++] = i;
            l->tensor_offset[i] = used;
            used += reserved_elems(t, i);
        }
        if (decay)
            u->decay = used;
    }
    u->count = *next - u->first;
    u->elems = round_up_i64(used, (int64_t)l->degree * SDP_ALIGN);
    u->shard = u->elems / l->degree;
}

enum status sdp_layout_create(struct sdp_layout *l, const struct gpt2_tensors *t, int degree,
                              int64_t threshold_elems, struct error *e)
{
    memset(l, 0, sizeof *l);
    l->tensors = t;
    l->degree = degree;
    l->units = t->units;
    l->unit = calloc((size_t)t->units, sizeof *l->unit);
    l->order = calloc((size_t)t->count, sizeof *l->order);
    l->tensor_unit = calloc((size_t)t->count, sizeof *l->tensor_unit);
    l->tensor_offset = calloc((size_t)t->count, sizeof *l->tensor_offset);
    if (!l->unit || !l->order || !l->tensor_unit || !l->tensor_offset) {
        sdp_layout_release(l);
        return error_memory(e, (unsigned long long)t->count * 24, "the sharding layout");
    }
    for (int64_t i = 0; i < t->count; i++)
        l->tensor_unit[i] = unit_of(t, &t->tensors[i], threshold_elems);
    int64_t next = 0;
    for (int64_t u = 0; u < l->units; u++) {
        fill_unit(l, u, &next);
        l->elems += l->unit[u].elems;
        if (!sdp_layout_held(l, u))
            l->streamed_max = max_i64(l->streamed_max, l->unit[u].elems);
    }
    return STATUS_OK;
}

void sdp_layout_release(struct sdp_layout *l)
{
    free(l->unit);
    free(l->order);
    free(l->tensor_unit);
    free(l->tensor_offset);
    memset(l, 0, sizeof *l);
}

bool sdp_layout_next(const struct sdp_layout *l, int64_t unit, int64_t begin, int64_t end,
                     int64_t *cursor, struct sdp_segment *out)
{
    const struct sdp_unit *u = &l->unit[unit];
    while (*cursor < u->count) {
        int64_t tensor = l->order[u->first + (*cursor)++];
        int64_t from = l->tensor_offset[tensor];
        int64_t to = from + l->tensors->tensors[tensor].elems;
        int64_t a = max_i64(begin, from), b = min_i64(end, to);
        if (a >= b)
            continue;
        *out = (struct sdp_segment){.tensor = tensor, .first = a - from, .count = b - a, .at = a};
        return true;
    }
    return false;
}
