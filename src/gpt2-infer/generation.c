#include "gpt2-infer/generation.h"

#include "format/jsonl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool json_put_real(struct strbuf *out, double x, int digits)
{
    return isfinite(x) ? strbuf_printf(out, "%.*g", digits, x) : strbuf_puts(out, "null");
}

bool json_put_ids(struct strbuf *out, const int32_t *ids, int64_t n)
{
    bool ok = strbuf_putc(out, '[');
    for (int64_t i = 0; ok && i < n; i++)
        ok = strbuf_printf(out, i ? ",%d" : "%d", ids[i]);
    return ok && strbuf_putc(out, ']');
}

bool json_put_reals(struct strbuf *out, const float *x, int64_t n)
{
    bool ok = strbuf_putc(out, '[');
    for (int64_t i = 0; ok && i < n; i++)
        ok = (i == 0 || strbuf_putc(out, ',')) && json_put_real(out, (double)x[i], 8);
    return ok && strbuf_putc(out, ']');
}

bool json_put_id(struct strbuf *out, const struct job *job)
{
    return strbuf_puts(out, "{\"id\":") &&
           (job->id ? strbuf_puts(out, job->id)
                    : strbuf_printf(out, "%llu", (unsigned long long)job->number));
}

static bool put_logprob(struct generation *n, float logprob)
{
    if (n->ids.length > n->logprob_capacity) {
        int64_t capacity = n->ids.capacity;
        float *more = realloc(n->logprobs, (size_t)capacity * sizeof *more);
        if (!more)
            return false;
        n->logprobs = more;
        n->logprob_capacity = capacity;
    }
    n->logprobs[n->ids.length - 1] = logprob;
    return true;
}

static bool on_token(void *arg, int32_t id, float logprob)
{
    struct generation *n = arg;
    bool ok = id_list_put(&n->ids, id) && put_logprob(n, logprob);
    if (ok && n->g->bpe) {
        size_t bytes;
        const char *text = bpe_token(n->g->bpe, (uint32_t)id, &bytes);
        ok = text_stream_put(&n->stream, &n->job->params, text, bytes);
    }
    n->out_of_memory |= !ok;
    if (n->progress)
        n->progress(n->progress_arg, n);
    return ok && !n->stream.stopped && !n->cancelled;
}

static void on_finished(void *arg, enum gpt2_finish why)
{
    struct generation *n = arg;
    n->why = why;
    n->finished = true;
    if (n->progress)
        n->progress(n->progress_arg, n);
}

void generation_init(struct generation *n, const struct engine *g, struct job *job)
{
    const struct generate_params *p = &job->params;
    *n = (struct generation){.g = g, .job = job};
    n->sequence = (struct gpt2_sequence){
        .prompt = job->ids.ids,
        .prompt_length = job->ids.length,
        .max_new_tokens = p->max_new_tokens,
        .temperature = (float)p->temperature,
        .top_p = (float)p->top_p,
        .top_k = (int32_t)p->top_k,
        .seed = p->seed,
        .eos = p->ignore_eos ? -1 : (int32_t)g->eot,
        .slide = p->slide,
        .token = on_token,
        .finished = on_finished,
        .arg = n,
    };
}

void generation_release(struct generation *n)
{
    strbuf_release(&n->stream.text);
    free(n->ids.ids);
    free(n->logprobs);
}

const char *generation_reason(const struct generation *n)
{
    return n->why == GPT2_FINISH_LENGTH ? "length" : n->why == GPT2_FINISH_EOS ? "eos" : "stop";
}

enum status generation_answer(struct generation *n, struct error *e)
{
    struct strbuf *a = &n->job->answer;
    strbuf_clear(a);
    bool ok = !n->out_of_memory && json_put_id(a, n->job);
    if (n->g->bpe)
        ok = ok && strbuf_puts(a, ",\"text\":") &&
             jsonl_append_string(a, n->stream.text.data ? n->stream.text.data : "",
                                 n->stream.text.length);
    ok = ok && strbuf_puts(a, ",\"ids\":") && json_put_ids(a, n->ids.ids, n->ids.length);
    if (n->job->params.logprobs)
        ok =
            ok && strbuf_puts(a, ",\"logprobs\":") && json_put_reals(a, n->logprobs, n->ids.length);
    ok = ok && strbuf_printf(a, ",\"finish_reason\":\"%s\"}", generation_reason(n));
    n->job->done = true;
    return ok ? STATUS_OK : error_memory(e, a->length, "an answer");
}
