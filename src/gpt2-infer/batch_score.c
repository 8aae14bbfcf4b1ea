/* batch_score.c - log-likelihood and perplexity. A text longer than the context is covered by
 * windows: each scores the tokens that no earlier one did, given as many before them as fit. */
#include "base/checked.h"
#include "gpt2-infer/batch.h"
#include "gpt2-infer/generation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_JOBS 256
#define ROUND_PASSES 8 /* tokens of a round, in passes: enough to sort by length */

struct scoring {
    struct batch *b;
    struct gpt2_pass *pass;
    int64_t context, stride;
    struct gpt2_score_item *items;
    int64_t item_count, item_capacity;
    float *logprobs;
    int64_t logprob_count, logprob_capacity;
};

static bool put_item(struct scoring *s, struct gpt2_score_item item)
{
    if (s->item_count == s->item_capacity) {
        int64_t capacity = s->item_capacity ? 2 * s->item_capacity : 64;
        struct gpt2_score_item *more = realloc(s->items, (size_t)capacity * sizeof *more);
        if (!more)
            return false;
        s->items = more;
        s->item_capacity = capacity;
    }
    s->items[s->item_count++] = item;
    return true;
}

static int64_t first_scored(const struct job *job)
{
    return max_i64(job->first, 1); /* nothing predicts the first token of all */
}

/* Windows over one job's tokens; logprobs are bound once all jobs of the round are known. */
static enum status add_windows(struct scoring *s, const struct job *job, struct error *e)
{
    int64_t n = job->ids.length, next = first_scored(job);
    int64_t end = min_i64(n, s->context);
    if (next > end) /* a long context: the first window ends with its first scored tokens */
        end = min_i64(n, next - 1 + s->stride);
    for (;;) {
        int64_t begin = max_i64(0, end - s->context);
        struct gpt2_score_item item = {
            .ids = job->ids.ids + begin, .length = end - begin, .first = next - begin};
        if (!put_item(s, item))
            return error_memory(e, sizeof item, "windows of a text");
        s->logprob_count += end - next;
        next = end;
        if (end == n)
            return STATUS_OK;
        end = min_i64(n, end + s->stride);
    }
}

static enum status check_job(const struct scoring *s, const struct job *job, struct error *e)
{
    if (job->ids.length == 0)
        return error_set(e, STATUS_DATA, "the text is empty; nothing to score");
    if (job->ids.length > s->context && !job->params.slide)
        return error_set(e, STATUS_DATA, "the text has %lld tokens, the model's context is %lld",
                         (long long)job->ids.length, (long long)s->context);
    return STATUS_OK;
}

static int by_length(const void *a, const void *b)
{
    const struct gpt2_score_item *x = a, *y = b;
    if (x->length != y->length)
        return x->length < y->length ? 1 : -1;
    return x->logprobs < y->logprobs ? -1 : x->logprobs > y->logprobs;
}

static enum status bind_logprobs(struct scoring *s, struct error *e)
{
    if (s->logprob_count > s->logprob_capacity) {
        float *more = realloc(s->logprobs, (size_t)s->logprob_count * sizeof *more);
        if (!more)
            return error_memory(e, (size_t)s->logprob_count * sizeof *more, "log-probabilities");
        s->logprobs = more;
        s->logprob_capacity = s->logprob_count;
    }
    float *at = s->logprobs;
    for (int64_t i = 0; i < s->item_count; i++) {
        s->items[i].logprobs = at;
        at += s->items[i].length - s->items[i].first;
    }
    return STATUS_OK;
}

static enum status answer(struct scoring *s, struct job *job, const float *logprobs,
                          struct error *e)
{
    struct strbuf *a = &job->answer;
    int64_t tokens = job->ids.length - first_scored(job);
    double sum = 0.0;
    for (int64_t i = 0; i < tokens; i++)
        sum += (double)logprobs[i];
    s->b->scored_logprob += sum;
    s->b->scored_tokens += tokens;
    bool ok = json_put_id(a, job) && strbuf_puts(a, ",\"logprob\":") && json_put_real(a, sum, 12) &&
              strbuf_printf(a, ",\"tokens\":%lld,\"perplexity\":", (long long)tokens) &&
              json_put_real(a, exp(-sum / (double)tokens), 10) && strbuf_putc(a, '}');
    job->done = true;
    return ok ? STATUS_OK : error_memory(e, 128, "an answer");
}

static enum status score_round(struct scoring *s, struct error *e)
{
    struct batch *b = s->b;
    struct error why;
    size_t kept = 0;
    s->item_count = s->logprob_count = 0;
    for (size_t i = 0; i < b->taken_count; i++) {
        struct job *job = b->taken[i];
        if (check_job(s, job, &why) != STATUS_OK) {
            TRY(batch_fail(b, job, &why, e));
            continue;
        }
        TRY(add_windows(s, job, e));
        b->taken[kept++] = job;
    }
    TRY(bind_logprobs(s, e));
    if (s->item_count > 0)
        qsort(s->items, (size_t)s->item_count, sizeof *s->items, by_length);
    TRY(gpt2_score(s->pass, s->items, s->item_count, e));
    for (int64_t i = 0; i < s->item_count; i++)
        b->prompt_tokens += s->items[i].length;
    const float *at = s->logprobs; /* windows of one job, and jobs, lie in order */
    for (size_t i = 0; i < kept; i++) {
        int64_t tokens = b->taken[i]->ids.length - first_scored(b->taken[i]);
        TRY(answer(s, b->taken[i], at, e));
        at += tokens;
    }
    b->passes++;
    TRY(sink_write_ready(b->sink, e));
    batch_progress(b, b->prompt_tokens);
    return STATUS_OK;
}

enum status batch_score(struct batch *b, struct error *e)
{
    enum status st;
    struct scoring s = {.b = b, .context = b->g->context};
    if (s.context < 2)
        return error_set(e, STATUS_USAGE, "a context of %lld tokens cannot predict any",
                         (long long)s.context);
    s.stride = b->g->o->stride > 0 ? b->g->o->stride : max_i64(1, s.context / 2);
    if (s.stride >= s.context)
        return error_set(e, STATUS_USAGE, "--stride %lld must be below the context of %lld",
                         (long long)s.stride, (long long)s.context);
    b->taken = malloc(ROUND_JOBS * sizeof *b->taken);
    if (!b->taken)
        return error_memory(e, ROUND_JOBS * sizeof *b->taken, "a list of records");
    TRY_OUT(engine_scorer(b->g, &s.pass, e));
    while (!b->ended) {
        TRY_OUT(batch_take(b, ROUND_JOBS, ROUND_PASSES * s.pass->max_rows, e));
        TRY_OUT(score_round(&s, e));
    }
    st = STATUS_OK;
out:
    gpt2_pass_free(s.pass);
    free(s.items);
    free(s.logprobs);
    return st;
}
