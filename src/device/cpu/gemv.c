/* gemv.c - products with at most GEMV_ROWS rows, which decoding is made of: the weights are read
 * once, in their own dtype, at the speed of memory.
 *
 * b [n,k] (transpose_b): each output is a dot product along a row of b; blocks of 64 rows are
 * shared out. b [k,n]: pieces of 64 rows are multiplied into partial sums, which are then added in
 * order. Either way eight rows are read side by side, and they are not neighbours but eighths of
 * the block apart: each of the eight streams runs on through memory from one row to the next,
 * which the processor's prefetchers follow (neighbouring rows of a page or less confuse them, a
 * fifth of the speed), and asks for what it needs AHEAD bytes later.
 *
 * What an output sums, and in which order, depends on k only: not on the rows beside it nor on the
 * threads. fp32 accumulation in 2 VL lanes. Test: test_cpu_gemm.c. */
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "device/cpu/rows.h"
#include "device/cpu/vector.h"
#include <omp.h>

enum { STREAMS = 8, BLOCK = 64, STEP = 2 * VL, AHEAD = 512, LINE = 64 };
enum { SUM_N = 128 }; /* columns whose partial sums are added by one thread */

struct gemv {
    const struct gemm *g;
    const float *a; /* [m, pk] fp32; k padded to pk with zeros; in pairs' order for dot products */
    int64_t pk;
    int64_t rows;   /* m rounded up to a power of two, what the loops are made for */
    int64_t width;  /* columns of a piece, a multiple of SUM_N */
    float *partial; /* [pieces of k, rows, n]; whole STEPs in pairs' order */
};

/* STEP elements as they are quickest to get: bf16 as its even and its odd elements, each a shift
 * or a mask of the same bytes; other dtypes as the first and the second half. */
struct pair {
    vf first, second;
};

ALWAYS_INLINE struct pair pair_load(const void *base, int64_t i, enum dtype dt)
{
    if (dt == DTYPE_BF16) {
        vi both;
        memcpy(&both, (const uint16_t *)base + i, sizeof both);
        return (struct pair){(vf)(both << 16), (vf)(both & (int32_t)0xffff0000)};
    }
    return (struct pair){vf_load_dt(base, i, dt), vf_load_dt(base, i + VL, dt)};
}

/* The STEP floats at p, from the order of memory to that of pairs. */
static void pair_order(float *p, enum dtype dt)
{
    float memory[STEP];
    if (dt != DTYPE_BF16)
        return;
    memcpy(memory, p, sizeof memory);
    for (int i = 0; i < VL; i++) {
        p[i] = memory[2 * i];
        p[VL + i] = memory[2 * i + 1];
    }
}

/* And back. */
static void pair_restore(float *p, enum dtype dt)
{
    float pairs[STEP];
    if (dt != DTYPE_BF16)
        return;
    memcpy(pairs, p, sizeof pairs);
    for (int i = 0; i < VL; i++) {
        p[2 * i] = pairs[i];
        p[2 * i + 1] = pairs[VL + i];
    }
}

/* Element i is used now: the stream that it belongs to is here AHEAD bytes later. */
ALWAYS_INLINE void prefetch(const void *base, int64_t i, enum dtype dt)
{
    const char *p = (const char *)element(base, i, dt) + AHEAD;
    __builtin_prefetch(p);
    if (dt == DTYPE_F32)
        __builtin_prefetch(p + LINE);
}

static void finish(const struct gemm *g, float *value, int64_t row, int64_t col, int64_t n)
{
    void *d = element_mut(g->d, row * g->ldd + col, g->out_dt);
    if (g->accumulate) {
        float old[SUM_N];
        row_to_f32(old, d, g->out_dt, n);
        for (int64_t j = 0; j < n; j++)
            value[j] += old[j];
    }
    gemm_epilogue_row(g, value, row, col, n);
    row_from_f32(d, value, g->out_dt, n);
}

