#define _GNU_SOURCE
#include "sst2-fetch/hub.h"
#include "sst2-fetch/http_private.h"
#include "base/io.h"
#include "base/log.h"
#include "base/progress.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE_ROWS = 100 }; /* the most that the server gives */

/* A page on its way. Slot number % slots, so that a page waits here for the ones before it. */
struct page {
    enum { PAGE_FREE, PAGE_WAITING, PAGE_ACTIVE, PAGE_READY } state;
    uint64_t number;
    int attempts;
    double not_before; /* monotonic seconds */
    CURL *easy;
    struct transfer transfer;
    struct http_request request;
    struct http_response response;
    char *url, *name;
    struct strbuf lines;
};

struct session {
    const struct hub *hub;
    const char *split;
    const char *const *headers;
    CURLM *multi;
    struct page *pages;
    int slots, active;
    uint64_t next_start, next_write; /* page numbers */
    int64_t total;                   /* rows; -1 until the first answer */
    int fd;
    struct version *version;
    double pause_until; /* the server asked everyone to wait */
    struct progress progress;
};

static uint64_t page_count(const struct session *s)
{
    return ((uint64_t)s->total + PAGE_ROWS - 1) / PAGE_ROWS;
}

/* --- one answer ------------------------------------------------------------------------------- */

static enum status take_total(struct session *s, const struct page *p, const json_t *answer,
                              struct error *e)
{
    const json_t *total = json_object_get(answer, "num_rows_total");
    if (!json_is_integer(total) || json_integer_value(total) < 0)
        return error_set(e, STATUS_DATA, "%s: the answer has no num_rows_total", p->name);
    int64_t n = json_integer_value(total);
    if (s->total >= 0 && s->total != n)
        return error_set(e, STATUS_DATA,
                         "%s: num_rows_total is %" PRId64 ", other pages said %" PRId64
                         "; the data set changed meanwhile, try again with --refresh",
                         p->name, n, s->total);
    if (n == 0)
        return error_set(e, STATUS_DATA, "%s: the split has no rows", p->name);
    if (json_is_true(json_object_get(answer, "partial")))
        return error_set(e, STATUS_DATA, "%s: the server has only a part of this data set",
                         p->name);
    if (s->total >= 0)
        return STATUS_OK;
    s->total = n;
    s->progress.total = (uint64_t)n;
    *s->version = (struct version){.bytes = -1};
    snprintf(s->version->etag, sizeof(s->version->etag), "rows:%" PRId64, n);
    return cache_entry_mark(s->hub->cache, s->version, e);
}

static enum status take_row(struct page *p, const json_t *entry, uint64_t expected, struct error *e)
{
    const json_t *number = json_object_get(entry, "row_idx");
    const json_t *row = json_object_get(entry, "row");
    if (!json_is_integer(number) || (uint64_t)json_integer_value(number) != expected)
        return error_set(e, STATUS_DATA, "%s: found row_idx %lld, expected %" PRIu64, p->name,
                         (long long)json_integer_value(number), expected);
    if (!json_is_object(row))
        return error_set(e, STATUS_DATA, "%s: row %" PRIu64 " is not an object", p->name, expected);
    if (json_array_size(json_object_get(entry, "truncated_cells")) > 0)
        return error_set(e, STATUS_DATA, "%s: the server cut row %" PRIu64 " short", p->name,
                         expected);
    char *line = json_dumps(row, JSON_COMPACT);
    bool ok = line && strbuf_puts(&p->lines, line) && strbuf_putc(&p->lines, '\n');
    free(line);
    return ok ? STATUS_OK : error_memory(e, 0, "a row");
}

static enum status take_answer(struct session *s, struct page *p, struct error *e)
{
    json_error_t why;
    uint64_t first = p->number * PAGE_ROWS;
    const struct strbuf *body = &p->response.body;
    json_t *answer = json_loadb(body->data ? body->data : "", body->length, JSON_ALLOW_NUL, &why);
    enum status st;
    if (!answer)
        return error_set(e, STATUS_DATA, "%s: the answer is not JSON (%s): %s", p->name,
                         p->response.content_type, why.text);
    TRY_OUT(take_total(s, p, answer, e));
    const json_t *rows = json_object_get(answer, "rows");
    size_t n = json_array_size(rows);
    uint64_t want = (uint64_t)s->total > first ? (uint64_t)s->total - first : 0;
    want = want < PAGE_ROWS ? want : PAGE_ROWS;
    if (n != want) {
        st = error_set(e, STATUS_DATA, "%s: found %zu rows, expected %" PRIu64 " of %" PRId64,
                       p->name, n, want, s->total);
        goto out;
    }
    strbuf_clear(&p->lines);
    for (size_t i = 0; i < n; i++)
        TRY_OUT(take_row(p, json_array_get(rows, i), first + i, e));
    p->state = PAGE_READY;
out:
    json_decref(answer);
    return st;
}

/* --- several at once -------------------------------------------------------------------------- */

