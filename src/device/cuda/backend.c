/* backend.c - opening a GPU, what it is, and the backend's table. */
#include "device/cuda/cuda.h"
#include "device/cuda/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_MAJOR = 8 }; /* bf16 products and asynchronous copies to shared memory */

bool cuda_ok(struct device *dev, const char *operation, cudaError_t rc)
{
    if (rc == cudaSuccess)
        return true;
    device_fail(dev, operation, "%s", cudaGetErrorString(rc));
    return false;
}

enum status cuda_error(struct error *e, cudaError_t rc, const char *what)
{
    return error_set(e, STATUS_DEVICE, "%s: %s", what, cudaGetErrorString(rc));
}

/* Without a driver or a GPU the runtime reports an error, which means none. */
static int cuda_count(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return n;
}

static enum status read_properties(struct cuda_device *cuda, struct error *e)
{
    struct cudaDeviceProp p;
    cudaError_t rc = cudaGetDeviceProperties(&p, cuda->ordinal);
    if (rc != cudaSuccess)
        return cuda_error(e, rc, "reading the GPU's properties");
    if (p.major < LEAST_MAJOR)
        return error_set(
            e, STATUS_DEVICE,
            "GPU %d (%s) has compute capability %d.%d; this program needs %d.0 or more",
            cuda->ordinal, p.name, p.major, p.minor, LEAST_MAJOR);
    cuda->multiprocessors = p.multiProcessorCount;
    cuda->early = p.major >= 9;
    cuda->wgmma = p.major == 9 && p.minor == 0;
    cuda->base.skinny_rows = p.major >= 9 ? SKINNY_ROWS : 0;
    return STATUS_OK;
}

static void cuda_close(struct device *dev)
{
    struct cuda_device *cuda = cuda_of(dev);
    if (!cuda)
        return;
    cuda_stream_free(dev, dev->compute);
    gemm_cache_destroy(cuda->gemms);
    if (cuda->blas)
        cublasLtDestroy(cuda->blas);
    free(cuda->allocations);
    free(cuda);
}

static enum status cuda_open(struct device **dev, int ordinal, struct error *e)
{
    struct cuda_device *cuda = calloc(1, sizeof *cuda);
    enum status st = STATUS_OK;
    cudaError_t rc;
    *dev = NULL;
    if (!cuda)
        return error_memory(e, sizeof *cuda, "device cuda");
    cuda->base.ops = &cuda_device_ops;
    cuda->ordinal = ordinal;
    TRY_OUT(read_properties(cuda, e));
    rc = cudaSetDevice(ordinal);
    if (rc != cudaSuccess) {
        st = cuda_error(e, rc, "opening the GPU");
        goto out;
    }
    cublasStatus_t blas = cublasLtCreate(&cuda->blas);
    if (blas != CUBLAS_STATUS_SUCCESS) {
        st = error_set(e, STATUS_DEVICE, "opening cuBLASLt: %s", cublasLtGetStatusString(blas));
        goto out;
    }
    TRY_OUT(gemm_cache_create(&cuda->gemms, e));
    TRY_OUT(cuda_stream_create(&cuda->base, &cuda->base.compute, e));
    if (!cuda_stream_workspace(&cuda->base, cuda->base.compute, "open")) {
        st = device_check(&cuda->base, e);
        goto out;
    }
    *dev = &cuda->base;
    return STATUS_OK;
out:
    cuda_close(&cuda->base);
    return st;
}

/* Dense bf16 tensor operations a second by the vendor's data sheets; 0 where not listed. */
static double peak_of(const char *name)
{
    static const struct {
        const char *part;
        double flops;
    } known[] = {
        {"H200", 989e12}, {"H100 PCIe", 756e12}, {"H100 NVL", 835e12}, {"H100", 989e12},
        {"H800", 989e12}, {"GH200", 989e12},     {"B200", 2250e12},    {"B100", 1750e12},
        {"A100", 312e12}, {"A800", 312e12},      {"L40S", 362e12},     {"A10", 125e12},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strstr(name, known[i].part))
            return known[i].flops;
    return 0.0;
}

static void cuda_info(struct device *dev, struct device_info *info)
{
    struct cudaDeviceProp p;
    size_t available = 0, total = 0;
    memset(info, 0, sizeof *info);
    if (!cuda_ok(dev, "info", cudaGetDeviceProperties(&p, cuda_of(dev)->ordinal)) ||
        !cuda_ok(dev, "info", cudaMemGetInfo(&available, &total)))
        return;
    snprintf(info->name, sizeof info->name, "%.95s", p.name);
    info->memory_bytes = (int64_t)total;
    info->free_bytes = (int64_t)available;
    info->peak_flops = peak_of(p.name);
    info->major = p.major;
    info->minor = p.minor;
}

const struct device_ops cuda_device_ops = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .count = cuda_count,
    .info = cuda_info,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .stream_create = cuda_stream_create,
    .stream_free = cuda_stream_free,
    .event_create = cuda_event_create,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .stream_sync = cuda_stream_sync,
    .event_sync = cuda_event_sync,
    .event_elapsed_ms = cuda_event_elapsed_ms,
    .host_call = cuda_host_call,
    .copy = cuda_copy,
    .fill_zero = cuda_fill_zero,
    .gemm = cuda_gemm,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .native_stream = cuda_native_stream,
    CUDA_KERNEL_OPS,
};
