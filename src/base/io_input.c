/* io_input.c - buffered sequential reading. Interrupted and non-blocking descriptors are handled,
 * and no descriptor opened here lands on 0, 1 or 2, so a tool started with stdout closed cannot
 * write its output into its own input file. */
#define _GNU_SOURCE
#include "base/io.h"
#include "base/io_private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INPUT_BUFFER_BYTES ((size_t)256 << 10)
#define INPUT_AHEAD_BYTES ((size_t)4 << 10) /* of input in blocks */

int io_open_high(const char *path, int flags, mode_t mode)
{
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int saved = errno;
    close(fd);
    errno = saved;
    return high;
}

bool io_wait_ready(int fd, short events)
{
    if (errno == EINTR)
        return true;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
        return false;
    struct pollfd p = {.fd = fd, .events = events};
    int saved = errno;
    int rc = poll(&p, 1, -1);
    if (rc < 0 && errno != EINTR) {
        errno = saved;
        return false;
    }
    return true;
}

static ssize_t read_retry(int fd, void *buf, size_t want)
{
    ssize_t n;
    do
        n = read(fd, buf, want);
    while (n < 0 && io_wait_ready(fd, POLLIN));
    return n;
}

enum status input_open(struct input *in, const char *path, struct error *e)
{
    *in = (struct input){.fd = -1};
    bool is_stdin = !path || strcmp(path, "-") == 0;
    const char *name = is_stdin ? "<stdin>" : path;
    if (is_stdin) {
        if (fcntl(STDIN_FILENO, F_GETFD) < 0)
            return error_errno(e, "cannot read standard input");
        in->fd = STDIN_FILENO;
    } else {
        in->fd = io_open_high(path, O_RDONLY, 0);
        if (in->fd < 0)
            return error_errno(e, "cannot open %s for reading", path);
        in->own_fd = true;
    }
    struct stat st;
    enum status result = STATUS_OK;
    if (fstat(in->fd, &st) != 0)
        result = error_errno(e, "cannot examine %s", name);
    else if (S_ISDIR(st.st_mode))
        result =
            error_set(e, STATUS_FAILED, "cannot read %s: it is a folder, expected a file", name);
    else if (!(in->name = strdup(name)))
        result = error_memory(e, strlen(name) + 1, "a file name");
    else if (!(in->buffer = malloc(INPUT_BUFFER_BYTES)))
        result = error_memory(e, INPUT_BUFFER_BYTES, "an input buffer");
    if (result != STATUS_OK) {
        input_close(in);
        return result;
    }
    in->capacity = INPUT_BUFFER_BYTES;
    if (S_ISREG(st.st_mode))
        (void)posix_fadvise(in->fd, 0, 0,
                            POSIX_FADV_SEQUENTIAL); /* a hint; failure changes nothing */
    return STATUS_OK;
}

/* Position of the next byte that the descriptor will give, for messages. */
static uint64_t read_position(const struct input *in)
{
    return in->offset + (in->end - in->begin);
}

void input_expect_blocks(struct input *in)
{
    in->in_blocks = true;
}

/* As much as one read into an empty buffer gets. */
static size_t read_ahead(const struct input *in)
{
    return in->in_blocks ? INPUT_AHEAD_BYTES : in->capacity;
}

static enum status fill(struct input *in, struct error *e)
{
    size_t room = in->end ? in->capacity - in->end : read_ahead(in);
    ssize_t n = read_retry(in->fd, in->buffer + in->end, room);
    if (n < 0)
        return error_errno(e, "reading %s at byte %llu", in->name,
                           (unsigned long long)read_position(in));
    if (n == 0)
        in->at_end = true;
    in->end += (size_t)n;
    return STATUS_OK;
}

static size_t take_buffered(struct input *in, void *buf, size_t want)
{
    size_t n = in->end - in->begin;
    if (n > want)
        n = want;
    if (n)
        memcpy(buf, in->buffer + in->begin, n);
    in->begin += n;
    in->offset += n;
    if (in->begin == in->end)
        in->begin = in->end = 0;
    return n;
}