static enum status describe_page(struct session *s, struct page *p, struct error *e)
{
    const struct hub *h = s->hub;
    uint64_t offset = p->number * PAGE_ROWS;
    char *dataset = curl_easy_escape(p->easy, h->dataset, 0);
    char *config = curl_easy_escape(p->easy, h->config, 0);
    free(p->url);
    free(p->name);
    if (!dataset || !config ||
        asprintf(&p->url, "%s/rows?dataset=%s&config=%s&split=%s&offset=%" PRIu64 "&length=%d",
                 h->base_url, dataset, config, s->split, offset, PAGE_ROWS) < 0)
        p->url = NULL;
    if (asprintf(&p->name, "hub %s, %s rows from %" PRIu64, h->dataset, s->split, offset) < 0)
        p->name = NULL;
    curl_free(dataset);
    curl_free(config);
    return p->url && p->name ? STATUS_OK : error_memory(e, 0, "a URL");
}

static enum status start_page(struct session *s, struct page *p, struct error *e)
{
    p->request = (struct http_request){
        .method = "GET", .url = p->url, .name = p->name, .headers = s->headers};
    TRY(transfer_prepare(&p->transfer, s->hub->http, p->easy, &p->request, NULL, &p->response, e));
    curl_easy_setopt(p->easy, CURLOPT_PRIVATE, p);
    if (curl_multi_add_handle(s->multi, p->easy) != CURLM_OK)
        return error_set(e, STATUS_FAILED, "%s: starting the request failed", p->name);
    p->state = PAGE_ACTIVE;
    s->active++;
    return STATUS_OK;
}

static enum status start_pages(struct session *s, struct error *e)
{
    double now = monotonic_seconds();
    /* The total decides how many pages there are, so the first one goes alone. */
    int most = s->total < 0 ? 1 : s->hub->parallel;
    uint64_t end = s->total < 0 ? s->next_write + 1 : page_count(s);
    for (uint64_t k = s->next_write; k < s->next_start; k++) {
        struct page *p = &s->pages[k % (uint64_t)s->slots];
        if (p->state == PAGE_WAITING && s->active < most &&
            now >= fmax(p->not_before, s->pause_until))
            TRY(start_page(s, p, e));
    }
    while (s->active < most && s->next_start < end && now >= s->pause_until &&
           s->next_start < s->next_write + (uint64_t)s->slots) {
        struct page *p = &s->pages[s->next_start % (uint64_t)s->slots];
        p->number = s->next_start++;
        p->attempts = 0;
        p->not_before = 0;
        TRY(describe_page(s, p, e));
        TRY(start_page(s, p, e));
    }
    return STATUS_OK;
}

static enum status page_failed(struct session *s, struct page *p, struct error *e)
{
    const struct http_config *c = http_settings(s->hub->http);
    double asked = p->response.retry_after_s;
    if (++p->attempts > c->retries) {
        if (c->retries > 0)
            error_context(e, "giving up after %d attempts", p->attempts);
        return e->status;
    }
    if (asked > 120)
        return error_context(e, "the server asks to come back in %.0f s", asked);
    double wait = fmax(http_retry_delay(s->hub->http, p->attempts), asked);
    log_info("%s; retry %d of %d in %.1f s", e->message, p->attempts, c->retries, wait);
    p->state = PAGE_WAITING;
    p->not_before = monotonic_seconds() + wait;
    if (p->response.status == 429 || asked >= 0)
        s->pause_until = fmax(s->pause_until, p->not_before);
    error_clear(e);
    return STATUS_OK;
}

static enum status collect_answers(struct session *s, struct error *e)
{
    CURLMsg *message;
    int left;
    while ((message = curl_multi_info_read(s->multi, &left)) != NULL) {
        struct page *p = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        CURLcode code = message->data.result; /* gone once the handle is removed */
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&p);
        curl_multi_remove_handle(s->multi, p->easy);
        s->active--;
        p->state = PAGE_WAITING;
        switch (transfer_finish(&p->transfer, code, e)) {
        case HTTP_DONE:
            if (p->response.status != 200)
                return error_set(e, STATUS_FAILED, "%s: the server answered %ld, expected 200",
                                 p->name, p->response.status);
            TRY(take_answer(s, p, e));
            break;
        case HTTP_RETRY:
            TRY(page_failed(s, p, e));
            break;
        case HTTP_FATAL:
            return e->status;
        }
    }
    return STATUS_OK;
}

static enum status write_ready(struct session *s, struct error *e)
{
    for (;;) {
        struct page *p = &s->pages[s->next_write % (uint64_t)s->slots];
        if (p->state != PAGE_READY || p->number != s->next_write)
            return STATUS_OK;
        TRY(fd_write_all(s->fd, p->name, p->lines.data, p->lines.length, e));
        p->state = PAGE_FREE;
        s->next_write++;
        uint64_t rows = s->next_write * PAGE_ROWS;
        progress_update(&s->progress, rows < (uint64_t)s->total ? rows : (uint64_t)s->total);
    }
}

