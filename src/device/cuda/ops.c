/* ops.c - the kernel entries of the table: preconditions, then the launch. After the first failure
 * they do nothing. Grids are one-dimensional, so each entry bounds what its grid is made of. */
#include "device/cuda/ops.h"
#include "device/cuda/cuda.h"

/* Whether to go on: healthy, something to do, and a grid that fits. */
static bool begin(struct device *dev, const char *operation, int64_t blocks_bound)
{
    if (!cuda_healthy(dev))
        return false;
    if (blocks_bound > INT32_MAX) {
        device_fail(dev, operation, "%lld rows or blocks in one call; at most %d",
                    (long long)blocks_bound, INT32_MAX);
        return false;
    }
    return true;
}

static bool enough_workspace(struct device *dev, const char *operation, size_t need, size_t have)
{
    if (need <= have)
        return true;
    device_fail(dev, operation, "workspace of %zu bytes, needs %zu", have, need);
    return false;
}

static bool head_dim_fits(struct device *dev, const char *operation, int64_t head_dim)
{
    if (head_dim > 0 && head_dim <= 128 && head_dim % 8 == 0)
        return true;
    device_fail(dev, operation, "head dimension %lld; a multiple of 8, at most 128, is built",
                (long long)head_dim);
    return false;
}

void cuda_op_embed_forward(struct device *dev, struct stream *s, void *x, const void *wte,
                           const void *wpe, const int32_t *tokens, const int32_t *positions,
                           int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                           struct dropout dropout)
{
    if (batch * time == 0 || !begin(dev, "embed_forward", batch * time))
        return;
    cuda_ok(dev, "embed_forward",
            cuda_embed_forward(s->handle, x, wte, wpe, tokens, positions, batch, time, channels, dt,
                               dropout));
}

void cuda_op_embed_backward(struct device *dev, struct stream *s, float *dwte, float *dwpe,
                            const void *dx, const int32_t *tokens, int64_t batch, int64_t time,
                            int64_t channels, int64_t vocab_padded, enum dtype dt,
                            struct dropout dropout, void *workspace, size_t workspace_bytes)
{
    if (batch * time == 0 || !begin(dev, "embed_backward", batch * time) ||
        !enough_workspace(dev, "embed_backward",
                          cuda_op_embed_backward_workspace(batch, time, channels, vocab_padded),
                          workspace_bytes))
        return;
    cuda_ok(dev, "embed_backward",
            cuda_embed_backward(s->handle, dwte, dwpe, dx, tokens, batch, time, channels,
                                vocab_padded, dt, dropout, workspace));
}

size_t cuda_op_embed_backward_workspace(int64_t batch, int64_t time, int64_t channels,
                                        int64_t vocab_padded)
{
    return cuda_embed_backward_workspace(batch, time, channels, vocab_padded);
}

void cuda_op_layernorm_forward(struct device *dev, struct stream *s, void *y, void *sum,
                               float *mean, float *rstd, const void *residual, const void *delta,
                               const void *weight, const void *bias, int64_t batch, int64_t time,
                               int64_t channels, float eps, enum dtype dt, struct dropout dropout)
{
    if (batch * time == 0 || !begin(dev, "layernorm_forward", batch * time))
        return;
    cuda_ok(dev, "layernorm_forward",
            cuda_layernorm_forward(s->handle, y, sum, mean, rstd, residual, delta, weight, bias,
                                   batch, time, channels, eps, dt, dropout));
}

void cuda_op_layernorm_backward(struct device *dev, struct stream *s, void *dx, void *ddelta,
                                float *dweight, float *dbias, const void *dy, const void *x,
                                const float *mean, const float *rstd, const void *weight,
                                int64_t batch, int64_t time, int64_t channels, bool accumulate,
                                enum dtype dt, struct dropout dropout, void *workspace,
                                size_t workspace_bytes)
{
    if (batch * time == 0 || !begin(dev, "layernorm_backward", batch * time) ||
        !enough_workspace(dev, "layernorm_backward",
                          cuda_op_layernorm_backward_workspace(batch * time, channels),
                          workspace_bytes))
        return;
    cuda_ok(dev, "layernorm_backward",
            cuda_layernorm_backward(s->handle, dx, ddelta, dweight, dbias, dy, x, mean, rstd,
                                    weight, batch, time, channels, accumulate, dt, dropout,
                                    workspace));
}

