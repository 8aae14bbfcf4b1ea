/* mpi_private.h - what mpi_world.c and mpi.c share. */
#ifndef COMM_MPI_PRIVATE_H
#define COMM_MPI_PRIVATE_H

#include "comm/comm_private.h"
#include <mpi.h>

/* A set of transfers that complete together, one message from or to peer[i] (place in the group)
 * each. The first `receives` are receives. */
struct mpi_batch {
    MPI_Request *requests;
    int *peer;
    int count, receives, capacity;
};

enum mpi_wait { MPI_WAIT_DONE, MPI_WAIT_LATE, MPI_WAIT_LOST, MPI_WAIT_ERROR };

enum status mpi_batch_init(struct mpi_batch *b, int capacity, struct error *e) MUST_CHECK;
void mpi_batch_release(struct mpi_batch *b);
void mpi_batch_clear(struct mpi_batch *b);
/* Receives must be added before sends. Each returns an MPI error code. tag 0..32767. */
int mpi_batch_receive(struct mpi_batch *b, void *buf, size_t bytes, int world_rank, int peer,
                      int tag, MPI_Comm comm);
int mpi_batch_send(struct mpi_batch *b, const void *buf, size_t bytes, int world_rank, int peer,
                   int tag, MPI_Comm comm);
/* Polls until every transfer is complete, the time is over or a rank is known lost. Gives the
 * processor away while waiting, so that more ranks than cores make progress. c and call say whose
 * members must arrive; c NULL: unknown. */
enum mpi_wait mpi_batch_wait(struct mpi_batch *b, struct world *w, const struct comm *c,
                             uint64_t call, int *mpi_error);
/* After MPI_WAIT_LATE or _LOST: missing[peer] for receives that did not complete, or when all did,
 * for sends; missing has one entry a member and is not cleared here. */
void mpi_batch_missing(const struct mpi_batch *b, bool *missing);
/* Text of an MPI error code. */
void mpi_error_text(int code, char *out, size_t room);

/* The context that world-wide calls use; MPI_COMM_NULL when the launcher is not MPI. */
MPI_Comm mpi_world_comm(const struct world *w);

/* One message holds at most this; MPI counts are ints. */
#define MPI_MESSAGE_BYTES ((size_t)1 << 30)

/* As comm_ops.create, with limits that tests set low: bytes of one message, and bytes received for
 * one peer at a time while reducing. 0 takes the defaults. */
enum status mpi_comm_create_limited(struct comm **out, struct world *w, struct device *dev,
                                    int color, int key, const char *name, size_t message_bytes,
                                    size_t piece_bytes, struct error *e) MUST_CHECK;

#endif
