/* batch_classify.c - the label that the model finds likeliest as a continuation. The first token of
 * every label is read off the text's last position; only longer labels cost a pass of their own. */
#include "base/checked.h"
#include "base/log.h"
#include "format/jsonl.h"
#include "gpt2-infer/batch.h"
#include "gpt2-infer/generation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_JOBS 256
#define ROUND_PASSES 4

struct label {
    char *text;        /* as given */
    const char *shown; /* without spaces around it */
    size_t shown_bytes;
    struct id_list ids;
};

struct classifying {
    struct batch *b;
    struct gpt2_pass *pass;
    struct label *labels;
    int64_t count, longest;
    int32_t *first_ids; /* [count] */
    /* of a round: */
    struct gpt2_score_item *items; /* [ROUND_JOBS * (1 + count)] */
    float *first_logprobs;         /* [ROUND_JOBS, count] */
    float *rest_logprobs;          /* [ROUND_JOBS, count, longest] */
    struct id_list *joined;        /* [ROUND_JOBS * count] text and label, where needed */
    double *scores;                /* [count] */
};

static enum status parse_label(struct classifying *c, struct job_reader *r, const char *text,
                               size_t bytes, struct error *e)
{
    struct label *l = &c->labels[c->count++];
    l->text = strndup(text, bytes);
    if (!l->text)
        return error_memory(e, bytes, "a label");
    l->shown = l->text + strspn(l->text, " ");
    l->shown_bytes = strlen(l->shown);
    while (l->shown_bytes > 0 && l->shown[l->shown_bytes - 1] == ' ')
        l->shown_bytes--;
    if (l->shown_bytes == 0)
        return error_set(e, STATUS_USAGE, "--labels \"%s\": label %lld is empty", r->g->o->labels,
                         (long long)c->count);
    TRY(job_encode(r, l->text, bytes, &l->ids, e));
    c->longest = max_i64(c->longest, l->ids.length);
    return STATUS_OK;
}

static enum status parse_labels(struct classifying *c, struct error *e)
{
    struct job_reader r;
    const char *text = c->b->g->o->labels;
    size_t count = 1;
    for (const char *p = text; *p; p++)
        count += *p == ',';
    if (count < 2 || count > GPT2_SCORE_MAX_ALTERNATIVES)
        return error_set(e, STATUS_USAGE, "--labels \"%s\": %zu labels, expected 2 to %d", text,
                         count, GPT2_SCORE_MAX_ALTERNATIVES);
    c->labels = calloc(count, sizeof *c->labels);
    if (!c->labels)
        return error_memory(e, count * sizeof *c->labels, "labels");
    TRY(job_reader_init(&r, c->b->g, "--labels", e));
    enum status st = STATUS_OK;
    for (const char *p = text; st == STATUS_OK; p++) {
        size_t n = strcspn(p, ",");
        st = parse_label(c, &r, p, n, e);
        p += n;
        if (!*p)
            break;
    }
    job_reader_release(&r);
    return st;
}

static enum status allocate(struct classifying *c, struct error *e)
{
    size_t n = (size_t)c->count, all = ROUND_JOBS * n;
    c->first_ids = malloc(n * sizeof *c->first_ids);
    c->scores = malloc(n * sizeof *c->scores);
    c->items = malloc((ROUND_JOBS + all) * sizeof *c->items);
    c->first_logprobs = malloc(all * sizeof *c->first_logprobs);
    c->rest_logprobs = malloc(all * (size_t)c->longest * sizeof *c->rest_logprobs);
    c->joined = calloc(all, sizeof *c->joined);
    c->b->taken = malloc(ROUND_JOBS * sizeof *c->b->taken);
    if (!c->first_ids || !c->scores || !c->items || !c->first_logprobs || !c->rest_logprobs ||
        !c->joined || !c->b->taken)
        return error_memory(e, all * sizeof *c->items, "the scores of labels");
    for (size_t k = 0; k < n; k++)
        c->first_ids[k] = c->labels[k].ids.ids[0];
    return STATUS_OK;
}

