/* wgmma.cuh - compute capability 9.0: the product of a warpgroup (128 threads), and tiles copied
 * from a tensor to shared memory. Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix
 * Instructions", "Tensors".
 *
 * A tile is made of parts of 64 columns of 16-bit elements: a row of a part is 128 bytes, in which
 * the 16-byte unit u of row r lies at u ^ r%8 (128-byte swizzle), so a part starts at a multiple of
 * 1024 bytes. Accumulators lie as in m16n8k16: warp w of the warpgroup has rows 16w to 16w+15. */
#ifndef DEVICE_CUDA_WGMMA_CUH
#define DEVICE_CUDA_WGMMA_CUH

#include "device/cuda/bulk.cuh"
#include <cuda.h>
#include <type_traits>

constexpr int PART = 64, PART_ROW_BYTES = 128;

/* Byte offset of 16-byte unit `unit` of a row in a tile of `rows` rows. */
__device__ __forceinline__ int swizzled(int rows, int row, int unit)
{
    return unit / 8 * rows * PART_ROW_BYTES + row * PART_ROW_BYTES + (unit % 8 ^ row % 8) * 16;
}

/* Describes 64 columns or more of a tile at a shared address. `part_bytes` from one part to the
 * next counts only when the rows are what the product sums over. */
__device__ __forceinline__ uint64_t descriptor(uint32_t address, int part_bytes)
{
    constexpr uint64_t swizzle_128 = (uint64_t)1 << 62, eight_rows = (uint64_t)(1024 >> 4) << 32;
    return swizzle_128 | eight_rows | (uint64_t)(part_bytes >> 4) << 16 | address >> 4;
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
/* Keeps what touches the registers of d on its side of this point. */
template <int N> __device__ __forceinline__ void hold(float (&d)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}
/* Before products, when other code may have touched their registers. */
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
/* The same where the compiler might move such code behind it. */
template <int N> __device__ __forceinline__ void wgmma_fence(float (&d)[N][4])
{
    hold(d);
    wgmma_fence();
}
/* Waits until at most PENDING committed groups are unfinished. */
template <int PENDING> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}
/* The same, and d belongs to a finished one. */
template <int PENDING, int N> __device__ __forceinline__ void wgmma_wait(float (&d)[N][4])
{
    wgmma_wait<PENDING>();
    hold(d);
}

#define WGMMA_D4(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define WGMMA_D64                                                                              \
    WGMMA_D4(0), WGMMA_D4(1), WGMMA_D4(2), WGMMA_D4(3), WGMMA_D4(4), WGMMA_D4(5), WGMMA_D4(6), \
        WGMMA_D4(7)
#define WGMMA_D80 WGMMA_D64, WGMMA_D4(8), WGMMA_D4(9)
#define WGMMA_D96 WGMMA_D80, WGMMA_D4(10), WGMMA_D4(11)
#define WGMMA_D112 WGMMA_D96, WGMMA_D4(12), WGMMA_D4(13)
#define WGMMA_D128 WGMMA_D112, WGMMA_D4(14), WGMMA_D4(15)
#define WGMMA_D192                                                                    \
    WGMMA_D128, WGMMA_D4(16), WGMMA_D4(17), WGMMA_D4(18), WGMMA_D4(19), WGMMA_D4(20), \
        WGMMA_D4(21), WGMMA_D4(22), WGMMA_D4(23)
#define WGMMA_D256                                                                    \
    WGMMA_D192, WGMMA_D4(24), WGMMA_D4(25), WGMMA_D4(26), WGMMA_D4(27), WGMMA_D4(28), \
        WGMMA_D4(29), WGMMA_D4(30), WGMMA_D4(31)
#define WGMMA_R64                                                                                \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
    "%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_R80 WGMMA_R64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define WGMMA_R96 WGMMA_R80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA_R112 WGMMA_R96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define WGMMA_R128 WGMMA_R112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_R256                                                                                 \
    WGMMA_R128 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83," \
               "%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%"  \
               "103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%"  \
               "119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA_A "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
/* `inputs` numbers the operands behind d; the predicate is whether to add to it. */
#define WGMMA(N, TYPE, predicate, inputs, ...)                                                   \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " predicate ", 0;\n"                      \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" WGMMA_R##N \
                 "}, " inputs ";\n}\n"                                                           \
                 : WGMMA_D##N                                                                    \
                 : __VA_ARGS__, "r"((int)add))
/* For a warpgroup, which has registers to give or needs more. */
template <int REGISTERS> __device__ __forceinline__ void fewer_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void more_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(REGISTERS));
}

#define WGMMA_OF(N, predicate, inputs, ...)                   \
    do {                                                      \
        if constexpr (std::is_same_v<T, __nv_bfloat16>)       \
            WGMMA(N, "bf16", predicate, inputs, __VA_ARGS__); \
        else                                                  \
            WGMMA(N, "f16", predicate, inputs, __VA_ARGS__);  \
    } while (0)

/* d[64,64] = a[64,16] b[16,64], or += when `add`; both in shared memory, a stored [m][k] and b
 * stored [n][k]. */
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[8][4], uint64_t a, uint64_t b, bool add)
{
    WGMMA_OF(64, "%34", "%32, %33, add, 1, 1, 0, 0", "l"(a), "l"(b));
}
/* d[64,256] = a[64,16] b[16,256] likewise. */
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[32][4], uint64_t a, uint64_t b, bool add)
{
    WGMMA_OF(256, "%130", "%128, %129, add, 1, 1, 0, 0", "l"(a), "l"(b));
}
/* d[64,64] with a in registers, as the accumulators of an earlier product would lie. */
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b,
                                      bool add)
{
    WGMMA_OF(64, "%37", "{%32,%33,%34,%35}, %36, add, 1, 1, 0", WGMMA_A, "l"(b));
}
/* d[64,8J] += a[64,16] b[16,8J], a in registers and b stored [k][n]. */
template <typename T, int J>
__device__ __forceinline__ void wgmma_transposed(float (&d)[J][4], const uint32_t (&a)[4],
                                                 uint64_t b)
{
    constexpr bool add = true;
    static_assert(J % 2 == 0 && J >= 8 && J <= 16);
    if constexpr (J == 8)
        WGMMA_OF(64, "%37", "{%32,%33,%34,%35}, %36, add, 1, 1, 1", WGMMA_A, "l"(b));
    else if constexpr (J == 10)
        WGMMA_OF(80, "%45", "{%40,%41,%42,%43}, %44, add, 1, 1, 1", WGMMA_A, "l"(b));
    else if constexpr (J == 12)
        WGMMA_OF(96, "%53", "{%48,%49,%50,%51}, %52, add, 1, 1, 1", WGMMA_A, "l"(b));
    else if constexpr (J == 14)
        WGMMA_OF(112, "%61", "{%56,%57,%58,%59}, %60, add, 1, 1, 1", WGMMA_A, "l"(b));
    else
        WGMMA_OF(128, "%69", "{%64,%65,%66,%67}, %68, add, 1, 1, 1", WGMMA_A, "l"(b));
}

/* One box of a tensor of four dimensions to shared memory; arrives at the barrier as bytes.
 * Elements outside of the tensor become 0. */
__device__ __forceinline__ void copy_box(void *shared, const CUtensorMap *map, int c0, int c1,
                                         int c2, int c3, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(shared_address(shared)),
                 "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier)
                 : "memory");
}

#endif
