/* http.c - the HTTP side: routes, limits, keys, and the suspending and resuming of connections. */
#define _GNU_SOURCE
#include "base/io.h"
#include "base/log.h"
#include "base/options.h"
#include "base/progress.h"
#include "gpt2-infer/serve_private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_TIMEOUT_SECONDS 60
#define CONNECTION_LIMIT 2048
#define DISCARD_FACTOR 16 /* of a body that is too large, read this many limits, then hang up */
#define STREAM_BLOCK_BYTES 16384

const char *const route_names[ROUTES] = {
    "other", "/", "/ping", "/metrics", "/v1/models", "/invocations", "/v1/completions"};

static enum route route_of(const char *url)
{
    for (int r = ROUTE_PAGE; r < ROUTES; r++)
        if (strcmp(url, route_names[r]) == 0)
            return (enum route)r;
    return ROUTE_UNKNOWN;
}

/* --- sending ---------------------------------------------------------------------------------- */

static enum MHD_Result send_text(struct request *r, int status, const char *type, const char *text,
                                 size_t bytes, enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(bytes, (void *)text, mode);
    if (!response)
        return MHD_NO;
    r->status = status;
    MHD_add_response_header(response, "Content-Type", type);
    if (status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (status == 429 || status == 503)
        MHD_add_response_header(response, "Retry-After", "1");
    if (status == 405)
        MHD_add_response_header(response, "Allow",
                                r->route >= ROUTE_INVOCATIONS ? "POST" : "GET, HEAD");
    enum MHD_Result sent = MHD_queue_response(r->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return sent;
}

static enum MHD_Result send_error(struct request *r, int status, const char *message)
{
    const char *type = status >= 500   ? "server_error"
                       : status == 401 ? "authentication_error"
                       : status == 429 ? "rate_limit_error"
                                       : "invalid_request_error";
    struct strbuf text = {0};
    enum MHD_Result sent = MHD_NO;
    if (reply_put_error(&text, type, message))
        sent =
            send_text(r, status, "application/json", text.data, text.length, MHD_RESPMEM_MUST_COPY);
    strbuf_release(&text);
    return sent;
}

static void suspend(struct request *r)
{
    r->suspended = true;
    MHD_suspend_connection(r->connection);
}

/* For streams: what has been made since, or sleep until there is more. */
static ssize_t read_out(void *arg, uint64_t position, char *buffer, size_t max)
{
    struct request *r = arg;
    ssize_t n = 0;
    (void)position;
    pthread_mutex_lock(&r->server->lock);
    size_t left = r->out.length - r->sent;
    if (left > 0) {
        n = (ssize_t)(left < max ? left : max);
        memcpy(buffer, r->out.data + r->sent, (size_t)n);
        r->sent += (size_t)n;
        if (r->sent == r->out.length) { /* all is out: the memory is bounded by one pass's text */
            r->sent = 0;
            strbuf_clear(&r->out);
        }
    } else if (r->complete) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        suspend(r);
    }
    pthread_mutex_unlock(&r->server->lock);
    return n;
}

static enum MHD_Result send_stream(struct request *r)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_out, r, NULL);
    if (!response)
        return MHD_NO;
    r->status = 200;
    MHD_add_response_header(response, "Content-Type", reply_content_type(r));
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    enum MHD_Result sent = MHD_queue_response(r->connection, 200, response);
    MHD_destroy_response(response);
    return sent;
}

/* --- requests that generate ------------------------------------------------------------------- */

static bool enqueue(struct request *r, int *status)
{
    struct server *s = r->server;
    size_t texts = r->count - r->finished;
    bool fits = s->in_flight + texts <= (size_t)s->g->o->queue_limit;
    *status = s->stopping ? 503 : fits ? 200 : 429;
    if (*status != 200)
        return false;
    s->in_flight += texts;
    r->enqueued = true;
    r->next = NULL;
    *s->incoming_tail = r;
    s->incoming_tail = &r->next;
    pthread_cond_signal(&s->wake);
    return true;
}

static enum MHD_Result start_generation(struct request *r)
{
    struct server *s = r->server;
    struct error e = {0};
    int status;
    const char *type =
        MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE);
    s->requests++; /* this thread's alone to change */
    enum status st = request_parse(r, type, &e);
    if (st == STATUS_USAGE)
        return send_error(r, 415, e.message);
    if (st != STATUS_OK)
        return send_error(r, st == STATUS_DATA ? 400 : 500, e.message);
    pthread_mutex_lock(&s->lock);
    bool queued = enqueue(r, &status);
    if (queued && !reply_is_streamed(r))
        suspend(r);
    pthread_mutex_unlock(&s->lock);
    if (!queued)
        return send_error(
            r, status, status == 429 ? "the queue is full; try again" : "the server is stopping");
    return reply_is_streamed(r) ? send_stream(r) : MHD_YES;
}

