/* gemm.c - matrix products by oneDNN on a grid of output tiles.
 *
 * The grid depends on the shape only and each tile is one single-threaded oneDNN product, done
 * whole by whichever thread takes it. oneDNN's own threading would split the inner dimension by the
 * number of threads and change the order of sums with it. It also lets the epilogue run while a
 * tile is in cache. fp32 uses dnnl_sgemm, which generates no code per shape; bf16 uses matmul
 * primitives, kept by shape; fp16, and bf16 where oneDNN has only its reference code, go through
 * fp32 copies. Plain twin: gemm_plain.c. Test: tests/unit/test_cpu_gemm.c. */
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "device/cpu/math.h"
#include "device/cpu/rows.h"
#include "device/cpu/vector.h"
#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>

/* --- bf16 primitives by shape */

struct gemm_key {
    int64_t m, n, k, lda, ldb, ldd;
    bool transpose_a, transpose_b, accumulate;
};

struct gemm_entry {
    struct gemm_key key;
    dnnl_primitive_t primitive; /* NULL: oneDNN has nothing fast for this shape */
    dnnl_memory_desc_t a, b, d, scratchpad;
    bool used;
};

enum { CACHE_SLOTS = 1024 };

struct gemm_cache {
    dnnl_engine_t engine;
    pthread_mutex_t lock;
    int count;
    struct gemm_entry slots[CACHE_SLOTS]; /* open addressing */
};

enum status gemm_cache_new(struct gemm_cache **out, struct error *e)
{
    struct gemm_cache *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return error_memory(e, sizeof *c, "products by shape");
    dnnl_status_t st = dnnl_engine_create(&c->engine, dnnl_cpu, 0);
    if (st != dnnl_success) {
        free(c);
        return error_set(e, STATUS_DEVICE, "device cpu: oneDNN engine: status %d", (int)st);
    }
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return STATUS_OK;
}

static void cache_clear(struct gemm_cache *c)
{
    for (int i = 0; i < CACHE_SLOTS; i++)
        if (c->slots[i].primitive)
            dnnl_primitive_destroy(c->slots[i].primitive);
    memset(c->slots, 0, sizeof c->slots);
    c->count = 0;
}

void gemm_cache_free(struct gemm_cache *c)
{
    if (!c)
        return;
    cache_clear(c);
    dnnl_engine_destroy(c->engine);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void describe(dnnl_memory_desc_t *d, int64_t rows, int64_t cols, int64_t row_stride,
                     int64_t col_stride, dnnl_data_type_t type)
{
    dnnl_dims_t dims = {rows, cols}, strides = {row_stride, col_stride};
    dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides);
}

/* Leaves e->primitive NULL when oneDNN refuses or offers its reference loops only. */
static void entry_build(struct gemm_entry *e, dnnl_engine_t engine)
{
    const struct gemm_key *k = &e->key;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t post = NULL;
    dnnl_primitive_desc_t pd = NULL;
    const char *name = "";
    describe(&e->a, k->m, k->k, k->transpose_a ? 1 : k->lda, k->transpose_a ? k->lda : 1,
             dnnl_bf16);
    describe(&e->b, k->k, k->n, k->transpose_b ? 1 : k->ldb, k->transpose_b ? k->ldb : 1,
             dnnl_bf16);
    describe(&e->d, k->m, k->n, k->ldd, 1, dnnl_f32);
    if (dnnl_matmul_desc_init(&desc, &e->a, &e->b, NULL, &e->d) == dnnl_success &&
        dnnl_primitive_attr_create(&attr) == dnnl_success &&
        dnnl_post_ops_create(&post) == dnnl_success &&
        (!k->accumulate || dnnl_post_ops_append_sum(post, 1.0f) == dnnl_success) &&
        dnnl_primitive_attr_set_post_ops(attr, post) == dnnl_success &&
        /* oneDNN's own scratchpad belongs to the thread that made the primitive: bring one each */
        dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success &&
        dnnl_primitive_desc_create(&pd, &desc, attr, engine, NULL) == dnnl_success &&
        dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) == dnnl_success &&
        strncmp(name, "ref", 3) != 0) {
        e->scratchpad = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        if (dnnl_primitive_create(&e->primitive, pd) != dnnl_success)
            e->primitive = NULL;
    }
    dnnl_primitive_desc_destroy(pd);
    dnnl_post_ops_destroy(post);
    dnnl_primitive_attr_destroy(attr);
}

