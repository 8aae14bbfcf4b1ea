/* generation.h - one record being generated: between the decoder's tokens and an answer. */
#ifndef GPT2_INFER_GENERATION_H
#define GPT2_INFER_GENERATION_H

#include "gpt2-infer/text_stream.h"

struct generation {
    const struct engine *g;
    struct job *job; /* borrowed: prompt and settings */
    struct gpt2_sequence sequence;
    struct text_stream stream;
    struct id_list ids;
    float *logprobs;
    int64_t logprob_capacity;
    enum gpt2_finish why;
    bool finished, out_of_memory, cancelled;
    /* Called after each token and at the end; may be NULL. */
    void (*progress)(void *arg, struct generation *n);
    void *progress_arg;
};

/* Fills the sequence from the job. The caller submits it. */
void generation_init(struct generation *n, const struct engine *g, struct job *job);
void generation_release(struct generation *n);
const char *generation_reason(const struct generation *n); /* "length", "stop", "eos" */
/* job->answer = the line of a batch answer; the job is done. */
enum status generation_answer(struct generation *n, struct error *e) MUST_CHECK;

/* JSON pieces. A number that is not finite is null. */
bool json_put_real(struct strbuf *out, double x, int digits) MUST_CHECK;
bool json_put_ids(struct strbuf *out, const int32_t *ids, int64_t n) MUST_CHECK;
bool json_put_reals(struct strbuf *out, const float *x, int64_t n) MUST_CHECK;
bool json_put_id(struct strbuf *out, const struct job *job) MUST_CHECK; /* {"id":... */

#endif
