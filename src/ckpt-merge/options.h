/* options.h - the command line of ckpt-merge in one struct. */
#ifndef CKPT_MERGE_OPTIONS_H
#define CKPT_MERGE_OPTIONS_H

#include "base/dtype.h"
#include "base/options.h"
#include "format/ckpt.h"

enum merge_action { ACTION_MERGE, ACTION_VERIFY, ACTION_LIST, ACTION_DIFF };

struct merge_options {
    enum merge_action action;
    const char *input, *other; /* other: the second of --diff */

    const char *output, *dtype_name, *vocab, *tokenizer;
    int64_t max_shard_bytes, threads;
    bool overwrite, quiet;

    bool verify, list, diff;
    const char *kind_name;
    double tolerance;

    enum dtype dtype;
    enum ckpt_kind kind;
};

extern const struct option_table merge_option_table;

enum status merge_options_parse(struct options *parsed, struct merge_options *o, int argc,
                                char **argv, enum option_action *action,
                                struct error *e) MUST_CHECK;

#endif
