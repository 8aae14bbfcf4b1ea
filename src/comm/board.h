/* board.h - what each rank is doing, for the messages of other ranks. A page of shared memory on
 * each host holds, per rank, the step and, per communicator, the number of collectives entered and
 * left. It is advice: nothing waits for it, and a host without shared memory only loses detail. */
#ifndef COMM_BOARD_H
#define COMM_BOARD_H

#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum collective {
    COLLECTIVE_NONE,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_AGREE,
};
const char *collective_name(enum collective which);

struct world;
struct board;

/* Identity of this host and its process numbers: equal exactly where pids mean the same. */
uint64_t host_identity(void);

/* Collective over the world (uses world_all_gather); w->state's hosts are known. */
enum status board_open(struct board **b, struct world *w, struct error *e) MUST_CHECK;
void board_close(struct board *b);
/* This rank is done: its process may end now without being missed. */
void board_leaving(struct board *b);
void board_step(struct board *b, int64_t step);
/* slot: 0 for the world's own collectives, else struct comm's; slots past the table are not shown.
 */
void board_enter(struct board *b, int slot, enum collective which, uint64_t call);
void board_leave(struct board *b, int slot, uint64_t call);
/* Has this rank (of the world) entered `call` in `slot`? -1 unknown (another host), 0 no, 1 yes. */
int board_entered(const struct board *b, int rank, int slot, uint64_t call);
int64_t board_step_of(const struct board *b, int rank); /* -1 unknown */
/* The first rank of this host whose process ended without board_leaving; -1 for none. */
int board_dead(struct board *b);
/* "step 16, in reduce_scatter 40 of slot 2": what a rank of this host is doing; "" when unknown. */
void board_describe(const struct board *b, int rank, char *out, size_t room);

#endif
