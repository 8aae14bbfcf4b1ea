/* attention.c - causal self-attention, forward and backward, by tiles of 64 queries x 64 keys.
 *
 *     S = q k^T / sqrt(D),  P = softmax(S),  out = dropout(P) v,  lse = log sum exp S
 *     delta = rowsum(dout * out),  dP = dropout(dout v^T),  dS = P * (dP - delta)
 *     dv = dropout(P)^T dout,  dq = dS k / sqrt(D),  dk = dS^T q / sqrt(D)
 *
 * Forward keeps a running maximum and sum a row, so no more than one tile of S exists a thread;
 * backward recomputes P from lse. A head's rows are packed as fp32, keys (and in backward values)
 * transposed by tile, so that every product streams contiguous rows. Forward work is split by
 * (sample, head, 256 queries), backward by (sample, head): each output has one owner and a fixed
 * order of sums. Source: Dao et al., "FlashAttention", 2022. Test: tests/unit/test_cpu_attention.c.
 */
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "device/cpu/math.h"
#include "device/cpu/rows.h"
#include "device/cpu/tile.h"
#include <omp.h>

enum { TILE = 64, QUERIES = 256 };

struct attention_args {
    void *out;  /* forward: out; backward: dqkv */
    float *lse; /* written by forward, read by backward */
    const void *qkv, *dout, *fout;
    struct attention a;
    float *delta; /* [B,H,T], backward */
};

/* What one (sample, head) needs to find its rows. */
struct head {
    const struct attention_args *args;
    int64_t b, h, time, dim, padded_dim; /* D, and D rounded up to whole vectors */
    int64_t stride;                      /* elements between positions of qkv */
    enum dtype dt;
};

static struct head head_of(const struct attention_args *args, int64_t index)
{
    const struct attention *a = &args->a;
    struct head hd = {args,
                      index / a->heads,
                      index % a->heads,
                      a->time,
                      a->head_dim,
                      round_up_i64(a->head_dim, VL_MAX),
                      3 * a->heads * a->head_dim,
                      a->dt};
    return hd;
}

/* Element index of row t of q (0), k (1) or v (2). */
static int64_t qkv_at(const struct head *hd, int64_t t, int which)
{
    return (hd->b * hd->time + t) * hd->stride + (which * hd->args->a.heads + hd->h) * hd->dim;
}

static int64_t out_at(const struct head *hd, int64_t t)
{
    return ((hd->b * hd->time + t) * hd->args->a.heads + hd->h) * hd->dim;
}

/* dst[rows rounded up to a tile, padded_dim] = scale * rows of base, zero elsewhere. */
static void pack_rows(const struct head *hd, float *dst, const void *base, int which, int64_t first,
                      int64_t rows, float scale)
{
    for (int64_t i = 0; i < round_up_i64(rows, TILE); i++) {
        float *row = dst + i * hd->padded_dim;
        const int64_t filled = i < rows ? hd->dim : 0;
        memset(row + filled, 0, (size_t)(hd->padded_dim - filled) * sizeof *row);
        if (i >= rows)
            continue;
        int64_t at = which < 0 ? out_at(hd, first + i) : qkv_at(hd, first + i, which);
        const float *from = row_read(base, at, hd->dt, hd->dim, row);
        for (int64_t d = 0; d < hd->dim; d++)
            row[d] = from[d] * scale;
    }
}

/* dst[tiles][D][TILE]: rows transposed within each tile of 64, zero past the end. */
static void pack_transposed(const struct head *hd, float *dst, int which, int64_t rows)
{
    static const float zero[128];
    float buffer[128];
    for (int64_t i = 0; i < round_up_i64(rows, TILE); i++) {
        float *tile = dst + i / TILE * TILE * hd->dim + i % TILE;
        const float *row = zero;
        if (i < rows)
            row = row_read(hd->args->qkv, qkv_at(hd, i, which), hd->dt, hd->dim, buffer);
        for (int64_t d = 0; d < hd->dim; d++)
            tile[d * TILE] = row[d];
    }
}

/* mask of query q, keys k0 .. k0+63; columns past T are 0. */
static void mask_row(const struct head *hd, float *mask, int64_t q, int64_t k0)
{
    const struct dropout *d = &hd->args->a.dropout;
    int64_t n = min_i64(TILE, hd->time - k0);
    memset(mask, 0, TILE * sizeof *mask);
    dropout_mask(mask, d, d->samples[hd->b], (hd->h * hd->time + q) * hd->time + k0, n);
}

