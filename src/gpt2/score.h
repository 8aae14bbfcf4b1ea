/* score.h - log-probabilities and logits of given tokens by full causal forward passes, many texts
 * at a time. Texts of different lengths lie one after another without padding. */
#ifndef GPT2_SCORE_H
#define GPT2_SCORE_H

#include "gpt2/decode_pass.h"

#define GPT2_SCORE_MAX_ALTERNATIVES 1024

struct gpt2_score_item {
    const int32_t *ids; /* [length], 1 <= length <= context and <= the pass's max_rows */
    int64_t length;
    /* logprobs[length - first] = log p(ids[i] | ids[0..i-1]) for i = first .. length-1; first >= 1.
     * first == length: none. */
    int64_t first;
    float *logprobs;
    /* alternative_logprobs[k] = log p(alternatives[k] | ids), at most GPT2_SCORE_MAX_ALTERNATIVES.
     */
    const int32_t *alternatives;
    int64_t alternative_count;
    float *alternative_logprobs;
};

/* A pass that can score: max_rows rows at a time (at least the context), logits in chunks. */
enum status gpt2_scorer_create(struct gpt2_pass **p, const struct gpt2_weights *w, int64_t max_rows,
                               int64_t logit_rows, struct error *e) MUST_CHECK;
/* Scores all n items, in as many passes as needed. The order of items is the caller's: neighbours
 * of equal length share attention calls. */
enum status gpt2_score(struct gpt2_pass *p, const struct gpt2_score_item *items, int64_t n,
                       struct error *e) MUST_CHECK;
/* logits[length, vocab] fp32 on the host of one text. */
enum status gpt2_score_logits(struct gpt2_pass *p, const int32_t *ids, int64_t length,
                              float *logits, struct error *e) MUST_CHECK;

#endif
