/* download.h - one file over HTTP, resumed where it was cut. */
#ifndef SST2_FETCH_DOWNLOAD_H
#define SST2_FETCH_DOWNLOAD_H

#include "sst2-fetch/http.h"

/* What identifies a version of a remote file: the validators, and its size when known. */
struct version {
    char etag[200], last_modified[64];
    int64_t bytes; /* -1 unknown */
};

struct download {
    struct http *http;
    struct http_request request; /* GET; its headers are the caller's */
    int fd;                      /* a regular file that may hold a beginning of `have` bytes */
    const char *file;            /* its name, for messages */
    uint64_t have;
    struct version version;       /* of what fd holds */
    const struct version *unless; /* do not download when this is still current; NULL for none */
    bool not_modified;            /* out: `unless` is current, fd holds nothing */
    /* Called when a version begins to arrive, before its first byte is in fd; NULL for none. */
    enum status (*started)(void *arg, const struct version *v, struct error *e);
    void *started_arg;
    const char *label; /* of the progress bar */
    bool quiet;
};

/* A beginning is continued by Range with If-Range, so that bytes of two versions never mix; without
 * a strong validator, or when the server sends something else, the file is fetched from its start.
 * A connection that breaks after progress does not use up a retry. */
enum status download_run(struct download *d, struct error *e) MUST_CHECK;

#endif
