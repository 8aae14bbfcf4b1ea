/* main.c - shard-pack: token streams in, a folder of fixed-length samples out. */
#include "shard-pack/pack.h"
#include "shard-pack/show.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/tool.h"
#include "bpe/bpe.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct config {
    const char *output, *group_documents, *separator, *input_format, *field, *split, *vocab;
    const char *temporary_dir;
    int64_t block_size, shard_size, shuffle_documents, shuffle_memory, vocab_size, eot_id, skip_bad;
    int64_t sample;
    bool overwrite, verify, list, quiet;
};

static const char *const separator_names[] = {"none", "eot", NULL};

#define AT(field) offsetof(struct config, field)
#define NO_LIMIT 0x1p63
static const struct option_spec specs[] = {
    {.name = NULL, .help = "Packing"},
    {.name = "output",
     .type = OPTION_STRING,
     .offset = AT(output),
     .metavar = "DIR",
     .short_name = 'o',
     .help = "folder of the shard set"},
    {.name = "overwrite",
     .type = OPTION_BOOL,
     .offset = AT(overwrite),
     .fallback = "0",
     .help = "replace a shard set that is there, once the new one is complete"},
    {.name = "block-size",
     .type = OPTION_INT,
     .offset = AT(block_size),
     .fallback = "1024",
     .min = 2,
     .max = SHARD_BLOCK_SIZE_MAX,
     .help = "tokens a sample"},
    {.name = "shard-size",
     .type = OPTION_SIZE,
     .offset = AT(shard_size),
     .fallback = "256MiB",
     .min = 1024,
     .max = NO_LIMIT,
     .help = "bytes after which a new shard begins"},
    {.name = "group-documents",
     .type = OPTION_STRING,
     .offset = AT(group_documents),
     .fallback = "all",
     .metavar = "N|all",
     .help =
         "concatenate this many documents, cut into samples, drop the remainder; then the next"},
    {.name = "separator",
     .type = OPTION_CHOICE,
     .offset = AT(separator),
     .fallback = "none",
     .choices = separator_names,
     .help = "eot puts the end-of-text id after each document, unless it is there already"},
    {.name = "shuffle-documents",
     .type = OPTION_INT,
     .offset = AT(shuffle_documents),
     .metavar = "SEED",
     .min = 0,
     .max = NO_LIMIT,
     .help = "put the documents in a random order first, a function of the seed"},
    {.name = "shuffle-memory",
     .type = OPTION_SIZE,
     .offset = AT(shuffle_memory),
     .fallback = "12MiB",
     .min = 65536,
     .max = NO_LIMIT,
     .help = "what --shuffle-documents sorts in memory; the rest goes through temporary files"},
    {.name = "temporary-dir",
     .type = OPTION_STRING,
     .offset = AT(temporary_dir),
     .metavar = "DIR",
     .help = "where those files are, without names; the output folder when not given"},
    {.name = NULL, .help = "Input"},
    {.name = "input-format",
     .type = OPTION_CHOICE,
     .offset = AT(input_format),
     .fallback = "auto",
     .choices = input_format_names,
     .help =
         "token streams of gpt2-tokenize, .bin files of llm.c or nanoGPT, or JSON lines with ids; "
         "the last two may be gzip"},
    {.name = "field",
     .type = OPTION_STRING,
     .offset = AT(field),
     .fallback = "input_ids",
     .metavar = "NAME",
     .help = "of a JSON object, holding its array of ids"},
    {.name = "split",
     .type = OPTION_CHOICE,
     .offset = AT(split),
     .fallback = "none",
     .choices = split_names,
     .help = "what bounds the documents of a .bin file; none = one a file"},
    {.name = "vocab",
     .type = OPTION_STRING,
     .offset = AT(vocab),
     .metavar = "PATH",
     .help = "vocabulary (vocab.bpe, tokenizer.json or a folder) that the ids must belong to"},
    {.name = "vocab-size",
     .type = OPTION_INT,
     .offset = AT(vocab_size),
     .fallback = "50257",
     .min = 2,
     .max = INT32_MAX,
     .help = "ids in .bin files and JSON lines are below this"},
    {.name = "eot-id",
     .type = OPTION_INT,
     .offset = AT(eot_id),
     .min = 0,
     .max = INT32_MAX,
     .help = "end-of-text id of those; 50256 for GPT-2's vocabulary size, otherwise none"},
    {.name = "skip-bad",
     .type = OPTION_INT,
     .offset = AT(skip_bad),
     .fallback = "0",
     .metavar = "N",
     .min = 0,
     .max = NO_LIMIT,
     .help = "bad lines of JSON to leave out and count before giving up"},
    {.name = NULL, .help = "Looking"},
    {.name = "verify",
     .type = OPTION_BOOL,
     .offset = AT(verify),
     .fallback = "0",
     .help = "read the shard sets or token streams named, check everything, write nothing"},
    {.name = "list",
     .type = OPTION_BOOL,
     .offset = AT(list),
     .fallback = "0",
     .help = "describe a shard set: one line a shard"},
    {.name = "sample",
     .type = OPTION_INT,
     .offset = AT(sample),
     .metavar = "N",
     .min = 0,
     .max = NO_LIMIT,
     .help = "show sample N of a shard set as text"},
    {.name = "quiet",
     .type = OPTION_BOOL,
     .offset = AT(quiet),
     .fallback = "0",
     .short_name = 'q',
     .help = "print errors and warnings only"},
};