/* Cuts a text that is too long from the left, or says why it cannot be used. */
static enum status fit(const struct classifying *c, struct job *job, struct error *e)
{
    int64_t room = c->b->g->context - (c->longest - 1), n = job->ids.length;
    if (n == 0)
        return error_set(e, STATUS_DATA, "the text is empty; --prepend-eot gives it a beginning");
    if (n <= room)
        return STATUS_OK;
    if (!job->params.slide || room < 1)
        return error_set(e, STATUS_DATA,
                         "the text has %lld tokens; with the label, the model's context of %lld "
                         "holds %lld",
                         (long long)n, (long long)c->b->g->context, (long long)room);
    memmove(job->ids.ids, job->ids.ids + (n - room), (size_t)room * sizeof *job->ids.ids);
    job->ids.length = room;
    return STATUS_OK;
}

/* One item for the text with all labels' first tokens, and one for each longer label. */
static enum status add_items(struct classifying *c, size_t place, const struct job *job, int64_t *n,
                             struct error *e)
{
    size_t base = place * (size_t)c->count;
    c->items[(*n)++] = (struct gpt2_score_item){.ids = job->ids.ids,
                                                .length = job->ids.length,
                                                .first = job->ids.length,
                                                .alternatives = c->first_ids,
                                                .alternative_count = c->count,
                                                .alternative_logprobs = c->first_logprobs + base};
    for (int64_t k = 0; k < c->count; k++) {
        const struct id_list *label = &c->labels[k].ids;
        struct id_list *joined = &c->joined[base + (size_t)k];
        joined->length = 0;
        if (label->length == 1)
            continue;
        for (int64_t i = 0; i < job->ids.length + label->length - 1; i++)
            if (!id_list_put(joined, i < job->ids.length ? job->ids.ids[i]
                                                         : label->ids[i - job->ids.length]))
                return error_memory(e, (size_t)joined->length * 4, "a text and its label");
        if (!id_list_put(joined, label->ids[label->length - 1]))
            return error_memory(e, (size_t)joined->length * 4, "a text and its label");
        c->items[(*n)++] = (struct gpt2_score_item){
            .ids = joined->ids,
            .length = joined->length,
            .first = job->ids.length + 1,
            .logprobs = c->rest_logprobs + (base + (size_t)k) * (size_t)c->longest};
    }
    return STATUS_OK;
}

static bool is_gold(const struct label *l, int64_t index, const struct job *job)
{
    if (!job->gold)
        return index == job->gold_index;
    return strcmp(job->gold, l->text) == 0 || (strlen(job->gold) == l->shown_bytes &&
                                               memcmp(job->gold, l->shown, l->shown_bytes) == 0);
}

/* Whether the record's label is one of those on the command line. */
static enum status check_gold(const struct classifying *c, const struct job *job, struct error *e)
{
    if (!job->gold && job->gold_index < 0) /* -1: published sets mark test records so */
        return STATUS_OK;
    for (int64_t k = 0; k < c->count; k++)
        if (is_gold(&c->labels[k], k, job))
            return STATUS_OK;
    if (job->gold)
        return error_set(e, STATUS_DATA, "label \"%.100s\" is not among --labels", job->gold);
    return error_set(e, STATUS_DATA, "label %lld is not below the number of --labels, %lld",
                     (long long)job->gold_index, (long long)c->count);
}