size_t cuda_op_layernorm_backward_workspace(int64_t rows, int64_t channels)
{
    return cuda_layernorm_backward_workspace(rows, channels);
}

static cudaError_t attention_forward(struct device *dev, cudaStream_t s, void *out, float *lse,
                                     const void *qkv, const struct attention *a)
{
    if (a->dt == DTYPE_F32)
        return cuda_attention_forward_f32(s, out, lse, qkv, a);
    if (cuda_of(dev)->wgmma && !(a->dropout.p > 0.0f)) {
        cudaError_t rc = cuda_attention_forward_wgmma(s, out, lse, qkv, a);
        if (rc != cudaErrorNotSupported)
            return rc;
    }
    return cuda_attention_forward(s, out, lse, qkv, a);
}

void cuda_op_attention_forward(struct device *dev, struct stream *s, void *out, float *lse,
                               const void *qkv, const struct attention *a)
{
    int64_t rows = a->batch * a->heads * a->time;
    if (rows == 0 || !begin(dev, "attention_forward", rows) ||
        !head_dim_fits(dev, "attention_forward", a->head_dim))
        return;
    cuda_ok(dev, "attention_forward", attention_forward(dev, s->handle, out, lse, qkv, a));
}

void cuda_op_attention_backward(struct device *dev, struct stream *s, void *dqkv, const void *dout,
                                const void *qkv, const void *out, const float *lse,
                                const struct attention *a, void *workspace, size_t workspace_bytes)
{
    int64_t rows = a->batch * a->heads * a->time;
    if (rows == 0 || !begin(dev, "attention_backward", rows) ||
        !head_dim_fits(dev, "attention_backward", a->head_dim) ||
        !enough_workspace(dev, "attention_backward", cuda_attention_backward_workspace(a),
                          workspace_bytes))
        return;
    cuda_ok(dev, "attention_backward",
            cuda_attention_backward(s->handle, dqkv, dout, qkv, out, lse, a, workspace));
}

size_t cuda_op_attention_backward_workspace(const struct attention *a)
{
    return cuda_attention_backward_workspace(a);
}

void cuda_op_classifier(struct device *dev, struct stream *s, void *logits, float *losses,
                        const int32_t *targets, int64_t rows, int64_t vocab, int64_t vocab_padded,
                        float grad_scale, enum dtype dt)
{
    if (rows == 0 || !begin(dev, "classifier", rows))
        return;
    cuda_ok(dev, "classifier",
            cuda_classifier(s->handle, logits, losses, targets, rows, vocab, vocab_padded,
                            grad_scale, dt));
}

void cuda_op_bias_backward(struct device *dev, struct stream *s, float *dbias, const void *dy,
                           int64_t rows, int64_t channels, enum dtype dt, void *workspace,
                           size_t workspace_bytes)
{
    if (rows == 0 || !begin(dev, "bias_backward", rows) ||
        !enough_workspace(dev, "bias_backward", cuda_op_bias_backward_workspace(rows, channels),
                          workspace_bytes))
        return;
    cuda_ok(dev, "bias_backward",
            cuda_column_sums(s->handle, dbias, dy, rows, channels, channels, dt, workspace));
}

size_t cuda_op_bias_backward_workspace(int64_t rows, int64_t channels)
{
    return cuda_column_sums_workspace(rows, channels);
}

void cuda_op_dropout_backward(struct device *dev, struct stream *s, void *dst, const void *src,
                              int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                              struct dropout dropout)
{
    if (batch * time == 0 || !begin(dev, "dropout_backward", batch * time))
        return;
    cuda_ok(dev, "dropout_backward",
            cuda_dropout(s->handle, dst, src, batch, time, channels, dt, dropout));
}

