/* resident_weights.cuh - how resident.cu shares out and streams the weights.
 *
 * The weights are kept a second time as w^T [n,k]. A unit is C of them, in a row: a column of w, or
 * a quarter of one of the last product, whose k is 4C. The columns of a product, at least
 * one a block, are dealt to the blocks, where they do not divide one more to some, others each
 * time. A block's units, over all products and layers, are numbered from 0; unit i goes through
 * slot i % count of a ring in shared memory, and warp i % WARPS uses it. One thread more keeps the
 * ring full, so while blocks wait for each other the memory works on.
 *
 * The ring holds all of a product, and the warps meet at each product's end, so that nobody waits
 * for a slot whose last use is not over. */
#ifndef DEVICE_CUDA_RESIDENT_WEIGHTS_CUH
#define DEVICE_CUDA_RESIDENT_WEIGHTS_CUH

#include "device/cuda/bulk.cuh"

namespace resident
{
constexpr int WARPS = 8, THREADS = 32 * WARPS; /* that compute */
static_assert(WARPS % 4 == 0, "a warp has the same quarter of all its columns");
enum product { QKV, PROJ, FC, FCPROJ, PRODUCTS };

/* Columns of a product: `each` a block, and one more to `extra` of them. */
struct deal {
    int each, extra;
};

/* What one block has of a product. */
struct share {
    int which, place; /* of the block among those of the product: the first `extra` have one more */
    int first, units; /* column */
    /* The calling thread ends a column: thread i that of unit i, and of four quarters the first. */
    int column;
    bool ends;

    __device__ __forceinline__ void take(const deal &d)
    {
        int quarters = which == FCPROJ ? 2 : 0, t = (int)threadIdx.x; /* log2 */
        first = place * d.each + min(place, d.extra);
        units = (d.each + (place < d.extra)) << quarters;
        column = first + (t >> quarters);
        ends = t < units && (quarters == 0 || t % 4 == 0);
    }
    __device__ __forceinline__ explicit share(const deal *deals)
        : which(QKV), place((int)blockIdx.x)
    {
        take(deals[QKV]);
    }
    __device__ __forceinline__ void next(const deal *deals)
    {
        place -= deals[which].extra;
        place += place < 0 ? (int)gridDim.x : 0;
        which = which == FCPROJ ? QKV : which + 1;
        take(deals[which]);
    }
};

constexpr int MOST_SLOTS = 160;

/* count slots of `stride` bytes, of which those beyond C elements are zero, and their barriers. */
struct weight_slots {
    uint32_t memory, full, empty; /* shared */
    int count, stride;
};

/* By one thread: all of the block's weights. Those of a product lie in a row. */
template <typename T>
__device__ __forceinline__ void stream_weights(const weight_slots &ring, const deal *deals,
                                               const T *weights, int layers, int channels)
{
    const int bytes = channels * (int)sizeof(T);
    const size_t square = (size_t)channels * (size_t)channels;
    const uint32_t end = ring.full + 8 * ring.count;
    uint32_t full = ring.full, to = ring.memory;
    int phase = -1;
    for (share s(deals); layers > 0; s.next(deals)) {
        const char *from = (const char *)(weights + (size_t)s.first * (size_t)channels *
                                                        (s.which == FCPROJ ? 4 : 1));
#pragma unroll 1
        for (int left = s.units; left > 0; left--) {
            while (!barrier_ended(full + (ring.empty - ring.full), phase))
                ;
            barrier_expect(full, bytes);
            bulk_copy(to, from, bytes, full);
            from += bytes, to += ring.stride, full += 8;
            if (full == end)
                full = ring.full, to = ring.memory, phase++;
        }
        weights += (s.which == QKV ? 3 : s.which == PROJ ? 1 : 4) * square;
        layers -= s.which == FCPROJ;
    }
}

/* A warp's reading. */
struct weight_reader {
    uint32_t memory; /* the lane's first 16 bytes in the slot of the warp's next unit */
    uint32_t full, empty;
    int slot;
    int phase;
    __device__ __forceinline__ explicit weight_reader(const weight_slots &ring)
        : slot((int)threadIdx.x / 32), phase(0)
    {
        memory = ring.memory + slot * ring.stride + threadIdx.x % 32 * 16;
        full = ring.full + 8 * slot, empty = ring.empty + 8 * slot;
    }
    /* Until it is there. */
    __device__ __forceinline__ void wait() const
    {
        while (!barrier_ended(full, phase))
            ;
    }
    /* Of it, for lane l: elements 8 (l + 32 i) .. +7. */
    __device__ __forceinline__ uint4 part(int i) const
    {
        return load_shared(memory + 512 * i);
    }
    /* Behind its last reading. */
    __device__ __forceinline__ void next(const weight_slots &ring)
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(empty);
        int step = WARPS;
        slot += WARPS;
        if (slot >= ring.count)
            slot -= ring.count, phase++, step -= ring.count;
        memory += step * ring.stride;
        full += 8 * step, empty += 8 * step;
    }
};

/* Of the threads that compute. */
__device__ __forceinline__ void team_barrier()
{
    asm volatile("bar.sync 2, %0;\n" ::"n"(THREADS) : "memory");
}
} // namespace resident

#endif
