/* bulk.cuh - the copy engine's barriers and plain copies, from global to shared memory. A barrier
 * has 8 bytes and, as all shared memory here, is named by its address in that space. Sources: PTX
 * ISA, "mbarrier", "cp.async.bulk". Compute capability 9.0. */
#ifndef DEVICE_CUDA_BULK_CUH
#define DEVICE_CUDA_BULK_CUH

#include "device/cuda/mma.cuh"

/* A barrier completes a phase when `count` arrivals and all announced bytes are in. */
__device__ __forceinline__ void barrier_init(uint32_t barrier, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(count) : "memory");
}
/* Makes barriers just initialised visible to copies; other threads need __syncthreads too. */
__device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Waits for the end of phase 0, 1, 2...; at most one phase behind the barrier. Phase -1 has ended.
 */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, int phase)
{
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}\n" ::"r"(barrier),
                 "r"(phase & 1)
                 : "memory");
}

/* Whether it has ended; the question may take a while. */
__device__ __forceinline__ bool barrier_ended(uint32_t barrier, int phase)
{
    unsigned ended;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(ended)
                 : "r"(barrier), "r"(phase & 1)
                 : "memory");
    return ended;
}

/* Arrives at the barrier as bytes. Addresses and `bytes` are multiples of 16. */
__device__ __forceinline__ void bulk_copy(uint32_t shared, const void *global, int bytes,
                                          uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];\n" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ uint4 load_shared(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

#endif