/* --- b [n,k]: dot products */

/* out[i*BLOCK + r*apart] = a row i . b row (j + r*apart), for `rows` rows of a, `width` of b. */
ALWAYS_INLINE void dots(const struct gemv *v, int rows, int width, int64_t apart, int64_t j,
                        float *out, enum dtype dt)
{
    const struct gemm *g = v->g;
    vf acc[GEMV_ROWS][STREAMS];
    for (int i = 0; i < rows; i++)
        for (int r = 0; r < width; r++)
            acc[i][r] = (vf){0};
    for (int64_t k = 0; k < g->k; k += STEP) {
        uint16_t tail[2 * STEP] = {0};
        const bool whole = k + STEP <= g->k;
        for (int r = 0; r < width; r++) {
            const int64_t at = (j + r * apart) * g->ldb + k;
            struct pair b;
            if (whole) {
                b = pair_load(g->b, at, dt);
                prefetch(g->b, at, dt);
            } else {
                memcpy(tail, element(g->b, at, dt), (size_t)(g->k - k) * (dt == DTYPE_F32 ? 4 : 2));
                b = pair_load(tail, 0, dt);
            }
            for (int i = 0; i < rows; i++) {
                const float *a = v->a + i * v->pk + k;
                acc[i][r] += vf_load(a) * b.first;
                acc[i][r] += vf_load(a + VL) * b.second;
            }
        }
    }
    for (int i = 0; i < rows; i++)
        for (int r = 0; r < width; r++)
            out[i * BLOCK + r * apart] = vf_sum(acc[i][r]);
}

/* STREAMS rows of b from row j on, `apart` from each other, `width` at a time. */
ALWAYS_INLINE void dots_streams(const struct gemv *v, int rows, int width, int64_t apart, int64_t j,
                                float *out, enum dtype dt)
{
    for (int64_t first = 0; first < STREAMS * apart; first += width * apart)
        for (int64_t r = first; r < first + apart; r++)
            dots(v, rows, width, apart, j + r, out + r, dt);
}

/* 16 sums at a time, which registers hold. */
ALWAYS_INLINE void dots_any_rows(const struct gemv *v, int64_t apart, int64_t j, float *out,
                                 enum dtype dt)
{
    if (v->rows == 1)
        dots_streams(v, 1, 8, apart, j, out, dt);
    else if (v->rows == 2)
        dots_streams(v, 2, 8, apart, j, out, dt);
    else if (v->rows == 4)
        dots_streams(v, 4, 4, apart, j, out, dt);
    else
        dots_streams(v, 8, 2, apart, j, out, dt);
}

static void dots_block(const struct gemv *v, int64_t j, int64_t n, float *out)
{
    const enum dtype dt = v->g->dt;
    const int64_t apart = n / STREAMS;
    if (dt == DTYPE_F32)
        dots_any_rows(v, apart, j, out, DTYPE_F32);
    else if (dt == DTYPE_BF16)
        dots_any_rows(v, apart, j, out, DTYPE_BF16);
    else
        dots_any_rows(v, apart, j, out, DTYPE_F16);
    for (int64_t r = STREAMS * apart; r < n; r++)
        dots(v, (int)v->rows, 1, 1, j + r, out + r, dt);
}

static void run_rows(const struct gemv *v)
{
    const struct gemm *g = v->g;
#pragma omp parallel for schedule(static) if (g->n * g->k > CPU_PARALLEL_ELEMS)
    for (int64_t j = 0; j < g->n; j += BLOCK) {
        float out[GEMV_ROWS * BLOCK];
        const int64_t n = min_i64(BLOCK, g->n - j);
        dots_block(v, j, n, out);
        for (int64_t i = 0; i < g->m; i++)
            finish(g, out + i * BLOCK, i, j, n);
    }
}

/* --- b [k,n]: sums of scaled rows */

