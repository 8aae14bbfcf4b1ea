/* Cached, paged, batched decoding against full forward passes on the cpu device. */
#include "base/philox.h"
#include "gpt2/decode.h"
#include "gpt2/score.h"

#include <math.h>
#include <stdlib.h>

#include "tap.h"

#define MODEL "../fixtures/golden-tiny"
#define MOST 200

static struct device *dev;
static struct gpt2_weights *weights;
static struct error err;

static void require(enum status st)
{
    if (st != STATUS_OK) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
}

struct result {
    struct gpt2_sequence s;
    int32_t prompt[MOST], ids[MOST];
    float logprobs[MOST];
    int64_t count, stop_after;
    bool finished;
    enum gpt2_finish why;
};

static bool on_token(void *arg, int32_t id, float logprob)
{
    struct result *r = arg;
    r->ids[r->count] = id;
    r->logprobs[r->count++] = logprob;
    return r->count != r->stop_after;
}

static void on_finished(void *arg, enum gpt2_finish why)
{
    struct result *r = arg;
    CHECK(!r->finished);
    r->finished = true;
    r->why = why;
}

static void make_request(struct result *r, uint64_t seed, int64_t prompt, int64_t new_tokens,
                         float temperature)
{
    *r = (struct result){0};
    for (int64_t i = 0; i < prompt; i++)
        r->prompt[i] =
            (int32_t)(philox4x32(seed, (uint64_t)i, 9).v[0] % (uint32_t)weights->config.vocab);
    r->s = (struct gpt2_sequence){.prompt = r->prompt,
                                  .prompt_length = prompt,
                                  .max_new_tokens = new_tokens,
                                  .temperature = temperature,
                                  .top_p = 1.0f,
                                  .seed = seed,
                                  .eos = -1,
                                  .slide = true,
                                  .token = on_token,
                                  .finished = on_finished};
}

static void run_once(struct result *r, int n, const struct gpt2_decoder_options *o, bool run_ahead)
{
    struct gpt2_decoder *d;
    struct gpt2_decoder_options options = *o;
    options.run_ahead = run_ahead;
    require(gpt2_decoder_create(&d, weights, &options, &err));
    for (int i = 0; i < n; i++) {
        r[i].s.arg = &r[i];
        require(gpt2_decoder_submit(d, &r[i].s, &err));
    }
    for (int guard = 0; !gpt2_decoder_idle(d) && guard < 100000; guard++)
        require(gpt2_decoder_step(d, &err));
    CHECK(gpt2_decoder_idle(d));
    struct gpt2_decoder_stats s = gpt2_decoder_stats(d);
    CHECK_INT(s.free_pages, s.pages);
    CHECK_INT(s.running, 0);
    gpt2_decoder_free(d);
}

/* Passes queued before the tokens of the one before are known change nothing. */
static void run_all(struct result *r, int n, const struct gpt2_decoder_options *o)
{
    struct result *ahead = malloc((size_t)n * sizeof *ahead);
    memcpy(ahead, r, (size_t)n * sizeof *ahead);
    for (int i = 0; i < n; i++)
        if (r[i].s.prompt == r[i].prompt)
            ahead[i].s.prompt = ahead[i].prompt;
    run_once(ahead, n, o, true);
    run_once(r, n, o, false);
    for (int i = 0; i < n; i++) {
        CHECK_INT(ahead[i].count, r[i].count);
        CHECK_INT(ahead[i].why, r[i].why);
        for (int64_t k = 0; k < r[i].count && k < ahead[i].count; k++) {
            CHECK_INT(ahead[i].ids[k], r[i].ids[k]);
            CHECK(fabsf(ahead[i].logprobs[k] - r[i].logprobs[k]) < 1e-4f);
        }
    }
    free(ahead);
}