/* Resumed: the answer is whole, or the server gave up. */
static enum MHD_Result send_answer(struct request *r)
{
    pthread_mutex_lock(&r->server->lock);
    bool complete = r->complete;
    if (!complete) /* woken without an answer */
        suspend(r);
    pthread_mutex_unlock(&r->server->lock);
    if (!complete)
        return MHD_YES;
    if (r->out.length == 0)
        return send_error(r, 503, "the server is stopping");
    return send_text(r, 200, reply_content_type(r), r->out.data, r->out.length,
                     MHD_RESPMEM_PERSISTENT);
}

/* --- the other routes ------------------------------------------------------------------------- */

/* Takes the same time wherever the difference is. */
static bool key_matches(const struct server *s, const char *key)
{
    size_t n = strlen(key);
    bool found = false;
    for (const char *line = s->keys.data; line && *line;) {
        size_t length = strcspn(line, "\n"), bytes = length;
        while (bytes > 0 && line[bytes - 1] == '\r')
            bytes--;
        unsigned char different = bytes != n || n == 0;
        for (size_t i = 0; i < bytes && n > 0; i++)
            different |= (unsigned char)line[i] ^ (unsigned char)key[i < n ? i : n - 1];
        found |= !different;
        line += length + (line[length] == '\n');
    }
    return found;
}

static bool is_allowed(const struct request *r)
{
    const struct server *s = r->server;
    if (!s->keys.data || r->route == ROUTE_PING || r->route == ROUTE_PAGE)
        return true;
    const char *header =
        MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, "Authorization");
    return header && strncasecmp(header, "Bearer ", 7) == 0 && key_matches(s, header + 7);
}

static enum MHD_Result send_metrics(struct request *r)
{
    struct strbuf text = {0};
    pthread_mutex_lock(&r->server->lock);
    bool ok = metrics_print(r->server, &text);
    pthread_mutex_unlock(&r->server->lock);
    enum MHD_Result sent = ok ? send_text(r, 200, "text/plain; version=0.0.4", text.data,
                                          text.length, MHD_RESPMEM_MUST_COPY)
                              : MHD_NO;
    strbuf_release(&text);
    return sent;
}

static enum MHD_Result send_models(struct request *r)
{
    const char *name = r->server->g->model_name;
    json_t *list = json_pack("{s:s,s:[{s:s,s:s,s:s}]}", "object", "list", "data", "id", name,
                             "object", "model", "owned_by", "local");
    char *text = list ? json_dumps(list, JSON_COMPACT) : NULL;
    json_decref(list);
    return text ? send_text(r, 200, "application/json", text, strlen(text), MHD_RESPMEM_MUST_FREE)
                : MHD_NO;
}

static enum MHD_Result answer_get(struct request *r)
{
    pthread_mutex_lock(&r->server->lock);
    bool stopping = r->server->stopping;
    pthread_mutex_unlock(&r->server->lock);
    switch (r->route) {
    case ROUTE_PING:
        return stopping ? send_error(r, 503, "the server is stopping")
                        : send_text(r, 200, "text/plain", "ok\n", 3, MHD_RESPMEM_PERSISTENT);
    case ROUTE_METRICS:
        return send_metrics(r);
    case ROUTE_MODELS:
        return send_models(r);
    default:
        return send_text(r, 200, "text/html; charset=utf-8", serve_page, strlen(serve_page),
                         MHD_RESPMEM_PERSISTENT);
    }
}

/* --- libmicrohttpd's callbacks ---------------------------------------------------------------- */

static enum MHD_Result receive(struct request *r, const char *data, size_t *bytes)
{
    size_t limit = (size_t)r->server->g->o->max_body_bytes;
    if (r->body.length + *bytes > limit)
        r->too_large = true;
    if (r->too_large) { /* its answer can only be sent once it has been read */
        static const size_t factor = DISCARD_FACTOR;
        r->sent += *bytes;
        *bytes = 0;
        return r->sent / factor > limit ? MHD_NO : MHD_YES;
    }
    if (!strbuf_append(&r->body, data, *bytes))
        return MHD_NO;
    *bytes = 0;
    return MHD_YES;
}

/* Refusals that need no body; 0 when the request may go on. */
static int refusal(const struct request *r, const char *method)
{
    bool post = r->route >= ROUTE_INVOCATIONS;
    if (r->route == ROUTE_UNKNOWN)
        return 404;
    if (!is_allowed(r))
        return 401;
    if (strcmp(method, post ? "POST" : "GET") != 0 && (post || strcmp(method, "HEAD") != 0))
        return 405;
    const char *length =
        MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (length && strtoull(length, NULL, 10) > (unsigned long long)r->server->g->o->max_body_bytes)
        return 413;
    return 0;
}

