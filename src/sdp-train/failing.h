/* failing.h - how a rank ends when something failed: who of several ranks speaks, and a limit for
 * waits that libraries cannot end themselves. */
#ifndef SDP_TRAIN_FAILING_H
#define SDP_TRAIN_FAILING_H

#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>

/* Ranks that fail apart would all say so. The lowest one that is still alive speaks and its end
 * makes the launcher end the others: higher ranks wait a little and are silent when the launcher's
 * SIGTERM (blocked in every thread) comes meanwhile. So is a rank that was stopped and only woke up
 * because the launcher ends the job, with SIGCONT (blocked, too) before SIGTERM. */
void failing_speak(int rank, const struct error *e);

/* Ends the process with STATUS_DEVICE and a message when a wait takes too long. */
struct watchdog {
    int rank;       /* for the message and who speaks; 0 when there is no telling */
    double seconds; /* limit of one wait */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool running, stop;
    const char *waiting; /* for what; NULL: nothing to watch */
    double since;
};

void watchdog_init(struct watchdog *w, int rank, double seconds);
/* As world_options.waiting; arg is a struct watchdog. The first wait starts the thread. */
void watchdog_wait(void *arg, const char *what);
void watchdog_release(struct watchdog *w);

#endif