/* The first token of r and its log-probability by full forward of the last tokens before it. */
static void check_against_full(const struct result *r, struct gpt2_pass *scorer, int64_t context)
{
    int32_t all[2 * MOST];
    int64_t vocab = weights->config.vocab, window = 0;
    float *logits = malloc((size_t)(context * vocab) * sizeof *logits);
    int64_t n = r->s.prompt_length;
    memcpy(all, r->prompt, (size_t)n * sizeof *all);
    for (int64_t k = 0; k < r->count; k++) {
        if (n - window > context)
            window = n - 1 - context / 2; /* half a context, and the newest token */
        int64_t length = n - window, best = 0;
        require(gpt2_score_logits(scorer, all + window, length, logits, &err));
        const float *row = logits + (length - 1) * vocab;
        double total = 0;
        for (int64_t v = 0; v < vocab; v++)
            best = row[v] > row[best] ? v : best;
        for (int64_t v = 0; v < vocab; v++)
            total += exp((double)row[v] - (double)row[best]);
        double want = (double)row[r->ids[k]] - (double)row[best] - log(total);
        CHECK_NEAR(r->logprobs[k], want, 2e-5);
        if (r->s.temperature == 0.0f)
            CHECK(row[best] - row[r->ids[k]] < 1e-4f);
        all[n++] = r->ids[k];
    }
    free(logits);
}

static void test_full_forward(void)
{
    struct gpt2_pass *scorer;
    int64_t context = weights->config.context; /* 64 */
    require(gpt2_scorer_create(&scorer, weights, 0, 16, &err));
    static const int64_t pages[] = {1, 5, 16, 64};
    CASE("cached decoding equals full forward, whatever pages, pieces and company")
    {
        for (int p = 0; p < 4; p++) {
            struct result r[7];
            struct gpt2_decoder_options o = {.sequences = 1 + p * 2,
                                             .pass_rows = 3 + 8 * p,
                                             .page_tokens = pages[p],
                                             .separate_prompts = p % 2};
            for (int i = 0; i < 7; i++)
                make_request(&r[i], (uint64_t)i, 1 + i * 7, i == 3 ? 0 : 8 + i,
                             i % 2 ? 0.8f : 0.0f);
            run_all(r, 7, &o);
            for (int i = 0; i < 7; i++) {
                CHECK_INT(r[i].count, i == 3 ? 0 : 8 + i);
                CHECK_INT(r[i].why, GPT2_FINISH_LENGTH);
                check_against_full(&r[i], scorer, context);
            }
        }
    }
    CASE("past the context the window slides by half a context")
    {
        struct result r[2];
        make_request(&r[0], 5, context - 3, 90, 0.0f);
        make_request(&r[1], 6, context, 40, 0.7f);
        run_all(r, 2, &(struct gpt2_decoder_options){.sequences = 2, .pass_rows = 20});
        CHECK_INT(r[0].count, 90);
        check_against_full(&r[0], scorer, context);
        check_against_full(&r[1], scorer, context);
    }
    CASE("without sliding, generation ends where the context does")
    {
        struct result r;
        make_request(&r, 5, context - 3, 90, 0.0f);
        r.s.slide = false;
        run_all(&r, 1, &(struct gpt2_decoder_options){.sequences = 1});
        CHECK_INT(r.count, 4); /* positions 61, 62, 63 and one token after the last */
        CHECK_INT(r.why, GPT2_FINISH_LENGTH);
    }
    CASE("a prompt longer than the context keeps its end, or is refused")
    {
        struct result whole, tail;
        struct gpt2_decoder *d;
        make_request(&whole, 5, 150, 5, 0.0f);
        make_request(&tail, 5, 150, 5, 0.0f);
        tail.s.prompt += 150 - (context - 4); /* room for the 4 tokens that are fed back */
        tail.s.prompt_length = context - 4;
        run_all(&whole, 1, &(struct gpt2_decoder_options){.sequences = 1});
        run_all(&tail, 1, &(struct gpt2_decoder_options){.sequences = 1});
        CHECK(memcmp(whole.ids, tail.ids, 5 * sizeof *whole.ids) == 0);
        whole.s.slide = false;
        require(
            gpt2_decoder_create(&d, weights, &(struct gpt2_decoder_options){.sequences = 1}, &err));
        CHECK_INT(gpt2_decoder_submit(d, &whole.s, &err), STATUS_DATA);
        CHECK_CONTAINS(err.message, "150 tokens");
        whole.s.prompt_length = 0;
        CHECK_INT(gpt2_decoder_submit(d, &whole.s, &err), STATUS_DATA);
        whole.s.prompt_length = 1;
        whole.prompt[0] = (int32_t)weights->config.vocab;
        CHECK_INT(gpt2_decoder_submit(d, &whole.s, &err), STATUS_DATA);
        CHECK_CONTAINS(err.message, "outside the vocabulary");
        gpt2_decoder_free(d);
    }
    gpt2_pass_free(scorer);
}

