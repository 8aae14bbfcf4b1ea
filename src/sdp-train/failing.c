#define _GNU_SOURCE
#include "sdp-train/failing.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/progress.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void failing_speak(int rank, const struct error *e)
{
    int64_t ms = rank == 0 ? 100 : min_i64(1000 + (int64_t)rank * 500, 5000);
    struct timespec patience = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    sigset_t term, pending;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    bool woken = sigpending(&pending) == 0 && sigismember(&pending, SIGCONT) == 1;
    if ((rank == 0 && !woken) || sigtimedwait(&term, NULL, &patience) != SIGTERM)
        log_error(e);
}

/* --- the watchdog ------------------------------------------------------------------------------
 */

static struct timespec at(double seconds)
{
    time_t whole = (time_t)seconds;
    return (struct timespec){.tv_sec = whole, .tv_nsec = (long)((seconds - (double)whole) * 1e9)};
}

static void too_long(struct watchdog *w) __attribute__((noreturn));
static void too_long(struct watchdog *w)
{
    struct error e;
    error_set(&e, STATUS_DEVICE,
              "rank %d: time-out: not all ranks came to %s within %g s (--collective-timeout); one "
              "of them has stopped, or ended before it",
              w->rank, w->waiting, w->seconds);
    failing_speak(w->rank, &e);
    _exit(STATUS_DEVICE); /* the thread that waits cannot be reached */
}

static void *watch(void *arg)
{
    struct watchdog *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        if (!w->waiting) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        if (monotonic_seconds() >= w->since + w->seconds)
            too_long(w);
        struct timespec until = at(w->since + w->seconds);
        (void)pthread_cond_timedwait(&w->changed, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void watchdog_init(struct watchdog *w, int rank, double seconds)
{
    pthread_condattr_t clock;
    *w = (struct watchdog){.rank = rank, .seconds = seconds};
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC); /* that of monotonic_seconds */
    pthread_cond_init(&w->changed, &clock);
    pthread_condattr_destroy(&clock);
}

void watchdog_wait(void *arg, const char *what)
{
    struct watchdog *w = arg;
    pthread_mutex_lock(&w->lock);
    w->waiting = what;
    w->since = monotonic_seconds();
    if (what && !w->running) {
        int rc = pthread_create(&w->thread, NULL, watch, w);
        w->running = rc == 0;
        if (rc != 0)
            log_warn("%s has no time limit: cannot start a thread: %s", what, strerror(rc));
    }
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void watchdog_release(struct watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->running)
        pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}
