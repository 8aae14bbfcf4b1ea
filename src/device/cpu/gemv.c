/* gemv.c - products with at most GEMV_ROWS rows, which decoding is made of: the weights are read
 * once, in their own dtype, at the speed of memory.
 *
 * b [n,k] (transpose_b): each output is a dot product along a row of b; rows of b are shared out.
 * b [k,n]: pieces of 64 rows x 1024 columns are multiplied into partial sums, which are then added
 * in order. Pieces depend on the shape only. fp32 accumulation in VL lanes. Test: test_cpu_gemm.c.
 */
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "device/cpu/rows.h"
#include "device/cpu/vector.h"
#include <omp.h>

enum { PIECE_K = 64, PIECE_N = 1024, STREAMS = 8 };

struct gemv {
    const struct gemm *g;
    const float *a; /* [m, k] fp32, dense, k padded to pk with zeros */
    int64_t pk;
    int64_t rows;   /* m rounded up to a power of two, what the loops are made for */
    float *partial; /* [pieces of k, rows, n] */
};

static void finish(const struct gemm *g, float *value, int64_t row, int64_t col, int64_t n)
{
    void *d = element_mut(g->d, row * g->ldd + col, g->out_dt);
    if (g->accumulate) {
        float old[PIECE_N];
        row_to_f32(old, d, g->out_dt, n);
        for (int64_t j = 0; j < n; j++)
            value[j] += old[j];
    }
    gemm_epilogue_row(g, value, row, col, n);
    row_from_f32(d, value, g->out_dt, n);
}

/* --- b [n,k]: dot products */

/* out[i*stride + r] = a row i . b row (j + r), for `rows` rows of a and `width` of b. */
ALWAYS_INLINE void dots(const struct gemv *v, int rows, int width, int64_t j, float *out,
                        int64_t stride, enum dtype dt)
{
    const struct gemm *g = v->g;
    vf acc[GEMV_ROWS][4];
    for (int i = 0; i < rows; i++)
        for (int r = 0; r < width; r++)
            acc[i][r] = (vf){0};
    const int64_t whole = g->k / VL * VL;
    for (int64_t k = 0; k < whole; k += VL) {
        for (int r = 0; r < width; r++) {
            vf b = vf_load_dt(g->b, (j + r) * g->ldb + k, dt);
            __builtin_prefetch(element(g->b, (j + r + width) * g->ldb + k, dt));
            for (int i = 0; i < rows; i++)
                acc[i][r] += vf_load(v->a + i * v->pk + k) * b;
        }
    }
    for (int r = 0; r < width; r++) {
        float tail[VL] = {0};
        if (whole < g->k)
            row_to_f32(tail, element(g->b, (j + r) * g->ldb + whole, dt), dt, g->k - whole);
        vf b = vf_load(tail);
        for (int i = 0; i < rows; i++) {
            if (whole < g->k)
                acc[i][r] += vf_load(v->a + i * v->pk + whole) * b;
            out[i * stride + r] = vf_sum(acc[i][r]);
        }
    }
}

ALWAYS_INLINE void dots_any_rows(const struct gemv *v, int width, int64_t j, float *out,
                                 int64_t stride, enum dtype dt)
{
    const int64_t m = v->g->m;
    if (m == 1)
        dots(v, 1, width, j, out, stride, dt);
    else if (m == 2)
        dots(v, 2, width, j, out, stride, dt);
    else if (m <= 4)
        dots(v, 4, width, j, out, stride, dt);
    else
        for (int r = 0; r < width; r += 2) /* 16 sums fill the registers */
            dots(v, 8, width < 2 ? 1 : 2, j + r, out + r, stride, dt);
}

static void dots_block(const struct gemv *v, int64_t j, int64_t n, float *out, int64_t stride)
{
    int64_t r = 0;
    const enum dtype dt = v->g->dt;
    for (; r + 4 <= n; r += 4) {
        if (dt == DTYPE_F32)
            dots_any_rows(v, 4, j + r, out + r, stride, DTYPE_F32);
        else if (dt == DTYPE_BF16)
            dots_any_rows(v, 4, j + r, out + r, stride, DTYPE_BF16);
        else
            dots_any_rows(v, 4, j + r, out + r, stride, DTYPE_F16);
    }
    for (; r < n; r++)
        dots_any_rows(v, 1, j + r, out + r, stride, dt);
}

static void run_rows(const struct gemv *v)
{
    enum { BLOCK = 64 };
    const struct gemm *g = v->g;
#pragma omp parallel for schedule(static) if (g->n * g->k > CPU_PARALLEL_ELEMS)
    for (int64_t j = 0; j < g->n; j += BLOCK) {
        float out[GEMV_ROWS * BLOCK];
        const int64_t n = min_i64(BLOCK, g->n - j);
        dots_block(v, j, n, out, BLOCK);
        for (int64_t i = 0; i < g->m; i++)
            finish(g, out + i * BLOCK, i, j, n);
    }
}

/* --- b [k,n]: sums of scaled rows */

