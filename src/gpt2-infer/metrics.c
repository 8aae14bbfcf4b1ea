/* metrics.c - counters in Prometheus' text format. */
#include "gpt2-infer/serve_private.h"

static const double bounds[METRIC_BUCKETS] = {0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                              0.5,   1.0,  2.5,   5.0,  10.0, 60.0};

void metrics_count(struct metrics *m, const struct request *r, double seconds)
{
    m->requests[r->route][r->status / 100 % 6]++;
    m->rejected += r->status == 429;
    if (!r->enqueued)
        return;
    int b = 0;
    while (b < METRIC_BUCKETS && seconds > bounds[b])
        b++;
    m->seconds.count[b]++;
    m->seconds.sum += seconds;
}

static bool put_value(struct strbuf *out, const char *name, const char *type, const char *help,
                      double value)
{
    return strbuf_printf(out, "# HELP gpt2_%s %s\n# TYPE gpt2_%s %s\ngpt2_%s %.17g\n", name, help,
                         name, type, name, value);
}

static bool put_requests(struct strbuf *out, const struct metrics *m)
{
    bool ok = strbuf_puts(out, "# HELP gpt2_requests_total Requests answered.\n"
                               "# TYPE gpt2_requests_total counter\n");
    for (int r = 0; r < ROUTES; r++)
        for (int c = 1; ok && c < 6; c++)
            if (m->requests[r][c])
                ok = strbuf_printf(out, "gpt2_requests_total{path=\"%s\",code=\"%dxx\"} %llu\n",
                                   route_names[r], c, (unsigned long long)m->requests[r][c]);
    return ok;
}

static bool put_histogram(struct strbuf *out, const struct histogram *h)
{
    uint64_t total = 0;
    bool ok = strbuf_puts(out, "# HELP gpt2_request_seconds Time of a generating request.\n"
                               "# TYPE gpt2_request_seconds histogram\n");
    for (int b = 0; ok && b <= METRIC_BUCKETS; b++) {
        total += h->count[b];
        if (b < METRIC_BUCKETS)
            ok = strbuf_printf(out, "gpt2_request_seconds_bucket{le=\"%g\"} %llu\n", bounds[b],
                               (unsigned long long)total);
        else
            ok = strbuf_printf(out, "gpt2_request_seconds_bucket{le=\"+Inf\"} %llu\n",
                               (unsigned long long)total);
    }
    return ok &&
           strbuf_printf(out, "gpt2_request_seconds_sum %.6f\ngpt2_request_seconds_count %llu\n",
                         h->sum, (unsigned long long)total);
}

bool metrics_print(const struct server *s, struct strbuf *out)
{
    const struct gpt2_decoder_stats *d = &s->stats;
    return put_requests(out, &s->metrics) && put_histogram(out, &s->metrics.seconds) &&
           put_value(out, "rejected_total", "counter",
                     "Requests refused because the queue was full.", (double)s->metrics.rejected) &&
           put_value(out, "cancelled_total", "counter", "Requests whose client left early.",
                     (double)s->metrics.cancelled) &&
           put_value(out, "texts_in_flight", "gauge", "Texts waiting or running.",
                     (double)s->in_flight) &&
           put_value(out, "texts_running", "gauge", "Texts in the batch.", (double)d->running) &&
           put_value(out, "prompt_tokens_total", "counter", "Tokens of prompts.",
                     (double)d->prompt_tokens) &&
           put_value(out, "new_tokens_total", "counter", "Tokens generated.",
                     (double)d->new_tokens) &&
           put_value(out, "passes_total", "counter", "Forward passes.", (double)d->passes) &&
           put_value(out, "cache_pages", "gauge", "Pages of the key/value cache.",
                     (double)d->pages) &&
           put_value(out, "cache_pages_free", "gauge", "Pages of the cache that are free.",
                     (double)d->free_pages);
}