static enum status answer(struct classifying *c, size_t place, struct job *job, struct error *e)
{
    size_t base = place * (size_t)c->count;
    int64_t best = 0;
    double total = 0.0;
    for (int64_t k = 0; k < c->count; k++) {
        const float *rest = c->rest_logprobs + (base + (size_t)k) * (size_t)c->longest;
        c->scores[k] = (double)c->first_logprobs[base + (size_t)k];
        for (int64_t i = 1; i < c->labels[k].ids.length; i++)
            c->scores[k] += (double)rest[i - 1];
        if (c->scores[k] > c->scores[best])
            best = k;
    }
    for (int64_t k = 0; k < c->count; k++)
        total += exp(c->scores[k] - c->scores[best]);
    struct strbuf *a = &job->answer;
    const struct label *l = &c->labels[best];
    bool ok = json_put_id(a, job) && strbuf_puts(a, ",\"label\":") &&
              jsonl_append_string(a, l->shown, l->shown_bytes) &&
              strbuf_printf(a, ",\"index\":%lld,\"logprobs\":[", (long long)best);
    for (int64_t k = 0; ok && k < c->count; k++)
        ok = (k == 0 || strbuf_putc(a, ',')) && json_put_real(a, c->scores[k], 10);
    ok = ok && strbuf_puts(a, "],\"probabilities\":[");
    for (int64_t k = 0; ok && k < c->count; k++)
        ok = (k == 0 || strbuf_putc(a, ',')) &&
             json_put_real(a, exp(c->scores[k] - c->scores[best]) / total, 8);
    ok = ok && strbuf_puts(a, "]}");
    c->b->classified++;
    if (job->gold || job->gold_index >= 0) {
        c->b->with_gold++;
        c->b->correct += is_gold(l, best, job);
    }
    job->done = true;
    return ok ? STATUS_OK : error_memory(e, a->length, "an answer");
}

static int by_length(const void *a, const void *b)
{
    const struct gpt2_score_item *x = a, *y = b;
    return x->length < y->length ? 1 : x->length > y->length ? -1 : 0;
}

static enum status classify_round(struct classifying *c, struct error *e)
{
    struct batch *b = c->b;
    struct error why;
    size_t kept = 0;
    int64_t items = 0;
    for (size_t i = 0; i < b->taken_count; i++) {
        struct job *job = b->taken[i];
        if (check_gold(c, job, &why) != STATUS_OK || fit(c, job, &why) != STATUS_OK) {
            TRY(batch_fail(b, job, &why, e));
            continue;
        }
        TRY(add_items(c, kept, job, &items, e));
        b->taken[kept++] = job;
    }
    qsort(c->items, (size_t)items, sizeof *c->items, by_length);
    TRY(gpt2_score(c->pass, c->items, items, e));
    for (int64_t i = 0; i < items; i++)
        b->prompt_tokens += c->items[i].length;
    for (size_t i = 0; i < kept; i++)
        TRY(answer(c, i, b->taken[i], e));
    b->passes++;
    if (b->with_gold > 0)
        snprintf(b->progress.note, sizeof b->progress.note, "accuracy %.2f%%",
                 100.0 * (double)b->correct / (double)b->with_gold);
    TRY(sink_write_ready(b->sink, e));
    batch_progress(b, b->prompt_tokens);
    return STATUS_OK;
}

static void release(struct classifying *c)
{
    for (int64_t k = 0; c->joined && k < ROUND_JOBS * c->count; k++)
        free(c->joined[k].ids);
    for (int64_t k = 0; k < c->count; k++) {
        free(c->labels[k].text);
        free(c->labels[k].ids.ids);
    }
    gpt2_pass_free(c->pass);
    free(c->labels);
    free(c->first_ids);
    free(c->items);
    free(c->first_logprobs);
    free(c->rest_logprobs);
    free(c->joined);
    free(c->scores);
}

enum status batch_classify(struct batch *b, struct error *e)
{
    enum status st;
    struct classifying c = {.b = b};
    TRY_OUT(parse_labels(&c, e));
    TRY_OUT(allocate(&c, e));
    TRY_OUT(engine_scorer(b->g, &c.pass, e));
    while (!b->ended) {
        TRY_OUT(batch_take(b, ROUND_JOBS, ROUND_PASSES * c.pass->max_rows, e));
        TRY_OUT(classify_round(&c, e));
    }
    st = STATUS_OK;
out:
    release(&c);
    return st;
}
