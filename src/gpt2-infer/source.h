/* source.h - records of the input as jobs, read and tokenized ahead by a thread of its own. What
 * waits is bounded in number and bytes, so endless input is fine. */
#ifndef GPT2_INFER_SOURCE_H
#define GPT2_INFER_SOURCE_H

#include "gpt2-infer/job.h"

struct source;

/* Starts reading path (NULL or "-": stdin). Jobs below number `skip` are only counted, and their
 * ids compared with the answers of an earlier run by `check` (may be NULL), which returns false
 * with a message when they differ. */
enum status source_open(struct source **s, const struct engine *g, const char *path, uint64_t skip,
                        enum status (*check)(void *arg, const struct job *job, struct error *e),
                        void *check_arg, struct error *e) MUST_CHECK;
/* Bytes of the input; 0 = unknown: a pipe. */
uint64_t source_input_bytes(const struct source *s);
/* The next job, owned by the caller; *job is NULL at the end of input, or, unless wait, when none
 * is ready (then *ended is false). A failure of reading is reported once all jobs before it are
 * taken.
 */
enum status source_take(struct source *s, bool wait, struct job **job, bool *ended,
                        struct error *e) MUST_CHECK;
/* Stops the thread and releases everything, safe with NULL. False when the thread cannot stop
 * because it waits for a terminal or pipe: then it, and the engine that it uses, must be left to
 * the end of the process. */
bool source_close(struct source *s);

#endif
