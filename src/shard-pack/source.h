/* source.h - where token ids come from: token streams, .bin files of llm.c and nanoGPT, JSON lines.
 */
#ifndef SHARD_PACK_SOURCE_H
#define SHARD_PACK_SOURCE_H

#include "format/token_stream.h"

enum input_format { INPUT_AUTO, INPUT_TOKENS, INPUT_BIN, INPUT_JSONL };
enum split { SPLIT_NONE, SPLIT_EOT_BEGINS, SPLIT_EOT_ENDS };
extern const char *const input_format_names[]; /* NULL-terminated, by enum */
extern const char *const split_names[];

struct source_options {
    enum input_format format;
    struct vocab_info vocab; /* of inputs that do not say: .bin and JSON lines */
    enum split split;        /* documents of a .bin file, which has no other bounds */
    const char *field;       /* of a JSON object, with an array of ids */
    int64_t skip_bad;        /* bad lines to tolerate */
};

/* What one input gives, block after block. A block is as token_reader_block describes it. */
struct source_sink {
    enum status (*block)(void *arg, const struct token_block *b, struct error *e);
    void *arg;
};

struct source {
    struct input *in;         /* borrowed, open; nothing read yet */
    enum input_format format; /* decided by source_open, never INPUT_AUTO */
    struct vocab_info vocab;
    bool ends_with_eot;     /* an eot id marks every document already */
    const char *provenance; /* JSON or NULL */
    uint64_t bad;           /* lines skipped */
    /* private */
    const struct source_options *options;
    struct token_reader *reader;
};

enum status source_open(struct source *s, struct input *in, const struct source_options *o,
                        struct error *e) MUST_CHECK;
/* Everything to the sink. bad_left: lines that may still be skipped, over all inputs. */
enum status source_run(struct source *s, const struct source_sink *sink, int64_t *bad_left,
                       struct error *e) MUST_CHECK;
void source_close(struct source *s);

/* The readers behind it. */
enum status source_run_bin(struct source *s, const struct source_sink *sink,
                           struct error *e) MUST_CHECK;
enum status source_run_jsonl(struct source *s, const struct source_sink *sink, int64_t *bad_left,
                             struct error *e) MUST_CHECK;

#define LLMC_MAGIC_GPT2 20240520u   /* version 1, 16-bit ids */
#define LLMC_MAGIC_LLAMA3 20240801u /* version 7, 32-bit ids */

#endif
