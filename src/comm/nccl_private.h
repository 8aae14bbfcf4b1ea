/* nccl_private.h - what nccl.c and nccl_watch.c share. */
#ifndef COMM_NCCL_PRIVATE_H
#define COMM_NCCL_PRIVATE_H

#include "comm/comm_private.h"
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>

enum { NCCL_WATCHED = 256, NCCL_BUFFERS = 64 };

/* One collective under way: events before and after it on its stream. */
struct nccl_flight {
    cudaEvent_t begin, end;
    enum collective which;
    uint64_t call;
    double started; /* when `begin` was first seen complete; 0 before */
};

struct nccl_comm {
    struct comm head;
    ncclComm_t comm; /* NULL after an abort */
    int ordinal;
    void *registered[NCCL_BUFFERS];
    int registered_count;
    pthread_mutex_t lock; /* of everything below, and of each use of comm */
    pthread_cond_t wake;
    pthread_t watcher;
    bool watching, stop;
    struct nccl_flight flights[NCCL_WATCHED]; /* ring, in the order of the stream */
    int first, count;
};

/* Waits until a non-blocking call has been carried out by the host side; with lock held. On failure
 * the comm is marked and aborted. */
bool nccl_settle(struct nccl_comm *c, enum collective which, uint64_t call, ncclResult_t result);
/* Marks the comm failed (if it is the first failure) and ends its kernels, so that streams drain.
 * Lock held. */
void nccl_abort(struct nccl_comm *c);
/* Text of a failed NCCL call. */
void nccl_error_text(struct nccl_comm *c, ncclResult_t result, char *out, size_t room);

/* Before and after a collective is queued; lock held. The watcher fails the comm when the
 * collective does not complete within the world's time-out of its start on the stream. */
bool nccl_flight_begin(struct nccl_comm *c, cudaStream_t s, enum collective which, uint64_t call);
bool nccl_flight_end(struct nccl_comm *c, cudaStream_t s);
enum status nccl_watch_start(struct nccl_comm *c, struct error *e) MUST_CHECK;
void nccl_watch_stop(struct nccl_comm *c);

#endif
