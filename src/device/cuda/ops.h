/* ops.h - the kernel entries of the backend's table, defined in ops.c, and how they fill it. */
#ifndef DEVICE_CUDA_OPS_H
#define DEVICE_CUDA_OPS_H

#include "device/device.h"

void cuda_op_embed_forward(struct device *dev, struct stream *s, void *x, const void *wte,
                           const void *wpe, const int32_t *tokens, const int32_t *positions,
                           int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                           struct dropout dropout);
void cuda_op_embed_backward(struct device *dev, struct stream *s, float *dwte, float *dwpe,
                            const void *dx, const int32_t *tokens, int64_t batch, int64_t time,
                            int64_t channels, int64_t vocab_padded, enum dtype dt,
                            struct dropout dropout, void *workspace, size_t workspace_bytes);
size_t cuda_op_embed_backward_workspace(int64_t batch, int64_t time, int64_t channels,
                                        int64_t vocab_padded);
void cuda_op_layernorm_forward(struct device *dev, struct stream *s, void *y, void *sum,
                               float *mean, float *rstd, const void *residual, const void *delta,
                               const void *weight, const void *bias, int64_t batch, int64_t time,
                               int64_t channels, float eps, enum dtype dt, struct dropout dropout);
void cuda_op_layernorm_backward(struct device *dev, struct stream *s, void *dx, void *ddelta,
                                float *dweight, float *dbias, const void *dy, const void *x,
                                const float *mean, const float *rstd, const void *weight,
                                int64_t batch, int64_t time, int64_t channels, bool accumulate,
                                enum dtype dt, struct dropout dropout, void *workspace,
                                size_t workspace_bytes);
size_t cuda_op_layernorm_backward_workspace(int64_t rows, int64_t channels);
void cuda_op_attention_forward(struct device *dev, struct stream *s, void *out, float *lse,
                               const void *qkv, const struct attention *a);
void cuda_op_attention_backward(struct device *dev, struct stream *s, void *dqkv, const void *dout,
                                const void *qkv, const void *out, const float *lse,
                                const struct attention *a, void *workspace, size_t workspace_bytes);
size_t cuda_op_attention_backward_workspace(const struct attention *a);
void cuda_op_classifier(struct device *dev, struct stream *s, void *logits, float *losses,
                        const int32_t *targets, int64_t rows, int64_t vocab, int64_t vocab_padded,
                        float grad_scale, enum dtype dt);
void cuda_op_bias_backward(struct device *dev, struct stream *s, float *dbias, const void *dy,
                           int64_t rows, int64_t channels, enum dtype dt, void *workspace,
                           size_t workspace_bytes);
size_t cuda_op_bias_backward_workspace(int64_t rows, int64_t channels);
void cuda_op_dropout_backward(struct device *dev, struct stream *s, void *dst, const void *src,
                              int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                              struct dropout dropout);
void cuda_op_reduce_sum(struct device *dev, struct stream *s, float *sum, const float *x, int64_t n,
                        bool squares, bool accumulate);
void cuda_op_step_control(struct device *dev, struct stream *s, struct step_control *c,
                          const float *norm_squared, const float *loss_sum, float unscale,
                          float loss_unscale, float clip);
void cuda_op_adamw(struct device *dev, struct stream *s, float *master, float *m, float *v,
                   const float *grad, void *working, int64_t n, enum dtype dt,
                   const struct adamw *h, const struct step_control *c);
void cuda_op_cast(struct device *dev, struct stream *s, void *dst, enum dtype dst_dt,
                  const void *src, enum dtype src_dt, int64_t n);
void cuda_op_accumulate(struct device *dev, struct stream *s, float *dst, const void *src,
                        enum dtype src_dt, int64_t n, float scale);
void cuda_op_kv_append(struct device *dev, struct stream *s, const struct kv_cache *kv,
                       const void *qkv, const int32_t *sequences, const int32_t *positions,
                       int64_t rows, int64_t heads, int64_t head_dim, enum dtype dt);
