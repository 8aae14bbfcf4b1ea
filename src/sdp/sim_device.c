/* sim_device.c - a device whose kernels only take time. */
#include "sdp/sim_private.h"

#include "base/checked.h"

#include <stdlib.h>

/* Host memory up to this is real, because the engine writes into it. */
#define REAL_HOST_BYTES ((size_t)1 << 30)

/* Device memory that does not exist lies here, beyond any real address. */
#define NOWHERE ((uintptr_t)1 << 60)

static void spend(struct device *dev, struct stream *s, double flops, double bytes)
{
    struct sim_device *d = sim_of(dev);
    double by_flops = flops / (d->rates.tflops * 1e12);
    double by_bytes = bytes / (d->rates.memory_gbs * 1e9);
    double seconds = by_flops > by_bytes ? by_flops : by_bytes;
    s->now += seconds;
    d->flops += flops;
    if (s == &d->compute)
        d->compute_seconds += seconds;
}

static double width(enum dtype dt)
{
    return (double)dtype_bytes(dt);
}

/* --- memory and order ---------------------------------------------------------------------------
 */

static enum status sim_alloc(struct device *dev, enum memory_kind kind, size_t bytes, void **out,
                             struct error *e)
{
    struct sim_device *d = sim_of(dev);
    if (kind == MEMORY_HOST && bytes <= REAL_HOST_BYTES) {
        *out = calloc(1, bytes);
        return *out ? STATUS_OK : error_memory(e, bytes, "a simulated device");
    }
    *out = (void *)d->next_address; /* distinct, never read */
    d->next_address += (uintptr_t)round_up_i64((int64_t)bytes, SDP_ARENA_ALIGN);
    return STATUS_OK;
}

static void sim_free(struct device *dev, enum memory_kind kind, void *p)
{
    (void)dev, (void)kind;
    if ((uintptr_t)p < NOWHERE)
        free(p);
}

static enum status sim_stream_create(struct device *dev, struct stream **s, struct error *e)
{
    (void)dev;
    *s = calloc(1, sizeof **s);
    return *s ? STATUS_OK : error_memory(e, sizeof **s, "a simulated stream");
}

static void sim_stream_free(struct device *dev, struct stream *s)
{
    (void)dev;
    free(s);
}

static enum status sim_event_create(struct device *dev, struct event **ev, struct error *e)
{
    (void)dev;
    *ev = calloc(1, sizeof **ev);
    return *ev ? STATUS_OK : error_memory(e, sizeof **ev, "a simulated event");
}

static void sim_event_free(struct device *dev, struct event *ev)
{
    (void)dev;
    free(ev);
}

static void sim_event_record(struct device *dev, struct event *ev, struct stream *s)
{
    (void)dev;
    ev->at = s->now;
}

static void sim_stream_wait(struct device *dev, struct stream *s, struct event *ev)
{
    (void)dev;
    if (ev->at > s->now)
        s->now = ev->at;
}

static enum status sim_stream_sync(struct device *dev, struct stream *s, struct error *e)
{
    (void)dev;
    (void)s;
    (void)e;
    return STATUS_OK;
}

static enum status sim_event_sync(struct device *dev, struct event *ev, struct error *e)
{
    struct sim_device *d = sim_of(dev);
    (void)e;
    /* The host gives no new work before it has seen the event. */
    if (ev->at > d->compute.now)
        d->compute.now = ev->at;
    return STATUS_OK;
}

static double sim_event_elapsed_ms(struct device *dev, struct event *from, struct event *to)
{
    (void)dev;
    return (to->at - from->at) * 1e3;
}

static void sim_copy(struct device *dev, struct stream *s, void *dst, const void *src, size_t bytes)
{
    struct sim_device *d = sim_of(dev);
    (void)dst;
    (void)src;
    if (s == &d->compute)
        spend(dev, s, 0, 2.0 * (double)bytes);
    else
        s->now += (double)bytes / (d->rates.host_gbs * 1e9);
}

