/* memory.c - counted, zero-filled, aligned memory, and copies. */
#include "device/cpu/cpu.h"

#include "base/checked.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Stands just before every allocation. */
struct block {
    void *base; /* what calloc returned */
    size_t bytes;
    uint64_t magic;
};
#define BLOCK_MAGIC 0x6d656d2d75706331ull
enum { HUGE_BYTES = 2 << 20 };

static struct block *block_of(void *p)
{
    return (struct block *)((char *)p - sizeof(struct block));
}

static void count_bytes(struct device *dev, enum memory_kind kind, int64_t bytes)
{
    struct cpu_device *cpu = (struct cpu_device *)dev;
    pthread_mutex_lock(&cpu->lock);
    dev->allocated_bytes[kind] += bytes;
    if (dev->allocated_bytes[kind] > dev->peak_bytes[kind])
        dev->peak_bytes[kind] = dev->allocated_bytes[kind];
    pthread_mutex_unlock(&cpu->lock);
}

/* Large weights are walked with strides of a page or more; huge pages save the TLB misses. */
static void advise_huge(char *p, size_t bytes)
{
    uintptr_t begin = ((uintptr_t)p + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1);
    uintptr_t end = ((uintptr_t)p + bytes) & ~(uintptr_t)(HUGE_BYTES - 1);
    if (end > begin)
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* advice; failing is no loss */
}

enum status cpu_alloc(struct device *dev, enum memory_kind kind, size_t bytes, void **out,
                      struct error *e)
{
    size_t padding = bytes >= 2 * HUGE_BYTES ? HUGE_BYTES : CPU_ALIGN, total;
    *out = NULL;
    if (!checked_add_size(bytes, padding + sizeof(struct block), &total))
        return error_memory(e, bytes, "device cpu");
    char *base = calloc(1, total);
    if (!base)
        return error_memory(e, bytes, "device cpu");
    uintptr_t first = (uintptr_t)base + sizeof(struct block);
    char *p = (char *)((first + padding - 1) & ~(uintptr_t)(padding - 1));
    advise_huge(p, bytes);
    *block_of(p) = (struct block){base, bytes, BLOCK_MAGIC};
    count_bytes(dev, kind, (int64_t)bytes);
    *out = p;
    return STATUS_OK;
}

void cpu_free(struct device *dev, enum memory_kind kind, void *p)
{
    if (!p)
        return;
    struct block *b = block_of(p);
    if (b->magic != BLOCK_MAGIC) {
        device_fail(dev, "free", "pointer %p was not allocated here or was freed before", p);
        return;
    }
    b->magic = 0;
    count_bytes(dev, kind, -(int64_t)b->bytes);
    free(b->base);
}

struct copy_args {
    void *dst;
    const void *src; /* NULL: zero */
    size_t bytes;
};

static void copy_run(struct stream *s, const void *args)
{
    const struct copy_args *a = args;
    const size_t piece = 1 << 20;
    int64_t pieces = (int64_t)((a->bytes + piece - 1) / piece);
    (void)s;
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (int64_t i = 0; i < pieces; i++) {
        size_t at = (size_t)i * piece, n = a->bytes - at < piece ? a->bytes - at : piece;
        if (a->src)
            memmove((char *)a->dst + at, (const char *)a->src + at, n);
        else
            memset((char *)a->dst + at, 0, n);
    }
}

void cpu_copy(struct device *dev, struct stream *s, void *dst, const void *src, size_t bytes)
{
    struct copy_args a = {dst, src, bytes};
    (void)dev;
    if (bytes)
        stream_submit(s, copy_run, &a, sizeof a);
}

void cpu_fill_zero(struct device *dev, struct stream *s, void *dst, size_t bytes)
{
    struct copy_args a = {dst, NULL, bytes};
    (void)dev;
    if (bytes)
        stream_submit(s, copy_run, &a, sizeof a);
}
