/* fuzz.h - a driver for fuzz targets that needs no particular compiler.
 *
 * A target defines fuzz_one(data, bytes), which aborts when a promise is broken, and fuzz_seeds,
 * strings to start from. With clang and -DFUZZ_LIBFUZZER it is a libFuzzer target. Otherwise there is a
 * main: "fuzz_x SECONDS [SEED]" mutates the seeds at random, reproducibly by SEED; "fuzz_x -f FILE..."
 * takes these inputs, e.g. the one that a failing run left as fuzz-crash.bin. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void fuzz_one(const uint8_t *data, size_t bytes);

struct fuzz_seed {
    const char *text;
    size_t bytes;
};
#define FUZZ_SEED(s)     \
    {                    \
        s, sizeof(s) - 1 \
    }
static const struct fuzz_seed fuzz_seeds[];
static const size_t fuzz_seed_count;

#define FUZZ_CHECK(condition)                                                              \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                       \
        }                                                                                  \
    } while (0)

#ifdef FUZZ_LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_one(data, bytes);
    return 0;
}
#else

enum { FUZZ_MAX = 1 << 14 };

static uint64_t fuzz_next(uint64_t *state)
{
    *state ^= *state << 13; /* xorshift64 (Marsaglia 2003) */
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static size_t fuzz_below(uint64_t *state, size_t n)
{
    return n ? (size_t)(fuzz_next(state) % n) : 0;
}

/* Pieces of seeds spliced together, then a few bytes changed, removed, doubled or swapped for
 * characters that mean something. */
static size_t fuzz_make(uint64_t *state, uint8_t *out)
{
    static const char special[] = "\t\n\r\"\\{}[]:,u0-1 \xff\xc3\xed\xa0\x80\xef\xbb\xbf";
    size_t n = 0, pieces = 1 + fuzz_below(state, 4);
    for (size_t i = 0; i < pieces; i++) {
        const struct fuzz_seed *s = &fuzz_seeds[fuzz_below(state, fuzz_seed_count)];
        size_t from = fuzz_below(state, 3) ? 0 : fuzz_below(state, s->bytes + 1);
        size_t take =
            fuzz_below(state, 3) ? s->bytes - from : fuzz_below(state, s->bytes - from + 1);
        if (n + take < FUZZ_MAX / 2)
            memcpy(out + n, s->text + from, take), n += take;
    }
    for (size_t edits = fuzz_below(state, 6); edits > 0; edits--) {
        size_t at = fuzz_below(state, n + 1), k = fuzz_below(state, 24);
        switch (fuzz_below(state, 5)) {
        case 0:
            if (at < n)
                out[at] ^= (uint8_t)(1u << fuzz_below(state, 8));
            break;
        case 1:
            if (at < n)
                out[at] = (uint8_t)special[fuzz_below(state, sizeof(special))];
            break;
        case 2: /* remove */
            k = k < n - at ? k : n - at;
            memmove(out + at, out + at + k, n - at - k);
            n -= k;
            break;
        case 3: /* insert */
            memmove(out + at + 1, out + at, n - at);
            out[at] = (uint8_t)special[fuzz_below(state, sizeof(special))];
            n++;
            break;
        default: /* double a stretch */
            k = k < n - at ? k : n - at;
            memmove(out + at + k, out + at, n - at);
            n += k;
        }
    }
    return n;
}

static void fuzz_keep(int fd, const uint8_t *data, size_t bytes)
{
    if (fd >= 0 &&
        (pwrite(fd, data, bytes, 0) != (ssize_t)bytes || ftruncate(fd, (off_t)bytes) != 0))
        perror("fuzz-crash.bin");
}

int main(int argc, char **argv)
{
    static uint8_t data[FUZZ_MAX];
    if (argc > 2 && strcmp(argv[1], "-f") == 0) {
        for (int i = 2; i < argc; i++) {
            FILE *f = fopen(argv[i], "rb");
            if (!f)
                return perror(argv[i]), 1;
            size_t n = fread(data, 1, sizeof(data), f);
            fclose(f);
            fuzz_one(data, n);
        }
        return 0;
    }
    double seconds = argc > 1 ? atof(argv[1]) : 10;
    uint64_t state = (argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL)) * 2 + 1,
             runs = 0;
    printf("seed %llu\n", (unsigned long long)(state / 2));
    int keep = open("fuzz-crash.bin", O_WRONLY | O_CREAT, 0666);
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (size_t i = 0; i < fuzz_seed_count; i++)
        fuzz_one((const uint8_t *)fuzz_seeds[i].text, fuzz_seeds[i].bytes);
    do {
        size_t n = fuzz_make(&state, data);
        fuzz_keep(keep, data, n); /* before the run: a crash leaves no chance afterwards */
        fuzz_one(data, n);
        runs++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) * 1e-9 <
             seconds);
    unlink("fuzz-crash.bin");
    printf("%llu inputs\n", (unsigned long long)runs);
    return 0;
}
#endif
#endif