static void sim_fill_zero(struct device *dev, struct stream *s, void *dst, size_t bytes)
{
    (void)dst;
    spend(dev, s, 0, (double)bytes);
}

/* --- kernels: operations and bytes moved ---------------------------------------------------------
 */

static void sim_gemm(struct device *dev, struct stream *s, const struct gemm *g)
{
    double m = (double)g->m, n = (double)g->n, k = (double)g->k;
    spend(dev, s, 2 * m * n * k,
          (m * k + k * n) * width(g->dt) + m * n * width(g->out_dt) * (g->accumulate ? 2 : 1));
}

static void sim_embed_forward(struct device *dev, struct stream *s, void *x, const void *wte,
                              const void *wpe, const int32_t *tokens, const int32_t *positions,
                              int64_t batch, int64_t time, int64_t channels, enum dtype dt,
                              struct dropout dropout)
{
    (void)x, (void)wte, (void)wpe, (void)tokens, (void)positions, (void)dropout;
    spend(dev, s, 0, 3.0 * (double)(batch * time * channels) * width(dt));
}

static void sim_embed_backward(struct device *dev, struct stream *s, float *dwte, float *dwpe,
                               const void *dx, const int32_t *tokens, int64_t batch, int64_t time,
                               int64_t channels, int64_t vocab_padded, enum dtype dt,
                               struct dropout dropout, void *workspace, size_t workspace_bytes)
{
    (void)dwte, (void)dwpe, (void)dx, (void)tokens, (void)vocab_padded, (void)dropout;
    (void)workspace, (void)workspace_bytes;
    spend(dev, s, 0, (double)(batch * time * channels) * (2 * width(dt) + 8));
}

static void sim_layernorm_forward(struct device *dev, struct stream *s, void *y, void *sum,
                                  float *mean, float *rstd, const void *residual, const void *delta,
                                  const void *weight, const void *bias, int64_t batch, int64_t time,
                                  int64_t channels, float eps, enum dtype dt,
                                  struct dropout dropout)
{
    (void)y, (void)sum, (void)mean, (void)rstd, (void)residual, (void)weight, (void)bias;
    (void)eps, (void)dropout;
    spend(dev, s, 0, (delta ? 4.0 : 2.0) * (double)(batch * time * channels) * width(dt));
}

static void sim_layernorm_backward(struct device *dev, struct stream *s, void *dx, void *ddelta,
                                   float *dweight, float *dbias, const void *dy, const void *x,
                                   const float *mean, const float *rstd, const void *weight,
                                   int64_t batch, int64_t time, int64_t channels, bool accumulate,
                                   enum dtype dt, struct dropout dropout, void *workspace,
                                   size_t workspace_bytes)
{
    (void)dx, (void)dweight, (void)dbias, (void)dy, (void)x, (void)mean, (void)rstd, (void)weight;
    (void)accumulate, (void)dropout, (void)workspace, (void)workspace_bytes;
    spend(dev, s, 0, (ddelta ? 5.0 : 4.0) * (double)(batch * time * channels) * width(dt));
}

/* Half of the scores are masked: 2 products of B*H*T*T*D/2 multiply-adds forward, 5 backward. */
static double attention_flops(const struct attention *a, double products)
{
    return products * (double)(a->batch * a->heads) * (double)a->time * (double)a->time *
           (double)a->head_dim;
}

static void sim_attention_forward(struct device *dev, struct stream *s, void *out, float *lse,
                                  const void *qkv, const struct attention *a)
{
    (void)out, (void)lse, (void)qkv;
    spend(dev, s, attention_flops(a, 2),
          4.0 * (double)(a->batch * a->time * a->heads * a->head_dim) * width(a->dt));
}

static void sim_attention_backward(struct device *dev, struct stream *s, void *dqkv,
                                   const void *dout, const void *qkv, const void *out,
                                   const float *lse, const struct attention *a, void *workspace,
                                   size_t workspace_bytes)
{
    (void)dqkv, (void)dout, (void)qkv, (void)out, (void)lse, (void)workspace, (void)workspace_bytes;
    spend(dev, s, attention_flops(a, 5),
          8.0 * (double)(a->batch * a->time * a->heads * a->head_dim) * width(a->dt));
}

