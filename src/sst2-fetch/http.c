#define _GNU_SOURCE
#include "sst2-fetch/http.h"
#include "sst2-fetch/http_private.h"
#include "base/log.h"
#include "base/options.h"
#include "base/progress.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct http {
    struct http_config config;
    CURL *easy;
};

enum status http_create(struct http **out, const struct http_config *config, struct error *e)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return error_set(e, STATUS_FAILED, "starting libcurl failed");
    struct http *http = calloc(1, sizeof(*http));
    if (http)
        http->easy = curl_easy_init();
    if (!http || !http->easy) {
        free(http);
        return error_memory(e, sizeof(*http), "an HTTP client");
    }
    http->config = *config;
    *out = http;
    return STATUS_OK;
}

void http_free(struct http *http)
{
    if (!http)
        return;
    curl_easy_cleanup(http->easy);
    curl_global_cleanup();
    free(http);
}

const struct http_config *http_settings(const struct http *http)
{
    return &http->config;
}

char *http_url_for_people(const char *url)
{
    const char *scheme = strstr(url, "://");
    const char *host = scheme ? scheme + 3 : url;
    size_t authority = strcspn(host, "/?#");
    const char *at = memrchr(host, '@', authority);
    const char *query = strchr(host, '?');
    struct strbuf out = {0};
    bool ok = strbuf_append(&out, url, (size_t)(host - url));
    if (at)
        host = at + 1;
    ok = ok && strbuf_append(&out, host, query ? (size_t)(query - host) : strlen(host));
    /* A query may be a signature that grants access. */
    ok = ok && (!query || strbuf_puts(&out, "?..."));
    if (ok)
        return out.data;
    strbuf_release(&out);
    return NULL;
}

/* --- one transfer ----------------------------------------------------------------------------- */

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    enum { ERROR_TEXT = 64 << 10, BODY_LIMIT = 64 << 20 };
    struct transfer *t = arg;
    struct http_response *r = t->response;
    bool good = r->status == 200 || r->status == 206;
    size_t bytes = size * n;
    enum status st = STATUS_OK;
    if (good && t->sink) {
        st = t->sink->write(t->sink->arg, r, data, bytes, &t->sink_error);
    } else if (r->body.length + bytes <= (good ? BODY_LIMIT : ERROR_TEXT)) {
        if (!strbuf_append(&r->body, data, bytes))
            st = error_memory(&t->sink_error, bytes, "an answer");
    } else if (good) {
        st = error_set(&t->sink_error, STATUS_DATA, "%s: the answer is longer than %d bytes",
                       t->request->name, BODY_LIMIT);
    }
    t->sink_failed = st != STATUS_OK;
    return st == STATUS_OK ? bytes : CURL_WRITEFUNC_ERROR;
}

static void response_reset(struct http_response *r)
{
    struct strbuf body = r->body;
    strbuf_clear(&body);
    *r = (struct http_response){.content_length = -1,
                                .range_first = -1,
                                .range_total = -1,
                                .retry_after_s = -1,
                                .body = body};
}

void http_response_release(struct http_response *r)
{
    strbuf_release(&r->body);
    memset(r, 0, sizeof(*r));
}

static void copy_value(char *out, size_t size, const char *value)
{
    size_t n = strlen(value);
    /* A cut validator would match nothing, or the wrong thing. */
    if (n < size)
        memcpy(out, value, n + 1);
    else
        out[0] = '\0';
}

static void header_content_range(struct http_response *r, const char *value)
{
    long long first = -1, last = -1, total = -1;
    if (sscanf(value, "bytes %lld-%lld/%lld", &first, &last, &total) >= 2) {
        r->range_first = first;
        r->range_total = total;
    } else if (sscanf(value, "bytes */%lld", &total) == 1) {
        r->range_total = total;
    }
}