/* p[0..STEP) += sum over `count` rows of b, `apart` from row k on, of a[row] * b[row, j..], in
 * pairs' order. */
ALWAYS_INLINE void add_rows(const struct gemv *v, int rows, int count, int64_t apart, int64_t k,
                            int64_t j, float *p, enum dtype dt)
{
    const struct gemm *g = v->g;
    struct pair b[STREAMS];
    for (int r = 0; r < count; r++)
        b[r] = pair_load(g->b, (k + r * apart) * g->ldb + j, dt);
    for (int r = 0; r < count; r++)
        prefetch(g->b, (k + r * apart) * g->ldb + j, dt);
    for (int i = 0; i < rows; i++) {
        const float *a = v->a + i * v->pk + k;
        float *sum = p + i * g->n;
        struct pair even = {vf_load(sum), vf_load(sum + VL)}, odd = {{0}, {0}};
        for (int r = 0; r < count; r++) {
            struct pair *s = r % 2 ? &odd : &even;
            s->first += a[r * apart] * b[r].first;
            s->second += a[r * apart] * b[r].second;
        }
        vf_store(sum, even.first + odd.first);
        vf_store(sum + VL, even.second + odd.second);
    }
}

/* `count` rows over the columns [j, j + n), n whole STEPs. */
ALWAYS_INLINE void add_columns(const struct gemv *v, int rows, int count, int64_t apart, int64_t k,
                               int64_t j, int64_t n, float *p, enum dtype dt)
{
    for (int64_t c = 0; c < n; c += STEP)
        add_rows(v, rows, count, apart, k, j + c, p + c, dt);
}

ALWAYS_INLINE void piece_rows(const struct gemv *v, int rows, int64_t k, int64_t depth, int64_t j,
                              int64_t n, float *p, enum dtype dt)
{
    const int64_t apart = depth / STREAMS;
    for (int64_t r = 0; r < apart; r++)
        add_columns(v, rows, STREAMS, apart, k + r, j, n, p, dt);
    for (int64_t r = STREAMS * apart; r < depth; r++)
        add_columns(v, rows, 1, 1, k + r, j, n, p, dt);
}

ALWAYS_INLINE void piece_any_rows(const struct gemv *v, int64_t k, int64_t depth, int64_t j,
                                  int64_t n, float *p, enum dtype dt)
{
    if (v->rows == 1)
        piece_rows(v, 1, k, depth, j, n, p, dt);
    else if (v->rows == 2)
        piece_rows(v, 2, k, depth, j, n, p, dt);
    else if (v->rows == 4)
        piece_rows(v, 4, k, depth, j, n, p, dt);
    else
        piece_rows(v, 8, k, depth, j, n, p, dt);
}

/* Columns that do not fill a STEP. */
static void piece_tail(const struct gemv *v, int64_t k, int64_t depth, int64_t j, int64_t n,
                       float *p)
{
    float b[STEP];
    for (int64_t r = k; r < k + depth; r++) {
        const float *row = row_read(v->g->b, r * v->g->ldb + j, v->g->dt, n, b);
        for (int64_t i = 0; i < v->g->m; i++)
            for (int64_t c = 0; c < n; c++)
                p[i * v->g->n + c] += v->a[i * v->pk + r] * row[c];
    }
}

static void piece(const struct gemv *v, int64_t k, int64_t j, float *p)
{
    const struct gemm *g = v->g;
    const int64_t depth = min_i64(BLOCK, g->k - k), n = min_i64(v->width, g->n - j);
    const int64_t whole = n / STEP * STEP;
    for (int64_t i = 0; i < v->rows; i++)
        memset(p + i * g->n, 0, (size_t)n * sizeof *p);
    if (g->dt == DTYPE_F32)
        piece_any_rows(v, k, depth, j, whole, p, DTYPE_F32);
    else if (g->dt == DTYPE_BF16)
        piece_any_rows(v, k, depth, j, whole, p, DTYPE_BF16);
    else
        piece_any_rows(v, k, depth, j, whole, p, DTYPE_F16);
    if (whole < n)
        piece_tail(v, k, depth, j + whole, n - whole, p + whole);
}

