/* env_frame.h - the little protocol between ranks that no launcher connects: length-prefixed frames
 * over one TCP connection from each rank to rank 0. */
#ifndef COMM_ENV_FRAME_H
#define COMM_ENV_FRAME_H

#include "base/error.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum frame_type {
    FRAME_HELLO = 1, /* rank -> server: u32 rank, u32 world size */
    FRAME_GATHER,    /* rank -> server: this rank's part */
    FRAME_RESULT,    /* server -> rank: every part, in rank order */
    FRAME_LOST,      /* server -> rank: text; the world cannot continue */
    FRAME_BYE,       /* rank -> server: leaving in order */
    FRAME_ABORT,     /* rank -> server: u32 exit status, then why, if known */
    FRAME_WHO,       /* rank -> server: who has not sent a part? */
    FRAME_MISSING,   /* server -> rank: one byte a rank, 1 = missing */
};

struct frame {
    enum frame_type type;
    size_t bytes;
    const uint8_t *payload;
};

/* Sends all of a frame, waiting at most timeout_ms for room; false with errno on failure. */
bool frame_send(int fd, enum frame_type type, const void *payload, size_t bytes, int timeout_ms);
/* Appends what the socket has now to `in`. 1 something came, 0 nothing now, -1 closed or failed. */
int frame_pump(int fd, struct strbuf *in);
/* The next whole frame in `in` from *at: 1 found (*at moves past it), 0 not yet, -1 not our
 * protocol. */
int frame_next(const struct strbuf *in, size_t *at, struct frame *f);
/* Drops the first n bytes of `in`. */
void frame_drop(struct strbuf *in, size_t n);
/* No delay for small messages; notice within half a minute that the other host is gone. */
void frame_tune_socket(int fd);

/* --- the server, a thread of rank 0 --- */
struct env_server;
/* Takes over `listener` and `own` (rank 0's end of a socket pair) - also on failure. */
enum status env_server_start(struct env_server **s, int listener, int own, int size,
                             struct error *e) MUST_CHECK;
/* Waits at most wait_ms until every rank has left, then stops the thread. */
void env_server_stop(struct env_server *s, int wait_ms);

#endif
