/* decode.h - text generation with continuous batching over a paged key/value cache.
 *
 * The caller submits sequences; each gpt2_decoder_step is one forward pass over one new token of
 * every running sequence and, in the rows that remain, over pieces of the prompts of newly admitted
 * ones. A sequence is admitted, first come first served, when a slot and all pages that it can ever
 * need are free, so nothing runs out half way and memory is what was allocated at creation.
 *
 * Sampling is a function of (logits, seed, number of the token): it does not depend on what else
 * runs. The logits themselves depend on the company of a row as far as a product of more rows is
 * summed in another order. With separate_prompts a pass holds a piece of one prompt, or one token
 * of each sequence; on a device whose small products treat rows alike (the cpu: up to 8 rows) every
 * bit of a text is then a function of its own prompt, settings and seed. Positions are absolute in
 * GPT-2, so a sequence that outgrows the context slides by keeping its last half context and
 * computing the cache of it anew.
 *
 * Thread rule: one thread. Callbacks run inside gpt2_decoder_step and must not call the decoder. */
#ifndef GPT2_DECODE_H
#define GPT2_DECODE_H

#include "gpt2/load.h"

struct gpt2_decoder;

struct gpt2_decoder_options {
    int64_t sequences;   /* at most this many run side by side; >= 1 */
    int64_t pass_rows;   /* rows of a forward pass; raised to `sequences` + 1 */
    int64_t page_tokens; /* positions a page; 0 = 64 */
    int64_t
        cache_bytes; /* of keys and values; 0 = enough for all sequences; raised to one context */
    /* Queue the pass after this one before this one's tokens are known to the host, while nothing
     * says that it will be in vain: a device that works by itself never waits. A sequence that ends
     * by a token costs one row of one pass. */
    bool run_ahead;
    bool separate_prompts; /* pieces of prompts get passes of their own; see above */
};

enum gpt2_finish {
    GPT2_FINISH_LENGTH,  /* max_new_tokens, or the context is full and slide is off */
    GPT2_FINISH_EOS,     /* the eos token was drawn; it was not reported */
    GPT2_FINISH_STOPPED, /* the token callback returned false */
};

struct gpt2_sequence {
    /* Set by the caller; unchanged until finished is called. */
    const int32_t *prompt; /* [prompt_length], borrowed */
    int64_t prompt_length; /* >= 1 */
    int64_t max_new_tokens;
    float temperature; /* 0 = greedy */
    float top_p;       /* 1 = off */
    int32_t top_k;     /* 0 = off */
    uint64_t seed;
    int32_t eos; /* -1 = none */
    bool slide;  /* go on past the context, and cut a longer prompt from the left */
    /* One call a token, with its log-probability at temperature 1. False ends the sequence. */
    bool (*token)(void *arg, int32_t id, float logprob);
    /* Once; the sequence belongs to the caller again. Not called after gpt2_decoder_cancel. */
    void (*finished)(void *arg, enum gpt2_finish why);
    void *arg;
    /* private */
    struct gpt2_sequence *next;
};

struct gpt2_decoder_stats {
    int64_t running, queued;
    int64_t pages, free_pages;
    int64_t cache_bytes;
    int64_t prompt_tokens, new_tokens, passes; /* since creation */
};

enum status gpt2_decoder_create(struct gpt2_decoder **d, const struct gpt2_weights *w,
                                const struct gpt2_decoder_options *o, struct error *e) MUST_CHECK;
void gpt2_decoder_free(struct gpt2_decoder *d);
/* STATUS_DATA when the sequence can never run: empty prompt, id outside the vocabulary, prompt
 * longer than the context without slide. */
enum status gpt2_decoder_submit(struct gpt2_decoder *d, struct gpt2_sequence *s,
                                struct error *e) MUST_CHECK;
/* Forget a submitted sequence that has not finished. */
void gpt2_decoder_cancel(struct gpt2_decoder *d, struct gpt2_sequence *s);
/* One pass; does nothing when nothing runs or waits. */
enum status gpt2_decoder_step(struct gpt2_decoder *d, struct error *e) MUST_CHECK;
bool gpt2_decoder_idle(const struct gpt2_decoder *d);
struct gpt2_decoder_stats gpt2_decoder_stats(const struct gpt2_decoder *d);

#endif
