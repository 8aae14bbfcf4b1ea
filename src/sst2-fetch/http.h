/* http.h - HTTP requests over libcurl: time-outs, redirects, verified HTTPS, polite retries.
 *
 * Proxies come from the environment as libcurl reads it (https_proxy, no_proxy, ...). Names in
 * messages are the request's `name`, which holds no credentials; headers are never printed. Thread
 * rule: one thread. */
#ifndef SST2_FETCH_HTTP_H
#define SST2_FETCH_HTTP_H

#include "base/error.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct curl_slist;

struct http_config {
    double connect_timeout_s;
    double stall_timeout_s; /* without a byte in either direction */
    int retries;            /* of one request, without progress in between */
    double retry_delay_s;   /* before the first retry; doubles, at most 30 s */
    const char *ca_file;    /* PEM; NULL: the system's */
    bool no_proxy;          /* whatever the environment says */
};

struct http; /* opaque; keeps connections open between requests */
enum status http_create(struct http **http, const struct http_config *config,
                        struct error *e) MUST_CHECK;
void http_free(struct http *http);
const struct http_config *http_settings(const struct http *http);

struct http_request {
    const char *method; /* "GET", "PUT", "POST", "DELETE" */
    const char *url;
    const char *name;           /* for messages */
    const char *const *headers; /* "Name: value", NULL-terminated; NULL for none */
    const void *body;           /* PUT and POST */
    size_t body_bytes;
    uint64_t range_from; /* > 0: ask for the bytes from here on */
    bool no_redirects;
    /* Called before each attempt, so that signatures are fresh; appends headers. NULL for none. */
    enum status (*sign)(const void *arg, const struct http_request *request,
                        struct curl_slist **headers, struct error *e);
    const void *sign_arg;
};

struct http_response {
    long status; /* 0: no answer yet */
    char etag[200], last_modified[64], content_type[96], bucket_region[40];
    int64_t content_length;           /* -1 unknown */
    int64_t range_first, range_total; /* of Content-Range; -1 absent */
    double retry_after_s;             /* -1 absent */
    bool encoded;                     /* Content-Encoding that was not asked for */
    struct strbuf body;               /* without a sink, or of an error answer (its beginning) */
};
void http_response_release(struct http_response *r);

/* Receives the body of a 200 or 206 answer piece by piece. */
struct http_sink {
    enum status (*write)(void *arg, const struct http_response *r, const void *data, size_t bytes,
                         struct error *e);
    void *arg;
};

enum http_verdict {
    HTTP_DONE,  /* an answer that the caller has to look at: 2xx, 304, 416 */
    HTTP_RETRY, /* e says why; may work later */
    HTTP_FATAL, /* e says why */
};

/* One attempt. sink NULL: the body is kept in response->body. response is released and reset first.
 */
enum http_verdict http_attempt(struct http *http, const struct http_request *request,
                               const struct http_sink *sink, struct http_response *response,
                               struct error *e);
/* With retries; STATUS_OK for HTTP_DONE. */
enum status http_call(struct http *http, const struct http_request *request,
                      struct http_response *response, struct error *e) MUST_CHECK;
/* Waits before retry number n >= 1, at least as long as the server asked for, and says so.
 * STATUS_FAILED, e as it was, when there is no retry left or the server asks for more than two
 * minutes. */
enum status http_wait_retry(const struct http *http, int n, const struct http_response *response,
                            struct error *e) MUST_CHECK;
/* The pause before retry n without asking the server, seconds. */
double http_retry_delay(const struct http *http, int n);

/* url for messages: without user:password and with its query hidden. malloc'ed; NULL: out of
 * memory. */
char *http_url_for_people(const char *url);

#endif
