#include "gpt2-infer/batch.h"

#include "base/io.h"
#include "base/log.h"
#include "gpt2-infer/generation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum status batch_fail(struct batch *b, struct job *job, const struct error *why, struct error *e)
{
    if (why->status != STATUS_DATA && why->status != STATUS_USAGE) {
        *e = *why; /* not the record's fault */
        return why->status;
    }
    TRY(job_fail(job, why, e));
    if (!b->g->o->strict)
        return STATUS_OK;
    *e = job->error;
    e->status = STATUS_DATA;
    return error_context(e, "record %llu (line %llu)", (unsigned long long)job->number,
                         (unsigned long long)job->line);
}

enum status batch_take(struct batch *b, size_t max, int64_t max_tokens, struct error *e)
{
    int64_t tokens = 0;
    b->taken_count = 0;
    while (!b->ended && b->taken_count < max && tokens < max_tokens &&
           sink_pending(b->sink) < 4 * max) {
        struct job *job;
        TRY(source_take(b->source, b->taken_count == 0, &job, &b->ended, e));
        if (!job)
            break;
        sink_put(b->sink, job);
        if (job->failed) {
            TRY(batch_fail(b, job, &job->error, e));
            continue;
        }
        tokens += job->ids.length;
        b->taken[b->taken_count++] = job;
    }
    return STATUS_OK;
}

void batch_progress(struct batch *b, int64_t tokens)
{
    uint64_t begin, end, total = source_input_bytes(b->source);
    if (total > 0) {
        sink_input_span(b->sink, &begin, &end);
        b->progress.part = (double)end / (double)total;
        b->progress.part_before = (double)begin / (double)total;
    }
    progress_update(&b->progress, (uint64_t)tokens);
}

/* --- totals ----------------------------------------------------------------------------------- */

static bool put_stats(const struct batch *b, struct strbuf *out)
{
    double seconds = monotonic_seconds() - b->began;
    int64_t tokens = b->prompt_tokens + b->new_tokens;
    bool ok = strbuf_printf(out,
                            "{\"records\":%llu,\"failed\":%llu,\"resumed\":%llu,"
                            "\"seconds\":%.6f,\"load_seconds\":%.6f,\"passes\":%lld,"
                            "\"prompt_tokens\":%lld,\"new_tokens\":%lld,\"tokens_per_second\":%.3f",
                            (unsigned long long)sink_written(b->sink),
                            (unsigned long long)sink_failed(b->sink),
                            (unsigned long long)sink_answered(b->sink), seconds, b->g->load_seconds,
                            (long long)b->passes, (long long)b->prompt_tokens,
                            (long long)b->new_tokens, (double)tokens / seconds);
    if (b->g->o->task == TASK_SCORE)
        ok = ok && strbuf_printf(out, ",\"logprob\":") &&
             json_put_real(out, b->scored_logprob, 12) &&
             strbuf_printf(
                 out, ",\"scored_tokens\":%lld,\"perplexity\":", (long long)b->scored_tokens) &&
             json_put_real(out, exp(-b->scored_logprob / (double)b->scored_tokens), 10);
    if (b->g->o->task == TASK_CLASSIFY)
        ok = ok &&
             strbuf_printf(out,
                           ",\"classified\":%lld,\"with_label\":%lld,\"correct\":%lld,"
                           "\"accuracy\":",
                           (long long)b->classified, (long long)b->with_gold,
                           (long long)b->correct) &&
             json_put_real(out, (double)b->correct / (double)b->with_gold, 8);
    return ok && strbuf_puts(out, "}\n");
}

static enum status write_stats(const struct batch *b, struct error *e)
{
    struct strbuf text = {0};
    enum status st;
    if (!put_stats(b, &text))
        st = error_memory(e, text.length, "the totals");
    else
        st = file_write_atomic(b->g->o->stats, text.data, text.length, e);
    strbuf_release(&text);
    return st;
}

static void log_totals(const struct batch *b)
{
    double seconds = monotonic_seconds() - b->began;
    char extra[160] = "";
    if (b->g->o->task == TASK_SCORE && b->scored_tokens > 0)
        snprintf(extra, sizeof extra, ", perplexity %.6g over %lld tokens",
                 exp(-b->scored_logprob / (double)b->scored_tokens), (long long)b->scored_tokens);
    if (b->g->o->task == TASK_CLASSIFY && b->with_gold > 0)
        snprintf(extra, sizeof extra, ", accuracy %.2f%% (%lld of %lld)",
                 100.0 * (double)b->correct / (double)b->with_gold, (long long)b->correct,
                 (long long)b->with_gold);
    log_info("%llu records in %.2f s, %.0f tokens/s (%lld prompt, %lld new)%s",
             (unsigned long long)sink_written(b->sink), seconds,
             (double)(b->prompt_tokens + b->new_tokens) / seconds, (long long)b->prompt_tokens,
             (long long)b->new_tokens, extra);
}

/* --- the run ---------------------------------------------------------------------------------- */

static enum status run_task(struct batch *b, struct error *e)
{
    const struct infer_options *o = b->g->o;
    static const char *const names[] = {"", "generate", "score", "classify", "logits"};
    TRY(sink_open(&b->sink, o->output, o->resume, e));
    TRY(source_open(&b->source, b->g, o->input, sink_answered(b->sink), sink_check_answered,
                    b->sink, e));
    if (sink_answered(b->sink) > 0)
        log_info("%llu records are answered already", (unsigned long long)sink_answered(b->sink));
    b->began = monotonic_seconds();
    progress_start(&b->progress, names[o->task], "tokens", 0, o->quiet);
    if (o->task == TASK_GENERATE)
        TRY(batch_generate(b, e));
    else if (o->task == TASK_SCORE)
        TRY(batch_score(b, e));
    else
        TRY(batch_classify(b, e));
    TRY(sink_commit(b->sink, e));
    progress_finish(&b->progress);
    return o->stats ? write_stats(b, e) : STATUS_OK;
}

/* What is answered already is worth keeping: write it before the message. */
static void keep_answers(struct batch *b)
{
    struct error second = {0};
    if (!b->sink || sink_write_ready(b->sink, &second) != STATUS_OK)
        return;
    uint64_t n = sink_written(b->sink) + sink_answered(b->sink);
    if (n > 0 && b->g->o->output && strcmp(b->g->o->output, "-") != 0)
        log_info("%llu answers are in %s.partial; --resume continues them", (unsigned long long)n,
                 b->g->o->output);
}

int batch_run(struct engine *g)
{
    struct error e = {0};
    if (g->o->task == TASK_LOGITS)
        return batch_logits(g, &e) == STATUS_OK ? 0 : log_error(&e);
    struct batch b = {.g = g};
    int exit_status = 0;
    if (run_task(&b, &e) != STATUS_OK) {
        progress_finish(&b.progress);
        keep_answers(&b);
        exit_status = log_error(&e);
    } else {
        log_totals(&b);
        uint64_t failed = sink_failed(b.sink);
        const struct error *first = sink_first_failure(b.sink);
        if (failed > 0) {
            log_warn("%llu records failed%s%s", (unsigned long long)failed,
                     first ? "; the first: " : "", first ? first->message : "");
            exit_status = STATUS_DATA;
        }
    }
    g->in_use = !source_close(b.source);
    sink_close(b.sink);
    free(b.taken);
    return exit_status;
}
