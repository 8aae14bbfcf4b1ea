/* board.c - the segment is named by a random token that the first rank of each host creates and
 * sends through the world; it is unlinked as soon as everyone has it, so nothing is left behind. */
#define _GNU_SOURCE
#include "comm/board.h"
#include "comm/comm_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/hash.h"

enum { BOARD_SLOTS = 16 };

struct board_slot {
    _Atomic uint64_t entered, left; /* call numbers, from 1 */
    _Atomic int which;
};

struct board_rank {
    _Atomic int64_t pid, step; /* pid 0 after an orderly close; step -1 before the first */
    struct board_slot slots[BOARD_SLOTS];
};

struct board {
    struct board_rank *ranks; /* [size]; only those of this host are filled */
    size_t bytes;
    int rank, size;
    bool *here;             /* [size] the rank shares this segment */
    struct pollfd *watched; /* one process descriptor per other rank of this host */
    int *watched_rank;
    int watched_count;
};

const char *collective_name(enum collective which)
{
    static const char *const names[] = {
        [COLLECTIVE_NONE] = "nothing",
        [COLLECTIVE_ALL_GATHER] = "all_gather",
        [COLLECTIVE_REDUCE_SCATTER] = "reduce_scatter",
        [COLLECTIVE_ALL_REDUCE] = "all_reduce",
        [COLLECTIVE_BROADCAST] = "broadcast",
        [COLLECTIVE_AGREE] = "agreement",
    };
    return (size_t)which < sizeof names / sizeof names[0] ? names[which] : "nothing";
}

/* Host name, boot, process namespace and shared-memory filesystem: containers on one machine count
 * as one host only when they can see each other's processes and memory. */
uint64_t host_identity(void)
{
    char text[512];
    size_t used = 0;
    if (gethostname(text, 256) == 0)
        used = strnlen(text, 256);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, text + used, 64);
        used += n > 0 ? (size_t)n : 0;
        close(fd);
    }
    ssize_t n = readlink("/proc/self/ns/pid", text + used, 64);
    used += n > 0 ? (size_t)n : 0;
    struct stat st;
    if (stat("/dev/shm", &st) == 0) {
        int m = snprintf(text + used, sizeof text - used, "%" PRIu64 ":%" PRIu64,
                         (uint64_t)st.st_dev, (uint64_t)st.st_ino);
        used += m > 0 ? (size_t)m : 0;
    }
    return hash64(text, used);
}

static void segment_name(uint64_t token, char *out, size_t room)
{
    snprintf(out, room, "/sdp-%016" PRIx64, token);
}

/* Creates the segment (exclusive) or opens the one that the host's first rank made; NULL on
 * failure. */
static void *map_segment(uint64_t token, bool create, size_t bytes)
{
    char name[32];
    segment_name(token, name, sizeof name);
    int fd = shm_open(name, create ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
    if (fd < 0)
        return NULL;
    void *p = MAP_FAILED;
    /* posix_fallocate, not ftruncate: a full /dev/shm must fail here, not as a bus error later. */
    if (!create || posix_fallocate(fd, 0, (off_t)bytes) == 0)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED && create)
        shm_unlink(name);
    return p == MAP_FAILED ? NULL : p;
}

static int first_of_host(const struct world *w)
{
    const uint64_t *hosts = world_state(w)->hosts;
    for (int r = 0; r < w->size; r++)
        if (hosts[r] == hosts[w->rank])
            return r;
    return w->rank;
}

