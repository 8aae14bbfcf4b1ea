/* cpus.c - how many of the host's processors are one rank's own share. A launcher may bind each
 * rank to processors of its own, or let all ranks run on all of them; whoever only looks at its own
 * affinity, or only divides by the ranks of the host, is wrong in one of the two. */
#define _GNU_SOURCE
#include "comm/comm_private.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define MOST_CPUS 4096 /* of a host; those beyond are nobody's share */

struct cpu_bits {
    uint64_t word[MOST_CPUS / 64];
};

static bool has(const struct cpu_bits *b, int cpu)
{
    return b->word[cpu / 64] >> (cpu % 64) & 1;
}

static void my_bits(struct cpu_bits *b)
{
    size_t bytes = CPU_ALLOC_SIZE(MOST_CPUS);
    cpu_set_t *set = CPU_ALLOC(MOST_CPUS);
    memset(b, 0, sizeof *b);
    if (set && sched_getaffinity(0, bytes, set) == 0)
        for (int i = 0; i < MOST_CPUS; i++)
            if (CPU_ISSET_S(i, bytes, set))
                b->word[i / 64] |= (uint64_t)1 << (i % 64);
    if (set)
        CPU_FREE(set);
}

/* Each processor is divided between the ranks that may run on it. */
static double share_of(const struct world *w, const struct cpu_bits *all, const uint64_t *hosts)
{
    double share = 0;
    for (int cpu = 0; cpu < MOST_CPUS; cpu++) {
        int users = 0;
        if (!has(&all[w->rank], cpu))
            continue;
        for (int r = 0; r < w->size; r++)
            users += hosts[r] == hosts[w->rank] && has(&all[r], cpu);
        share += 1.0 / users;
    }
    return share;
}

enum status cpus_share(struct world *w, struct error *e)
{
    struct cpu_bits mine, *all = calloc((size_t)w->size, sizeof *all);
    if (!all)
        return error_memory(e, (size_t)w->size * sizeof *all, "the ranks' processors");
    my_bits(&mine);
    enum status st = world_all_gather(w, &mine, sizeof mine, all, e);
    if (st == STATUS_OK) {
        double share =
            share_of(w, all, world_state(w)->hosts) + 1e-6; /* thirds add up to a whole */
        w->cpus = share < 1 ? 1 : (int)share;
        w->crowded = share < 1;
    }
    free(all);
    return st;
}
