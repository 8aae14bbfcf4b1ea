/* error.c - messages are built in the caller's buffer; nothing here allocates or fails. */
#define _GNU_SOURCE /* strerror_r that returns the text */
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Marks a message that did not fit, so that a cut sentence never looks whole. */
static void mark_cut(struct error *e)
{
    memcpy(e->message + sizeof e->message - 4, "...", 4);
}

/* Appends at `used`; returns the new length, sizeof message - 1 when cut. */
static size_t append_v(struct error *e, size_t used, const char *fmt, va_list ap)
{
    size_t room = sizeof e->message - used;
    int n = vsnprintf(e->message + used, room, fmt, ap);
    if (n < 0) {
        e->message[used] = '\0';
        return used;
    }
    if ((size_t)n >= room) {
        mark_cut(e);
        return sizeof e->message - 1;
    }
    return used + (size_t)n;
}

static size_t append(struct error *e, size_t used, const char *fmt, ...) PRINTF_LIKE(3, 4);
static size_t append(struct error *e, size_t used, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    size_t length = append_v(e, used, fmt, ap);
    va_end(ap);
    return length;
}

enum status error_set(struct error *e, enum status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    append_v(e, 0, fmt, ap);
    va_end(ap);
    e->status = status;
    return status;
}

enum status error_errno(struct error *e, const char *fmt, ...)
{
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    size_t used = append_v(e, 0, fmt, ap);
    va_end(ap);
    char text[128];
    /* The GNU strerror_r: thread-safe, may return a static string instead of filling the buffer. */
    append(e, used, ": %s", strerror_r(saved, text, sizeof text));
    e->status = STATUS_FAILED;
    errno = saved;
    return STATUS_FAILED;
}

enum status error_context(struct error *e, const char *fmt, ...)
{
    char old[sizeof e->message];
    /* A caller may pass parts of the old message as arguments; format before overwriting it. */
    struct error fresh;
    memcpy(old, e->message, sizeof old);
    old[sizeof old - 1] = '\0';
    va_list ap;
    va_start(ap, fmt);
    size_t used = append_v(&fresh, 0, fmt, ap);
    va_end(ap);
    append(&fresh, used, ": %s", old);
    memcpy(e->message, fresh.message, sizeof e->message);
    return e->status;
}

enum status error_memory(struct error *e, unsigned long long bytes, const char *what)
{
    return error_set(e, STATUS_FAILED, "out of memory allocating %llu bytes for %s", bytes, what);
}

void error_clear(struct error *e)
{
    e->status = STATUS_OK;
    e->message[0] = '\0';
}
