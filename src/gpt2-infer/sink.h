/* sink.h - answers in the order of the records, and the output's life: FILE.partial grows line by
 * line, becomes FILE when complete, and can be continued after an interruption. */
#ifndef GPT2_INFER_SINK_H
#define GPT2_INFER_SINK_H

#include "gpt2-infer/job.h"

struct sink;

/* path NULL or "-": stdout. resume: count what FILE.partial (or a complete FILE) answers already; a
 * cut last line is removed. */
enum status sink_open(struct sink **s, const char *path, bool resume, struct error *e) MUST_CHECK;
uint64_t sink_answered(const struct sink *s); /* by earlier runs */
/* For source_open: the next record answered earlier must have the id of its answer. arg: the sink.
 */
enum status sink_check_answered(void *arg, const struct job *job, struct error *e) MUST_CHECK;
/* Take a job over, in the order of the input. It is written and freed once it and all before it are
 * done. */
void sink_put(struct sink *s, struct job *job);
/* Write what is ready. *failed (may be NULL) gets the first failed job's error and is left alone
 * when none failed. */
enum status sink_write_ready(struct sink *s, struct error *e) MUST_CHECK;
size_t sink_pending(const struct sink *s);
uint64_t sink_written(const struct sink *s), sink_failed(const struct sink *s);
/* Where in the input, in bytes, the records written by this run begin and end. */
void sink_input_span(const struct sink *s, uint64_t *begin, uint64_t *end);
/* The error of the first failed record written, NULL = none. */
const struct error *sink_first_failure(const struct sink *s);
/* Everything has been answered: make the output final. */
enum status sink_commit(struct sink *s, struct error *e) MUST_CHECK;
void sink_close(struct sink *s);

#endif