static bool key_equal(const struct gemm_key *x, const struct gemm_key *y)
{
    return x->m == y->m && x->n == y->n && x->k == y->k && x->lda == y->lda && x->ldb == y->ldb &&
           x->ldd == y->ldd && x->transpose_a == y->transpose_a &&
           x->transpose_b == y->transpose_b && x->accumulate == y->accumulate;
}

static uint64_t key_hash(const struct gemm_key *k)
{
    const int64_t parts[] = {k->m,
                             k->n,
                             k->k,
                             k->lda,
                             k->ldb,
                             k->ldd,
                             k->transpose_a + 2 * k->transpose_b + 4 * k->accumulate};
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        h = (h ^ (uint64_t)parts[i]) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 29;
    }
    return h;
}

/* The caller holds the lock until the product is done: emptying a full table must not take a
 * primitive that another stream runs. */
static struct gemm_entry cache_get(struct gemm_cache *c, const struct gemm_key *key)
{
    uint64_t at = key_hash(key) % CACHE_SLOTS;
    while (c->slots[at].used && !key_equal(&c->slots[at].key, key))
        at = (at + 1) % CACHE_SLOTS;
    struct gemm_entry *e = &c->slots[at];
    if (!e->used) {
        const int threads = omp_get_max_threads();
        e->key = *key;
        e->used = true;
        c->count++;
        omp_set_num_threads(1); /* a primitive keeps the number of threads it was made for */
        entry_build(e, c->engine);
        omp_set_num_threads(threads);
    }
    return *e;
}

/* --- the grid */

struct grid {
    int64_t tile_m, tile_n, count_m, count_n;
};

/* Tiles of equal size as near as can be, in whole units of oneDNN's kernel. */
static int64_t tile_length(int64_t n, int64_t count, int64_t unit)
{
    return min_i64(n, round_up_i64(ceil_div_i64(n, count), unit));
}

/* Single-threaded oneDNN packs both operands of a tile anew, so tiles are large; but a product is
 * cut into ENOUGH tiles for the threads of a small machine, as long as a tile is worth the packing.
 */
static struct grid grid_of(const struct gemm *g)
{
    enum { TILE_M = 256, TILE_N = 768, UNIT_M = 8, UNIT_N = 48, ENOUGH = 8, LEAST = 96 };
    int64_t count_m = max_i64(1, (g->m + TILE_M / 2) / TILE_M);
    int64_t count_n = max_i64(1, (g->n + TILE_N / 2) / TILE_N);
    while (count_m * count_n < ENOUGH) {
        const int64_t m = g->m / count_m, n = g->n / count_n;
        if (max_i64(m, n) < 2 * LEAST)
            break;
        if (n >= m)
            count_n *= 2;
        else
            count_m *= 2;
    }
    struct grid t = {.tile_m = tile_length(g->m, count_m, UNIT_M),
                     .tile_n = tile_length(g->n, count_n, UNIT_N)};
    t.count_m = ceil_div_i64(g->m, t.tile_m);
    t.count_n = ceil_div_i64(g->n, t.tile_n);
    return t;
}

/* A product with its leading dimensions filled in, and what the tiles share. */
struct product {
    struct gemm g;               /* lda, ldb, ldd set; a, b and dt as oneDNN reads them */
    const struct gemm *original; /* bias, aux and their dt */
    struct grid grid;
    float *tiles;               /* [threads][tile_m * tile_n] when d is not fp32 */
    struct gemm_entry *entries; /* [2][2] by (last row of tiles, last column), bf16 only */
    dnnl_engine_t engine;
    char *scratchpads; /* [threads][scratchpad_bytes] for them */
    size_t scratchpad_bytes;
};

enum { EPILOGUE = 256 }; /* values converted at a time */

static bool has_epilogue(const struct gemm *g)
{
    return g->bias || g->gelu || g->dgelu_aux;
}

/* fp32, n a multiple of VL: one pass over the values. */
static void epilogue_vectors(const struct gemm *g, float *restrict value, int64_t row, int64_t col,
                             int64_t n)
{
    const float *bias = g->bias ? (const float *)g->bias + col : NULL;
    float *aux = g->gelu_aux ? (float *)g->gelu_aux + row * g->n + col : NULL;
    const float *dgelu = g->dgelu_aux ? (const float *)g->dgelu_aux + row * g->n + col : NULL;
    for (int64_t j = 0; j < n; j += VL) {
        vf v = vf_load(value + j);
        if (bias)
            v += vf_load(bias + j);
        if (aux)
            vf_store(aux + j, v);
        if (g->gelu)
            v = vf_gelu(v);
        if (dgelu)
            v *= vf_gelu_grad(vf_load(dgelu + j));
        vf_store(value + j, v);
    }
}

