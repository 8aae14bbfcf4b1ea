/* config.h - the command line of gpt2-tokenize, and what follows from it. */
#ifndef TOKENIZE_CONFIG_H
#define TOKENIZE_CONFIG_H

#include "base/options.h"

struct config {
    const char *input_format, *output_format, *decode_format;
    const char *field, *vocab, *output;
    int64_t vocab_size, threads, skip_bad;
    bool decode, allow_special, append_eot, keep_eot, stats, quiet;
};

extern const struct option_table config_table;

enum input_kind { INPUT_JSONL, INPUT_LINES, INPUT_TEXT, INPUT_IDS, INPUT_TOKENS };
enum output_form { FORM_TOKENS, FORM_IDS, FORM_PIECES, FORM_TEXT, FORM_LINES, FORM_JSONL };

/* The configuration as the stages use it. */
struct plan {
    enum input_kind input;
    enum output_form output;
    const char *field;
    uint32_t vocab_size; /* of --vocab-size; 0 = the vocabulary's */
    int threads;
    uint64_t skip_bad;
    bool allow_special, append_eot, keep_eot;
};

/* Fails with STATUS_USAGE when options contradict each other. */
enum status plan_resolve(struct plan *p, const struct config *c, const struct options *o,
                         struct error *e) MUST_CHECK;
/* Some form of text goes in or comes out, so a vocabulary with text is needed. */
bool plan_needs_text(const struct plan *p);
/* Text goes in. */
bool plan_encodes(const struct plan *p);

#endif