static enum MHD_Result refuse(struct request *r, int status)
{
    return send_error(r, status,
                      status == 404   ? "no such path"
                      : status == 401 ? "a valid key is needed: Authorization: Bearer KEY"
                      : status == 405 ? "this path has another method"
                                      : "the body is larger than --max-body-size");
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *bytes, void **state)
{
    struct request *r = *state;
    (void)version;
    if (!r) {
        r = calloc(1, sizeof *r);
        if (!r)
            return MHD_NO;
        *state = r;
        r->server = arg;
        r->connection = connection;
        r->route = route_of(url);
        r->began = monotonic_seconds();
        int status = refusal(r, method);
        return status ? refuse(r, status) : MHD_YES;
    }
    if (*bytes > 0)
        return receive(r, data, bytes);
    if (r->too_large)
        return refuse(r, 413);
    if (r->route < ROUTE_INVOCATIONS)
        return answer_get(r);
    return r->enqueued ? send_answer(r) : start_generation(r);
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode code)
{
    struct server *s = arg;
    struct request *r = *state;
    (void)connection;
    if (!r)
        return;
    *state = NULL;
    double seconds = monotonic_seconds() - r->began;
    if (r->status == 0)
        r->status = 499; /* the client left before there was an answer */
    if (s->g->o->log_requests)
        log_info("%s %d, %zu texts, %lld prompt tokens, %lld new, %.0f ms%s", route_names[r->route],
                 r->status, r->count, (long long)r->prompt_tokens, (long long)r->new_tokens,
                 1e3 * seconds, code == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "" : ", cut off");
    pthread_mutex_lock(&s->lock);
    metrics_count(&s->metrics, r, seconds);
    bool enqueued = r->enqueued;
    r->gone = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (!enqueued)
        request_free(r);
}

bool http_peer_left(const struct request *r)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd p = {.fd = info ? info->connect_fd : -1, .events = POLLRDHUP};
    return info && poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

/* --- listening -------------------------------------------------------------------------------- */

/* "[HOST:]PORT", "[::1]:PORT"; *host is malloc'ed. */
static enum status parse_address(const char *text, char **host, int64_t *port, struct error *e)
{
    const char *colon = strrchr(text, ':'), *begin = text, *end = colon;
    if (colon && text[0] == '[' && colon[-1] == ']') {
        begin++;
        end--;
    }
    TRY(parse_i64(colon ? colon + 1 : text, "port of --serve", port, e));
    if (*port < 0 || *port > 65535)
        return error_set(e, STATUS_USAGE, "--serve %s: port %lld is not between 0 and 65535", text,
                         (long long)*port);
    *host = colon && end > begin ? strndup(begin, (size_t)(end - begin)) : strdup("127.0.0.1");
    return *host ? STATUS_OK : error_memory(e, strlen(text), "an address");
}

static enum status listen_on(const char *host, int64_t port, int *fd, struct error *e)
{
    char service[16];
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int on = 1;
    snprintf(service, sizeof service, "%d", (int)port);
    int why = getaddrinfo(host, service, &hints, &list);
    if (why != 0)
        return error_set(e, STATUS_FAILED, "--serve: cannot resolve \"%s\": %s", host,
                         gai_strerror(why));
    *fd = socket(list->ai_family, list->ai_socktype | SOCK_CLOEXEC, list->ai_protocol);
    enum status st = STATUS_OK;
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(*fd, list->ai_addr, list->ai_addrlen) != 0 || listen(*fd, 1024) != 0) {
        st = error_errno(e, "--serve: cannot listen on %s port %d", host, (int)port);
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
    }
    freeaddrinfo(list);
    return st;
}

static void announce(const struct server *s, const char *host, int fd)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    int port = 0;
    if (getsockname(fd, (struct sockaddr *)&address, &length) == 0)
        port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                   : ((struct sockaddr_in *)&address)->sin_port);
    log_info("%s is ready on http://%s%s%s:%d", s->g->model_name, strchr(host, ':') ? "[" : "",
             host, strchr(host, ':') ? "]" : "", port);
}

static void on_mhd_log(void *arg, const char *fmt, va_list ap)
{
    (void)arg, (void)fmt, (void)ap; /* may hold parts of requests; failures show in the metrics */
}

enum status http_start(struct server *s, struct error *e)
{
    char *host = NULL;
    int64_t port;
    int fd = -1;
    enum status st = parse_address(s->g->o->serve, &host, &port, e);
    if (st == STATUS_OK)
        st = listen_on(host, port, &fd, e);
    if (st == STATUS_OK) {
        s->daemon = MHD_start_daemon(
            MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                MHD_USE_ITC | MHD_USE_ERROR_LOG,
            0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, NULL,
            MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)READ_TIMEOUT_SECONDS,
            MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTION_LIMIT, MHD_OPTION_END);
        if (!s->daemon) {
            close(fd);
            st = error_set(e, STATUS_FAILED, "cannot start the HTTP server");
        } else {
            announce(s, host, fd);
        }
    }
    free(host);
    return st;
}

void http_stop_listening(struct server *s)
{
    MHD_socket fd = MHD_quiesce_daemon(s->daemon);
    if (fd != MHD_INVALID_SOCKET)
        close(fd);
}

void http_stop(struct server *s)
{
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
