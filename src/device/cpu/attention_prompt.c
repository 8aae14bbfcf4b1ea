/* attention_prompt.c - a piece of a prompt attends to the cache by tiles of 64 queries x 64 keys,
 * as attention.c does to rows that lie side by side: keys and values are gathered from their pages
 * once for all queries of a tile.
 *
 *     out[n] = sum over p <= positions[n] of softmax(q_n . k_p / sqrt(D)) v_p
 *
 * fp32 accumulation; a row's sums do not depend on which rows share its tile. Test:
 * tests/unit/test_cpu_decode.c. */
#include "device/cpu/cached.h"

#include "base/checked.h"
#include "device/cpu/rows.h"
#include "device/cpu/tile.h"

#include <math.h>

enum { TILE = CPU_ATTEND_TILE };

/* Dp: D rounded up to whole vectors. */
struct scratch {
    float *queries, *out; /* [64, Dp] */
    float *keys;          /* [D, 64] */
    float *values;        /* [64, Dp] */
    float *scores;        /* [64, 64] */
};

static int64_t padded(int64_t dim)
{
    return round_up_i64(dim, VL_MAX);
}

int64_t cpu_attend_tile_floats(int64_t dim)
{
    return 4 * TILE * padded(dim) + TILE * TILE;
}

static struct scratch lay_out(float *p, int64_t dim)
{
    const int64_t part = TILE * padded(dim);
    return (struct scratch){p, p + part, p + 2 * part, p + 3 * part, p + 4 * part};
}

/* queries[m, Dp] = the rows of q over sqrt(D), zero after the n-th. */
static void pack_queries(const struct cached_args *a, float *queries, int64_t row, int64_t n,
                         int64_t m, int64_t head)
{
    const int64_t d = a->dim, dp = padded(d);
    const float scale = 1.0f / sqrtf((float)d);
    memset(queries, 0, (size_t)(m * dp) * sizeof *queries);
    for (int64_t i = 0; i < n; i++) {
        float *q = queries + i * dp;
        row_to_f32(q, element(a->qkv, (3 * (row + i) * a->heads + head) * d, a->dt), a->dt, d);
        for (int64_t k = 0; k < d; k++)
            q[k] *= scale;
    }
}

/* Positions first .. first+n-1 of the cache: keys transposed, zero after the n-th. */
static void gather(const struct cached_args *a, const struct scratch *f, int32_t sequence,
                   int64_t head, int64_t first, int64_t n)
{
    const int64_t d = a->dim, dp = padded(d);
    float buffer[128];
    if (n < TILE)
        memset(f->keys, 0, (size_t)(d * TILE) * sizeof *f->keys);
    memset(f->values, 0, (size_t)(TILE * dp) * sizeof *f->values);
    for (int64_t j = 0; j < n; j++) {
        const int64_t at = cache_at(&a->kv, sequence, first + j, a->heads * d) + head * d;
        const float *key = row_read(a->kv.keys, at, a->dt, d, buffer);
        for (int64_t k = 0; k < d; k++)
            f->keys[k * TILE + j] = key[k];
        row_to_f32(f->values + j * dp, element(a->kv.values, at, a->dt), a->dt, d);
    }
}

void cpu_attend_tile(const struct cached_args *a, int64_t row, int64_t n, int64_t head,
                     float *scratch)
{
    const int64_t d = a->dim, dp = padded(d), m = round_up_i64(n, TILE_ROWS);
    const int64_t q0 = a->positions[row], end = q0 + n;
    const struct scratch f = lay_out(scratch, d);
    float max[TILE], sum[TILE] = {0};
    pack_queries(a, f.queries, row, n, m, head);
    memset(f.out, 0, (size_t)(m * dp) * sizeof *f.out);
    for (int i = 0; i < TILE; i++)
        max[i] = -INFINITY;
    for (int64_t k0 = 0; k0 < end; k0 += TILE) {
        gather(a, &f, a->sequences[row], head, k0, min_i64(TILE, end - k0));
        tile_product(m, TILE, d, f.queries, dp, 1, f.keys, TILE, f.scores, TILE, false);
        for (int64_t i = 0; i < n; i++) {
            float *s = f.scores + i * TILE;
            for (int64_t j = max_i64(0, q0 + i + 1 - k0); j < TILE; j++)
                s[j] = -INFINITY; /* after the query; key 0 never is, so the maximum is finite */
            tile_softmax_step(s, TILE, &max[i], &sum[i], f.out + i * dp, dp);
        }
        tile_product(m, dp, TILE, f.scores, TILE, 1, f.values, dp, f.out, dp, true);
    }
    for (int64_t i = 0; i < n; i++) {
        float *o = f.out + i * dp;
        for (int64_t k = 0; k < d; k++)
            o[k] /= sum[i];
        row_from_f32(element_mut(a->out, ((row + i) * a->heads + head) * d, a->dt), o, a->dt, d);
    }
}