void cuda_op_attention_cached(struct device *dev, struct stream *s, void *out,
                              const struct kv_cache *kv, const void *qkv, const int32_t *sequences,
                              const int32_t *positions, int64_t rows, int64_t heads,
                              int64_t head_dim, enum dtype dt, bool append, void *workspace,
                              size_t workspace_bytes);
size_t cuda_op_attention_cached_workspace(int64_t rows, int64_t max_positions, int64_t heads,
                                          int64_t head_dim);
void cuda_op_gather_rows(struct device *dev, struct stream *s, void *dst, const void *src,
                         const int32_t *rows, int64_t n, int64_t channels, enum dtype dt);
void cuda_op_sample(struct device *dev, struct stream *s, int32_t *ids, float *logprobs,
                    const void *logits, const struct sampling *params, int64_t rows, int64_t vocab,
                    int64_t vocab_padded, enum dtype dt);
void cuda_op_token_logprobs(struct device *dev, struct stream *s, float *logprobs,
                            const void *logits, const int32_t *targets, int64_t rows, int64_t vocab,
                            int64_t vocab_padded, enum dtype dt);
void cuda_op_head_logprobs(struct device *dev, struct stream *s, float *logprobs, const void *x,
                           const void *wte, const int32_t *targets, int64_t rows, int64_t channels,
                           int64_t vocab, enum dtype dt, void *workspace);
size_t cuda_op_head_logprobs_workspace(struct device *dev, int64_t rows, int64_t channels,
                                       int64_t vocab, enum dtype dt);
void cuda_op_decode_blocks(struct device *dev, struct stream *s, const struct decode_blocks *d);
void cuda_op_decode_blocks_prepare(struct device *dev, struct stream *s,
                                   const struct decode_blocks *d);
size_t cuda_op_decode_blocks_workspace(struct device *dev, int64_t layers, int64_t channels,
                                       int64_t heads, enum dtype dt);
void cuda_op_skinny_gemm(struct device *dev, struct stream *s, const struct skinny_gemm *g);
bool cuda_op_find_nonfinite(struct device *dev, struct stream *s, const void *x, int64_t n,
                            enum dtype dt);

#define CUDA_KERNEL_OPS                                                                 \
    .embed_forward = cuda_op_embed_forward, .embed_backward = cuda_op_embed_backward,   \
    .embed_backward_workspace = cuda_op_embed_backward_workspace,                       \
    .layernorm_forward = cuda_op_layernorm_forward,                                     \
    .layernorm_backward = cuda_op_layernorm_backward,                                   \
    .layernorm_backward_workspace = cuda_op_layernorm_backward_workspace,               \
    .attention_forward = cuda_op_attention_forward,                                     \
    .attention_backward = cuda_op_attention_backward,                                   \
    .attention_backward_workspace = cuda_op_attention_backward_workspace,               \
    .classifier = cuda_op_classifier, .bias_backward = cuda_op_bias_backward,           \
    .bias_backward_workspace = cuda_op_bias_backward_workspace,                         \
    .dropout_backward = cuda_op_dropout_backward, .reduce_sum = cuda_op_reduce_sum,     \
    .step_control = cuda_op_step_control, .adamw = cuda_op_adamw, .cast = cuda_op_cast, \
    .accumulate = cuda_op_accumulate, .kv_append = cuda_op_kv_append,                   \
    .attention_cached = cuda_op_attention_cached,                                       \
    .attention_cached_workspace = cuda_op_attention_cached_workspace,                   \
    .gather_rows = cuda_op_gather_rows, .sample = cuda_op_sample,                       \
    .token_logprobs = cuda_op_token_logprobs, .skinny_gemm = cuda_op_skinny_gemm,       \
    .head_logprobs = cuda_op_head_logprobs,                                             \
    .head_logprobs_workspace = cuda_op_head_logprobs_workspace,                         \
    .decode_blocks = cuda_op_decode_blocks,                                             \
    .decode_blocks_prepare = cuda_op_decode_blocks_prepare,                             \
    .decode_blocks_workspace = cuda_op_decode_blocks_workspace,                         \
    .find_nonfinite = cuda_op_find_nonfinite

#endif