static void *private_page(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Sets b->ranks and b->here. */
static enum status share(struct board *b, struct world *w, struct error *e)
{
    uint64_t token = 0, *tokens = calloc((size_t)w->size, sizeof *tokens);
    uint8_t *joined = calloc((size_t)w->size, sizeof *joined);
    int leader = first_of_host(w);
    enum status st;
    if (!tokens || !joined)
        TRY_OUT(error_memory(e, (size_t)w->size * sizeof *tokens, "the rank board"));
    if (w->rank == leader) {
        if (getrandom(&token, sizeof token, GRND_NONBLOCK) != (ssize_t)sizeof token)
            token = (uint64_t)getpid() << 32 ^ (uintptr_t)b;
        b->ranks = map_segment(token, true, b->bytes);
    }
    TRY_OUT(world_all_gather(w, &token, sizeof token, tokens, e));
    if (w->rank != leader)
        b->ranks = map_segment(tokens[leader], false, b->bytes);
    uint8_t mine = b->ranks != NULL;
    TRY_OUT(world_all_gather(w, &mine, sizeof mine, joined, e));
    if (w->rank == leader && b->ranks) {
        char name[32];
        segment_name(token, name, sizeof name);
        shm_unlink(name);
    }
    for (int r = 0; r < w->size; r++)
        b->here[r] = r == w->rank || (mine && joined[r] &&
                                      world_state(w)->hosts[r] == world_state(w)->hosts[w->rank]);
    if (!b->ranks)
        b->ranks = private_page(b->bytes);
    if (!b->ranks)
        TRY_OUT(error_memory(e, b->bytes, "the rank board"));
out:
    free(tokens);
    free(joined);
    return st;
}

/* Process descriptors become readable when the process ends, even before it is reaped. */
static void watch_processes(struct board *b)
{
    for (int r = 0; r < b->size; r++) {
        if (!b->here[r] || r == b->rank)
            continue;
        int fd = (int)syscall(SYS_pidfd_open, (pid_t)atomic_load(&b->ranks[r].pid), 0);
        if (fd < 0)
            continue; /* an old kernel: time-outs still work */
        b->watched[b->watched_count] = (struct pollfd){.fd = fd, .events = POLLIN};
        b->watched_rank[b->watched_count++] = r;
    }
}

enum status board_open(struct board **out, struct world *w, struct error *e)
{
    size_t n = (size_t)w->size;
    struct board *b = calloc(1, sizeof *b);
    enum status st;
    *out = NULL;
    if (!b)
        return error_memory(e, sizeof *b, "the rank board");
    b->rank = w->rank;
    b->size = w->size;
    b->bytes = n * sizeof *b->ranks;
    b->here = calloc(n, sizeof *b->here);
    b->watched = calloc(n, sizeof *b->watched);
    b->watched_rank = calloc(n, sizeof *b->watched_rank);
    if (!b->here || !b->watched || !b->watched_rank)
        TRY_OUT(error_memory(e, n * sizeof *b->watched, "the rank board"));
    TRY_OUT(share(b, w, e));
    atomic_store(&b->ranks[b->rank].step, -1);
    atomic_store(&b->ranks[b->rank].pid, getpid());
    TRY_OUT(world_barrier(w, e)); /* every pid is there */
    watch_processes(b);
    *out = b;
    b = NULL;
out:
    board_close(b);
    return st;
}

void board_close(struct board *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->watched_count; i++)
        close(b->watched[i].fd);
    if (b->ranks)
        munmap(b->ranks, b->bytes);
    free(b->here);
    free(b->watched);
    free(b->watched_rank);
    free(b);
}

void board_leaving(struct board *b)
{
    if (b)
        atomic_store(&b->ranks[b->rank].pid, 0);
}

void board_step(struct board *b, int64_t step)
{
    if (b)
        atomic_store_explicit(&b->ranks[b->rank].step, step, memory_order_relaxed);
}

void board_enter(struct board *b, int slot, enum collective which, uint64_t call)
{
    if (!b || slot < 0 || slot >= BOARD_SLOTS)
        return;
    struct board_slot *s = &b->ranks[b->rank].slots[slot];
    atomic_store_explicit(&s->which, (int)which, memory_order_relaxed);
    atomic_store_explicit(&s->entered, call, memory_order_release);
}

void board_leave(struct board *b, int slot, uint64_t call)
{
    if (!b || slot < 0 || slot >= BOARD_SLOTS)
        return;
    atomic_store_explicit(&b->ranks[b->rank].slots[slot].left, call, memory_order_release);
}

static bool visible(const struct board *b, int rank)
{
    return b && rank >= 0 && rank < b->size && b->here[rank];
}

int board_entered(const struct board *b, int rank, int slot, uint64_t call)
{
    if (!visible(b, rank) || slot < 0 || slot >= BOARD_SLOTS)
        return -1;
    return atomic_load(&b->ranks[rank].slots[slot].entered) >= call;
}

int64_t board_step_of(const struct board *b, int rank)
{
    return visible(b, rank) ? atomic_load(&b->ranks[rank].step) : -1;
}

int board_dead(struct board *b)
{
    if (!b || b->watched_count == 0)
        return -1;
    struct pollfd local[64]; /* a copy: several stream threads may ask at once */
    for (int from = 0; from < b->watched_count; from += 64) {
        int n = b->watched_count - from < 64 ? b->watched_count - from : 64;
        memcpy(local, b->watched + from, (size_t)n * sizeof *local);
        if (poll(local, (nfds_t)n, 0) <= 0)
            continue;
        for (int i = 0; i < n; i++)
            if (local[i].revents & POLLIN && atomic_load(&b->ranks[b->watched_rank[from + i]].pid))
                return b->watched_rank[from + i];
    }
    return -1;
}

void board_describe(const struct board *b, int rank, char *out, size_t room)
{
    out[0] = '\0';
    if (!visible(b, rank))
        return;
    int64_t step = board_step_of(b, rank);
    int n = step >= 0 ? snprintf(out, room, "at step %lld", (long long)step) : 0;
    for (int i = 0; i < BOARD_SLOTS; i++) {
        const struct board_slot *s = &b->ranks[rank].slots[i];
        uint64_t entered = atomic_load(&s->entered);
        if (entered == atomic_load(&s->left) || n < 0 || (size_t)n >= room)
            continue;
        n += snprintf(out + n, room - (size_t)n, "%sin %s %llu of communicator %d", n ? ", " : "",
                      collective_name((enum collective)atomic_load(&s->which)),
                      (unsigned long long)entered, i);
    }
    if (n == 0)
        snprintf(out, room, "outside any collective");
}
