/* tensor_map.cuh - the host's description of a tensor for the copy engine (copy_box of wgmma.cuh).
 * Source: CUDA Driver API, "Tensor Map Object Management". */
#ifndef DEVICE_CUDA_TENSOR_MAP_CUH
#define DEVICE_CUDA_TENSOR_MAP_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <type_traits>

/* The runtime hands out the driver's function, so that nothing links to the driver. */
inline decltype(&cuTensorMapEncodeTiled) find_tensor_map_encode()
{
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                     cudaEnableDefault, &found);
#else
    cudaError_t e =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault, &found);
#endif
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess
               ? (decltype(&cuTensorMapEncodeTiled))f
               : NULL;
}

/* A tensor of four dimensions of T (bf16 or fp16) at `data`, the innermost first and without gaps;
 * strides of the others in bytes. Copied in boxes, 64 elements of the innermost, that lie in shared
 * memory as wgmma.cuh says. */
template <typename T>
cudaError_t describe_tensor(CUtensorMap *map, const void *data, const cuuint64_t (&dims)[4],
                            const cuuint64_t (&strides)[3], const cuuint32_t (&box)[4])
{
    static const auto encode = find_tensor_map_encode();
    const cuuint32_t steps[] = {1, 1, 1, 1};
    if (!encode)
        return cudaErrorNotSupported;
    CUresult rc = encode(map,
                         std::is_same_v<T, __nv_bfloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                         4, (void *)data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorNotSupported;
}

#endif
