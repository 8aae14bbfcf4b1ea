/* serve.c - the main thread of the endpoint: one continuous batch for all requests. */
#include "gpt2-infer/serve.h"

#include "base/io.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/progress.h"
#include "gpt2-infer/serve_private.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KEY_FILE_LIMIT ((size_t)1 << 20)
#define TICK_MS 50 /* how soon a signal is seen when nothing runs */
#define PEER_CHECK_SECONDS 0.1
#define LAST_BYTES_SECONDS 5.0 /* for answers to leave after giving up */

static volatile sig_atomic_t stop_signals;

static void on_signal(int number)
{
    (void)number;
    stop_signals++;
}

/* --- requests come, progress and go ----------------------------------------------------------- */

static void wake_connection(struct request *r)
{
    if (!r->suspended || r->gone)
        return;
    r->suspended = false;
    MHD_resume_connection(r->connection);
}

static void complete(struct request *r)
{
    if (r->complete)
        return;
    if (!reply_complete(r))
        strbuf_clear(&r->out); /* out of memory: answered as an error */
    r->complete = true;
    wake_connection(r);
}

static void finish_item(struct item *item)
{
    struct request *r = item->request;
    struct error e;
    if (generation_answer(&item->n, &e) != STATUS_OK)
        log_warn("%s", e.message);
    item->finished = true;
    r->finished++;
    r->server->in_flight--;
}

/* Called by the decoder inside a pass, after each token and at the end of a text. */
static void on_progress(void *arg, struct generation *n)
{
    struct item *item = arg;
    struct request *r = item->request;
    struct server *s = r->server;
    pthread_mutex_lock(&s->lock);
    if (n->finished)
        finish_item(item);
    else
        r->new_tokens++;
    if (!r->gone) {
        if (!reply_progress(r, item))
            log_warn("out of memory while answering a request");
        if (r->finished == r->count)
            complete(r);
        else if (reply_is_streamed(r) && r->out.length > r->sent)
            wake_connection(r);
    }
    pthread_mutex_unlock(&s->lock);
}

static void submit_items(struct server *s, struct request *r)
{
    struct error e;
    for (size_t i = 0; i < r->count; i++) {
        struct item *item = &r->items[i];
        if (item->finished)
            continue;
        item->n.progress = on_progress;
        item->n.progress_arg = item;
        if (gpt2_decoder_submit(s->decoder, &item->n.sequence, &e) == STATUS_OK)
            continue;
        log_warn("a request that was accepted cannot run: %s", e.message); /* not reached */
        finish_item(item);
    }
}

/* New requests to the decoder; lock held. */
static void take_incoming(struct server *s)
{
    while (s->incoming) {
        struct request *r = s->incoming;
        s->incoming = r->next;
        if (!s->incoming)
            s->incoming_tail = &s->incoming;
        r->next = s->active;
        s->active = r;
        submit_items(s, r);
        if (!reply_progress(r, &r->items[0])) /* lines that failed at once */
            log_warn("out of memory while answering a request");
        if (r->finished == r->count)
            complete(r);
    }
}

static void cancel_items(struct server *s, struct request *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct item *item = &r->items[i];
        if (item->finished)
            continue;
        gpt2_decoder_cancel(s->decoder, &item->n.sequence);
        item->finished = true;
        r->finished++;
        s->in_flight--;
    }
}

/* Frees requests whose connection is over; looks, now and then, for clients that left while their
 * connection sleeps and nobody reads from it. Lock held. */
static void sweep(struct server *s, bool look)
{
    for (struct request **p = &s->active; *p;) {
        struct request *r = *p;
        bool running = r->finished < r->count;
        if (!r->gone && running && look && r->suspended && http_peer_left(r)) {
            cancel_items(s, r);
            s->metrics.cancelled++;
            r->complete = true; /* what libmicrohttpd now sends will find no reader */
            wake_connection(r);
        }
        if (!r->gone) {
            p = &r->next;
            continue;
        }
        s->metrics.cancelled += r->finished < r->count;
        cancel_items(s, r);
        *p = r->next;
        request_free(r);
    }
}

/* --- the loop --------------------------------------------------------------------------------- */

static void wait_for_work(struct server *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TICK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&s->wake, &s->lock, &until);
}