static double parse_retry_after(const char *value)
{
    char *end;
    double seconds = strtod(value, &end);
    if (end != value && *end == '\0')
        return isfinite(seconds) && seconds >= 0 ? seconds : -1;
    time_t when = curl_getdate(value, NULL);
    if (when < 0)
        return -1;
    double wait = difftime(when, time(NULL));
    return wait > 0 ? wait : 0;
}

static void header_field(struct http_response *r, const char *name, const char *value)
{
    if (strcasecmp(name, "etag") == 0)
        copy_value(r->etag, sizeof(r->etag), value);
    else if (strcasecmp(name, "last-modified") == 0)
        copy_value(r->last_modified, sizeof(r->last_modified), value);
    else if (strcasecmp(name, "content-type") == 0)
        copy_value(r->content_type, sizeof(r->content_type), value);
    else if (strcasecmp(name, "content-length") == 0)
        r->content_length = strtoll(value, NULL, 10);
    else if (strcasecmp(name, "content-range") == 0)
        header_content_range(r, value);
    else if (strcasecmp(name, "retry-after") == 0)
        r->retry_after_s = parse_retry_after(value);
    else if (strcasecmp(name, "content-encoding") == 0)
        r->encoded = strcasecmp(value, "identity") != 0 && *value != '\0';
    else if (strcasecmp(name, "x-amz-bucket-region") == 0)
        copy_value(r->bucket_region, sizeof(r->bucket_region), value);
}

static size_t on_header(char *data, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    size_t bytes = size * n, length = bytes;
    char line[1024];
    while (length > 0 &&
           (data[length - 1] == '\n' || data[length - 1] == '\r' || data[length - 1] == ' '))
        length--;
    if (length >= sizeof(line))
        return bytes;
    memcpy(line, data, length);
    line[length] = '\0';
    if (strncmp(line, "HTTP/", 5) == 0) { /* of a redirect, or after 100 Continue: start anew */
        response_reset(t->response);
        const char *code = strchr(line, ' ');
        t->response->status = code ? strtol(code, NULL, 10) : 0;
        return bytes;
    }
    char *colon = strchr(line, ':');
    if (!colon)
        return bytes;
    *colon = '\0';
    char *value = colon + 1 + strspn(colon + 1, " \t");
    header_field(t->response, line, value);
    return bytes;
}

/* libcurl's own low-speed limit looks at an average over several seconds, and so comes late. */
static int on_progress(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                       curl_off_t up)
{
    struct transfer *t = arg;
    double now = monotonic_seconds();
    (void)down_total, (void)up_total;
    if (down + up != t->moved) {
        t->moved = down + up;
        t->last_move = now;
    }
    /* Before the first byte there is a connection to make, which has its own limit. */
    double limit = t->stall_timeout_s + (t->moved == 0 ? t->connect_timeout_s : 0);
    t->stalled = now - t->last_move > limit;
    return t->stalled;
}

static void set_protocols(CURL *easy, const char *url)
{
    /* From https a redirect must not lead to http. */
    const char *redirects = strncasecmp(url, "https:", 6) == 0 ? "https" : "http,https";
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, redirects);
#else
    long bits =
        strcmp(redirects, "https") == 0 ? CURLPROTO_HTTPS : CURLPROTO_HTTP | CURLPROTO_HTTPS;
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS, bits);
#endif
}

static bool add_header(struct curl_slist **list, const char *text)
{
    struct curl_slist *longer = curl_slist_append(*list, text);
    if (longer)
        *list = longer;
    return longer != NULL;
}

