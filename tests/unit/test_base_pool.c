/* test_base_pool.c - every item once, whatever the number of threads; progress lines on stderr. */
#define _GNU_SOURCE
#include "base/pool.h"
#include "base/progress.h"
#include "tap.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

struct job {
    atomic_int *hits;
    atomic_int bad_worker;
    atomic_size_t latest; /* highest item that has started */
    atomic_int out_of_order;
    int threads;
};

static void visit(void *arg, size_t i, int worker)
{
    struct job *j = arg;
    atomic_fetch_add(&j->hits[i], 1);
    if (worker < 0 || worker >= j->threads)
        atomic_fetch_add(&j->bad_worker, 1);
    size_t latest = atomic_load(&j->latest);
    /* Items are handed out in order, so one may be seen late by at most the other threads' items.
     */
    if (latest > i + (size_t)j->threads * 4096)
        atomic_fetch_add(&j->out_of_order, 1);
    while (latest < i && !atomic_compare_exchange_weak(&j->latest, &latest, i))
        ;
}

static void test_loops(int threads)
{
    static const size_t counts[] = {0, 1, 2, 3, 7, 64, 1000, 0, 5};
    struct error e;
    struct pool *p = NULL;
    CHECK_INT(pool_create(&p, threads, &e), STATUS_OK);
    CHECK_INT(pool_threads(p), threads);
    for (size_t k = 0; k < sizeof counts / sizeof counts[0] * 20; k++) {
        size_t n = counts[k % (sizeof counts / sizeof counts[0])];
        struct job j = {.hits = calloc(n + 1, sizeof(atomic_int)), .threads = threads};
        pool_run(p, n, visit, &j);
        int wrong = 0;
        for (size_t i = 0; i < n; i++)
            wrong += atomic_load(&j.hits[i]) != 1;
        CHECK_INT(wrong + atomic_load(&j.hits[n]), 0);
        CHECK_INT(atomic_load(&j.bad_worker), 0);
        CHECK_INT(atomic_load(&j.out_of_order), 0);
        free(j.hits);
    }
    pool_free(p);
}

/* Two items that wait for each other finish only if two threads really run. */
static void meet(void *arg, size_t i, int worker)
{
    atomic_int *arrived = arg;
    (void)i, (void)worker;
    atomic_fetch_add(arrived, 1);
    double start = monotonic_seconds();
    while (atomic_load(arrived) < 2 && monotonic_seconds() - start < 10)
        usleep(100);
}

static char *captured(bool quiet)
{
    static char text[4096];
    char path[] = "/tmp/test_base_poolXXXXXX";
    int file = mkstemp(path), saved = dup(STDERR_FILENO);
    struct progress p;
    fflush(stderr);
    dup2(file, STDERR_FILENO);
    progress_start(&p, "pack", "B", 4096, quiet);
    for (uint64_t i = 0; i <= 4096; i++)
        progress_update(&p, i);
    snprintf(p.note, sizeof p.note, "2 shards");
    progress_finish(&p);
    progress_finish(&p);
    dup2(saved, STDERR_FILENO);
    close(saved);
    ssize_t n = pread(file, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    close(file);
    unlink(path);
    return text;
}

int main(void)
{
    struct error e;
    struct pool *p = NULL;
    CASE("one thread")
    test_loops(1);
    CASE("two threads")
    test_loops(2);
    CASE("more threads than processors")
    test_loops(9);
    CASE("items run side by side")
    {
        atomic_int arrived = 0;
        double start = monotonic_seconds();
        CHECK_INT(pool_create(&p, 2, &e), STATUS_OK);
        pool_run(p, 2, meet, &arrived);
        pool_free(p);
        CHECK(monotonic_seconds() - start < 9);
    }
    CASE("zero threads are refused")
    {
        CHECK_INT(pool_create(&p, 0, &e), STATUS_USAGE);
        CHECK(p == NULL);
        pool_free(NULL);
        CHECK(cpu_count() >= 1);
    }
    CASE("progress off a terminal: one plain final line, none when quiet")
    {
        const char *text = captured(false);
        CHECK(strncmp(text, "pack: 4.00 KiB, ", 16) == 0);
        CHECK_CONTAINS(text, ", 2 shards\n");
        CHECK(strchr(text, '\n') == text + strlen(text) - 1);
        CHECK(!strchr(text, '\r'));
        CHECK_STR(captured(true), "");
    }
    return tap_done();
}
