/* kernels.h - launchers of the CUDA kernels, callable from C. Each checks nothing that ops.c has
 * checked already, queues its kernels on `s` and returns the launch's error. Shapes, layouts and
 * meanings are those of device.h; what a kernel does more is said at the kernel. */
#ifndef DEVICE_CUDA_KERNELS_H
#define DEVICE_CUDA_KERNELS_H

#include "device/device.h"
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* elementwise.cu */
cudaError_t cuda_cast(cudaStream_t s, void *dst, enum dtype dst_dt, const void *src,
                      enum dtype src_dt, int64_t n);
cudaError_t cuda_accumulate(cudaStream_t s, float *dst, const void *src, enum dtype src_dt,
                            int64_t n, float scale);
cudaError_t cuda_dropout(cudaStream_t s, void *dst, const void *src, int64_t batch, int64_t time,
                         int64_t channels, enum dtype dt, struct dropout dropout);
/* The part of a product's epilogue that cuBLASLt would not fuse: value = d + bias; gelu_aux (NULL
 * for none) = value and d = gelu(value), or d = value * gelu'(dgelu_aux). d [m,ldd] of out_dt, the
 * rest dt, dense. */
cudaError_t cuda_epilogue(cudaStream_t s, void *d, enum dtype out_dt, const void *bias, bool gelu,
                          void *gelu_aux, const void *dgelu_aux, enum dtype dt, int64_t m,
                          int64_t n, int64_t ldd);
cudaError_t cuda_gather_rows(cudaStream_t s, void *dst, const void *src, const int32_t *rows,
                             int64_t n, int64_t channels, enum dtype dt);
/* *found (int32 device) |= any x not finite. */
cudaError_t cuda_find_nonfinite(cudaStream_t s, int32_t *found, const void *x, int64_t n,
                                enum dtype dt);

/* *differs (int32 device) |= any of the bytes (even) is not the same. */
cudaError_t cuda_compare(cudaStream_t s, int32_t *differs, const void *a, const void *b,
                         size_t bytes);

/* optimizer.cu; partials holds CUDA_REDUCE_BLOCKS doubles */
enum { CUDA_REDUCE_BLOCKS = 1024 };
cudaError_t cuda_reduce_sum(cudaStream_t s, float *sum, const float *x, int64_t n, bool squares,
                            bool accumulate, double *partials);
cudaError_t cuda_step_control(cudaStream_t s, struct step_control *c, const float *norm_squared,
                              const float *loss_sum, float unscale, float loss_unscale, float clip);
cudaError_t cuda_adamw(cudaStream_t s, float *master, float *m, float *v, const float *grad,
                       void *working, int64_t n, enum dtype dt, const struct adamw *h,
                       const struct step_control *c);

/* embedding.cu */
cudaError_t cuda_embed_forward(cudaStream_t s, void *x, const void *wte, const void *wpe,
                               const int32_t *tokens, const int32_t *positions, int64_t batch,
                               int64_t time, int64_t channels, enum dtype dt,
                               struct dropout dropout);
size_t cuda_embed_backward_workspace(int64_t batch, int64_t time, int64_t channels,
                                     int64_t vocab_padded);
cudaError_t cuda_embed_backward(cudaStream_t s, float *dwte, float *dwpe, const void *dx,
                                const int32_t *tokens, int64_t batch, int64_t time,
                                int64_t channels, int64_t vocab_padded, enum dtype dt,
                                struct dropout dropout, void *workspace);

/* layernorm.cu */
cudaError_t cuda_layernorm_forward(cudaStream_t s, void *y, void *sum, float *mean, float *rstd,
                                   const void *residual, const void *delta, const void *weight,
                                   const void *bias, int64_t batch, int64_t time, int64_t channels,
                                   float eps, enum dtype dt, struct dropout dropout);
size_t cuda_layernorm_backward_workspace(int64_t rows, int64_t channels);
cudaError_t cuda_layernorm_backward(cudaStream_t s, void *dx, void *ddelta, float *dweight,
                                    float *dbias, const void *dy, const void *x, const float *mean,
                                    const float *rstd, const void *weight, int64_t batch,
                                    int64_t time, int64_t channels, bool accumulate, enum dtype dt,
                                    struct dropout dropout, void *workspace);

/* columns.cu */
size_t cuda_column_sums_workspace(int64_t rows, int64_t channels);
cudaError_t cuda_column_sums(cudaStream_t s, float *dbias, const void *dy, int64_t rows,
                             int64_t channels, int64_t ld, enum dtype dt, void *workspace);
