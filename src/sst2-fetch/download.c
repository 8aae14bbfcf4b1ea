#include "sst2-fetch/download.h"
#include "base/io.h"
#include "base/progress.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct arrival {
    struct download *d;
    struct progress progress;
    bool began;    /* the first byte of this attempt has been placed */
    uint64_t most; /* the longest beginning so far: progress for the retry count */
};

/* RFC 9110: only a strong validator may join two ranges. */
static const char *strong_validator(const struct version *v)
{
    if (v->etag[0] && strncmp(v->etag, "W/", 2) != 0)
        return v->etag;
    return NULL;
}

static enum status start_over(struct download *d, struct error *e)
{
    if (ftruncate(d->fd, 0) != 0 || lseek(d->fd, 0, SEEK_SET) != 0)
        return error_errno(e, "%s: emptying the partial file", d->request.name);
    d->have = 0;
    return STATUS_OK;
}

static enum status begin_answer(struct arrival *a, const struct http_response *r, struct error *e)
{
    struct download *d = a->d;
    if (r->encoded)
        return error_set(e, STATUS_FAILED,
                         "%s: the answer has a Content-Encoding that was not asked for",
                         d->request.name);
    if (r->status == 206) {
        bool fits =
            d->request.range_from > 0 && r->range_first == (int64_t)d->have &&
            strcmp(r->etag, d->version.etag) == 0 &&
            (r->range_total < 0 || d->version.bytes < 0 || r->range_total == d->version.bytes);
        if (!fits)
            return error_set(e, STATUS_FAILED,
                             "%s: asked for the bytes from %llu on, the server sent a range that "
                             "starts at %lld of another version or size",
                             d->request.name, (unsigned long long)d->request.range_from,
                             (long long)r->range_first);
        if (lseek(d->fd, (off_t)d->have, SEEK_SET) < 0)
            return error_errno(e, "%s: seeking in the partial file", d->request.name);
        return STATUS_OK;
    }
    TRY(start_over(d, e));
    snprintf(d->version.etag, sizeof(d->version.etag), "%s", r->etag);
    snprintf(d->version.last_modified, sizeof(d->version.last_modified), "%s", r->last_modified);
    d->version.bytes = r->content_length;
    if (d->started)
        TRY(d->started(d->started_arg, &d->version, e));
    return STATUS_OK;
}

static enum status on_bytes(void *arg, const struct http_response *r, const void *data,
                            size_t bytes, struct error *e)
{
    struct arrival *a = arg;
    struct download *d = a->d;
    if (!a->began)
        TRY(begin_answer(a, r, e));
    a->began = true;
    TRY(fd_write_all(d->fd, d->file, data, bytes, e));
    d->have += bytes;
    a->progress.total = d->version.bytes > 0 ? (uint64_t)d->version.bytes : 0;
    progress_update(&a->progress, d->have);
    return STATUS_OK;
}

/* Request headers of one attempt: the caller's and the conditions. */
struct conditions {
    const char *list[24];
    char text[3][256];
    int count;
};

static void add_condition(struct conditions *c, int slot, const char *name, const char *value)
{
    snprintf(c->text[slot], sizeof(c->text[slot]), "%s: %s", name, value);
    c->list[c->count++] = c->text[slot];
}

static void set_conditions(struct conditions *c, struct download *d, const char *const *own)
{
    memset(c, 0, sizeof(*c));
    for (; own && own[c->count] && c->count < 16; c->count++)
        c->list[c->count] = own[c->count];
    const char *validator = strong_validator(&d->version);
    d->request.range_from = validator ? d->have : 0;
    if (d->request.range_from > 0)
        add_condition(c, 0, "If-Range", validator);
    else if (d->unless && d->unless->etag[0])
        add_condition(c, 1, "If-None-Match", d->unless->etag);
    else if (d->unless && d->unless->last_modified[0])
        add_condition(c, 2, "If-Modified-Since", d->unless->last_modified);
    d->request.headers = c->list;
}

/* Looks at a complete answer; HTTP_RETRY makes the next attempt start over. */
static enum http_verdict examine(struct arrival *a, const struct http_response *r, struct error *e)
{
    struct download *d = a->d;
    if (r->status == 304 && d->unless) {
        d->not_modified = true;
        return HTTP_DONE;
    }
    if (r->status == 416 && d->have > 0) {
        /* Nothing behind what we have: either all of it is here, or the file has changed. */
        if (d->version.bytes >= 0 && d->have == (uint64_t)d->version.bytes &&
            r->range_total == d->version.bytes)
            return HTTP_DONE;
        error_set(e, STATUS_FAILED, "%s: the server has no bytes from %llu on", d->request.name,
                  (unsigned long long)d->have);
        return start_over(d, e) == STATUS_OK ? HTTP_RETRY : HTTP_FATAL;
    }
    if (r->status != 200 && r->status != 206) {
        error_set(e, STATUS_FAILED, "%s: the server answered %ld, expected 200", d->request.name,
                  r->status);
        return HTTP_FATAL;
    }
    if (!a->began && begin_answer(a, r, e) != STATUS_OK) /* an empty file */
        return HTTP_FATAL;
    if (d->version.bytes >= 0 && d->have != (uint64_t)d->version.bytes) {
        error_set(e, STATUS_FAILED, "%s: received %llu bytes, the server announced %lld",
                  d->request.name, (unsigned long long)d->have, (long long)d->version.bytes);
        return start_over(d, e) == STATUS_OK ? HTTP_RETRY : HTTP_FATAL;
    }
    return HTTP_DONE;
}

/* A range that does not continue what we have is the server's fault, not the end: the whole file
 * may still be had. */
static bool is_wrong_range(const struct arrival *a, const struct http_response *r)
{
    return !a->began && r->status == 206;
}

enum status download_run(struct download *d, struct error *e)
{
    struct arrival a = {.d = d, .most = d->have};
    struct http_sink sink = {on_bytes, &a};
    struct http_response r = {0};
    const char *const *own = d->request.headers;
    enum status st = STATUS_OK;
    int retry = 0;

    progress_start(&a.progress, d->label, "B", 0, d->quiet);
    d->not_modified = false;
    for (;;) {
        struct conditions conditions;
        set_conditions(&conditions, d, own);
        a.began = false;
        enum http_verdict verdict = http_attempt(d->http, &d->request, &sink, &r, e);
        if (verdict == HTTP_DONE)
            verdict = examine(&a, &r, e);
        else if (verdict == HTTP_FATAL && is_wrong_range(&a, &r) && start_over(d, e) == STATUS_OK)
            verdict = HTTP_RETRY;
        if (verdict == HTTP_DONE)
            break;
        st = e->status;
        if (verdict == HTTP_FATAL)
            break;
        retry = d->have > a.most ? 1 : retry + 1;
        a.most = d->have > a.most ? d->have : a.most;
        st = http_wait_retry(d->http, retry, &r, e);
        if (st != STATUS_OK)
            break;
        error_clear(e);
    }
    if (a.progress.drawn || (st == STATUS_OK && !d->not_modified))
        progress_finish(&a.progress);
    d->request.headers = own;
    http_response_release(&r);
    return st;
}
