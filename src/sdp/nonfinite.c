#include "sdp/nonfinite.h"

#include "base/checked.h"
#include "sdp/engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool found_in(struct sdp_engine *x, const void *data, int64_t n, enum dtype dt)
{
    return x->dev->ops->find_nonfinite(x->dev, x->streams.compute, data, n, dt);
}

static const char *element_at(const void *data, int64_t i, enum dtype dt)
{
    return (const char *)data + (size_t)i * dtype_bytes(dt);
}

/* The first of n values, of which one is not finite; by halves. */
static int64_t first_in(struct sdp_engine *x, const void *data, int64_t n, enum dtype dt)
{
    int64_t at = 0;
    while (n > 1) {
        int64_t half = n / 2;
        if (found_in(x, element_at(data, at, dt), half, dt)) {
            n = half;
        } else {
            at += half;
            n -= half;
        }
    }
    return at;
}

static const char *value_at(struct sdp_engine *x, const void *data, int64_t i, enum dtype dt)
{
    struct error ignored;
    uint16_t narrow;
    float value;
    x->dev->ops->copy(x->dev, x->streams.compute, &x->readback->element, element_at(data, i, dt),
                      dtype_bytes(dt));
    if (x->dev->ops->stream_sync(x->dev, x->streams.compute, &ignored) != STATUS_OK)
        return "not finite";
    memcpy(&narrow, &x->readback->element, sizeof narrow);
    memcpy(&value, &x->readback->element, sizeof value);
    if (dt != DTYPE_F32)
        value = dt == DTYPE_BF16 ? bf16_to_f32(narrow) : f16_to_f32(narrow);
    return isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

/* Looks at data [n], which begins at element `first` of something with rows of `columns`. */
static void look(struct sdp_engine *x, const char *operation, const char *where, const char *what,
                 const void *data, int64_t n, enum dtype dt, int64_t first, int64_t columns)
{
    const struct sdp_nonfinite *f = &x->nonfinite;
    char micro_step[40] = "";
    if (!found_in(x, data, n, dt))
        return;
    int64_t i = first_in(x, data, n, dt), element = first + i;
    const char *value = value_at(x, data, i, dt);
    if (f->micro_step)
        snprintf(micro_step, sizeof micro_step, ", micro-step %lld", (long long)f->micro_step);
    device_fail(x->dev, operation,
                "step %lld%s, rank %d, %s: %s is %s at element %lld (row %lld, column %lld)",
                (long long)f->step, micro_step, x->world->rank, where, what, value,
                (long long)element, (long long)(element / columns), (long long)(element % columns));
}

static void look_at_result(void *context, const struct gpt2_written *w)
{
    struct sdp_engine *x = context;
    char where[64], what[96];
    const char *of = w->layer < 0 ? "the embeddings" : "the head";
    if (w->layer >= 0 && w->layer < x->config.model.layers)
        snprintf(where, sizeof where, "%s of transformer.h.%lld", w->pass, (long long)w->layer);
    else
        snprintf(where, sizeof where, "%s of %s", w->pass, of);
    snprintf(what, sizeof what, "%s [%lld x %lld]", w->what, (long long)w->rows,
             (long long)w->columns);
    look(x, w->operation, where, what, w->data, w->rows * w->columns, w->dt, 0, w->columns);
}

/* Elements [begin, end) of a unit, which begin at data; padding is not looked at. */
static void look_at_unit(struct sdp_engine *x, const char *operation, const char *where,
                         int64_t unit, int64_t begin, int64_t end, const void *data, enum dtype dt)
{
    struct sdp_segment g;
    int64_t cursor = 0;
    while (sdp_layout_next(&x->layout, unit, begin, end, &cursor, &g)) {
        const struct gpt2_tensor *t = &x->tensors.tensors[g.tensor];
        int64_t columns = t->dims == 2 ? t->shape[1] : t->elems;
        look(x, operation, where, t->name, element_at(data, g.at - begin, dt), g.count, dt, g.first,
             columns);
    }
}

void sdp_nonfinite_weights(struct sdp_engine *x, int64_t unit, const void *data)
{
    if (x->nonfinite.on && data)
        look_at_unit(x, "weights", "before forward", unit, 0, x->layout.unit[unit].elems, data,
                     x->config.dt);
}

void sdp_nonfinite_gradients(struct sdp_engine *x)
{
    x->nonfinite.micro_step = 0; /* of the whole step */
    for (int64_t u = 0; x->nonfinite.on && u < x->layout.units; u++) {
        const struct sdp_shard *p = &x->shards[u];
        look_at_unit(x, "reduction", "gradient summed over ranks and micro-steps", u, p->begin,
                     p->begin + p->elems, p->grad, DTYPE_F32);
    }
}

enum status sdp_nonfinite_open(struct sdp_engine *x, struct error *e)
{
    struct sdp_nonfinite *f = &x->nonfinite;
    *f = (struct sdp_nonfinite){.on = x->config.debug_nonfinite};
    if (!f->on)
        return STATUS_OK;
    if (!x->dev->ops->find_nonfinite)
        return error_set(e, STATUS_USAGE, "device %s cannot look for values that are not finite",
                         x->dev->ops->name);
    f->probe = (struct gpt2_probe){.look = look_at_result, .context = x};
    x->train.run.probe = &f->probe;
    return STATUS_OK;
}