/* dst[c] += sum over p of partials[p*stride + c]. */
cudaError_t cuda_add_partials(cudaStream_t s, float *dst, const float *partials, int64_t parts,
                              int64_t stride, int64_t channels);

/* classifier.cu */
cudaError_t cuda_classifier(cudaStream_t s, void *logits, float *losses, const int32_t *targets,
                            int64_t rows, int64_t vocab, int64_t vocab_padded, float grad_scale,
                            enum dtype dt);
cudaError_t cuda_token_logprobs(cudaStream_t s, float *logprobs, const void *logits,
                                const int32_t *targets, int64_t rows, int64_t vocab,
                                int64_t vocab_padded, enum dtype dt);
/* head_logprobs_wgmma.cu; compute capability 9.0, cudaErrorNotSupported where it is not built */
size_t cuda_head_logprobs_workspace(int64_t rows, int64_t channels, int64_t vocab);
cudaError_t cuda_head_logprobs(cudaStream_t s, float *logprobs, const void *x, const void *wte,
                               const int32_t *targets, int64_t rows, int64_t channels,
                               int64_t vocab, enum dtype dt, void *workspace, int multiprocessors);
/* sampling.cu */
cudaError_t cuda_sample(cudaStream_t s, int32_t *ids, float *logprobs, const void *logits,
                        const struct sampling *params, int64_t rows, int64_t vocab,
                        int64_t vocab_padded, enum dtype dt);

/* attention_forward.cu, attention_backward.cu: bf16 and fp16; attention_f32.cu: fp32 */
cudaError_t cuda_attention_forward(cudaStream_t s, void *out, float *lse, const void *qkv,
                                   const struct attention *a);
/* attention_forward_wgmma.cu: the same for compute capability 9.0 without dropout;
 * cudaErrorNotSupported, and nothing is queued, where it was not built or the driver cannot. */
cudaError_t cuda_attention_forward_wgmma(cudaStream_t s, void *out, float *lse, const void *qkv,
                                         const struct attention *a);
cudaError_t cuda_attention_forward_f32(cudaStream_t s, float *out, float *lse, const float *qkv,
                                       const struct attention *a);
size_t cuda_attention_backward_workspace(const struct attention *a);
cudaError_t cuda_attention_backward(cudaStream_t s, void *dqkv, const void *dout, const void *qkv,
                                    const void *out, const float *lse, const struct attention *a,
                                    void *workspace);
cudaError_t cuda_attention_backward_f32(cudaStream_t s, float *dqkv, const float *dout,
                                        const float *qkv, const float *lse, const float *delta,
                                        const struct attention *a);
/* delta[B,H,T] = sum over d of dout*out. */
cudaError_t cuda_attention_delta(cudaStream_t s, float *delta, const void *dout, const void *out,
                                 const struct attention *a);

/* attention_cached.cu. arrivals: CUDA_ARRIVALS counters, zero between calls; early: see early.cuh
 */
enum { CUDA_ARRIVALS = 4096 };
cudaError_t cuda_kv_append(cudaStream_t s, const struct kv_cache *kv, const void *qkv,
                           const int32_t *sequences, const int32_t *positions, int64_t rows,
                           int64_t heads, int64_t head_dim, enum dtype dt);
size_t cuda_attention_cached_workspace(int64_t rows, int64_t max_positions, int64_t heads,
                                       int64_t head_dim);
cudaError_t cuda_attention_cached(cudaStream_t s, void *out, const struct kv_cache *kv,
                                  const void *qkv, const int32_t *sequences,
                                  const int32_t *positions, int64_t rows, int64_t heads,
                                  int64_t head_dim, enum dtype dt, bool append, void *workspace,
                                  size_t workspace_bytes, unsigned *arrivals, bool early);

/* resident.cu; compute capability 9.0 */
size_t cuda_decode_blocks_workspace(int64_t layers, int64_t channels, int64_t heads, enum dtype dt,
                                    int multiprocessors);
cudaError_t cuda_decode_blocks_prepare(cudaStream_t s, const struct decode_blocks *d,
                                       int multiprocessors);
cudaError_t cuda_decode_blocks(cudaStream_t s, const struct decode_blocks *d, int multiprocessors);

/* skinny.cu; compute capability 9.0 */
cudaError_t cuda_skinny_gemm(cudaStream_t s, const struct skinny_gemm *g);

#ifdef __cplusplus
}
#endif
#endif