enum status input_read_some(struct input *in, void *buf, size_t want, size_t *got, struct error *e)
{
    *got = take_buffered(in, buf, want);
    if (*got || want == 0 || in->at_end)
        return STATUS_OK;
    if (want >= read_ahead(in)) { /* large requests skip the copy through the buffer */
        ssize_t n = read_retry(in->fd, buf, want);
        if (n < 0)
            return error_errno(e, "reading %s at byte %llu", in->name,
                               (unsigned long long)in->offset);
        in->at_end = n == 0;
        in->offset += (uint64_t)n;
        *got = (size_t)n;
        return STATUS_OK;
    }
    TRY(fill(in, e));
    *got = take_buffered(in, buf, want);
    return STATUS_OK;
}

enum status input_read(struct input *in, void *buf, size_t want, size_t *got, struct error *e)
{
    size_t done = 0;
    *got = 0;
    while (done < want) {
        size_t n;
        TRY(input_read_some(in, (uint8_t *)buf + done, want - done, &n, e));
        if (n == 0)
            break;
        done += n;
        *got = done;
    }
    return STATUS_OK;
}

/* Makes room after `end`: first by moving the unread part down, then by doubling. */
static enum status make_room(struct input *in, struct error *e)
{
    if (in->end < in->capacity)
        return STATUS_OK;
    if (in->begin > 0) {
        memmove(in->buffer, in->buffer + in->begin, in->end - in->begin);
        in->end -= in->begin;
        in->begin = 0;
        return STATUS_OK;
    }
    size_t capacity = in->capacity * 2;
    uint8_t *buffer = capacity > in->capacity ? realloc(in->buffer, capacity) : NULL;
    if (!buffer) {
        error_memory(e, capacity, "one line");
        return error_context(e, "reading %s line %llu", in->name, (unsigned long long)in->line + 1);
    }
    in->buffer = buffer;
    in->capacity = capacity;
    return STATUS_OK;
}

enum status input_peek(struct input *in, size_t want, const uint8_t **data, size_t *got,
                       struct error *e)
{
    while (in->end - in->begin < want && !in->at_end) {
        TRY(make_room(in, e));
        TRY(fill(in, e));
    }
    *data = in->buffer + in->begin;
    *got = in->end - in->begin;
    return STATUS_OK;
}

enum status input_line(struct input *in, const char **line, size_t *length, size_t limit_bytes,
                       struct error *e)
{
    size_t scanned = 0;
    *line = NULL;
    *length = 0;
    for (;;) {
        size_t have = in->end - in->begin;
        const uint8_t *start = in->buffer + in->begin;
        const uint8_t *lf = have > scanned ? memchr(start + scanned, '\n', have - scanned) : NULL;
        size_t n = lf ? (size_t)(lf - start) : have;
        if (n > limit_bytes)
            return error_set(e, STATUS_DATA,
                             "%s line %llu (byte %llu): longer than the limit of %zu bytes",
                             in->name, (unsigned long long)in->line + 1,
                             (unsigned long long)in->offset, limit_bytes);
        if (lf || (in->at_end && n > 0)) {
            size_t used = n + (lf != NULL);
            *line = (const char *)start;
            *length = n;
            in->begin += used;
            in->offset += used;
            in->line++;
            return STATUS_OK;
        }
        if (in->at_end)
            return STATUS_OK;
        scanned = have;
        TRY(make_room(in, e));
        TRY(fill(in, e));
    }
}

uint64_t input_size(const struct input *in)
{
    struct stat st;
    return fstat(in->fd, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

void input_close(struct input *in)
{
    if (in->own_fd && in->fd >= 0)
        close(in->fd);
    free(in->buffer);
    free((char *)in->name);
    *in = (struct input){.fd = -1};
}
