/* stream.c - streams and events: order, waiting and time. */
#include "device/cuda/cuda.h"

#include <stdlib.h>

enum status cuda_stream_create(struct device *dev, struct stream **out, struct error *e)
{
    struct stream *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return error_memory(e, sizeof *s, "a stream");
    cudaError_t rc = cudaStreamCreateWithFlags(&s->handle, cudaStreamNonBlocking);
    if (rc == cudaSuccess)
        rc = cudaMalloc((void **)&s->partials, CUDA_REDUCE_BLOCKS * sizeof(double) + 64);
    if (rc == cudaSuccess)
        rc = cudaMalloc((void **)&s->arrivals, CUDA_ARRIVALS * sizeof *s->arrivals);
    if (rc == cudaSuccess)
        rc = cudaMemsetAsync(s->arrivals, 0, CUDA_ARRIVALS * sizeof *s->arrivals, s->handle);
    if (rc != cudaSuccess) {
        cuda_stream_free(dev, s);
        return cuda_error(e, rc, "creating a stream");
    }
    s->flag = (int32_t *)(s->partials + CUDA_REDUCE_BLOCKS);
    *out = s;
    return STATUS_OK;
}

void cuda_stream_free(struct device *dev, struct stream *s)
{
    if (!s)
        return;
    if (s->handle) {
        cuda_ok(dev, "stream_free", cudaStreamSynchronize(s->handle));
        cudaStreamDestroy(s->handle);
    }
    cudaFree(s->sums);
    cudaFree(s->workspace);
    cudaFree(s->arrivals);
    cudaFree(s->partials);
    free(s);
}

void *cuda_stream_workspace(struct device *dev, struct stream *s, const char *operation)
{
    if (!s->workspace)
        cuda_ok(dev, operation, cudaMalloc(&s->workspace, CUDA_WORKSPACE_BYTES));
    return s->workspace;
}

float *cuda_stream_sums(struct device *dev, struct stream *s, int64_t n)
{
    if (n <= s->sums_elems)
        return s->sums;
    cuda_ok(dev, "gemm", cudaStreamSynchronize(s->handle)); /* the old ones may be in use */
    cudaFree(s->sums);
    s->sums = NULL, s->sums_elems = 0;
    if (cuda_ok(dev, "gemm", cudaMalloc((void **)&s->sums, (size_t)n * sizeof(float))))
        s->sums_elems = n;
    return s->sums;
}

enum status cuda_event_create(struct device *dev, struct event **out, struct error *e)
{
    struct event *ev = calloc(1, sizeof *ev);
    (void)dev;
    *out = NULL;
    if (!ev)
        return error_memory(e, sizeof *ev, "an event");
    cudaError_t rc = cudaEventCreate(&ev->handle);
    if (rc != cudaSuccess) {
        free(ev);
        return cuda_error(e, rc, "creating an event");
    }
    *out = ev;
    return STATUS_OK;
}

void cuda_event_free(struct device *dev, struct event *ev)
{
    if (!ev)
        return;
    cuda_ok(dev, "event_free", cudaEventDestroy(ev->handle));
    free(ev);
}

void cuda_event_record(struct device *dev, struct event *ev, struct stream *s)
{
    if (cuda_healthy(dev) && cuda_ok(dev, "event_record", cudaEventRecord(ev->handle, s->handle)))
        ev->recorded = true;
}

/* An event that was never recorded holds nothing back. */
void cuda_stream_wait(struct device *dev, struct stream *s, struct event *ev)
{
    if (cuda_healthy(dev) && ev->recorded)
        cuda_ok(dev, "stream_wait", cudaStreamWaitEvent(s->handle, ev->handle, 0));
}

enum status cuda_stream_sync(struct device *dev, struct stream *s, struct error *e)
{
    if (cuda_healthy(dev))
        cuda_ok(dev, "stream_sync", cudaStreamSynchronize(s->handle));
    return device_check(dev, e);
}

enum status cuda_event_sync(struct device *dev, struct event *ev, struct error *e)
{
    if (cuda_healthy(dev) && ev->recorded)
        cuda_ok(dev, "event_sync", cudaEventSynchronize(ev->handle));
    return device_check(dev, e);
}

double cuda_event_elapsed_ms(struct device *dev, struct event *from, struct event *to)
{
    float ms = 0.0f;
    if (!cuda_healthy(dev) || !from->recorded || !to->recorded)
        return -1.0;
    return cuda_ok(dev, "event_elapsed_ms", cudaEventElapsedTime(&ms, from->handle, to->handle))
               ? (double)ms
               : -1.0;
}

void cuda_host_call(struct device *dev, struct stream *s, void (*fn)(void *), void *arg)
{
    if (cuda_healthy(dev))
        cuda_ok(dev, "host_call", cudaLaunchHostFunc(s->handle, fn, arg));
}

void *cuda_native_stream(struct device *dev, struct stream *s)
{
    (void)dev;
    return s->handle;
}
