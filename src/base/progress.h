/* progress.h - a progress bar with rate and ETA on a terminal, a plain line now and then elsewhere,
 * nothing when quiet. Writes to stderr only. Updates are cheap (rate-limited by the clock). */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *label; /* "tokenize" */
    const char *unit;  /* "B" prints KiB/MiB, anything else prints k/M with the word */
    uint64_t total;    /* 0 = unknown */
    uint64_t done;
    /* With total unknown, what share of the work is done, 0..1, counted otherwise than in `unit`
     * (bytes of the input, say), and what share earlier runs had done. part 0: not known. */
    double part, part_before;
    bool quiet, terminal, drawn;
    double started, last_drawn; /* seconds, monotonic */
    char note[96];              /* free text at the end of the line, e.g. "loss 3.21" */
};

void progress_start(struct progress *p, const char *label, const char *unit, uint64_t total,
                    bool quiet);
void progress_update(struct progress *p, uint64_t done);
void progress_finish(struct progress *p); /* final line, once; safe to call twice */
double monotonic_seconds(void);

#endif
