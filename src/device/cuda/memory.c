/* memory.c - counted, zero-filled device and pinned memory, and copies in stream order. */
#include "device/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

static void count_bytes(struct device *dev, enum memory_kind kind, int64_t bytes)
{
    dev->allocated_bytes[kind] += bytes;
    if (dev->allocated_bytes[kind] > dev->peak_bytes[kind])
        dev->peak_bytes[kind] = dev->allocated_bytes[kind];
}

/* Room for one more entry, before the memory itself is taken. */
static enum status reserve_entry(struct cuda_device *cuda, struct error *e)
{
    if (cuda->allocation_count < cuda->allocation_capacity)
        return STATUS_OK;
    size_t capacity = cuda->allocation_capacity ? 2 * cuda->allocation_capacity : 64;
    struct allocation *grown = realloc(cuda->allocations, capacity * sizeof *grown);
    if (!grown)
        return error_memory(e, capacity * sizeof *grown, "the accounts of device memory");
    cuda->allocations = grown;
    cuda->allocation_capacity = capacity;
    return STATUS_OK;
}

static enum status out_of_memory(struct error *e, cudaError_t rc, enum memory_kind kind,
                                 size_t bytes)
{
    size_t available = 0, total = 0;
    (void)cudaGetLastError(); /* a failed allocation is not sticky; do not report it twice */
    if (kind == MEMORY_DEVICE && cudaMemGetInfo(&available, &total) == cudaSuccess)
        return error_set(e, STATUS_DEVICE,
                         "allocating %zu bytes of GPU memory: %s; %zu of %zu bytes are free", bytes,
                         cudaGetErrorString(rc), available, total);
    return error_set(e, STATUS_DEVICE, "allocating %zu bytes of pinned host memory: %s", bytes,
                     cudaGetErrorString(rc));
}

enum status cuda_alloc(struct device *dev, enum memory_kind kind, size_t bytes, void **out,
                       struct error *e)
{
    struct cuda_device *cuda = cuda_of(dev);
    void *p = NULL;
    *out = NULL;
    TRY(reserve_entry(cuda, e));
    size_t taken = bytes ? bytes : 1;
    cudaError_t rc = kind == MEMORY_DEVICE ? cudaMalloc(&p, taken) : cudaMallocHost(&p, taken);
    if (rc != cudaSuccess)
        return out_of_memory(e, rc, kind, bytes);
    if (kind == MEMORY_HOST) {
        memset(p, 0, taken);
    } else {
        rc = cudaMemset(p, 0, taken);
        if (rc == cudaSuccess)
            rc = cudaDeviceSynchronize(); /* other streams do not wait for the default one */
        if (rc != cudaSuccess) {
            cudaFree(p);
            return cuda_error(e, rc, "clearing new GPU memory");
        }
    }
    cuda->allocations[cuda->allocation_count++] = (struct allocation){p, bytes};
    count_bytes(dev, kind, (int64_t)bytes);
    *out = p;
    return STATUS_OK;
}

void cuda_free(struct device *dev, enum memory_kind kind, void *p)
{
    struct cuda_device *cuda = cuda_of(dev);
    if (!p)
        return;
    for (size_t i = 0; i < cuda->allocation_count; i++) {
        if (cuda->allocations[i].p != p)
            continue;
        count_bytes(dev, kind, -(int64_t)cuda->allocations[i].bytes);
        cuda->allocations[i] = cuda->allocations[--cuda->allocation_count];
        break;
    }
    cudaError_t rc = kind == MEMORY_DEVICE ? cudaFree(p) : cudaFreeHost(p);
    cuda_ok(dev, "free", rc);
}

void cuda_copy(struct device *dev, struct stream *s, void *dst, const void *src, size_t bytes)
{
    if (cuda_healthy(dev) && bytes)
        cuda_ok(dev, "copy", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->handle));
}

void cuda_fill_zero(struct device *dev, struct stream *s, void *dst, size_t bytes)
{
    if (cuda_healthy(dev) && bytes)
        cuda_ok(dev, "fill_zero", cudaMemsetAsync(dst, 0, bytes, s->handle));
}
