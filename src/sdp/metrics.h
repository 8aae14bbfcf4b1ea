/* metrics.h - one JSON object a line about what happened, for people's scripts. Rank 0 writes. */
#ifndef SDP_METRICS_H
#define SDP_METRICS_H

#include "base/error.h"
#include "base/strbuf.h"
#include <jansson.h>
#include <stdint.h>

struct sdp_metrics {
    int fd; /* -1 = none */
    char *name;
};

/* path "-" is stdout, NULL none. A run that continues at `step` keeps the file's lines up to that
 * step and drops later ones, a torn last line included; otherwise the file starts empty. */
enum status sdp_metrics_open(struct sdp_metrics *m, const char *path, int64_t step,
                             struct error *e) MUST_CHECK;
/* Appends one line at once, so that a killed run leaves whole lines. Takes the reference. */
enum status sdp_metrics_put(struct sdp_metrics *m, json_t *object, struct error *e) MUST_CHECK;
void sdp_metrics_close(struct sdp_metrics *m);

#endif