/* Adds the partial sums of n <= SUM_N columns of one row. */
static void add_partials(const struct gemv *v, int64_t row, int64_t j, int64_t n)
{
    const struct gemm *g = v->g;
    float sum[SUM_N] = {0};
    for (int64_t k = 0; k < ceil_div_i64(g->k, BLOCK); k++) {
        const float *p = v->partial + (k * v->rows + row) * g->n + j;
        for (int64_t c = 0; c < n; c++)
            sum[c] += p[c];
    }
    for (int64_t c = 0; c + STEP <= n; c += STEP)
        pair_restore(sum + c, g->dt);
    finish(g, sum, row, j, n);
}

static void run_columns(const struct gemv *v)
{
    const struct gemm *g = v->g;
    const int64_t pieces_k = ceil_div_i64(g->k, BLOCK), pieces_n = ceil_div_i64(g->n, v->width);
#pragma omp parallel if (g->n * g->k > CPU_PARALLEL_ELEMS)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < pieces_k * pieces_n; t++) {
            const int64_t k = t / pieces_n, j = t % pieces_n * v->width;
            piece(v, k * BLOCK, j, v->partial + k * v->rows * g->n + j);
        }
#pragma omp for schedule(static)
        for (int64_t t = 0; t < g->m * ceil_div_i64(g->n, SUM_N); t++) {
            const int64_t row = t % g->m, j = t / g->m * SUM_N;
            add_partials(v, row, j, min_i64(SUM_N, g->n - j));
        }
    }
}

/* Whole rows while there are pieces for every thread: then a stream runs on from row to row. The
 * sums of a piece stay in the cache. */
static int64_t piece_width(const struct gemm *g, int64_t rows)
{
    enum { PIECES_A_THREAD = 4, CACHED_SUMS = 4096, LEAST = 2 * SUM_N };
    const int64_t wanted = PIECES_A_THREAD * (int64_t)omp_get_max_threads();
    const int64_t parts = ceil_div_i64(wanted, ceil_div_i64(g->k, BLOCK));
    const int64_t width = min_i64(ceil_div_i64(g->n, parts), CACHED_SUMS / rows);
    return round_up_i64(max_i64(width, LEAST), SUM_N);
}

/* Rows of a as fp32; for dot products in the order that b is read in. */
static void read_a(const struct gemv *v, float *to)
{
    const struct gemm *g = v->g;
    memset(to, 0, (size_t)(v->rows * v->pk) * sizeof *to);
    for (int64_t i = 0; i < g->m; i++, to += v->pk) {
        row_to_f32(to, element(g->a, i * g->lda, g->dt), g->dt, g->k);
        for (int64_t k = 0; g->transpose_b && k < g->k; k += STEP)
            pair_order(to + k, g->dt);
    }
}

/* g has its leading dimensions filled in. */
void gemv_run(struct stream *s, const struct gemm *g)
{
    struct gemv v = {.g = g, .pk = round_up_i64(g->k, 2 * VL_MAX)};
    v.rows = g->m <= 2 ? g->m : g->m <= 4 ? 4 : 8;
    v.width = piece_width(g, v.rows);
    const int64_t partials = g->transpose_b ? 0 : ceil_div_i64(g->k, BLOCK) * v.rows * g->n;
    float *scratch = stream_scratch(s, "gemm", (size_t)(v.rows * v.pk + partials) * sizeof(float));
    if (!scratch)
        return;
    read_a(&v, scratch);
    v.a = scratch;
    v.partial = scratch + v.rows * v.pk;
    if (g->transpose_b)
        run_rows(&v);
    else
        run_columns(&v);
}
