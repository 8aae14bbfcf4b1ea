/* comm.h - ranks and their collectives.
 *
 * struct world is how ranks find each other: MPI's launcher, RANK/WORLD_SIZE/... or Slurm's
 * variables, or one rank alone. Its calls are host-side, small and synchronous: agreeing on
 * configuration, comparing hashes, naming who is missing.
 *
 * struct comm is one communicator of an engine (self, mpi, nccl) on a device. Its collectives are
 * put on a stream like any kernel and run in that stream's order; every member of the group calls
 * the same collectives in the same order. The first failure is kept in the comm, later calls become
 * no-ops, and comm_check reports it - so a schedule reads as a list of transfers.
 *
 * mpi works in host memory; buffers of a device that is not host memory are staged through pinned
 * memory, so several ranks can share one GPU. nccl wants a GPU a rank.
 *
 * Time-outs. A collective that does not complete within timeout_ms fails with STATUS_DEVICE and a
 * message naming this rank, the step, the collective, and the ranks that did not arrive as far as
 * they can be told (ranks publish the collective they are in through shared memory on their node).
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include "device/device.h"

struct world_options {
    const char *launcher; /* "auto", "self", "mpi", "env" */
    int ranks_per_node;   /* > 0: pretend nodes of that many consecutive ranks; 0 = detect */
    int64_t timeout_ms;
    /* Values of RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (or
     * Slurm's), read by main; NULL when unset. */
    const char *env_rank, *env_world_size, *env_local_rank, *env_local_world_size;
    const char *env_master_addr, *env_master_port;
    bool mpi_launched; /* main saw OMPI_COMM_WORLD_SIZE or PMI_SIZE: auto takes mpi */
    /* Optional. MPI's start and end wait for all ranks and cannot be given up: told what is waited
     * for before each such wait, and NULL after it, by the thread that waits. world_close calls it
     * too. */
    void (*waiting)(void *arg, const char *what);
    void *waiting_arg;
};

struct world {
    int rank, size;
    int local_rank, local_size; /* within this node */
    int node, nodes;            /* nodes numbered in order of their first rank */
    int host_rank, host_size;   /* within this host, pretended nodes or not: chooses the GPU */
    int cpus;                   /* this rank's share of its host's processors, at least 1 */
    bool crowded;               /* the share is less than one processor */
    const char *launcher;       /* what was chosen */
    int64_t timeout_ms;
    void *state; /* private */
};

enum status world_open(struct world **w, const struct world_options *o, struct error *e) MUST_CHECK;
void world_close(struct world *w);
/* out[size * bytes] = every rank's in[bytes], in rank order. Host memory. */
enum status world_all_gather(struct world *w, const void *in, size_t bytes, void *out,
                             struct error *e) MUST_CHECK;
enum status world_barrier(struct world *w, struct error *e) MUST_CHECK;
/* Agreement on failure: every rank returns the largest status over ranks, and e of every rank holds
 * the message of the first rank that has it ("rank 3: ..."; without the prefix in a world of one).
 * e is this rank's own error when mine is not STATUS_OK. */
enum status world_agree(struct world *w, enum status mine, struct error *e) MUST_CHECK;
/* What this rank is doing, for other ranks' time-out messages. */
void world_note_step(struct world *w, int64_t step);
/* End the whole job now with this exit status. Does not return. */
void world_abort(struct world *w, int exit_status) __attribute__((noreturn));

struct comm;

enum comm_reduce { COMM_SUM, COMM_MAX };

struct comm_ops {
    const char *name; /* "self", "mpi", "nccl" */
    /* Is the engine usable for this world and device? Explains when not. */
    enum status (*usable)(const struct world *w, const struct device *dev, struct error *e);
    /* Collective over the world: ranks with the same color form a group ordered by key. */
    enum status (*create)(struct comm **c, struct world *w, struct device *dev, int color, int key,
                          const char *name, struct error *e);
    void (*free)(struct comm *c);
    /* recv[size * bytes] = everyone's send[bytes], in rank order; send may be recv + rank * bytes.
     */
    void (*all_gather)(struct comm *c, struct stream *s, void *recv, const void *send,
                       size_t bytes);
    /* recv[count] = sum over ranks of their send[rank_of_receiver * count ...]; send has size *
     * count elements; recv may be send + rank * count. dt is DTYPE_F32 or DTYPE_BF16. The sum is
     * done in fp32 in rank order, so it has the same bits every time. */
    void (*reduce_scatter)(struct comm *c, struct stream *s, void *recv, const void *send,
                           int64_t count, enum dtype dt);
    /* In place. DTYPE_F32 or DTYPE_BF16; the same bits on every rank. */
    void (*all_reduce)(struct comm *c, struct stream *s, void *buf, int64_t count, enum dtype dt,
                       enum comm_reduce op);
    void (*broadcast)(struct comm *c, struct stream *s, void *buf, size_t bytes, int root);
    /* Optional: tell the engine that a buffer will be used often (NCCL registration). NULL
     * otherwise. */
    void (*register_buffer)(struct comm *c, void *buf, size_t bytes);
    /* First failure, with STATUS_DEVICE. Does not wait. */
    enum status (*check)(struct comm *c, struct error *e);
};

/* Common head of every engine's struct comm. */
struct comm {
    const struct comm_ops *ops;
    struct world *world;
    struct device *dev;
    int rank, size; /* within the group */
    char name[32];  /* "gather", "scatter", "replica": for messages */
    int *members;   /* [size] their ranks in the world, in group order */
    int slot;       /* number of this communicator in its world, the same on every rank; from 1 */
    int failing;    /* atomic: someone is writing, or has written, error */
    struct error error;
    /* Bytes this rank had to send, whatever the algorithm: all_gather (size-1)*bytes;
     * reduce_scatter (size-1)*count elements; all_reduce twice (size-1)/size of the buffer;
     * broadcast, at the root, the buffer once. Counted when the call is made. */
    int64_t bytes_sent;
    int64_t calls;
};

extern const struct comm_ops *const comm_engines[]; /* NULL-terminated */

/* engine "auto": self for one rank (nccl when a GPU is used and NCCL is built in), nccl when every
 * rank has a GPU of its own, else mpi. Any other name never falls back. *chosen gets the engine's
 * name. */
enum status comm_choose(const char *engine, struct world *w, struct device *dev,
                        const struct comm_ops **ops, struct error *e) MUST_CHECK;
/* For engines: record the first failure. */
void comm_fail(struct comm *c, const char *collective, const char *fmt, ...) PRINTF_LIKE(3, 4);

#endif