/* --- forward */

struct forward_scratch {
    float *keys, *values;          /* [tiles][D][64], [T][Dp] */
    float *queries, *scores, *out; /* [64][Dp], [64][64], [64][Dp] */
};

static int64_t forward_floats(const struct attention *a)
{
    const int64_t t = round_up_i64(a->time, TILE), dp = round_up_i64(a->head_dim, VL_MAX);
    return t * a->head_dim + t * dp + 2 * TILE * dp + TILE * TILE;
}

static struct forward_scratch forward_layout(const struct head *hd, float *p)
{
    const int64_t t = round_up_i64(hd->time, TILE), dp = hd->padded_dim;
    struct forward_scratch f;
    f.keys = p;
    f.values = f.keys + t * hd->dim;
    f.queries = f.values + t * dp;
    f.out = f.queries + TILE * dp;
    f.scores = f.out + TILE * dp;
    return f;
}

/* Keys after query q of a tile that starts at k0 do not count. */
static void mask_future(float *s, int64_t q, int64_t k0)
{
    for (int64_t j = q + 1 - k0; j < TILE; j++)
        s[j] = -INFINITY;
}

static void forward_tile(const struct head *hd, const struct forward_scratch *f, int64_t q0)
{
    const int64_t dp = hd->padded_dim, rows = min_i64(TILE, hd->time - q0);
    const float scale = 1.0f / sqrtf((float)hd->dim);
    float max[TILE], sum[TILE], mask[TILE];
    pack_rows(hd, f->queries, hd->args->qkv, 0, q0, rows, scale);
    memset(f->out, 0, (size_t)(TILE * dp) * sizeof(float));
    for (int i = 0; i < TILE; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    const int64_t m = round_up_i64(rows, TILE_ROWS);
    for (int64_t k0 = 0; k0 <= q0; k0 += TILE) {
        tile_product(m, TILE, hd->dim, f->queries, dp, 1, f->keys + k0 * hd->dim, TILE, f->scores,
                     TILE, false);
        for (int64_t i = 0; i < rows; i++) {
            float *s = f->scores + i * TILE;
            if (k0 == q0)
                mask_future(s, q0 + i, k0);
            tile_softmax_step(s, TILE, &max[i], &sum[i], f->out + i * dp, dp);
            if (hd->args->a.dropout.p == 0.0f)
                continue;
            mask_row(hd, mask, q0 + i, k0);
            for (int64_t j = 0; j < TILE; j++)
                s[j] *= mask[j];
        }
        tile_product(m, dp, TILE, f->scores, TILE, 1, f->values + k0 * dp, dp, f->out, dp, true);
    }
    for (int64_t i = 0; i < rows; i++) {
        float *o = f->out + i * dp;
        const float inverse = 1.0f / sum[i];
        for (int64_t d = 0; d < hd->dim; d++)
            o[d] *= inverse;
        row_from_f32(element_mut(hd->args->out, out_at(hd, q0 + i), hd->dt), o, hd->dt, hd->dim);
        hd->args->lse[(hd->b * hd->args->a.heads + hd->h) * hd->time + q0 + i] =
            max[i] + logf(sum[i]);
    }
}

static void forward_run(struct stream *s, const void *args)
{
    const struct attention_args *g = args;
    const struct attention *a = &g->a;
    const int64_t chunks = ceil_div_i64(a->time, QUERIES), items = a->batch * a->heads * chunks;
    const int64_t floats = round_up_i64(forward_floats(a), VL_MAX);
    float *scratch = stream_scratch(s, "attention_forward",
                                    (size_t)(floats * omp_get_max_threads()) * sizeof(float));
    if (!scratch)
        return;
#pragma omp parallel for schedule(dynamic, 1) if (items > 1)
    for (int64_t item = 0; item < items; item++) {
        /* Long chunks first, so that threads finish together. */
        const int64_t first = (chunks - 1 - item / (a->batch * a->heads)) * QUERIES;
        const int64_t end = min_i64(first + QUERIES, a->time);
        const struct head hd = head_of(g, item % (a->batch * a->heads));
        struct forward_scratch f = forward_layout(&hd, scratch + floats * omp_get_thread_num());
        pack_transposed(&hd, f.keys, 1, end);
        pack_rows(&hd, f.values, g->qkv, 2, 0, end, 1.0f);
        for (int64_t q0 = first; q0 < end; q0 += TILE)
            forward_tile(&hd, &f, q0);
    }
}

static bool attention_valid(struct device *dev, const char *operation, const struct attention *a)
{
    bool ok = a->head_dim >= 8 && a->head_dim <= 128 && a->head_dim % 8 == 0;
    if (!ok)
        device_fail(dev, operation, "head dimension %lld is not a multiple of 8 up to 128",
                    (long long)a->head_dim);
    return ok;
}

void cpu_attention_forward(struct device *dev, struct stream *s, void *out, float *lse,
                           const void *qkv, const struct attention *a)
{
    struct attention_args args = {.out = out, .lse = lse, .qkv = qkv, .a = *a};
    if (attention_valid(dev, "attention_forward", a))
        stream_submit(s, forward_run, &args, sizeof args);
}

/* --- backward */

struct backward_scratch {
    float *queries, *douts, *keys; /* [T][Dp]; queries carry 1/sqrt(D) */
    float *keys_t, *values_t;      /* [tiles][D][64] */
    float *dq;                     /* [T][Dp] */
    float *dk, *dv, *p, *ds;       /* [64][Dp] twice, [64][64] twice */
};

static int64_t backward_floats(const struct attention *a)
{
    const int64_t t = round_up_i64(a->time, TILE), dp = round_up_i64(a->head_dim, VL_MAX);
    return 4 * t * dp + 2 * t * a->head_dim + 2 * TILE * dp + 2 * TILE * TILE;
}

static struct backward_scratch backward_layout(const struct head *hd, float *p)
{
    const int64_t t = round_up_i64(hd->time, TILE), dp = hd->padded_dim;
    struct backward_scratch w;
    w.queries = p;
    w.douts = w.queries + t * dp;
    w.keys = w.douts + t * dp;
    w.dq = w.keys + t * dp;
    w.keys_t = w.dq + t * dp;
    w.values_t = w.keys_t + t * hd->dim;
    w.dk = w.values_t + t * hd->dim;
    w.dv = w.dk + TILE * dp;
    w.p = w.dv + TILE * dp;
    w.ds = w.p + TILE * TILE;
    return w;
}

/* p holds scores and ds holds dout v^T on entry; dropout(P) and dS on return. */
static void backward_row(const struct head *hd, float *p, float *ds, int64_t q, int64_t k0,
                         float lse, float delta)
{
    float mask[TILE];
    if (q < k0 + TILE)
        mask_future(p, q, k0);
    if (hd->args->a.dropout.p == 0.0f) {
        for (int64_t j = 0; j < TILE; j += VL) {
            vf e = vf_exp(vf_load(p + j) - lse);
            vf_store(p + j, e);
            vf_store(ds + j, e * (vf_load(ds + j) - delta));
        }
        return;
    }
    mask_row(hd, mask, q, k0);
    for (int64_t j = 0; j < TILE; j += VL) {
        vf e = vf_exp(vf_load(p + j) - lse), m = vf_load(mask + j);
        vf_store(ds + j, e * (vf_load(ds + j) * m - delta));
        vf_store(p + j, e * m);
    }
}

/* One tile of keys against all later queries. */
static void backward_keys(const struct head *hd, const struct backward_scratch *w, int64_t k0,
                          const float *lse, const float *delta)
{
    const int64_t dp = hd->padded_dim;
    memset(w->dk, 0, (size_t)(TILE * dp) * sizeof(float));
    memset(w->dv, 0, (size_t)(TILE * dp) * sizeof(float));
    for (int64_t q0 = k0; q0 < hd->time; q0 += TILE) {
        const int64_t rows = min_i64(TILE, hd->time - q0), m = round_up_i64(rows, TILE_ROWS);
        const float *q = w->queries + q0 * dp, *dout = w->douts + q0 * dp;
        tile_product(m, TILE, hd->dim, q, dp, 1, w->keys_t + k0 * hd->dim, TILE, w->p, TILE, false);
        tile_product(m, TILE, hd->dim, dout, dp, 1, w->values_t + k0 * hd->dim, TILE, w->ds, TILE,
                     false);
        for (int64_t i = 0; i < rows; i++)
            backward_row(hd, w->p + i * TILE, w->ds + i * TILE, q0 + i, k0, lse[q0 + i],
                         delta[q0 + i]);
        tile_product(TILE, dp, rows, w->p, 1, TILE, dout, dp, w->dv, dp, true);
        tile_product(TILE, dp, rows, w->ds, 1, TILE, q, dp, w->dk, dp, true);
        tile_product(m, dp, min_i64(TILE, hd->time - k0), w->ds, TILE, 1, w->keys + k0 * dp, dp,
                     w->dq + q0 * dp, dp, true);
    }
}

static void store_gradient(const struct head *hd, float *rows, int which, int64_t first, int64_t n,
                           float scale)
{
    for (int64_t i = 0; i < n; i++) {
        float *row = rows + i * hd->padded_dim;
        for (int64_t d = 0; d < hd->dim; d++)
            row[d] *= scale;
        row_from_f32(element_mut(hd->args->out, qkv_at(hd, first + i, which), hd->dt), row, hd->dt,
                     hd->dim);
    }
}

static void backward_head(const struct head *hd, const struct backward_scratch *w)
{
    const struct attention_args *g = hd->args;
    const int64_t dp = hd->padded_dim, t = hd->time, at = (hd->b * g->a.heads + hd->h) * t;
    const float scale = 1.0f / sqrtf((float)hd->dim), *lse = g->lse + at;
    float *delta = g->delta + at, buffer[128];
    pack_rows(hd, w->queries, g->qkv, 0, 0, t, scale);
    pack_rows(hd, w->keys, g->qkv, 1, 0, t, 1.0f);
    pack_rows(hd, w->douts, g->dout, -1, 0, t, 1.0f);
    pack_transposed(hd, w->keys_t, 1, t);
    pack_transposed(hd, w->values_t, 2, t);
    memset(w->dq, 0, (size_t)(round_up_i64(t, TILE) * dp) * sizeof(float));
    for (int64_t i = 0; i < t; i++) {
        const float *o = row_read(g->fout, out_at(hd, i), hd->dt, hd->dim, buffer);
        delta[i] = (float)row_dot(w->douts + i * dp, o, hd->dim);
    }
    for (int64_t k0 = 0; k0 < t; k0 += TILE) {
        const int64_t keys = min_i64(TILE, t - k0);
        backward_keys(hd, w, k0, lse, delta);
        store_gradient(hd, w->dk, 1, k0, keys, 1.0f);
        store_gradient(hd, w->dv, 2, k0, keys, 1.0f);
    }
    store_gradient(hd, w->dq, 0, 0, t, scale);
}

static void backward_run(struct stream *s, const void *args)
{
    const struct attention_args *g = args;
    const int64_t items = g->a.batch * g->a.heads;
    const int64_t floats = round_up_i64(backward_floats(&g->a), VL_MAX);
    float *scratch = stream_scratch(s, "attention_backward",
                                    (size_t)(floats * omp_get_max_threads()) * sizeof(float));
    if (!scratch)
        return;
#pragma omp parallel for schedule(dynamic, 1) if (items > 1)
    for (int64_t item = 0; item < items; item++) {
        const struct head hd = head_of(g, item);
        struct backward_scratch w = backward_layout(&hd, scratch + floats * omp_get_thread_num());
        backward_head(&hd, &w);
    }
}

size_t cpu_attention_backward_workspace(const struct attention *a)
{
    return (size_t)(a->batch * a->heads * a->time) * sizeof(float);
}

void cpu_attention_backward(struct device *dev, struct stream *s, void *dqkv, const void *dout,
                            const void *qkv, const void *out, const float *lse,
                            const struct attention *a, void *workspace, size_t workspace_bytes)
{
    struct attention_args args = {.out = dqkv,
                                  .lse = (float *)lse, /* only read here */
                                  .qkv = qkv,
                                  .dout = dout,
                                  .fout = out,
                                  .a = *a,
                                  .delta = workspace};
    if (!attention_valid(dev, "attention_backward", a))
        return;
    if (workspace_bytes < cpu_attention_backward_workspace(a)) {
        device_fail(dev, "attention_backward", "workspace of %zu bytes, needs %zu", workspace_bytes,
                    cpu_attention_backward_workspace(a));
        return;
    }
    stream_submit(s, backward_run, &args, sizeof args);
}
