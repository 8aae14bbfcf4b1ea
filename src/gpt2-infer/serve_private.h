/* serve_private.h - the endpoint's parts. Two threads: libmicrohttpd's reads requests, parses and
 * tokenizes them, and sends; the main thread decodes. They meet in struct server under its lock.
 *
 * Life of a request: the HTTP thread makes it, and when it holds texts to generate puts it on
 * `incoming`. The main thread submits its items and, after every pass, appends to `out` and resumes
 * the connection. When libmicrohttpd is through with the connection, for whatever reason, the
 * request is `gone`: the main thread cancels what still runs and frees it. Requests without items
 * are freed by the HTTP thread. */
#ifndef GPT2_INFER_SERVE_PRIVATE_H
#define GPT2_INFER_SERVE_PRIVATE_H

#include "gpt2-infer/generation.h"
#include "gpt2-infer/serve.h"

#include <microhttpd.h>
#include <pthread.h>

enum route {
    ROUTE_UNKNOWN,
    ROUTE_PAGE,
    ROUTE_PING,
    ROUTE_METRICS,
    ROUTE_MODELS,
    ROUTE_INVOCATIONS,
    ROUTE_COMPLETIONS,
    ROUTES
};
extern const char *const route_names[ROUTES]; /* "/ping" ... */

/* What `out` is made of. */
enum reply {
    REPLY_JSON,       /* one answer */
    REPLY_JSON_LIST,  /* [answer, ...] */
    REPLY_LINES,      /* answers in lines, streamed */
    REPLY_TEXT,       /* the text alone, streamed */
    REPLY_COMPLETION, /* OpenAI's object */
    REPLY_EVENTS,     /* the same as server-sent events */
};

struct request;

/* One text of a request. */
struct item {
    struct request *request;
    struct job *job;
    struct generation n;
    bool finished;
    bool echoed;  /* the prompt is in `out` */
    size_t shown; /* bytes of the text that are in `out` */
};

struct request {
    struct request *next;
    struct server *server;
    struct MHD_Connection *connection;
    enum route route;
    double began;
    struct strbuf body; /* being received */
    bool too_large;

    /* set by the parser, constant afterwards */
    enum reply reply;
    struct item *items;
    size_t count;
    bool echo, want_logprobs;
    char id[48];
    int64_t created;

    /* under the server's lock */
    struct strbuf out;
    size_t sent;      /* of out */
    size_t finished;  /* items */
    size_t next_line; /* REPLY_LINES: items before this are in out */
    bool enqueued, complete, suspended, gone;

    int status; /* of the reply, for the log and metrics */
    int64_t prompt_tokens, new_tokens;
};

#define METRIC_BUCKETS 12
struct histogram {
    uint64_t count[METRIC_BUCKETS + 1];
    double sum;
};

struct metrics {
    uint64_t requests[ROUTES][6]; /* by first digit of the status */
    uint64_t rejected;            /* 429 */
    uint64_t cancelled;           /* clients that left early */
    struct histogram seconds;     /* of POST requests */
};

struct server {
    struct engine *g;
    struct MHD_Daemon *daemon;
    struct job_reader reader; /* of the HTTP thread */
    struct gpt2_decoder *decoder;
    struct strbuf keys; /* lines */
    uint64_t nonce;     /* seeds and ids of requests without their own */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct request *incoming, **incoming_tail;
    size_t in_flight; /* items waiting or running */
    bool stopping;
    uint64_t requests; /* ever */
    struct metrics metrics;
    struct gpt2_decoder_stats stats; /* copied after each pass */

    struct request *active; /* the main thread's */
    bool abandoned;         /* what did not finish in time was given up */
};

/* --- parse.c (HTTP thread): a body to items; an error's status says 400 for STATUS_DATA --- */
enum status request_parse(struct request *r, const char *content_type, struct error *e) MUST_CHECK;
void request_free(struct request *r);

/* --- reply.c (main thread, lock held): what a token or an end adds to out --- */
bool reply_progress(struct request *r, struct item *item) MUST_CHECK;
bool reply_complete(struct request *r) MUST_CHECK;
const char *reply_content_type(const struct request *r);
bool reply_is_streamed(const struct request *r);
/* {"error":...} as text. */
bool reply_put_error(struct strbuf *out, const char *type, const char *message) MUST_CHECK;

/* --- metrics.c (lock held) --- */
void metrics_count(struct metrics *m, const struct request *r, double seconds);
bool metrics_print(const struct server *s, struct strbuf *out) MUST_CHECK;

/* --- http.c --- */
enum status http_start(struct server *s, struct error *e) MUST_CHECK;
void http_stop_listening(struct server *s);
void http_stop(struct server *s);
/* Whether the peer has closed its end. */
bool http_peer_left(const struct request *r);

extern const char serve_page[]; /* page.c */

#endif
