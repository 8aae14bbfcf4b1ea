/* batch_generate.c - keeps the decoder fed from the input and the output fed from the decoder. */
#include "base/log.h"
#include "gpt2-infer/batch.h"
#include "gpt2-infer/generation.h"

#include <stdlib.h>

/* Records read ahead of the oldest unanswered one, as a multiple of the sequences side by side. A
 * long record then holds back at most this many finished answers. */
#define WINDOW_FACTOR 4

/* A generation on the list of those in the decoder. */
struct flight {
    struct generation n;
    struct flight *next;
};

struct flights {
    struct gpt2_decoder *d;
    struct flight *list;
    size_t count, limit;
};

static enum status launch(struct batch *b, struct flights *f, struct job *job, struct error *e)
{
    struct error why;
    if (job->failed)
        return batch_fail(b, job, &job->error, e);
    struct flight *flight = calloc(1, sizeof *flight);
    if (!flight)
        return error_memory(e, sizeof *flight, "a generation");
    generation_init(&flight->n, b->g, job);
    if (gpt2_decoder_submit(f->d, &flight->n.sequence, &why) != STATUS_OK) {
        free(flight);
        return batch_fail(b, job, &why, e);
    }
    flight->next = f->list;
    f->list = flight;
    f->count++;
    return STATUS_OK;
}

/* Records from the source into the decoder, while there is room; waits only when nothing runs. */
static enum status feed(struct batch *b, struct flights *f, struct error *e)
{
    while (!b->ended && f->count < f->limit && sink_pending(b->sink) < WINDOW_FACTOR * f->limit) {
        struct job *job;
        bool wait = gpt2_decoder_idle(f->d) && f->count == 0;
        if (wait)
            TRY(sink_write_ready(b->sink, e)); /* nobody waits for an answer that exists */
        TRY(source_take(b->source, wait, &job, &b->ended, e));
        if (!job)
            break;
        sink_put(b->sink, job);
        TRY(launch(b, f, job, e));
    }
    return STATUS_OK;
}

static enum status collect(struct flights *f, struct error *e)
{
    for (struct flight **p = &f->list; *p;) {
        struct flight *flight = *p;
        if (!flight->n.finished) {
            p = &flight->next;
            continue;
        }
        enum status st = generation_answer(&flight->n, e);
        *p = flight->next;
        f->count--;
        generation_release(&flight->n);
        free(flight);
        TRY(st);
    }
    return STATUS_OK;
}

static enum status generate_all(struct batch *b, struct flights *f, struct error *e)
{
    while (!b->ended || f->count > 0) {
        TRY(feed(b, f, e));
        TRY(gpt2_decoder_step(f->d, e));
        TRY(collect(f, e));
        TRY(sink_write_ready(b->sink, e));
        struct gpt2_decoder_stats s = gpt2_decoder_stats(f->d);
        b->prompt_tokens = s.prompt_tokens;
        b->new_tokens = s.new_tokens;
        b->passes = s.passes;
        snprintf(b->progress.note, sizeof b->progress.note, "%llu records, %lld running",
                 (unsigned long long)sink_written(b->sink), (long long)s.running);
        batch_progress(b, s.new_tokens);
    }
    return sink_write_ready(b->sink, e);
}

enum status batch_generate(struct batch *b, struct error *e)
{
    struct flights f = {0};
    TRY(engine_decoder(b->g, &f.d, e));
    f.limit = 2 * (size_t)(b->g->o->sequences > 0 ? b->g->o->sequences : 256);
    enum status st = generate_all(b, &f, e);
    while (f.list) {
        struct flight *flight = f.list;
        f.list = flight->next;
        generation_release(&flight->n);
        free(flight);
    }
    gpt2_decoder_free(f.d);
    return st;
}
