/* stream.c - how fast this machine reads a file's mapped bytes: the floor of decoding one token.
 * usage: stream FILE THREADS     prints GB/s, the best of several readings */
#include "base/error.h"
#include "base/pool.h"
#include "base/progress.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define READINGS 12

typedef uint64_t wide __attribute__((vector_size(64), aligned(8)));

struct reading {
    const char *map;
    size_t bytes, parts;
    uint64_t *sums;
};

static void read_part(void *arg, size_t i, int worker)
{
    struct reading *r = arg;
    const size_t from = r->bytes / r->parts * i / 512 * 512, count = r->bytes / r->parts / 512;
    const char *p = r->map + from;
    wide sum[8] = {{0}};
    (void)worker;
    for (size_t k = 0; k < count; k++, p += 512)
        for (int j = 0; j < 8; j++)
            sum[j] += *(const wide *)(p + 64 * j);
    for (int j = 1; j < 8; j++)
        sum[0] += sum[j];
    r->sums[i] = sum[0][0] ^ sum[0][7];
}

int main(int argc, char **argv)
{
    struct error e;
    struct pool *pool;
    struct stat info;
    int fd = argc == 3 ? open(argv[1], O_RDONLY) : -1;
    if (fd < 0 || fstat(fd, &info) != 0 || pool_create(&pool, atoi(argv[2]), &e) != STATUS_OK) {
        fprintf(stderr, "usage: stream FILE THREADS\n");
        return 2;
    }
    struct reading r = {.bytes = (size_t)info.st_size, .parts = (size_t)atoi(argv[2])};
    r.map = mmap(NULL, r.bytes, PROT_READ, MAP_SHARED, fd, 0);
    r.sums = calloc(r.parts, sizeof *r.sums);
    if (r.map == MAP_FAILED || !r.sums)
        return 1;
    double best = 0;
    for (int i = 0; i < READINGS; i++) {
        double began = monotonic_seconds();
        pool_run(pool, r.parts, read_part, &r);
        double rate = (double)r.bytes / (monotonic_seconds() - began);
        best = rate > best ? rate : best;
    }
    printf("%.1f\n", best / 1e9);
    pool_free(pool);
    return 0;
}