/* Any dtype, n <= EPILOGUE. */
static void epilogue_values(const struct gemm *g, float *restrict v, int64_t row, int64_t col,
                            int64_t n)
{
    const int64_t aux_at = row * g->n + col;
    float tmp[EPILOGUE];
    if (g->bias) {
        const float *bias = row_read(g->bias, col, g->dt, n, tmp);
        for (int64_t j = 0; j < n; j++)
            v[j] += bias[j];
    }
    if (g->gelu_aux)
        row_from_f32(element_mut(g->gelu_aux, aux_at, g->dt), v, g->dt, n);
    if (g->gelu) {
        for (int64_t j = 0; j < n; j++)
            v[j] = gelu_f32(v[j]);
    }
    if (g->dgelu_aux) {
        const float *aux = row_read(g->dgelu_aux, aux_at, g->dt, n, tmp);
        for (int64_t j = 0; j < n; j++)
            v[j] *= gelu_grad_f32(aux[j]);
    }
}

void gemm_epilogue_row(const struct gemm *g, float *value, int64_t row, int64_t col, int64_t n)
{
    const int64_t whole = g->dt == DTYPE_F32 ? n / VL * VL : 0;
    epilogue_vectors(g, value, row, col, whole);
    for (int64_t at = whole; at < n; at += EPILOGUE)
        epilogue_values(g, value + at, row, col + at, min_i64(EPILOGUE, n - at));
}

static dnnl_status_t tile_bf16(const struct product *p, const struct gemm_entry *e, const void *a,
                               const void *b, float *d, int thread)
{
    const dnnl_memory_desc_t *descs[] = {&e->a, &e->b, &e->d, &e->scratchpad};
    const int names[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};
    void *data[] = {(void *)a, (void *)b, d, p->scratchpads + p->scratchpad_bytes * (size_t)thread};
    dnnl_exec_arg_t args[4] = {0};
    dnnl_stream_t stream = NULL;
    dnnl_status_t st = dnnl_stream_create(&stream, p->engine, dnnl_stream_default_flags);
    for (int i = 0; i < 4 && st == dnnl_success; i++) {
        args[i].arg = names[i];
        st = dnnl_memory_create(&args[i].memory, descs[i], p->engine, data[i]);
    }
    if (st == dnnl_success)
        st = dnnl_primitive_execute(e->primitive, stream, 4, args);
    if (st == dnnl_success)
        st = dnnl_stream_wait(stream);
    for (int i = 0; i < 4; i++)
        dnnl_memory_destroy(args[i].memory);
    dnnl_stream_destroy(stream);
    return st;
}

/* d[rows,cols] (ldd) = or += the tile at (i, j) of the product. */
static dnnl_status_t tile_multiply(const struct product *p, int64_t i, int64_t j, int64_t rows,
                                   int64_t cols, float *d, int64_t ldd, int thread)
{
    const struct gemm *g = &p->g;
    const void *a = element(g->a, g->transpose_a ? i : i * g->lda, g->dt);
    const void *b = element(g->b, g->transpose_b ? j * g->ldb : j, g->dt);
    if (p->entries)
        return tile_bf16(p, &p->entries[2 * (i + rows == g->m) + (j + cols == g->n)], a, b, d,
                         thread);
    return dnnl_sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', rows, cols, g->k,
                      1.0f, a, g->lda, b, g->ldb, g->accumulate ? 1.0f : 0.0f, d, ldd);
}

static dnnl_status_t tile_run(const struct product *p, int64_t index, int thread)
{
    const struct gemm *g = &p->g;
    const int64_t i = index / p->grid.count_n * p->grid.tile_m;
    const int64_t j = index % p->grid.count_n * p->grid.tile_n;
    const int64_t rows = min_i64(p->grid.tile_m, g->m - i);
    const int64_t cols = min_i64(p->grid.tile_n, g->n - j);
    const bool direct = g->out_dt == DTYPE_F32;
    const int64_t ldd = direct ? g->ldd : p->grid.tile_n;
    float *d = direct ? (float *)g->d + i * g->ldd + j
                      : p->tiles + round_up_i64(p->grid.tile_m * p->grid.tile_n, 16) * thread;
    for (int64_t r = 0; !direct && g->accumulate && r < rows; r++)
        row_to_f32(d + r * ldd, element(g->d, (i + r) * g->ldd + j, g->out_dt), g->out_dt, cols);
    dnnl_status_t st = tile_multiply(p, i, j, rows, cols, d, ldd, thread);
    for (int64_t r = 0; r < rows; r++) {
        float *row = d + r * ldd;
        if (has_epilogue(g))
            gemm_epilogue_row(p->original, row, i + r, j, cols);
        if (!direct)
            row_from_f32(element_mut(g->d, (i + r) * g->ldd + j, g->out_dt), row, g->out_dt, cols);
    }
    return st;
}

