/* batch.h - a whole input answered: one function a task. */
#ifndef GPT2_INFER_BATCH_H
#define GPT2_INFER_BATCH_H

#include "base/progress.h"
#include "gpt2-infer/sink.h"
#include "gpt2-infer/source.h"

/* What all tasks share. Totals are of this run; records answered by earlier runs are not in them.
 */
struct batch {
    struct engine *g;
    struct source *source;
    struct sink *sink; /* NULL for logits */
    struct progress progress;
    bool ended;         /* the input is */
    struct job **taken; /* [capacity] jobs of one round, for tasks that score */
    size_t taken_count, capacity;

    double began;
    int64_t prompt_tokens, new_tokens; /* generate */
    int64_t passes;
    double scored_logprob;
    int64_t scored_tokens;
    int64_t classified, with_gold, correct;
};

enum status batch_generate(struct batch *b, struct error *e) MUST_CHECK;
enum status batch_score(struct batch *b, struct error *e) MUST_CHECK;
enum status batch_classify(struct batch *b, struct error *e) MUST_CHECK;
enum status batch_logits(struct engine *g, struct error *e) MUST_CHECK;

/* --- shared by the tasks ---- */
/* A failed record: with --strict the run ends here, else its answer says why. */
enum status batch_fail(struct batch *b, struct job *job, const struct error *why,
                       struct error *e) MUST_CHECK;
/* Move jobs from the source to b->taken (and the sink): at least one unless the input ended, no
 * more than max jobs or max_tokens tokens. Failed ones are left out of b->taken. */
enum status batch_take(struct batch *b, size_t max, int64_t max_tokens, struct error *e) MUST_CHECK;
/* The progress line, by the bytes of the input that are answered; tokens: so far. */
void batch_progress(struct batch *b, int64_t tokens);
/* Options to result: open, run the task, commit, report. Returns the tool's exit status. */
int batch_run(struct engine *g);

#endif
