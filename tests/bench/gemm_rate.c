/* gemm_rate.c - fp32 products of the shapes that a prompt of ROWS tokens meets in GPT-2 124M, by
 * the cpu device. Prints GFLOP/s, the best of several rounds.  usage: gemm_rate ROWS */
#include "base/progress.h"
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 7
#define LAYERS 4

static void *memory(struct device *dev, int64_t floats)
{
    struct error e;
    void *p;
    if (dev->ops->alloc(dev, MEMORY_DEVICE, (size_t)floats * 4, &p, &e) != STATUS_OK)
        exit(1);
    return p;
}

int main(int argc, char **argv)
{
    static const int64_t shapes[4][2] = {{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}};
    struct error e;
    struct device *dev;
    int64_t rows = argc == 2 ? strtoll(argv[1], NULL, 10) : 0;
    if (rows < 1 || device_open(&dev, "cpu", 0, &e) != STATUS_OK) {
        fprintf(stderr, "usage: gemm_rate ROWS\n");
        return 2;
    }
    float *a = memory(dev, rows * 3072), *d = memory(dev, rows * 3072);
    float *b = memory(dev, LAYERS * 3072 * 3072);
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double began = monotonic_seconds(), flops = 0;
        for (int i = 0; i < 4 * LAYERS; i++) {
            struct gemm g = {.m = rows,
                             .n = shapes[i % 4][1],
                             .k = shapes[i % 4][0],
                             .a = a,
                             .b = b + (int64_t)(i / 4) * 3072 * 3072,
                             .d = d,
                             .dt = DTYPE_F32,
                             .out_dt = DTYPE_F32};
            dev->ops->gemm(dev, dev->compute, &g);
            flops += 2.0 * (double)g.m * (double)g.n * (double)g.k;
        }
        if (dev->ops->stream_sync(dev, dev->compute, &e) != STATUS_OK)
            return 4;
        double rate = flops / (monotonic_seconds() - began);
        best = rate > best ? rate : best;
    }
    printf("%.0f\n", best / 1e9);
    device_close(dev);
    return 0;
}