static void test_company(void)
{
    CASE("every bit of a text is its own, whatever runs beside it (up to 8, prompts apart)")
    {
        struct result alone[8], together[8];
        for (int i = 0; i < 8; i++) {
            make_request(&alone[i], (uint64_t)i, 1 + 5 * i, 30 - i, i % 3 ? 1.0f : 0.0f);
            make_request(&together[i], (uint64_t)i, 1 + 5 * i, 30 - i, i % 3 ? 1.0f : 0.0f);
            run_all(&alone[i], 1,
                    &(struct gpt2_decoder_options){
                        .sequences = 8, .pass_rows = 12, .separate_prompts = true});
        }
        run_all(together, 8,
                &(struct gpt2_decoder_options){
                    .sequences = 8, .pass_rows = 12, .separate_prompts = true});
        for (int i = 0; i < 8; i++) {
            CHECK_INT(together[i].count, alone[i].count);
            CHECK(memcmp(together[i].ids, alone[i].ids, sizeof alone[i].ids) == 0);
            CHECK(memcmp(together[i].logprobs, alone[i].logprobs, sizeof alone[i].logprobs) == 0);
        }
    }
    CASE("a cache smaller than the work is waited for, and given back")
    {
        struct result r[12];
        for (int i = 0; i < 12; i++)
            make_request(&r[i], (uint64_t)i, 20, 20, 1.0f);
        /* one context of pages: 4 of 16 tokens; each sequence needs 3 */
        run_all(
            r, 12,
            &(struct gpt2_decoder_options){.sequences = 6, .page_tokens = 16, .cache_bytes = 1});
        for (int i = 0; i < 12; i++)
            CHECK_INT(r[i].count, 20);
    }
    CASE("eos is not reported, a callback can stop, a cancelled sequence is forgotten")
    {
        struct result r[4];
        struct gpt2_decoder *d;
        for (int i = 0; i < 4; i++) {
            make_request(&r[i], 3, 9, 20, 0.0f);
            r[i].s.arg = &r[i];
        }
        run_all(&r[0], 1, &(struct gpt2_decoder_options){.sequences = 1});
        int64_t at = 0; /* the first place of the token that comes fifth */
        while (r[0].ids[at] != r[0].ids[4])
            at++;
        r[1].s.eos = r[0].ids[4];
        r[2].stop_after = 3;
        require(gpt2_decoder_create(
            &d, weights, &(struct gpt2_decoder_options){.sequences = 2, .run_ahead = true}, &err));
        for (int i = 1; i < 4; i++)
            require(gpt2_decoder_submit(d, &r[i].s, &err));
        gpt2_decoder_cancel(d, &r[3].s); /* waits: two slots only */
        require(gpt2_decoder_step(d, &err));
        while (!gpt2_decoder_idle(d))
            require(gpt2_decoder_step(d, &err));
        CHECK_INT(r[1].count, at);
        CHECK_INT(r[1].why, GPT2_FINISH_EOS);
        CHECK_INT(r[2].count, 3);
        CHECK_INT(r[2].why, GPT2_FINISH_STOPPED);
        CHECK_INT(r[3].count, 0);
        CHECK(!r[3].finished);
        r[3].count = 0; /* again, and cancelled while it runs */
        require(gpt2_decoder_submit(d, &r[3].s, &err));
        while (r[3].count == 0) /* a pass in vain may come first */
            require(gpt2_decoder_step(d, &err));
        gpt2_decoder_cancel(d, &r[3].s);
        CHECK(gpt2_decoder_idle(d));
        CHECK_INT(gpt2_decoder_stats(d).free_pages, gpt2_decoder_stats(d).pages);
        gpt2_decoder_free(d);
    }
}