static const struct option_table table = {
    .tool = "shard-pack",
    .usage = "-o DIR [options] [FILE...]\n"
             "--verify DIR|FILE...\n"
             "--list DIR\n"
             "--sample N DIR",
    .summary = "Pack token ids into a folder of shards of fixed-length samples for sdp-train.",
    .specs = specs,
    .count = sizeof specs / sizeof *specs,
    .config_file = true,
};

/* --- from the command line to pack_options ---------------------------------------------------- */

static enum status parse_group(const char *text, uint64_t *n, struct error *e)
{
    int64_t value;
    *n = 0;
    if (strcmp(text, "all") == 0)
        return STATUS_OK;
    if (parse_i64(text, "--group-documents", &value, e) != STATUS_OK || value < 1)
        return error_set(e, STATUS_USAGE,
                         "--group-documents: \"%s\" is neither a number from 1 nor \"all\"", text);
    *n = (uint64_t)value;
    return STATUS_OK;
}

static int choice_index(const char *text, const char *const *names)
{
    int i = 0;
    while (strcmp(text, names[i]) != 0)
        i++;
    return i;
}

/* The vocabulary of inputs that do not carry one. */
static enum status choose_vocab(const struct config *c, const struct options *o,
                                struct vocab_info *v, struct error *e)
{
    *v = (struct vocab_info){(uint32_t)c->vocab_size, 0, c->vocab_size == 50257 ? 50256 : -1};
    if (c->vocab) {
        struct bpe *bpe;
        TRY(bpe_load_decoder(&bpe, c->vocab, e));
        *v = (struct vocab_info){bpe_vocab_size(bpe), bpe_fingerprint(bpe), bpe_eot(bpe)};
        bpe_free(bpe);
        if (options_given(o, "vocab-size") && c->vocab_size != (int64_t)v->size)
            return error_set(e, STATUS_USAGE,
                             "--vocab-size %" PRId64 ", but %s has %" PRIu32 " ids", c->vocab_size,
                             c->vocab, v->size);
    }
    if (options_given(o, "eot-id"))
        v->eot = c->eot_id;
    if (v->eot >= (int64_t)v->size)
        return error_set(e, STATUS_USAGE,
                         "--eot-id %" PRId64 " is not below the vocabulary size %" PRIu32, v->eot,
                         v->size);
    if (strcmp(c->split, "none") != 0 && v->eot < 0)
        return error_set(e, STATUS_USAGE, "--split %s needs --eot-id with a vocabulary of %" PRIu32,
                         c->split, v->size);
    return STATUS_OK;
}

