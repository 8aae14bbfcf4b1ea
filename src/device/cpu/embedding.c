/* embedding.c - token + position embedding, forward and backward.
 *
 *     x[n] = dropout(wte[tokens[n]] + wpe[position])
 *
 * Backward adds rows of dx to the rows of dwte they came from. Rows are ordered by token first (a
 * stable counting sort), so that each row of dwte belongs to one thread and its sum runs in the
 * order of n: deterministic, and no atomics. Test: tests/unit/test_cpu_embedding.c. */
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include "device/cpu/rows.h"
#include <omp.h>
#include <string.h>

struct forward_args {
    void *x;
    const void *wte, *wpe;
    const int32_t *tokens, *positions;
    int64_t rows, time, channels;
    enum dtype dt;
    struct dropout dropout;
};

static void forward_run(struct stream *s, const void *args)
{
    const struct forward_args *a = args;
    const int64_t n = a->channels, padded = round_up_i64(n, 16);
    size_t floats = (size_t)padded * 2 * (size_t)omp_get_max_threads();
    float *scratch = stream_scratch(s, "embed_forward", floats * sizeof(float));
    if (!scratch)
        return;
#pragma omp parallel for schedule(static) if (a->rows * n > CPU_PARALLEL_ELEMS)
    for (int64_t row = 0; row < a->rows; row++) {
        float *x = scratch + 2 * padded * omp_get_thread_num(), *tmp = x + padded;
        int64_t position = a->positions ? a->positions[row] : row % a->time;
        row_to_f32(x, element(a->wte, a->tokens[row] * n, a->dt), a->dt, n);
        const float *p = row_read(a->wpe, position * n, a->dt, n, tmp);
        for (int64_t i = 0; i < n; i++)
            x[i] += p[i];
        dropout_row(x, &a->dropout, row, a->time, n, tmp);
        row_from_f32(element_mut(a->x, row * n, a->dt), x, a->dt, n);
    }
}

void cpu_embed_forward(struct device *dev, struct stream *s, void *x, const void *wte,
                       const void *wpe, const int32_t *tokens, const int32_t *positions,
                       int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                       struct dropout dropout)
{
    struct forward_args a = {x,    wte,      wpe, tokens, positions, batch * time,
                             time, channels, dt,  dropout};
    (void)dev;
    stream_submit(s, forward_run, &a, sizeof a);
}

struct backward_args {
    float *dwte, *dwpe;
    const void *dx;
    const int32_t *tokens;
    int64_t batch, time, channels, vocab_padded;
    struct dropout dropout;
    int32_t *starts; /* [Vp + 1], then order [N] */
    enum dtype dt;
};

size_t cpu_embed_backward_workspace(int64_t batch, int64_t time, int64_t channels,
                                    int64_t vocab_padded)
{
    (void)channels;
    return (size_t)(vocab_padded + 1 + batch * time) * sizeof(int32_t);
}

/* order = row numbers by token, equal tokens in increasing row number. */
static void sort_rows(const struct backward_args *a, int32_t *order)
{
    const int64_t rows = a->batch * a->time;
    int32_t *at = a->starts, sum = 0;
    memset(at, 0, (size_t)(a->vocab_padded + 1) * sizeof *at);
    for (int64_t n = 0; n < rows; n++)
        at[a->tokens[n]]++;
    for (int64_t v = 0; v <= a->vocab_padded; v++) {
        int32_t count = at[v];
        at[v] = sum;
        sum += count;
    }
    for (int64_t n = 0; n < rows; n++)
        order[at[a->tokens[n]]++] = (int32_t)n;
}

static void add_row(const struct backward_args *a, float *dst, int64_t row, float *x, float *tmp)
{
    const int64_t n = a->channels;
    row_to_f32(x, element(a->dx, row * n, a->dt), a->dt, n);
    dropout_row(x, &a->dropout, row, a->time, n, tmp);
    for (int64_t i = 0; i < n; i++)
        dst[i] += x[i];
}

static void backward_run(struct stream *s, const void *args)
{
    const struct backward_args *a = args;
    const int64_t n = a->channels, padded = round_up_i64(n, 16), rows = a->batch * a->time;
    int32_t *order = a->starts + a->vocab_padded + 1;
    size_t floats = (size_t)padded * 2 * (size_t)omp_get_max_threads();
    float *scratch = stream_scratch(s, "embed_backward", floats * sizeof(float));
    if (!scratch)
        return;
    sort_rows(a, order);
#pragma omp parallel if (rows * n > CPU_PARALLEL_ELEMS)
    {
        float *x = scratch + 2 * padded * omp_get_thread_num(), *tmp = x + padded;
#pragma omp for schedule(dynamic, 16)
        for (int64_t i = 0; i < rows; i++) {
            const int32_t token = a->tokens[order[i]];
            if (i > 0 && a->tokens[order[i - 1]] == token)
                continue; /* whoever has the first row of a token adds them all */
            for (int64_t j = i; j < rows && a->tokens[order[j]] == token; j++)
                add_row(a, a->dwte + token * n, order[j], x, tmp);
        }
#pragma omp for schedule(static)
        for (int64_t t = 0; t < a->time; t++)
            for (int64_t b = 0; b < a->batch; b++)
                add_row(a, a->dwpe + t * n, b * a->time + t, x, tmp);
    }
}

void cpu_embed_backward(struct device *dev, struct stream *s, float *dwte, float *dwpe,
                        const void *dx, const int32_t *tokens, int64_t batch, int64_t time,
                        int64_t channels, int64_t vocab_padded, enum dtype dt,
                        struct dropout dropout, void *workspace, size_t workspace_bytes)
{
    struct backward_args a = {dwte,     dwpe,         dx,      tokens,    batch, time,
                              channels, vocab_padded, dropout, workspace, dt};
    size_t need = cpu_embed_backward_workspace(batch, time, channels, vocab_padded);
    if (workspace_bytes < need || batch * time > INT32_MAX) {
        device_fail(dev, "embed_backward", "%lld rows with a workspace of %zu bytes, needs %zu",
                    (long long)(batch * time), workspace_bytes, need);
        return;
    }
    stream_submit(s, backward_run, &a, sizeof a);
}
