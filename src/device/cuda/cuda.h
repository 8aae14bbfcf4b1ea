/* cuda.h - what the files of the cuda backend share. Host code is C; kernels are behind kernels.h.
 */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H

#include "device/cuda/kernels.h"
#include "device/device.h"
#include <cublasLt.h>
#include <cuda_runtime_api.h>

/* Bytes of the memory a stream keeps for cuBLASLt and for products' own reductions. */
#define CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

struct stream {
    cudaStream_t handle;
    double *partials; /* [CUDA_REDUCE_BLOCKS] of reduce_sum */
    int32_t *flag;    /* of find_nonfinite */
    unsigned
        *arrivals;   /* [CUDA_ARRIVALS] of kernels whose last block finishes; zero between them */
    void *workspace; /* CUDA_WORKSPACE_BYTES; made with the compute stream, else at first use */
    float *sums;     /* bias gradients that a product has just written */
    int64_t sums_elems;
};

struct event {
    cudaEvent_t handle;
    bool recorded;
};

struct allocation {
    void *p;
    size_t bytes;
};

struct gemm_cache;

struct cuda_device {
    struct device base;
    int ordinal, multiprocessors;
    bool early; /* the GPU offers programmatic dependent launch */
    bool wgmma; /* the GPU runs code for sm_90a */
    cublasLtHandle_t blas;
    struct gemm_cache *gemms;
    struct allocation *allocations; /* live ones, for the accounts */
    size_t allocation_count, allocation_capacity;
};

static inline struct cuda_device *cuda_of(struct device *dev)
{
    return (struct cuda_device *)dev;
}
/* Work goes on while nothing has failed. */
static inline bool cuda_healthy(const struct device *dev)
{
    return dev->error.status == STATUS_OK;
}
/* Records a CUDA failure under the operation's name; true when there was none. */
bool cuda_ok(struct device *dev, const char *operation, cudaError_t rc);
enum status cuda_error(struct error *e, cudaError_t rc, const char *what);

/* memory.c */
enum status cuda_alloc(struct device *dev, enum memory_kind kind, size_t bytes, void **out,
                       struct error *e);
void cuda_free(struct device *dev, enum memory_kind kind, void *p);
void cuda_copy(struct device *dev, struct stream *s, void *dst, const void *src, size_t bytes);
void cuda_fill_zero(struct device *dev, struct stream *s, void *dst, size_t bytes);

/* stream.c */
enum status cuda_stream_create(struct device *dev, struct stream **s, struct error *e);
void cuda_stream_free(struct device *dev, struct stream *s);
/* The stream's workspace, made now if it has none; NULL after a failure, which is recorded. */
void *cuda_stream_workspace(struct device *dev, struct stream *s, const char *operation);
/* At least n floats of the stream's own, for a bias gradient; NULL after a recorded failure. */
float *cuda_stream_sums(struct device *dev, struct stream *s, int64_t n);
enum status cuda_event_create(struct device *dev, struct event **ev, struct error *e);
void cuda_event_free(struct device *dev, struct event *ev);
void cuda_event_record(struct device *dev, struct event *ev, struct stream *s);
void cuda_stream_wait(struct device *dev, struct stream *s, struct event *ev);
enum status cuda_stream_sync(struct device *dev, struct stream *s, struct error *e);
enum status cuda_event_sync(struct device *dev, struct event *ev, struct error *e);
double cuda_event_elapsed_ms(struct device *dev, struct event *from, struct event *to);
void cuda_host_call(struct device *dev, struct stream *s, void (*fn)(void *), void *arg);
void *cuda_native_stream(struct device *dev, struct stream *s);

/* graph.c */
void cuda_graph_begin(struct device *dev, struct stream *s);
struct graph *cuda_graph_end(struct device *dev, struct stream *s);
void cuda_graph_launch(struct device *dev, struct stream *s, struct graph *g);
void cuda_graph_free(struct device *dev, struct graph *g);

/* gemm.c */
enum status gemm_cache_create(struct gemm_cache **cache, struct error *e);
void gemm_cache_destroy(struct gemm_cache *cache);
void cuda_gemm(struct device *dev, struct stream *s, const struct gemm *g);

extern const struct device_ops cuda_device_ops;

#endif