/* Fast primitives for the (at most four) tile shapes; false when oneDNN lacks one of them. */
static bool find_entries(struct gemm_cache *c, struct product *p, struct gemm_entry entries[4])
{
    const struct gemm *g = &p->g;
    const struct grid *t = &p->grid;
    if (c->count > CACHE_SLOTS / 2)
        cache_clear(c);
    for (int i = 0; i < 4; i++) {
        const bool last_m = i / 2, last_n = i % 2;
        struct gemm_key key = {
            .m = last_m ? g->m - (t->count_m - 1) * t->tile_m : t->tile_m,
            .n = last_n ? g->n - (t->count_n - 1) * t->tile_n : t->tile_n,
            .k = g->k,
            .lda = g->lda,
            .ldb = g->ldb,
            .ldd = g->out_dt == DTYPE_F32 ? g->ldd : t->tile_n,
            .transpose_a = g->transpose_a,
            .transpose_b = g->transpose_b,
            .accumulate = g->accumulate,
        };
        if ((!last_m && t->count_m == 1) || (!last_n && t->count_n == 1))
            continue; /* such tiles do not occur */
        entries[i] = cache_get(c, &key);
        if (!entries[i].primitive)
            return false;
        const size_t bytes = dnnl_memory_desc_get_size(&entries[i].scratchpad);
        if (bytes > p->scratchpad_bytes)
            p->scratchpad_bytes = (bytes + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
    }
    p->entries = entries;
    p->engine = c->engine;
    return true;
}

static void widen(float *dst, const void *src, enum dtype dt, int64_t rows, int64_t cols,
                  int64_t ld)
{
#pragma omp parallel for schedule(static) if (rows * cols > CPU_PARALLEL_ELEMS)
    for (int64_t r = 0; r < rows; r++)
        row_to_f32(dst + r * cols, element(src, r * ld, dt), dt, cols);
}

/* a and b become dense fp32 copies in p's scratch. */
static void widen_operands(struct product *p, float *scratch)
{
    struct gemm *g = &p->g;
    const int64_t a_rows = g->transpose_a ? g->k : g->m, a_cols = g->transpose_a ? g->m : g->k;
    const int64_t b_rows = g->transpose_b ? g->n : g->k, b_cols = g->transpose_b ? g->k : g->n;
    float *a = scratch, *b = scratch + round_up_i64(a_rows * a_cols, 16);
    widen(a, g->a, g->dt, a_rows, a_cols, g->lda);
    widen(b, g->b, g->dt, b_rows, b_cols, g->ldb);
    g->a = a, g->b = b, g->lda = a_cols, g->ldb = b_cols, g->dt = DTYPE_F32;
}

static void run_tiles(struct stream *s, const struct product *p)
{
    const int64_t tiles = p->grid.count_m * p->grid.count_n;
    int failed = dnnl_success;
#pragma omp parallel if (tiles > 1)
    {
        const int threads = omp_get_max_threads();
        omp_set_num_threads(1); /* oneDNN must not fork, in a team of one either */
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < tiles; i++) {
            dnnl_status_t st = tile_run(p, i, omp_get_thread_num());
            if (st != dnnl_success) {
#pragma omp atomic write
                failed = (int)st;
            }
        }
        omp_set_num_threads(threads);
    }
    if (failed != dnnl_success)
        stream_fail(s, "gemm", "oneDNN status %d for m=%lld n=%lld k=%lld", failed,
                    (long long)p->g.m, (long long)p->g.n, (long long)p->g.k);
}

static size_t widened_floats(const struct gemm *g)
{
    return (size_t)(round_up_i64(g->m * g->k, 16) + round_up_i64(g->k * g->n, 16));
}