static enum status pack(const struct config *c, const struct options *o, struct error *e)
{
    struct vocab_info vocab;
    struct pack_result r;
    struct pack_options p = {
        .output = c->output,
        .overwrite = c->overwrite,
        .quiet = c->quiet,
        .shard = {.block_size = (uint32_t)c->block_size,
                  .shard_bytes = (uint64_t)c->shard_size,
                  .group_documents = c->group_documents,
                  .separator = c->separator},
        .source = {.format = (enum input_format)choice_index(c->input_format, input_format_names),
                   .split = (enum split)choice_index(c->split, split_names),
                   .field = c->field,
                   .skip_bad = c->skip_bad},
        .separator_eot = strcmp(c->separator, "eot") == 0,
        .shuffle = options_given(o, "shuffle-documents"),
        .seed = (uint64_t)c->shuffle_documents,
        .shuffle_memory_bytes = (uint64_t)c->shuffle_memory,
        .temporary_dir = c->temporary_dir,
        .inputs = o->positional,
        .input_count = o->positional_count,
    };
    if (!c->output)
        return error_set(e, STATUS_USAGE, "--output DIR is missing");
    TRY(parse_group(c->group_documents, &p.group_documents, e));
    TRY(choose_vocab(c, o, &vocab, e));
    p.source.vocab = vocab;
    p.expected = c->vocab ? &vocab : NULL;
    p.expected_name = c->vocab;
    TRY(pack_run(&p, &r, e));
    if (r.bad)
        log_warn("%" PRIu64 " bad line%s left out", r.bad, r.bad == 1 ? "" : "s");
    log_info("%" PRIu64 " samples of %" PRId64 " tokens in %u shard%s; %" PRIu64
             " tokens of %" PRIu64 " documents, %" PRIu64 " separators, %" PRIu64 " tokens dropped",
             r.samples, c->block_size, r.shards, r.shards == 1 ? "" : "s", r.tokens, r.documents,
             r.separators, r.dropped);
    return STATUS_OK;
}

/* --- looking ---------------------------------------------------------------------------------- */

static enum status look(const struct config *c, const struct options *o, struct error *e)
{
    struct output out = {.fd = -1};
    struct error note = {0};
    enum status st;
    if (o->positional_count != 1)
        return error_set(e, STATUS_USAGE, "--%s takes one shard set, %zu given",
                         c->list ? "list" : "sample", o->positional_count);
    TRY_OUT(output_open(&out, "-", OUTPUT_TEXT, e));
    if (c->list)
        TRY_OUT(show_list(o->positional[0], &out, e));
    else
        TRY_OUT(show_sample(o->positional[0], (uint64_t)c->sample, c->vocab,
                            getenv("SDP_GPT2_SHARE"), &out, &note, e));
    TRY_OUT(output_commit(&out, e));
    if (note.status != STATUS_OK)
        log_info("ids instead of text: %s", note.message);
out:
    output_close(&out);
    return st;
}

static enum status verify(const struct config *c, const struct options *o, struct error *e)
{
    if (o->positional_count == 0)
        return show_verify("-", c->quiet, e);
    for (size_t i = 0; i < o->positional_count; i++)
        TRY(show_verify(o->positional[i], c->quiet, e));
    return STATUS_OK;
}

static enum status run(const struct config *c, const struct options *o, struct error *e)
{
    int modes = c->verify + c->list + options_given(o, "sample");
    if (modes > 1 || (modes == 1 && c->output))
        return error_set(e, STATUS_USAGE,
                         "--output, --verify, --list and --sample exclude each other");
    if (c->verify)
        return verify(c, o, e);
    return modes ? look(c, o, e) : pack(c, o, e);
}

int main(int argc, char **argv)
{
    struct config config = {0};
    struct options options = {0};
    struct error e = {0};
    enum option_action action;
    int exit_status;
    log_set_prefix("shard-pack");
    enum status st = options_parse(&options, &table, argc, argv, &config, &action, &e);
    if (tool_ready(&options, &config, config.quiet, st, action, &e, &exit_status))
        exit_status = run(&config, &options, &e) == STATUS_OK ? 0 : log_error(&e);
    options_release(&options);
    return exit_status;
}
