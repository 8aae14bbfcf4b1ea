/* early.cuh - programmatic dependent launch: the chain of small kernels that decoding is.
 *
 * A kernel launched early may start while the one before it still runs. It may read what no kernel
 * of the chain writes (weights) at once, and calls early_wait() before anything else: that returns
 * when the kernel before has ended and its writes are visible, so order is what the stream says.
 * early_next() lets the kernel after start; called behind early_wait(), so that at most two are
 * under way. Compute capability 9.0; before, launches are ordinary and the calls do nothing.
 * Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization". */
#ifndef DEVICE_CUDA_EARLY_CUH
#define DEVICE_CUDA_EARLY_CUH

#include <cuda_runtime.h>
#include <utility>

__device__ __forceinline__ void early_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void early_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

struct launch_shape {
    int64_t blocks;
    int threads;
    size_t shared; /* dynamic */
    int cluster;   /* blocks of a cluster; 0 = none */
};

/* kernel<<<...>>>(args...), early when the GPU can. */
template <typename... P, typename... A>
cudaError_t launch_early(void (*kernel)(P...), const struct launch_shape &shape, cudaStream_t s,
                         bool early, A &&...args)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)shape.blocks);
    config.blockDim = dim3((unsigned)shape.threads);
    config.dynamicSmemBytes = shape.shared;
    config.stream = s;
    config.attrs = attributes;
    if (early) {
        attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (shape.cluster) {
        attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attributes[config.numAttrs].val.clusterDim.x = (unsigned)shape.cluster;
        attributes[config.numAttrs].val.clusterDim.y = 1;
        attributes[config.numAttrs++].val.clusterDim.z = 1;
    }
    if (shape.shared > 48 << 10) {
        cudaError_t rc = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              (int)shape.shared);
        if (rc != cudaSuccess)
            return rc;
    }
    return cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(args))...);
}

#endif