static void test_scoring(void)
{
    struct gpt2_pass *p;
    int64_t context = weights->config.context, vocab = weights->config.vocab;
    require(gpt2_scorer_create(&p, weights, 100, 7, &err));
    CASE("texts of all lengths side by side score as each alone, alternatives too")
    {
        enum { TEXTS = 9 };
        struct result text[TEXTS];
        struct gpt2_score_item items[TEXTS];
        float logprobs[TEXTS][64], others[TEXTS][3];
        int32_t choices[3] = {1, 400, 17};
        float *logits = malloc((size_t)(context * vocab) * sizeof *logits);
        for (int i = 0; i < TEXTS; i++) {
            int64_t n = i == 4 ? 1 : i == 5 ? context : 5 + 3 * (i / 2);
            make_request(&text[i], (uint64_t)i, n, 1, 0.0f);
            items[i] = (struct gpt2_score_item){.ids = text[i].prompt,
                                                .length = n,
                                                .first = i == 3 ? 4 : 1,
                                                .logprobs = logprobs[i],
                                                .alternatives = choices,
                                                .alternative_count = i % 2 ? 3 : 0,
                                                .alternative_logprobs = others[i]};
        }
        require(gpt2_score(p, items, TEXTS, &err));
        for (int i = 0; i < TEXTS; i++) {
            const struct gpt2_score_item *it = &items[i];
            require(gpt2_score_logits(p, it->ids, it->length, logits, &err));
            for (int64_t t = it->first; t < it->length + it->alternative_count; t++) {
                int64_t row = (t < it->length ? t : it->length) - 1;
                const float *l = logits + row * vocab;
                int32_t target = t < it->length ? it->ids[t] : choices[t - it->length];
                double total = 0;
                for (int64_t v = 0; v < vocab; v++)
                    total += exp((double)l[v]);
                CHECK_NEAR(t < it->length ? logprobs[i][t - it->first] : others[i][t - it->length],
                           (double)l[target] - log(total), 2e-5);
            }
        }
        free(logits);
    }
    CASE("what cannot be scored is refused")
    {
        int32_t ids[3] = {0, 1, (int32_t)vocab};
        struct gpt2_score_item item = {.ids = ids, .length = 3, .first = 3};
        CHECK_INT(gpt2_score(p, &item, 1, &err), STATUS_DATA);
        item.length = 2;
        CHECK_INT(gpt2_score(p, &item, 1, &err), STATUS_DATA); /* first beyond the end */
        item.first = 0;
        CHECK_INT(gpt2_score(p, &item, 1, &err), STATUS_DATA);
        item.length = context + 1;
        item.first = 1;
        CHECK_INT(gpt2_score(p, &item, 1, &err), STATUS_DATA);
    }
    gpt2_pass_free(p);
}