static enum status run_session(struct session *s, struct error *e)
{
    for (;;) {
        int running;
        TRY(start_pages(s, e));
        if (curl_multi_perform(s->multi, &running) != CURLM_OK)
            return error_set(e, STATUS_FAILED, "hub %s: the requests failed", s->hub->dataset);
        int active = s->active;
        TRY(collect_answers(s, e));
        TRY(write_ready(s, e));
        if (s->total >= 0 && s->next_write >= page_count(s))
            return STATUS_OK;
        if (s->active < active) /* there is room for a new request */
            continue;
        if (curl_multi_poll(s->multi, NULL, 0, s->active > 0 ? 500 : 50, NULL) != CURLM_OK)
            return error_set(e, STATUS_FAILED, "hub %s: waiting for answers failed",
                             s->hub->dataset);
    }
}

/* --- the beginning that an earlier run left --------------------------------------------------- */

/* Whole pages among the first `have` bytes; *bytes is where they end. */
static enum status count_pages(int fd, uint64_t have, uint64_t *pages, uint64_t *bytes,
                               struct error *e)
{
    enum { CHUNK = 1 << 16 };
    char *buffer = malloc(CHUNK);
    uint64_t lines = 0;
    enum status st = buffer ? STATUS_OK : error_memory(e, CHUNK, "a read buffer");
    *pages = *bytes = 0;
    for (uint64_t at = 0; at < have && st == STATUS_OK; at += CHUNK) {
        size_t n = have - at < CHUNK ? (size_t)(have - at) : CHUNK;
        st = fd_read_at(fd, "the partial file", at, buffer, n, e);
        for (size_t i = 0; i < n && st == STATUS_OK; i++) {
            if (buffer[i] != '\n' || ++lines % PAGE_ROWS != 0)
                continue;
            *pages = lines / PAGE_ROWS;
            *bytes = at + i + 1;
        }
    }
    free(buffer);
    return st;
}

static enum status go_on(struct session *s, uint64_t have, struct error *e)
{
    uint64_t pages = 0, bytes = 0;
    int64_t total = -1;
    if (sscanf(s->version->etag, "rows:%" SCNd64, &total) == 1 && total > 0)
        TRY(count_pages(s->fd, have, &pages, &bytes, e));
    /* One page at least is fetched again, so that its total tells whether the rest still holds. */
    if (pages > 0 && pages * PAGE_ROWS < (uint64_t)total) {
        s->total = total;
        s->progress.total = (uint64_t)total;
        s->next_start = s->next_write = pages;
        log_info("hub %s: going on with %s at row %" PRIu64, s->hub->dataset, s->split,
                 pages * PAGE_ROWS);
    } else {
        bytes = 0;
    }
    if (ftruncate(s->fd, (off_t)bytes) != 0 || lseek(s->fd, (off_t)bytes, SEEK_SET) < 0)
        return error_errno(e, "hub %s: cutting the partial file", s->hub->dataset);
    return STATUS_OK;
}

static void end_session(struct session *s)
{
    for (int i = 0; i < s->slots && s->pages; i++) {
        struct page *p = &s->pages[i];
        struct error unused;
        if (p->state == PAGE_ACTIVE) {
            curl_multi_remove_handle(s->multi, p->easy);
            transfer_finish(&p->transfer, CURLE_ABORTED_BY_CALLBACK, &unused);
        }
        if (p->easy)
            curl_easy_cleanup(p->easy);
        http_response_release(&p->response);
        strbuf_release(&p->lines);
        free(p->url);
        free(p->name);
    }
    free(s->pages);
    curl_multi_cleanup(s->multi);
}

enum status hub_fetch(const struct hub *h, const char *split, int fd, uint64_t have,
                      struct version *version, struct error *e)
{
    char *authorization = NULL;
    const char *headers[] = {NULL, NULL};
    struct session s = {
        .hub = h,
        .split = split,
        .fd = fd,
        .version = version,
        .total = -1,
        .headers = headers,
        .slots = 4 * h->parallel,
    };
    enum status st = STATUS_OK;
    progress_start(&s.progress, split, "rows", 0, h->quiet);
    s.multi = curl_multi_init();
    s.pages = calloc((size_t)s.slots, sizeof(*s.pages));
    for (int i = 0; i < s.slots && s.pages; i++)
        if (!(s.pages[i].easy = curl_easy_init()))
            st = error_memory(e, 0, "HTTP requests");
    if (h->token && asprintf(&authorization, "Authorization: Bearer %s", h->token) < 0)
        st = error_memory(e, 0, "a header");
    if (!s.multi || !s.pages)
        st = error_memory(e, 0, "HTTP requests");
    headers[0] = authorization;
    if (st == STATUS_OK)
        st = go_on(&s, have, e);
    if (st == STATUS_OK)
        st = run_session(&s, e);
    if (st == STATUS_OK || s.progress.drawn)
        progress_finish(&s.progress);
    if (st == STATUS_DATA) /* what we have does not fit together: the next run starts over */
        cache_entry_drop(h->cache, false);
    end_session(&s);
    free(authorization);
    return st;
}
