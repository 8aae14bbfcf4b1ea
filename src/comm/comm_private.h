/* comm_private.h - what the launchers and engines share; not for other folders. */
#ifndef COMM_COMM_PRIVATE_H
#define COMM_COMM_PRIVATE_H

#include "comm/board.h"
#include "comm/comm.h"

/* One table a launcher: self, mpi, env. */
struct world_ops {
    const char *name;
    enum status (*all_gather)(struct world *w, const void *in, size_t bytes, void *out,
                              struct error *e);
    /* Optional. True, with a sentence in `why`, when the launcher knows that a rank is gone. */
    bool (*lost)(struct world *w, char *why, size_t room);
    void (*close)(struct world *w); /* frees w->state, not w */
    void (*abort)(struct world *w, int exit_status);
};

/* Head of every launcher's private state; struct world.state points to one. */
struct world_state {
    const struct world_ops *ops;
    struct board *board; /* NULL until world_open is nearly done */
    uint64_t *hosts;     /* [size] identity of each rank's host */
    int comms;           /* communicators created so far */
    int broken;          /* atomic: a collective failed; peers are in unknown states */
    struct error *cause; /* atomic, owned: what failed first; NULL while nothing has */
};

static inline struct world_state *world_state(const struct world *w)
{
    return w->state;
}

/* The launchers. Each fills rank, size, launcher, timeout_ms and state of *w. */
enum status self_world_open(struct world *w, const struct world_options *o,
                            struct error *e) MUST_CHECK;
enum status mpi_world_open(struct world *w, const struct world_options *o,
                           struct error *e) MUST_CHECK;
enum status env_world_open(struct world *w, const struct world_options *o,
                           struct error *e) MUST_CHECK;

extern const struct comm_ops self_comm_ops, mpi_comm_ops;
#if WITH_CUDA
extern const struct comm_ops nccl_comm_ops;
#endif

/* Several collectives wait at once, and when one fails the others give up: what is told is the one
 * that failed first. Kept before world_mark_broken, so that whoever gives up finds it. */
void world_keep_cause(struct world *w, const struct error *e);
/* The kept failure, into e; false, and e as it was, when there is none. */
bool world_cause(const struct world *w, struct error *e);
void world_mark_broken(struct world *w);
bool world_is_broken(const struct world *w);
/* A rank of this host died, or the launcher lost one: true, with a sentence. Cheap enough to call
 * every few milliseconds. */
bool world_lost(struct world *w, char *why, size_t room);

/* Fills w->cpus. Collective over the world; hosts are known. */
enum status cpus_share(struct world *w, struct error *e) MUST_CHECK;

/* Fills the head: rank, size, members, name, slot. Collective over the world. */
enum status comm_init(struct comm *c, const struct comm_ops *ops, struct world *w,
                      struct device *dev, int color, int key, const char *name,
                      struct error *e) MUST_CHECK;
void comm_release(struct comm *c);
bool comm_failed(const struct comm *c);
enum status comm_first_error(struct comm *c, struct error *e);
/* comm_fail for a collective that is late: names the ranks that did not arrive. missing [size]
 * tells which members sent nothing; NULL when the engine cannot know. */
void comm_fail_late(struct comm *c, enum collective which, uint64_t call, int64_t waited_ms,
                    const bool *missing);
/* "rank 2", "ranks 0, 4-6" for the true entries of set [n], ranks translated through members when
 * that is not NULL. */
void ranks_describe(const bool *set, int n, const int *members, char *out, size_t room);

#endif
