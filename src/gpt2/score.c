#include "gpt2/score.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

/* The items of one pass: rows of item i begin at the sum of the lengths before it. */
struct group {
    const struct gpt2_score_item *items;
    int64_t count;
    int64_t rows, queries;
};

static int64_t queries_of(const struct gpt2_score_item *it)
{
    return it->length - it->first + it->alternative_count;
}

enum status gpt2_scorer_create(struct gpt2_pass **p, const struct gpt2_weights *w, int64_t max_rows,
                               int64_t logit_rows, struct error *e)
{
    max_rows = max_i64(max_rows, w->config.context);
    TRY(gpt2_pass_create(p, w, max_rows, max_rows + GPT2_SCORE_MAX_ALTERNATIVES,
                         min_i64(logit_rows, max_rows), e));
    enum status st = gpt2_pass_keep_no_logits(*p, e);
    if (st != STATUS_OK) {
        gpt2_pass_free(*p);
        *p = NULL;
    }
    return st;
}

/* As many items from the front as one pass takes, at least one. */
static struct group take_group(const struct gpt2_pass *p, const struct gpt2_score_item *items,
                               int64_t n)
{
    struct group g = {.items = items};
    while (g.count < n) {
        const struct gpt2_score_item *it = &items[g.count];
        int64_t queries = queries_of(it);
        if (g.rows + it->length > p->max_rows || g.queries + queries > p->max_queries)
            break;
        g.rows += it->length;
        g.queries += queries;
        g.count++;
    }
    return g;
}

static void fill_inputs(struct gpt2_pass *p, const struct group *g)
{
    struct gpt2_pass_io *io = &p->host;
    int64_t row = 0, q = 0;
    for (int64_t i = 0; i < g->count; i++) {
        const struct gpt2_score_item *it = &g->items[i];
        for (int64_t t = 0; t < it->length; t++) {
            io->tokens[row + t] = it->ids[t];
            io->positions[row + t] = (int32_t)t;
        }
        for (int64_t t = it->first; t < it->length; t++, q++) {
            io->select[q] = (int32_t)(row + t - 1);
            io->targets[q] = it->ids[t];
        }
        for (int64_t k = 0; k < it->alternative_count; k++, q++) {
            io->select[q] = (int32_t)(row + it->length - 1);
            io->targets[q] = it->alternatives[k];
        }
        row += it->length;
    }
}

/* Causal attention inside each item; runs of equal length are one batch. */
static void attend_full(void *arg, struct gpt2_pass *p, int64_t layer, void *out, const void *qkv)
{
    const struct group *g = arg;
    const struct gpt2_config *c = &p->w->config;
    int64_t row_bytes = c->channels * (int64_t)dtype_bytes(p->w->dt), row = 0;
    (void)layer;
    for (int64_t i = 0, run; i < g->count; i += run) {
        int64_t time = g->items[i].length;
        for (run = 1; i + run < g->count && g->items[i + run].length == time;)
            run++;
        struct attention a = {.batch = run,
                              .time = time,
                              .heads = c->heads,
                              .head_dim = c->channels / c->heads,
                              .dt = p->w->dt};
        p->dev->ops->attention_forward(p->dev, p->stream, (char *)out + row * row_bytes,
                                       p->lse + row * c->heads,
                                       (const char *)qkv + row * 3 * row_bytes, &a);
        row += run * time;
    }
}

static void take_results(const struct gpt2_pass_io *io, const struct group *g)
{
    const float *from = io->logprobs;
    for (int64_t i = 0; i < g->count; i++) {
        const struct gpt2_score_item *it = &g->items[i];
        size_t scored = (size_t)(it->length - it->first), others = (size_t)it->alternative_count;
        if (scored)
            memcpy(it->logprobs, from, scored * sizeof *from);
        if (others)
            memcpy(it->alternative_logprobs, from + scored, others * sizeof *from);
        from += scored + others;
    }
}

static void queue_group(struct gpt2_pass *p, struct group *g)
{
    fill_inputs(p, g);
    gpt2_pass_upload(p);
    gpt2_pass_body(p, g->rows, attend_full, g);
    gpt2_pass_logprobs(p, g->queries);
    gpt2_pass_download(p);
    gpt2_pass_mark(p);
}

/* What would make a kernel read past an array. */
static enum status check_item(const struct gpt2_pass *p, const struct gpt2_score_item *it,
                              struct error *e)
{
    int64_t limit = min_i64(p->w->config.context, p->max_rows);
    if (it->length < 1 || it->length > limit)
        return error_set(e, STATUS_DATA, "%lld tokens, expected 1 to %lld", (long long)it->length,
                         (long long)limit);
    if (it->first < 1 || it->first > it->length)
        return error_set(e, STATUS_DATA, "the first scored token is number %lld, must be 1 to %lld",
                         (long long)it->first, (long long)it->length);
    for (int64_t i = 0; i < it->length + it->alternative_count; i++) {
        int32_t id = i < it->length ? it->ids[i] : it->alternatives[i - it->length];
        if (id < 0 || id >= p->w->config.vocab)
            return error_set(e, STATUS_DATA, "token id %d is outside the vocabulary of %lld", id,
                             (long long)p->w->config.vocab);
    }
    return STATUS_OK;
}

enum status gpt2_score(struct gpt2_pass *p, const struct gpt2_score_item *items, int64_t n,
                       struct error *e)
{
    for (int64_t i = 0; i < n; i++)
        TRY(check_item(p, &items[i], e));
    struct group g = take_group(p, items, n), next;
    if (g.count > 0)
        queue_group(p, &g);
    for (; g.count > 0; g = next) {
        int side = p->side;
        struct gpt2_pass_io io = p->host;
        items += g.count, n -= g.count;
        next = take_group(p, items, n);
        gpt2_pass_turn(p);
        if (next.count > 0) /* before this one's results are taken: the device has work meanwhile */
            queue_group(p, &next);
        TRY(gpt2_pass_wait(p, side, e));
        take_results(&io, &g);
    }
    return STATUS_OK;
}

enum status gpt2_score_logits(struct gpt2_pass *p, const int32_t *ids, int64_t length,
                              float *logits, struct error *e)
{
    const struct gpt2_config *c = &p->w->config;
    int64_t padded = gpt2_vocab_padded(c);
    struct gpt2_score_item item = {.ids = ids, .length = length, .first = length};
    struct group g = {.items = &item, .count = 1, .rows = length};
    enum status st;
    void *host = NULL;

    TRY(check_item(p, &item, e));
    TRY(p->dev->ops->alloc(p->dev, MEMORY_HOST, (size_t)(p->logit_rows * padded) * sizeof(float),
                           &host, e));
    fill_inputs(p, &g);
    for (int64_t t = 0; t < length; t++)
        p->host.select[t] = (int32_t)t;
    gpt2_pass_upload(p);
    gpt2_pass_body(p, length, attend_full, &g);
    for (int64_t first = 0; first < length; first += p->logit_rows) {
        int64_t n = min_i64(p->logit_rows, length - first);
        gpt2_pass_logits(p, first, n);
        p->dev->ops->copy(p->dev, p->stream, host, p->logits, (size_t)(n * padded) * sizeof(float));
        TRY_OUT(p->dev->ops->stream_sync(p->dev, p->stream, e));
        for (int64_t r = 0; r < n; r++)
            memcpy(logits + (first + r) * c->vocab, (float *)host + r * padded,
                   (size_t)c->vocab * sizeof(float));
    }
    st = STATUS_OK;
out:
    p->dev->ops->free(p->dev, MEMORY_HOST, host);
    return st;
}