static enum status set_request(struct transfer *t, struct error *e)
{
    const struct http_request *q = t->request;
    bool ok =
        add_header(&t->headers, "Accept-Encoding: identity") && add_header(&t->headers, "Expect:");
    for (size_t i = 0; q->headers && q->headers[i]; i++)
        ok = ok && add_header(&t->headers, q->headers[i]);
    if (q->range_from > 0) {
        char range[48];
        snprintf(range, sizeof(range), "Range: bytes=%llu-", (unsigned long long)q->range_from);
        ok = ok && add_header(&t->headers, range);
    }
    if (!ok)
        return error_memory(e, 0, "request headers");
    if (q->sign)
        TRY(q->sign(q->sign_arg, q, &t->headers, e));
    bool has_body = strcmp(q->method, "PUT") == 0 || strcmp(q->method, "POST") == 0;
    if (has_body) {
        curl_easy_setopt(t->easy, CURLOPT_POST, 1L);
        curl_easy_setopt(t->easy, CURLOPT_POSTFIELDS, q->body ? q->body : "");
        curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body_bytes);
        if (!add_header(&t->headers, "Content-Type: application/octet-stream"))
            return error_memory(e, 0, "request headers");
    }
    if (strcmp(q->method, "GET") != 0)
        curl_easy_setopt(t->easy, CURLOPT_CUSTOMREQUEST, q->method);
    curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
    return STATUS_OK;
}

enum status transfer_prepare(struct transfer *t, struct http *http, CURL *easy,
                             const struct http_request *request, const struct http_sink *sink,
                             struct http_response *response, struct error *e)
{
    const struct http_config *c = &http->config;
    memset(t, 0, sizeof(*t));
    t->easy = easy;
    t->request = request;
    t->sink = sink;
    t->response = response;
    response_reset(response);
    curl_easy_reset(easy);
    curl_easy_setopt(easy, CURLOPT_URL, request->url);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "sst2-fetch/" PROJECT_VERSION);
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, request->no_redirects ? 0L : 1L);
    curl_easy_setopt(easy, CURLOPT_MAXREDIRS, 10L);
    set_protocols(easy, request->url);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, lround(c->connect_timeout_s * 1000));
    t->stall_timeout_s = c->stall_timeout_s;
    t->connect_timeout_s = c->connect_timeout_s;
    t->last_move = monotonic_seconds();
    curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(easy, CURLOPT_XFERINFODATA, t);
    if (c->no_proxy)
        curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    if (c->ca_file)
        curl_easy_setopt(easy, CURLOPT_CAINFO, c->ca_file);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, t->reason);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    enum status st = set_request(t, e);
    if (st != STATUS_OK)
        curl_slist_free_all(t->headers);
    return st;
}

static bool worth_retrying(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        return true;
    default:
        return false;
    }
}

/* {"error": "..."} of the hub. */
static void json_words(const char *text, char *out, size_t size)
{
    json_t *o = json_loads(text, 0, NULL);
    const char *words = json_string_value(json_object_get(o, "error"));
    if (words)
        snprintf(out, size, ": %.300s", words);
    json_decref(o);
}

/* "AccessDenied: Access Denied" out of S3's XML; empty for anything else, a web page above all. */
static void server_words(const struct http_response *r, char *out, size_t size)
{
    const char *fields[] = {"Code", "Message"};
    size_t used = 0;
    out[0] = '\0';
    if (!r->body.data)
        return;
    if (r->body.data[0] == '{')
        json_words(r->body.data, out, size);
    for (int i = 0; i < 2 && strstr(r->body.data, "<Error>"); i++) {
        char open[16];
        snprintf(open, sizeof(open), "<%s>", fields[i]);
        const char *p = strstr(r->body.data, open);
        if (!p || used >= size)
            continue;
        p += strlen(open);
        int n = (int)strcspn(p, "<\n");
        used += (size_t)snprintf(out + used, size - used, ": %.*s", n < 160 ? n : 160, p);
    }
}