/* How often each token comes first, against its exact probability: a chi-squared bound. */
static void check_distribution(float temperature, int32_t top_k, float top_p)
{
    enum { DRAWS = 4000 };
    int64_t vocab = weights->config.vocab;
    struct gpt2_pass *p;
    struct result r;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    double *prob = calloc((size_t)vocab, sizeof *prob);
    int *seen = calloc((size_t)vocab, sizeof *seen);
    require(gpt2_scorer_create(&p, weights, 0, 1, &err));
    make_request(&r, 3, 1, 1, temperature);
    require(gpt2_score_logits(p, r.prompt, 1, logits, &err));
    gpt2_pass_free(p);
    for (int64_t v = 0; v < vocab; v++)
        prob[v] = exp((double)logits[v] / (double)temperature);
    /* keep the likeliest by repeated maximum: k of them, then the fewest that reach p */
    double *exact = calloc((size_t)vocab, sizeof *exact), sum_k = 0, sum_p = 0;
    for (int pass = 0; pass < 2; pass++) {
        double reached = 0;
        bool *used = calloc((size_t)vocab, sizeof *used);
        for (int64_t rank = 0; rank < vocab; rank++) {
            int64_t best = -1;
            for (int64_t v = 0; v < vocab; v++)
                if (!used[v] && (best < 0 || prob[v] > prob[best]))
                    best = v;
            if ((top_k > 0 && rank >= top_k) || (pass == 1 && reached >= (double)top_p * sum_k))
                break;
            used[best] = true;
            reached += prob[best];
            if (pass == 1)
                exact[best] = prob[best];
        }
        free(used);
        *(pass == 0 ? &sum_k : &sum_p) = reached;
    }
    struct gpt2_decoder *d;
    require(
        gpt2_decoder_create(&d, weights, &(struct gpt2_decoder_options){.sequences = 64}, &err));
    struct result *all = calloc(DRAWS, sizeof *all);
    for (int i = 0; i < DRAWS; i++) {
        make_request(&all[i], 3, 1, 1, temperature);
        all[i].s.seed = 1000 + (uint64_t)i;
        all[i].s.top_k = top_k;
        all[i].s.top_p = top_p;
        all[i].s.arg = &all[i];
        require(gpt2_decoder_submit(d, &all[i].s, &err));
    }
    while (!gpt2_decoder_idle(d))
        require(gpt2_decoder_step(d, &err));
    double chi = 0;
    int cells = 0;
    double rest = 0, rest_seen = 0;
    for (int i = 0; i < DRAWS; i++)
        seen[all[i].ids[0]]++;
    for (int64_t v = 0; v < vocab; v++) {
        double want = exact[v] / sum_p * DRAWS;
        if (exact[v] == 0)
            CHECK_INT(seen[v], 0); /* outside top-k or top-p: never */
        if (want < 8) {            /* pooled */
            rest += want;
            rest_seen += seen[v];
            continue;
        }
        chi += (seen[v] - want) * (seen[v] - want) / want;
        cells++;
    }
    if (rest > 8) {
        chi += (rest_seen - rest) * (rest_seen - rest) / rest;
        cells++;
    }
    CHECK(cells >= 3);
    /* mean cells-1, variance 2(cells-1): five standard deviations */
    CHECK(chi < cells - 1 + 5 * sqrt(2.0 * (cells - 1)));
    gpt2_decoder_free(d);
    free(all);
    free(exact);
    free(prob);
    free(seen);
    free(logits);
}

int main(void)
{
    require(device_open(&dev, "cpu", 0, &err));
    require(gpt2_weights_load(&weights, dev, MODEL, DTYPE_F32, &err));
    CASE("fp32 weights are used from the mapped file")
    {
        CHECK(weights->mapped_bytes > 0);
        CHECK_INT(weights->copied_bytes, 0);
        CHECK_INT(weights->wte_rows, weights->config.vocab);
    }
    test_full_forward();
    test_company();
    test_scoring();
    CASE("draws follow the exact probabilities") check_distribution(0.5f, 0, 1.0f);
    CASE("draws follow the exact probabilities of top-k") check_distribution(0.7f, 7, 1.0f);
    CASE("draws follow the exact probabilities of top-p") check_distribution(0.3f, 0, 0.5f);
    CASE("draws follow the exact probabilities of top-k and top-p")
    check_distribution(1.0f, 20, 0.6f);
    gpt2_weights_free(weights);
    device_close(dev);
    return tap_done();
}
