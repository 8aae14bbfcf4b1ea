/* log.c - one write per line, so that lines of several ranks and threads do not mix. */
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
    char prefix[64];
    bool quiet;
} log_state;

void log_set_prefix(const char *prefix)
{
    snprintf(log_state.prefix, sizeof log_state.prefix, "%s", prefix);
}

void log_set_quiet(bool quiet)
{
    log_state.quiet = quiet;
}

/* Nothing can be reported when stderr itself fails, so results of write are dropped. */
static void put_line(const char *kind, const char *fmt, va_list ap)
{
    char line[4096];
    size_t room = sizeof line - 1; /* for the newline */
    int n = snprintf(line, room, "%s%s%s", log_state.prefix, log_state.prefix[0] ? ": " : "", kind);
    size_t used = n > 0 ? (size_t)n : 0;
    n = vsnprintf(line + used, room - used, fmt, ap);
    if (n > 0)
        used = used + (size_t)n < room ? used + (size_t)n : room - 1;
    line[used++] = '\n';
    if (fflush(stderr) != 0 || write(STDERR_FILENO, line, used) < 0)
        return;
}

void log_info(const char *fmt, ...)
{
    if (log_state.quiet)
        return;
    va_list ap;
    va_start(ap, fmt);
    put_line("", fmt, ap);
    va_end(ap);
}

void log_warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put_line("warning: ", fmt, ap);
    va_end(ap);
}

static void put_error(const char *fmt, ...) PRINTF_LIKE(1, 2);
static void put_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put_line("error: ", fmt, ap);
    va_end(ap);
}

int log_error(const struct error *e)
{
    put_error("%s", e->message);
    return (int)e->status;
}
