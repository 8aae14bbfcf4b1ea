/* resident_weights.cuh - how resident.cu shares out and streams the weights.
 *
 * The weights are kept a second time as w^T [n,k]. A unit is C of them, in a row: a column of w, or
 * a quarter of one of the last product, whose k is 4C. The columns of a product are dealt to the
 * blocks, where they do not divide one more to some, others each time. A block's units, over all
 * products and layers, are numbered from 0; unit i goes through slot i % count of a ring in shared
 * memory, and warp i % WARPS uses it. One thread more keeps the ring full, so while blocks wait for
 * each other the memory works on.
 *
 * The ring holds all of a product, and the warps meet at each product's end, so that nobody waits
 * for a slot whose last use is not over. */
#ifndef DEVICE_CUDA_RESIDENT_WEIGHTS_CUH
#define DEVICE_CUDA_RESIDENT_WEIGHTS_CUH

#include "device/cuda/bulk.cuh"

namespace resident
{
constexpr int WARPS = 16, THREADS = 32 * WARPS; /* that compute */
static_assert(WARPS % 4 == 0, "a warp has the same quarter of all its columns");
enum product { QKV, PROJ, FC, FCPROJ, PRODUCTS };

/* Columns of a product: `each` a block, and one more to `extra` of them. */
struct deal {
    int each, extra;
};

/* What one block has of a product. */
struct share {
    int which, place; /* of the block among those of the product: the first `extra` have one more */
    int first, count; /* columns */
    int units;

    __device__ __forceinline__ void take(const deal &d)
    {
        first = place * d.each + min(place, d.extra);
        count = d.each + (place < d.extra);
        units = which == FCPROJ ? 4 * count : count;
    }
    /* The calling thread ends a column: thread i that of unit i, and of four quarters the first. */
    __device__ __forceinline__ bool finishes() const
    {
        return (int)threadIdx.x < units && (which != FCPROJ || threadIdx.x % 4 == 0);
    }
    __device__ __forceinline__ int column() const
    {
        return first + (int)threadIdx.x / (which == FCPROJ ? 4 : 1);
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

/* A place in a block's sequence of units. */
template <typename T> struct unit_cursor {
    const deal *deals;
    share s;
    int unit, layers_left; /* unit of the product */
    size_t square;         /* C * C */
    const T *weights;      /* of the product */

    __device__ __forceinline__ unit_cursor(const deal *deals_, const T *weights_, int layers,
                                           int channels)
        : deals(deals_), s(deals_), unit(0), layers_left(layers),
          square((size_t)channels * (size_t)channels), weights(weights_)
    {
        leave_finished();
    }
    __device__ __forceinline__ void next()
    {
        unit++;
        leave_finished();
    }
    /* To the product of the unit; of a narrow model a block may have nothing of several. */
    __device__ __forceinline__ void leave_finished()
    {
        while (unit >= s.units && layers_left > 0) {
            unit -= s.units;
            weights += (s.which == QKV ? 3 : s.which == PROJ ? 1 : 4) * square;
            layers_left -= s.which == FCPROJ;
            s.next(deals);
        }
    }
    /* The unit's number among those of all blocks. */
    __device__ __forceinline__ unsigned number() const
    {
        return (unsigned)(s.which == FCPROJ ? 4 * s.first : s.first) + (unsigned)unit;
    }
};

constexpr int MOST_SLOTS = 160;

/* count slots of `stride` bytes, of which those beyond C elements are zero, and their barriers. */
struct weight_slots {
    uint32_t memory, full, empty; /* shared */
    int count, stride;
};

/* By one thread: all of the block's weights. */
template <typename T>
__device__ __forceinline__ void stream_weights(const weight_slots &ring, unit_cursor<T> at,
                                               int channels)
{
    int bytes = channels * (int)sizeof(T);
    int slot = 0, phase = -1;
    for (; at.layers_left > 0; at.next()) {
        while (!barrier_ended(ring.empty + 8 * slot, phase))
            ;
        barrier_expect(ring.full + 8 * slot, bytes);
        bulk_copy(ring.memory + slot * ring.stride,
                  (const char *)at.weights + (size_t)at.number() * (size_t)bytes, bytes,
                  ring.full + 8 * slot);
        if (++slot == ring.count)
            slot = 0, phase++;
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
