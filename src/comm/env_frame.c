/* env_frame.c - frames: magic u32, type u32, bytes u64, then the payload. Little-endian. */
#define _GNU_SOURCE
#include "comm/env_frame.h"
#include "base/le.h"
#include "base/progress.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAME_MAGIC 0x31504453u /* "SDP1" */
#define HEADER_BYTES 16
#define FRAME_LIMIT_BYTES ((uint64_t)256 << 20)

static bool send_bytes(int fd, const uint8_t *p, size_t n, double deadline)
{
    while (n > 0) {
        ssize_t w = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (w > 0) {
            p += w;
            n -= (size_t)w;
            continue;
        }
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            return false;
        double left = deadline - monotonic_seconds();
        if (left <= 0) {
            errno = ETIMEDOUT;
            return false;
        }
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        (void)poll(&wait, 1, left < 0.1 ? (int)(left * 1000) + 1 : 100);
    }
    return true;
}

bool frame_send(int fd, enum frame_type type, const void *payload, size_t bytes, int timeout_ms)
{
    uint8_t header[HEADER_BYTES];
    double deadline = monotonic_seconds() + timeout_ms / 1000.0;
    le32_put(header, FRAME_MAGIC);
    le32_put(header + 4, (uint32_t)type);
    le64_put(header + 8, bytes);
    return send_bytes(fd, header, sizeof header, deadline) &&
           send_bytes(fd, payload, bytes, deadline);
}

int frame_pump(int fd, struct strbuf *in)
{
    int came = 0;
    for (;;) {
        if (!strbuf_reserve(in, 65536))
            return -1;
        ssize_t n = recv(fd, in->data + in->length, 65536, MSG_DONTWAIT);
        if (n > 0) {
            in->length += (size_t)n;
            came = 1;
            if (n < 65536)
                return came;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return came;
        return came ? came : -1; /* what came before the end is looked at first */
    }
}

int frame_next(const struct strbuf *in, size_t *at, struct frame *f)
{
    const uint8_t *p = (const uint8_t *)in->data + *at;
    size_t have = in->length - *at;
    if (have < HEADER_BYTES)
        return 0;
    uint64_t bytes = le64_get(p + 8);
    if (le32_get(p) != FRAME_MAGIC || bytes > FRAME_LIMIT_BYTES)
        return -1;
    if (have - HEADER_BYTES < bytes)
        return 0;
    *f = (struct frame){(enum frame_type)le32_get(p + 4), (size_t)bytes, p + HEADER_BYTES};
    *at += HEADER_BYTES + (size_t)bytes;
    return 1;
}

void frame_drop(struct strbuf *in, size_t n)
{
    if (n == 0)
        return;
    memmove(in->data, in->data + n, in->length - n);
    in->length -= n;
}

void frame_tune_socket(int fd)
{
    /* Hints: a socket pair has none of these, and nothing depends on them. */
    int on = 1, idle = 10, interval = 5, count = 4;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}
