/* gemm_plain.c - struct gemm in plain loops: what it means, and what the tests compare with. */
#include "device/cpu/cpu.h"

#include "device/cpu/math.h"
#include "device/cpu/rows.h"

static inline float load(const void *p, int64_t i, enum dtype dt)
{
    if (dt == DTYPE_F32)
        return ((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    return dt == DTYPE_BF16 ? load_bf16(h) : load_f16(h);
}

static double product(const struct gemm *g, int64_t i, int64_t j)
{
    const int64_t lda = g->lda ? g->lda : g->transpose_a ? g->m : g->k;
    const int64_t ldb = g->ldb ? g->ldb : g->transpose_b ? g->k : g->n;
    double sum = 0;
    for (int64_t k = 0; k < g->k; k++) {
        float a = load(g->a, g->transpose_a ? k * lda + i : i * lda + k, g->dt);
        float b = load(g->b, g->transpose_b ? j * ldb + k : k * ldb + j, g->dt);
        sum += (double)a * (double)b;
    }
    return sum;
}

void gemm_plain(const struct gemm *g)
{
    const int64_t ldd = g->ldd ? g->ldd : g->n, ldb = g->ldb ? g->ldb : g->n;
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            double value = product(g, i, j);
            if (g->accumulate)
                value += (double)load(g->d, i * ldd + j, g->out_dt);
            if (g->bias)
                value += (double)load(g->bias, j, g->dt);
            float f = (float)value;
            if (g->gelu_aux)
                row_from_f32(element_mut(g->gelu_aux, i * g->n + j, g->dt), &f, g->dt, 1);
            if (g->gelu) {
                double u = 0.7978845608028654 * (value + 0.044715 * value * value * value);
                f = (float)(0.5 * value * (1.0 + tanh(u)));
            }
            if (g->dgelu_aux) {
                double x = (double)load(g->dgelu_aux, i * g->n + j, g->dt);
                double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
                double slope = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x);
                f = (float)((double)f * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope));
            }
            row_from_f32(element_mut(g->d, i * ldd + j, g->out_dt), &f, g->out_dt, 1);
        }
    }
    for (int64_t j = 0; g->bias_grad && j < g->n; j++) {
        double sum = (double)g->bias_grad[j];
        for (int64_t k = 0; k < g->k; k++)
            sum += (double)load(g->b, k * ldb + j, g->dt);
        g->bias_grad[j] = (float)sum;
    }
}