/* Gives up what still runs; every sleeping connection is woken to say so. */
static void abandon_all(struct server *s)
{
    for (struct request *r = s->active; r; r = r->next) {
        if (r->complete || r->gone)
            continue;
        cancel_items(s, r);
        strbuf_clear(&r->out);
        r->sent = 0;
        r->complete = true;
        wake_connection(r);
    }
}

/* After a signal: nothing new, a deadline for the rest; true when all is over. */
static bool drain(struct server *s, double *deadline)
{
    if (!s->stopping) {
        s->stopping = true;
        *deadline = monotonic_seconds() + (double)s->g->o->drain_seconds;
        pthread_mutex_unlock(&s->lock);
        http_stop_listening(s);
        pthread_mutex_lock(&s->lock);
        log_info("stopping: %zu texts to finish", s->in_flight);
    }
    if (!s->abandoned && (stop_signals > 1 || monotonic_seconds() > *deadline)) {
        abandon_all(s);
        s->abandoned = true;
        *deadline = monotonic_seconds() + LAST_BYTES_SECONDS;
    }
    return (!s->active && !s->incoming) || (s->abandoned && monotonic_seconds() > *deadline);
}

static enum status serve_loop(struct server *s, struct error *e)
{
    double deadline = 0.0, looked = 0.0;
    enum status st = STATUS_OK;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        double now = monotonic_seconds();
        take_incoming(s);
        sweep(s, now - looked > PEER_CHECK_SECONDS);
        if (now - looked > PEER_CHECK_SECONDS)
            looked = now;
        s->stats = gpt2_decoder_stats(s->decoder);
        if (stop_signals > 0 && drain(s, &deadline))
            break;
        if (gpt2_decoder_idle(s->decoder)) {
            if (!s->incoming)
                wait_for_work(s);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        st = gpt2_decoder_step(s->decoder, e);
        pthread_mutex_lock(&s->lock);
        if (st != STATUS_OK)
            break;
    }
    s->stopping = true;
    take_incoming(s);
    abandon_all(s); /* no connection may sleep when the daemon stops */
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* --- start and end ---------------------------------------------------------------------------- */

static enum status load_keys(struct server *s, struct error *e)
{
    char *text;
    size_t bytes;
    if (!s->g->o->api_key_file)
        return STATUS_OK;
    TRY(file_read_all(s->g->o->api_key_file, KEY_FILE_LIMIT, &text, &bytes, e));
    bool ok = strbuf_append(&s->keys, text, bytes);
    free(text);
    if (!ok)
        return error_memory(e, bytes, "keys");
    if (strspn(s->keys.data, "\r\n") == bytes)
        return error_set(e, STATUS_DATA, "%s holds no key", s->g->o->api_key_file);
    return STATUS_OK;
}

static void catch_signals(void)
{
    struct sigaction stop = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL); /* clients come and go */
}

static enum status serve(struct server *s, struct error *e)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    s->nonce =
        philox_key((uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec, (uint64_t)getpid());
    TRY(load_keys(s, e));
    TRY(job_reader_init(&s->reader, s->g, "the request", e));
    TRY(engine_decoder(s->g, &s->decoder, e));
    s->stats = gpt2_decoder_stats(s->decoder);
    catch_signals();
    TRY(http_start(s, e));
    return serve_loop(s, e);
}

int serve_run(struct engine *g)
{
    struct error e = {0};
    struct server s = {.g = g};
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.wake, NULL);
    s.incoming_tail = &s.incoming;
    enum status st = serve(&s, &e);
    http_stop(&s);
    for (struct request *r = s.active; r;) { /* libmicrohttpd is through with all of them */
        struct request *next = r->next;
        request_free(r);
        r = next;
    }
    for (struct request *r = s.incoming; r;) {
        struct request *next = r->next;
        request_free(r);
        r = next;
    }
    job_reader_release(&s.reader);
    gpt2_decoder_free(s.decoder);
    strbuf_release(&s.keys);
    pthread_mutex_destroy(&s.lock);
    pthread_cond_destroy(&s.wake);
    if (st == STATUS_OK)
        log_info("stopped");
    return st == STATUS_OK ? 0 : log_error(&e);
}