static void sim_classifier(struct device *dev, struct stream *s, void *logits, float *losses,
                           const int32_t *targets, int64_t rows, int64_t vocab,
                           int64_t vocab_padded, float grad_scale, enum dtype dt)
{
    (void)logits, (void)losses, (void)targets, (void)vocab, (void)grad_scale;
    spend(dev, s, 0, 2.0 * (double)rows * (double)vocab_padded * width(dt));
}

static void sim_reduce_sum(struct device *dev, struct stream *s, float *sum, const float *x,
                           int64_t n, bool squares, bool accumulate)
{
    (void)sum, (void)x, (void)squares, (void)accumulate;
    spend(dev, s, 0, 4.0 * (double)n);
}

static void sim_step_control(struct device *dev, struct stream *s, struct step_control *c,
                             const float *norm_squared, const float *loss_sum, float unscale,
                             float loss_unscale, float clip)
{
    (void)dev, (void)s, (void)c, (void)norm_squared, (void)loss_sum, (void)unscale;
    (void)loss_unscale, (void)clip;
}

static void sim_adamw(struct device *dev, struct stream *s, float *master, float *m, float *v,
                      const float *grad, void *working, int64_t n, enum dtype dt,
                      const struct adamw *h, const struct step_control *c)
{
    (void)master, (void)m, (void)v, (void)grad, (void)working, (void)h, (void)c;
    spend(dev, s, 0, (double)n * (28 + width(dt)));
}

static void sim_cast(struct device *dev, struct stream *s, void *dst, enum dtype dst_dt,
                     const void *src, enum dtype src_dt, int64_t n)
{
    (void)dst, (void)src;
    spend(dev, s, 0, (double)n * (width(dst_dt) + width(src_dt)));
}

static void sim_accumulate(struct device *dev, struct stream *s, float *dst, const void *src,
                           enum dtype src_dt, int64_t n, float scale)
{
    (void)dst, (void)src, (void)scale;
    spend(dev, s, 0, (double)n * (8 + width(src_dt)));
}

void sim_device_init(struct sim_device *d, const struct device_ops *backend,
                     const struct sdp_sim_rates *rates)
{
    *d = (struct sim_device){.rates = *rates, .next_address = NOWHERE};
    d->ops = (struct device_ops){
        .name = backend->name,
        .alloc = sim_alloc,
        .free = sim_free,
        .stream_create = sim_stream_create,
        .stream_free = sim_stream_free,
        .event_create = sim_event_create,
        .event_free = sim_event_free,
        .event_record = sim_event_record,
        .stream_wait = sim_stream_wait,
        .stream_sync = sim_stream_sync,
        .event_sync = sim_event_sync,
        .event_elapsed_ms = sim_event_elapsed_ms,
        .copy = sim_copy,
        .fill_zero = sim_fill_zero,
        .gemm = sim_gemm,
        .embed_forward = sim_embed_forward,
        .embed_backward = sim_embed_backward,
        .layernorm_forward = sim_layernorm_forward,
        .layernorm_backward = sim_layernorm_backward,
        .attention_forward = sim_attention_forward,
        .attention_backward = sim_attention_backward,
        .classifier = sim_classifier,
        .reduce_sum = sim_reduce_sum,
        .step_control = sim_step_control,
        .adamw = sim_adamw,
        .cast = sim_cast,
        .accumulate = sim_accumulate,
        .embed_backward_workspace = backend->embed_backward_workspace,
        .layernorm_backward_workspace = backend->layernorm_backward_workspace,
        .attention_backward_workspace = backend->attention_backward_workspace,
        .bias_backward_workspace = backend->bias_backward_workspace,
    };
    d->base.ops = &d->ops;
    d->base.compute = &d->compute;
}