static enum http_verdict judge_status(const struct transfer *t, struct error *e)
{
    static const struct {
        long status;
        const char *words;
        bool retry;
    } known[] = {
        {301, "the object is somewhere else", false},
        {307, "the object is somewhere else", false},
        {400, "Bad Request", false},
        {401, "Unauthorized: it wants credentials", false},
        {403, "Forbidden: access is denied", false},
        {404, "Not Found: there is no such file", false},
        {407, "the proxy wants credentials", false},
        {408, "Request Timeout", true},
        {410, "Gone: the file was removed", false},
        {425, "Too Early", true},
        {429, "Too Many Requests", true},
        {500, "Internal Server Error", true},
        {502, "Bad Gateway", true},
        {503, "Service Unavailable", true},
        {504, "Gateway Timeout", true},
    };
    const struct http_response *r = t->response;
    if ((r->status >= 200 && r->status < 300) || r->status == 304 || r->status == 416)
        return HTTP_DONE;
    char server[600];
    server_words(r, server, sizeof(server));
    if (r->bucket_region[0]) {
        size_t used = strlen(server);
        snprintf(server + used, sizeof(server) - used, "; the bucket is in region %s",
                 r->bucket_region);
    }
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].status != r->status)
            continue;
        error_set(e, STATUS_FAILED, "%s: the server answered %ld (%s)%s", t->request->name,
                  r->status, known[i].words, server);
        return known[i].retry ? HTTP_RETRY : HTTP_FATAL;
    }
    error_set(e, STATUS_FAILED, "%s: the server answered %ld, expected 200%s", t->request->name,
              r->status, server);
    return r->status >= 500 ? HTTP_RETRY : HTTP_FATAL;
}

enum http_verdict transfer_finish(struct transfer *t, CURLcode code, struct error *e)
{
    curl_slist_free_all(t->headers);
    t->headers = NULL;
    if (t->sink_failed) {
        *e = t->sink_error;
        return HTTP_FATAL;
    }
    if (code == CURLE_OK)
        return judge_status(t, e);
    if (t->stalled) {
        error_set(e, STATUS_FAILED, "%s: not a byte for %g s", t->request->name,
                  t->stall_timeout_s);
        return HTTP_RETRY;
    }
    const char *why = t->reason[0] ? t->reason : curl_easy_strerror(code);
    error_set(e, STATUS_FAILED, "%s: %s", t->request->name, why);
    return worth_retrying(code) ? HTTP_RETRY : HTTP_FATAL;
}

enum http_verdict http_attempt(struct http *http, const struct http_request *request,
                               const struct http_sink *sink, struct http_response *response,
                               struct error *e)
{
    struct transfer t;
    if (transfer_prepare(&t, http, http->easy, request, sink, response, e) != STATUS_OK)
        return HTTP_FATAL;
    return transfer_finish(&t, curl_easy_perform(http->easy), e);
}

/* --- retries ---------------------------------------------------------------------------------- */

double http_retry_delay(const struct http *http, int n)
{
    return fmin(30, ldexp(http->config.retry_delay_s, n - 1));
}

static void sleep_seconds(double s)
{
    struct timespec left = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - floor(s)) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

enum status http_wait_retry(const struct http *http, int n, const struct http_response *response,
                            struct error *e)
{
    if (n > http->config.retries) {
        if (http->config.retries > 0)
            error_context(e, "giving up after %d attempts", http->config.retries + 1);
        return e->status;
    }
    double wait = http_retry_delay(http, n);
    if (response->retry_after_s > 120)
        return error_context(e, "the server asks to come back in %.0f s", response->retry_after_s);
    wait = fmax(wait, response->retry_after_s);
    log_info("%s; retry %d of %d in %.1f s", e->message, n, http->config.retries, wait);
    sleep_seconds(wait);
    return STATUS_OK;
}

enum status http_call(struct http *http, const struct http_request *request,
                      struct http_response *response, struct error *e)
{
    for (int n = 1;; n++) {
        enum http_verdict verdict = http_attempt(http, request, NULL, response, e);
        if (verdict == HTTP_DONE)
            return STATUS_OK;
        if (verdict == HTTP_FATAL)
            return e->status;
        TRY(http_wait_retry(http, n, response, e));
        error_clear(e);
    }
}