/* Operands that oneDNN cannot read fast are widened; tiles get room when d cannot hold fp32. */
static void multiply(struct stream *s, struct product *p, struct gemm_entry entries[4])
{
    const size_t threads = (size_t)omp_get_max_threads();
    const bool widen_first =
        p->g.dt == DTYPE_F16 || (p->g.dt == DTYPE_BF16 && !find_entries(s->dev->gemms, p, entries));
    const size_t tile = (size_t)round_up_i64(p->grid.tile_m * p->grid.tile_n, 16);
    const size_t tiles = p->g.out_dt == DTYPE_F32 ? 0 : tile * threads * sizeof(float);
    const size_t wide = widen_first ? widened_floats(&p->g) * sizeof(float) : 0;
    const size_t pads = widen_first ? 0 : p->scratchpad_bytes * threads;
    if (tiles + wide + pads > 0) {
        char *scratch = stream_scratch(s, "gemm", tiles + wide + pads);
        if (!scratch)
            return;
        p->tiles = (float *)scratch;
        p->scratchpads = scratch + tiles;
        if (widen_first) {
            widen_operands(p, (float *)(scratch + tiles));
            p->entries = NULL;
        }
    }
    run_tiles(s, p);
}

/* k == 0: an empty sum. */
static void multiply_nothing(const struct gemm *g, int64_t ldd)
{
    float row[256];
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j += 256) {
            const int64_t n = min_i64(256, g->n - j);
            void *d = element_mut(g->d, i * ldd + j, g->out_dt);
            memset(row, 0, sizeof row);
            if (g->accumulate)
                row_to_f32(row, d, g->out_dt, n);
            gemm_epilogue_row(g, row, i, j, n);
            row_from_f32(d, row, g->out_dt, n);
        }
    }
}

/* GEMV_ROWS rows at a time; g has its leading dimensions filled in. */
static void run_few_rows(struct stream *s, const struct gemm *g)
{
    for (int64_t i = 0; i < g->m; i += GEMV_ROWS) {
        struct gemm part = *g;
        part.m = min_i64(GEMV_ROWS, g->m - i);
        part.a = element(g->a, i * g->lda, g->dt);
        part.d = element_mut(g->d, i * g->ldd, g->out_dt);
        if (g->gelu_aux)
            part.gelu_aux = element_mut(g->gelu_aux, i * g->n, g->dt);
        if (g->dgelu_aux)
            part.dgelu_aux = element(g->dgelu_aux, i * g->n, g->dt);
        gemv_run(s, &part);
    }
}

/* fp16 weights would have to be widened for oneDNN, which costs as much as five passes over them.
 */
static bool few_rows(const struct gemm *g)
{
    const int64_t limit = g->dt == DTYPE_F16 ? 5 * GEMV_ROWS : GEMV_ROWS;
    return g->m <= limit && !g->transpose_a;
}

static void gemm_run(struct stream *s, const void *args)
{
    const struct gemm *g = args;
    struct product p = {.g = *g, .original = g};
    struct gemm_entry entries[4] = {0};
    if (g->m == 0 || g->n == 0)
        return;
    p.g.lda = g->lda ? g->lda : g->transpose_a ? g->m : g->k;
    p.g.ldb = g->ldb ? g->ldb : g->transpose_b ? g->k : g->n;
    p.g.ldd = g->ldd ? g->ldd : g->n;
    const int64_t ldb = p.g.ldb; /* of the original b; p.g may come to hold copies */
    p.grid = grid_of(g);
    if (g->k == 0) {
        multiply_nothing(g, p.g.ldd);
    } else if (few_rows(g)) {
        run_few_rows(s, &p.g);
    } else {
        if (g->dt == DTYPE_BF16)
            pthread_mutex_lock(&s->dev->gemms->lock);
        multiply(s, &p, entries);
        if (g->dt == DTYPE_BF16)
            pthread_mutex_unlock(&s->dev->gemms->lock);
    }
    if (g->bias_grad)
        column_sums(s, g->bias_grad, g->b, g->k, g->n, ldb, g->dt);
}

static bool float_dtype(enum dtype dt)
{
    return dt == DTYPE_F32 || dt == DTYPE_BF16 || dt == DTYPE_F16;
}

void cpu_gemm(struct device *dev, struct stream *s, const struct gemm *g)
{
    if (!float_dtype(g->dt) || (g->out_dt != g->dt && g->out_dt != DTYPE_F32)) {
        device_fail(dev, "gemm", "%s in, %s out is not a combination of struct gemm",
                    dtype_name(g->dt), dtype_name(g->out_dt));
        return;
    }
    if (g->bias_grad && g->transpose_b) {
        device_fail(dev, "gemm", "bias_grad needs b as [k,n]");
        return;
    }
    stream_submit(s, gemm_run, g, sizeof *g);
}