void cuda_op_reduce_sum(struct device *dev, struct stream *s, float *sum, const float *x, int64_t n,
                        bool squares, bool accumulate)
{
    if (!begin(dev, "reduce_sum", 0))
        return;
    cuda_ok(dev, "reduce_sum",
            cuda_reduce_sum(s->handle, sum, x, n, squares, accumulate, s->partials));
}

void cuda_op_step_control(struct device *dev, struct stream *s, struct step_control *c,
                          const float *norm_squared, const float *loss_sum, float unscale,
                          float loss_unscale, float clip)
{
    if (!begin(dev, "step_control", 0))
        return;
    cuda_ok(dev, "step_control",
            cuda_step_control(s->handle, c, norm_squared, loss_sum, unscale, loss_unscale, clip));
}

void cuda_op_adamw(struct device *dev, struct stream *s, float *master, float *m, float *v,
                   const float *grad, void *working, int64_t n, enum dtype dt,
                   const struct adamw *h, const struct step_control *c)
{
    if (n == 0 || !begin(dev, "adamw", n / 1024))
        return;
    cuda_ok(dev, "adamw", cuda_adamw(s->handle, master, m, v, grad, working, n, dt, h, c));
}

void cuda_op_cast(struct device *dev, struct stream *s, void *dst, enum dtype dst_dt,
                  const void *src, enum dtype src_dt, int64_t n)
{
    if (n == 0 || !begin(dev, "cast", n / 16384))
        return;
    cuda_ok(dev, "cast", cuda_cast(s->handle, dst, dst_dt, src, src_dt, n));
}

void cuda_op_accumulate(struct device *dev, struct stream *s, float *dst, const void *src,
                        enum dtype src_dt, int64_t n, float scale)
{
    if (n == 0 || !begin(dev, "accumulate", n / 16384))
        return;
    cuda_ok(dev, "accumulate", cuda_accumulate(s->handle, dst, src, src_dt, n, scale));
}

void cuda_op_kv_append(struct device *dev, struct stream *s, const struct kv_cache *kv,
                       const void *qkv, const int32_t *sequences, const int32_t *positions,
                       int64_t rows, int64_t heads, int64_t head_dim, enum dtype dt)
{
    if (rows == 0 || !begin(dev, "kv_append", rows))
        return;
    cuda_ok(dev, "kv_append",
            cuda_kv_append(s->handle, kv, qkv, sequences, positions, rows, heads, head_dim, dt));
}

void cuda_op_attention_cached(struct device *dev, struct stream *s, void *out,
                              const struct kv_cache *kv, const void *qkv, const int32_t *sequences,
                              const int32_t *positions, int64_t rows, int64_t heads,
                              int64_t head_dim, enum dtype dt, bool append, void *workspace,
                              size_t workspace_bytes)
{
    if (rows == 0 || !begin(dev, "attention_cached", rows * heads * 64) ||
        !head_dim_fits(dev, "attention_cached", head_dim))
        return;
    cuda_ok(dev, "attention_cached",
            cuda_attention_cached(s->handle, out, kv, qkv, sequences, positions, rows, heads,
                                  head_dim, dt, append, workspace, workspace_bytes, s->arrivals,
                                  cuda_of(dev)->early));
}

size_t cuda_op_attention_cached_workspace(int64_t rows, int64_t max_positions, int64_t heads,
                                          int64_t head_dim)
{
    return cuda_attention_cached_workspace(rows, max_positions, heads, head_dim);
}

void cuda_op_gather_rows(struct device *dev, struct stream *s, void *dst, const void *src,
                         const int32_t *rows, int64_t n, int64_t channels, enum dtype dt)
{
    if (n == 0 || !begin(dev, "gather_rows", n))
        return;
    cuda_ok(dev, "gather_rows", cuda_gather_rows(s->handle, dst, src, rows, n, channels, dt));
}

void cuda_op_sample(struct device *dev, struct stream *s, int32_t *ids, float *logprobs,
                    const void *logits, const struct sampling *params, int64_t rows, int64_t vocab,
                    int64_t vocab_padded, enum dtype dt)
{
    if (rows == 0 || !begin(dev, "sample", rows))
        return;
    cuda_ok(dev, "sample",
            cuda_sample(s->handle, ids, logprobs, logits, params, rows, vocab, vocab_padded, dt));
}

