/* options.h - the whole command line of gpt2-infer in one struct. */
#ifndef GPT2_INFER_OPTIONS_H
#define GPT2_INFER_OPTIONS_H

#include "base/options.h"

enum task { TASK_NONE, TASK_GENERATE, TASK_SCORE, TASK_CLASSIFY, TASK_LOGITS };

struct infer_options {
    enum task task;
    const char *input; /* positional; NULL = stdin */

    const char *model, *vocab, *device, *weights;
    const char *input_format, *field, *output, *stats;
    bool resume, strict, quiet;

    int64_t max_new_tokens, top_k, seed;
    double temperature, top_p;
    const char *stop, *long_prompt;
    bool ignore_eos, logprobs, allow_special;

    int64_t stride;
    bool prepend_eot;
    const char *labels, *template;

    int64_t sequences, pass_rows, page_tokens, cache_bytes, max_record_bytes;

    const char *serve, *model_name, *api_key_file;
    int64_t queue_limit, max_body_bytes, max_request_tokens, drain_seconds;
    bool log_requests;
};

extern const struct option_table infer_option_table;

/* Parses and checks what the table cannot: sub-command, model given, combinations. */
enum status infer_options_parse(struct options *parsed, struct infer_options *o, int argc,
                                char **argv, enum option_action *action,
                                struct error *e) MUST_CHECK;

#endif
