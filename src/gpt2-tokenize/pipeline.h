/* pipeline.h - reader, workers and sink on any number of threads. */
#ifndef TOKENIZE_PIPELINE_H
#define TOKENIZE_PIPELINE_H

#include "gpt2-tokenize/reader.h"
#include "gpt2-tokenize/sink.h"
#include "gpt2-tokenize/worker.h"
#include "base/progress.h"

/* workers: one for each of `threads`. The first failure in the order of the input is returned,
 * after everything before it was written. */
enum status pipeline_run(struct reader *reader, struct worker *workers, int threads,
                         struct sink *sink, struct progress *progress, struct error *e) MUST_CHECK;

#endif
