/* mma.cuh - the warp-wide matrix product m16n8k16 with its fragment loads, and asynchronous copies
 * to shared memory. Fragment layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16". */
#ifndef DEVICE_CUDA_MMA_CUH
#define DEVICE_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes from global to shared memory; zeros when !valid (global is then not read). */
__device__ __forceinline__ void copy_async16(void *shared, const void *global, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid ? 16 : 0));
}
/* 4 bytes, as copy_async16. */
__device__ __forceinline__ void copy_async4(void *shared, const void *global, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid ? 4 : 0));
}
/* Asks for the 128 bytes at p to be brought to the L2 cache. */
__device__ __forceinline__ void prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(p));
}
__device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
/* Waits until at most PENDING of this thread's committed groups are unfinished. */
template <int PENDING> __device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8. */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void *shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared)));
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void *shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared)));
}

/* d[16,8] += a[16,16] b[16,8]; T names the type of a and b, d is fp32. */
template <typename T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1);
template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two fp32 values rounded and packed, lo in the lower half. */
template <typename T> __device__ __forceinline__ uint32_t pack(float lo, float hi);
template <> __device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float lo, float hi)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<uint32_t *>(&v);
}
template <> __device__ __forceinline__ uint32_t pack<__half>(float lo, float hi)
{
    __half2 v = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<uint32_t *>(&v);
}

/* Lane addresses of fragments in a tile with LD elements a row.
 * A[m,k] stored [m][k]: (row, col) of lane; A stored [k][m] and B[k,n] stored [k][n] load
 * transposed; B stored [n][k] loads two neighbouring n-tiles: r0,r1 of the first, r2,r3 of the
 * second. */
template <int LD, typename T>
__device__ __forceinline__ const T *a_address(const T *tile, int m0, int k0)
{
    int lane = threadIdx.x % 32;
    return tile + (m0 + lane % 16) * LD + k0 + lane / 16 * 8;
}
template <int LD, typename T>
__device__ __forceinline__ const T *a_transposed_address(const T *tile, int m0, int k0)
{
    int lane = threadIdx.x % 32;
    return tile + (k0 + lane / 16 * 8 + lane % 8) * LD + m0 + lane / 8 % 2 * 8;
}
template <int LD, typename T>
__device__ __forceinline__ const T *b_address(const T *tile, int n0, int k0)
{
    int lane = threadIdx.x % 32;
    return tile + (n0 + lane / 16 * 8 + lane % 8) * LD + k0 + lane / 8 % 2 * 8;
}
template <int LD, typename T>
__device__ __forceinline__ const T *b_transposed_address(const T *tile, int n0, int k0)
{
    int lane = threadIdx.x % 32;
    return tile + (k0 + lane / 8 % 2 * 8 + lane % 8) * LD + n0 + lane / 16 * 8;
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

#endif
