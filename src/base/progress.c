/* progress.c - one line that redraws itself on a terminal (5 times a second), a plain line every
 * 10 seconds elsewhere, so that logs of batch jobs stay short. */
#define _GNU_SOURCE
#include "base/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define TERMINAL_PERIOD_S 0.2
#define LOG_PERIOD_S 10.0
#define BAR_CELLS 24

double monotonic_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* 1536 B -> "1.5 KiB"; 1536 samples -> "1.54k samples". */
static void format_amount(char *out, size_t room, double amount, const char *unit)
{
    static const char *const binary[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    static const char *const decimal[] = {"", "k", "M", "G", "T", "P"};
    int is_bytes = strcmp(unit, "B") == 0;
    double base = is_bytes ? 1024 : 1000;
    int step = 0;
    while (amount >= base && step < 5) {
        amount /= base;
        step++;
    }
    int digits = step == 0 ? (amount == (double)(long long)amount ? 0 : 1)
                           : (amount < 10    ? 2
                              : amount < 100 ? 1
                                             : 0);
    if (is_bytes)
        snprintf(out, room, "%.*f %s", digits, amount, binary[step]);
    else
        snprintf(out, room, "%.*f%s %s", digits, amount, decimal[step], unit);
}

static void format_duration(char *out, size_t room, double seconds)
{
    long long s = seconds < 1e9 ? (long long)(seconds + 0.5) : 999999999;
    if (s >= 3600)
        snprintf(out, room, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, room, "%lld:%02lld", s / 60, s % 60);
}

/* Of the work, 0..1; negative when nobody knows. */
static double share_done(const struct progress *p)
{
    if (p->total)
        return (double)p->done / (double)p->total;
    return p->part > 0 ? p->part : -1;
}

/* Seconds to go at the speed so far; negative when unknown. */
static double seconds_left(const struct progress *p, double elapsed)
{
    if (p->total)
        return p->done > 0 && p->done <= p->total
                   ? elapsed * (double)(p->total - p->done) / (double)p->done
                   : -1;
    return p->part > p->part_before ? elapsed * (1 - p->part) / (p->part - p->part_before) : -1;
}

static void describe(const struct progress *p, double now, bool final, char *line, size_t room)
{
    char amount[48], total[48], rate[48], span[32];
    double elapsed = now - p->started;
    double per_second = elapsed > 0 ? (double)p->done / elapsed : 0;
    format_amount(amount, sizeof amount, (double)p->done, p->unit);
    format_amount(rate, sizeof rate, per_second, p->unit);
    int n = snprintf(line, room, "%s: ", p->label);
    size_t used = n > 0 ? (size_t)n : 0;
    double part = share_done(p);
    if (p->terminal && part >= 0 && !final) {
        char bar[BAR_CELLS + 1];
        int full = part >= 1 ? BAR_CELLS : (int)(part * BAR_CELLS);
        memset(bar, ' ', BAR_CELLS);
        memset(bar, '=', (size_t)full);
        bar[BAR_CELLS] = '\0';
        used += (size_t)snprintf(line + used, room - used, "[%s] ", bar);
    }
    if (p->total && !final) {
        format_amount(total, sizeof total, (double)p->total, p->unit);
        used += (size_t)snprintf(line + used, room - used, "%.0f%% of %s, ", 100 * part, total);
    } else {
        if (part >= 0 && !final)
            used += (size_t)snprintf(line + used, room - used, "%.0f%%, ", 100 * part);
        used += (size_t)snprintf(line + used, room - used, "%s, ", amount);
    }
    double left = seconds_left(p, elapsed);
    if (final || left < 0) {
        format_duration(span, sizeof span, elapsed);
        used += (size_t)snprintf(line + used, room - used, "%s/s, %s", rate, span);
    } else {
        format_duration(span, sizeof span, left);
        used += (size_t)snprintf(line + used, room - used, "%s/s, ETA %s", rate, span);
    }
    if (p->note[0])
        snprintf(line + used, room - used, ", %s", p->note);
}

static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 10 ? size.ws_col : 80;
}

static void draw(struct progress *p, double now, bool final)
{
    char line[512];
    describe(p, now, final, line, sizeof line);
    if (p->terminal) /* a line that wraps could not be redrawn in place */
        fprintf(stderr, "\r%.*s\033[K%s", terminal_columns() - 1, line, final ? "\n" : "");
    else
        fprintf(stderr, "%s\n", line);
    fflush(stderr);
    p->last_drawn = now;
    p->drawn = true;
}

void progress_start(struct progress *p, const char *label, const char *unit, uint64_t total,
                    bool quiet)
{
    *p = (struct progress){
        .label = label,
        .unit = unit,
        .total = total,
        .quiet = quiet,
        .terminal = isatty(STDERR_FILENO) == 1,
        .started = monotonic_seconds(),
    };
    p->last_drawn = p->started;
}

void progress_update(struct progress *p, uint64_t done)
{
    p->done = done;
    if (p->quiet)
        return;
    double now = monotonic_seconds();
    if (now - p->last_drawn >= (p->terminal ? TERMINAL_PERIOD_S : LOG_PERIOD_S))
        draw(p, now, false);
}

void progress_finish(struct progress *p)
{
    if (p->quiet || !p->label)
        return;
    draw(p, monotonic_seconds(), true);
    p->quiet = true; /* a second call prints nothing */
}
