/* queue.cuh - a queue in shared memory that one thread fills by asynchronous copies and empties,
 * with no barrier: many reads under way without the registers to hold them. Source: PTX ISA,
 * "cp.async", "cp.async.wait_group". */
#ifndef DEVICE_CUDA_QUEUE_CUH
#define DEVICE_CUDA_QUEUE_CUH

#include "device/cuda/mma.cuh"

/* Entries of PARTS x 16 bytes, DEPTH of them for each of THREADS threads; a warp's accesses lie
 * side by side. The owner pushes DEPTH entries, then pops and pushes in turn. */
template <int PARTS, int DEPTH, int THREADS> struct thread_queue {
    static constexpr int BYTES = DEPTH * PARTS * THREADS * 16;
    char *mine;
    int head, tail;
    __device__ __forceinline__ explicit thread_queue(char *memory)
        : mine(memory + threadIdx.x * 16), head(0), tail(0)
    {
    }
    /* source(i): global address of part i. An entry that is not valid holds anything but counts, so
     * that waiting is by number. */
    template <typename F> __device__ __forceinline__ void push(bool valid, F source)
    {
        if (valid)
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                copy_async16(mine + (tail * PARTS + i) * THREADS * 16, source(i), true);
        asm volatile("cp.async.commit_group;\n" ::: "memory");
        tail = tail + 1 == DEPTH ? 0 : tail + 1;
    }
    /* The oldest entry; DEPTH are in the queue. */
    __device__ __forceinline__ void pop(uint4 (&entry)[PARTS])
    {
        asm volatile("cp.async.wait_group %0;\n" ::"n"(DEPTH - 1) : "memory");
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            entry[i] = *(const uint4 *)(mine + (head * PARTS + i) * THREADS * 16);
        asm volatile("" ::: "memory"); /* read before the next push writes here */
        head = head + 1 == DEPTH ? 0 : head + 1;
    }
};

#endif