void cuda_op_token_logprobs(struct device *dev, struct stream *s, float *logprobs,
                            const void *logits, const int32_t *targets, int64_t rows, int64_t vocab,
                            int64_t vocab_padded, enum dtype dt)
{
    if (rows == 0 || !begin(dev, "token_logprobs", rows))
        return;
    cuda_ok(
        dev, "token_logprobs",
        cuda_token_logprobs(s->handle, logprobs, logits, targets, rows, vocab, vocab_padded, dt));
}

size_t cuda_op_head_logprobs_workspace(struct device *dev, int64_t rows, int64_t channels,
                                       int64_t vocab, enum dtype dt)
{
    if (!cuda_of(dev)->wgmma || dt == DTYPE_F32)
        return 0;
    return cuda_head_logprobs_workspace(rows, channels, vocab);
}

void cuda_op_head_logprobs(struct device *dev, struct stream *s, float *logprobs, const void *x,
                           const void *wte, const int32_t *targets, int64_t rows, int64_t channels,
                           int64_t vocab, enum dtype dt, void *workspace)
{
    if (rows == 0 || !begin(dev, "head_logprobs", rows))
        return;
    cuda_ok(dev, "head_logprobs",
            cuda_head_logprobs(s->handle, logprobs, x, wte, targets, rows, channels, vocab, dt,
                               workspace, cuda_of(dev)->multiprocessors));
}

void cuda_op_skinny_gemm(struct device *dev, struct stream *s, const struct skinny_gemm *g)
{
    if (g->rows == 0 || !begin(dev, "skinny_gemm", g->n))
        return;
    if (g->rows > dev->skinny_rows || g->k % 8 || (!g->transpose_w && g->n % 8)) {
        device_fail(dev, "skinny_gemm", "%lld rows, k=%lld, n=%lld: not a shape it is built for",
                    (long long)g->rows, (long long)g->k, (long long)g->n);
        return;
    }
    cuda_ok(dev, "skinny_gemm", cuda_skinny_gemm(s->handle, g));
}

size_t cuda_op_decode_blocks_workspace(struct device *dev, int64_t layers, int64_t channels,
                                       int64_t heads, enum dtype dt)
{
    const struct cuda_device *cuda = cuda_of(dev);
    if (!cuda->early) /* the same compute capability */
        return 0;
    return cuda_decode_blocks_workspace(layers, channels, heads, dt, cuda->multiprocessors);
}

void cuda_op_decode_blocks_prepare(struct device *dev, struct stream *s,
                                   const struct decode_blocks *d)
{
    if (begin(dev, "decode_blocks_prepare", d->channels))
        cuda_ok(dev, "decode_blocks_prepare",
                cuda_decode_blocks_prepare(s->handle, d, cuda_of(dev)->multiprocessors));
}

void cuda_op_decode_blocks(struct device *dev, struct stream *s, const struct decode_blocks *d)
{
    if (!begin(dev, "decode_blocks", d->channels))
        return;
    cuda_ok(dev, "decode_blocks", cuda_decode_blocks(s->handle, d, cuda_of(dev)->multiprocessors));
}

bool cuda_op_find_nonfinite(struct device *dev, struct stream *s, const void *x, int64_t n,
                            enum dtype dt)
{
    int32_t found = 0;
    if (n == 0 || !begin(dev, "find_nonfinite", 0))
        return false;
    bool ok =
        cuda_ok(dev, "find_nonfinite", cudaMemsetAsync(s->flag, 0, sizeof *s->flag, s->handle)) &&
        cuda_ok(dev, "find_nonfinite", cuda_find_nonfinite(s->handle, s->flag, x, n, dt)) &&
        cuda_ok(
            dev, "find_nonfinite",
            cudaMemcpyAsync(&found, s->flag, sizeof found, cudaMemcpyDeviceToHost, s->handle)) &&
        cuda_ok(dev, "find_nonfinite", cudaStreamSynchronize(s->handle));
    return ok && found;
}