/* p[j..j+VL) += sum over `count` rows of b from row k of a[k] * b[k, j..]. */
ALWAYS_INLINE void add_rows(const struct gemv *v, int rows, int count, int64_t k, int64_t j,
                            float *p, int64_t stride, enum dtype dt)
{
    const struct gemm *g = v->g;
    vf b[STREAMS];
    for (int r = 0; r < count; r++)
        b[r] = vf_load_dt(g->b, (k + r) * g->ldb + j, dt);
    for (int r = 0; r < count; r++) /* the same columns of the next rows */
        __builtin_prefetch(element(g->b, (k + r + count) * g->ldb + j, dt));
    for (int i = 0; i < rows; i++) {
        const float *a = v->a + i * v->pk + k;
        vf sum = vf_load(p + i * stride), other = a[0] * b[0];
        for (int r = 1; r < count; r++) {
            if (r % 2)
                sum += a[r] * b[r];
            else
                other += a[r] * b[r];
        }
        vf_store(p + i * stride, sum + other);
    }
}

ALWAYS_INLINE void piece_rows(const struct gemv *v, int rows, int64_t k, int64_t j0, int64_t whole,
                              float *p, int64_t stride)
{
    const enum dtype dt = v->g->dt;
    for (int64_t j = 0; j < whole; j += VL) {
        if (dt == DTYPE_F32)
            add_rows(v, rows, STREAMS, k, j0 + j, p + j, stride, DTYPE_F32);
        else if (dt == DTYPE_BF16)
            add_rows(v, rows, STREAMS, k, j0 + j, p + j, stride, DTYPE_BF16);
        else
            add_rows(v, rows, STREAMS, k, j0 + j, p + j, stride, DTYPE_F16);
    }
}

/* Columns that do not fill a vector, and the last rows of a piece. */
static void piece_scalar(const struct gemv *v, int64_t k, int64_t count, int64_t j, int64_t n,
                         float *p, int64_t stride)
{
    float b[PIECE_N];
    for (int64_t r = 0; r < count; r++) {
        const float *row = row_read(v->g->b, (k + r) * v->g->ldb + j, v->g->dt, n, b);
        for (int64_t i = 0; i < v->g->m; i++)
            for (int64_t c = 0; c < n; c++)
                p[i * stride + c] += v->a[i * v->pk + k + r] * row[c];
    }
}

static void piece(const struct gemv *v, int64_t k0, int64_t j0, float *p, int64_t stride)
{
    const struct gemm *g = v->g;
    const int64_t depth = min_i64(PIECE_K, g->k - k0), n = min_i64(PIECE_N, g->n - j0);
    const int64_t whole = n / VL * VL, streams = depth / STREAMS * STREAMS;
    for (int64_t i = 0; i < v->rows; i++)
        memset(p + i * stride, 0, (size_t)n * sizeof *p);
    for (int64_t k = k0; k < k0 + streams; k += STREAMS) {
        if (v->rows == 1)
            piece_rows(v, 1, k, j0, whole, p, stride);
        else if (v->rows == 2)
            piece_rows(v, 2, k, j0, whole, p, stride);
        else if (v->rows == 4)
            piece_rows(v, 4, k, j0, whole, p, stride);
        else
            piece_rows(v, 8, k, j0, whole, p, stride);
    }
    if (whole < n)
        piece_scalar(v, k0, streams, j0 + whole, n - whole, p + whole, stride);
    if (streams < depth)
        piece_scalar(v, k0 + streams, depth - streams, j0, n, p, stride);
}

static void run_columns(const struct gemv *v)
{
    const struct gemm *g = v->g;
    const int64_t pieces_k = ceil_div_i64(g->k, PIECE_K), pieces_n = ceil_div_i64(g->n, PIECE_N);
#pragma omp parallel if (g->n * g->k > CPU_PARALLEL_ELEMS)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < pieces_k * pieces_n; t++) {
            const int64_t k = t / pieces_n, j0 = t % pieces_n * PIECE_N;
            piece(v, k * PIECE_K, j0, v->partial + k * v->rows * g->n + j0, g->n);
        }
#pragma omp for schedule(static)
        for (int64_t t = 0; t < g->m * ceil_div_i64(g->n, 256); t++) {
            const int64_t row = t % g->m, j = t / g->m * 256, n = min_i64(256, g->n - j);
            float sum[256] = {0};
            for (int64_t k = 0; k < pieces_k; k++) {
                const float *p = v->partial + (k * v->rows + row) * g->n + j;
                for (int64_t c = 0; c < n; c++)
                    sum[c] += p[c];
            }
            finish(g, sum, row, j, n);
        }
    }
}

/* g has its leading dimensions filled in. */
void gemv_run(struct stream *s, const struct gemm *g)
{
    const int64_t pk = round_up_i64(g->k, VL_MAX);
    const int64_t m = g->m, rows = m <= 2 ? m : m <= 4 ? 4 : 8;
    const int64_t partials = g->transpose_b ? 0 : ceil_div_i64(g->k, PIECE_K) * rows * g->n;
    float *scratch = stream_scratch(s, "gemm", (size_t)(GEMV_ROWS * pk + partials) * sizeof(float));
    if (!scratch)
        return;
    memset(scratch, 0, (size_t)(GEMV_ROWS * pk) * sizeof(float));
    for (int64_t i = 0; i < g->m; i++)
        row_to_f32(scratch + i * pk, element(g->a, i * g->lda, g->dt), g->dt, g->k);
    struct gemv v = {g, scratch, pk, rows, scratch + GEMV_ROWS * pk};
    if (g->transpose_b)
        run_rows(&v);
    else
        run_columns(&v);
}
