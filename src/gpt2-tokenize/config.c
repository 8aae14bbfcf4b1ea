/* config.c - the option table of gpt2-tokenize, and which options go together. */
#include "gpt2-tokenize/config.h"
#include "base/pool.h"
#include "bpe/bpe.h"

#include <stddef.h>
#include <string.h>

static const char *const input_formats[] = {"jsonl", "lines", "text", "ids", "tokens", NULL};
static const char *const output_formats[] = {"tokens", "ids", "pieces", NULL};
static const char *const decode_formats[] = {"text", "lines", "jsonl", NULL};

#define FIELD(member) offsetof(struct config, member)

static const struct option_spec specs[] = {
    {.help = "Input"},
    {.name = "input-format",
     .type = OPTION_CHOICE,
     .offset = FIELD(input_format),
     .choices = input_formats,
     .help = "jsonl: one object a line, its text in --field; lines: one document a line; "
             "text: each file is one document; ids: one JSON array of ids a line; "
             "tokens: a token stream (the default with --decode, otherwise jsonl)"},
    {.name = "field",
     .type = OPTION_STRING,
     .offset = FIELD(field),
     .fallback = "sentence",
     .metavar = "NAME",
     .help = "the member of a JSON object that holds the text"},
    {.name = "skip-bad",
     .type = OPTION_INT,
     .offset = FIELD(skip_bad),
     .fallback = "0",
     .min = 0,
     .max = 1e15,
     .metavar = "N",
     .help = "leave out up to N lines that cannot be read"},
    {.help = "Vocabulary"},
    {.name = "vocab",
     .type = OPTION_STRING,
     .offset = FIELD(vocab),
     .metavar = "PATH",
     .help = "vocab.bpe, merges.txt, vocab.json, tokenizer.json, or a folder with one of them "
             "(GPT-2's own when not given)"},
    {.name = "vocab-size",
     .type = OPTION_INT,
     .offset = FIELD(vocab_size),
     .min = 1,
     .max = 4e9,
     .metavar = "N",
     .help = "with --input-format ids: ids below N, of a vocabulary without text"},
    {.name = "allow-special",
     .type = OPTION_BOOL,
     .offset = FIELD(allow_special),
     .fallback = "0",
     .help = "<|endoftext|> in the text becomes its id; otherwise it is ordinary text"},
    {.name = "append-eot",
     .type = OPTION_BOOL,
     .offset = FIELD(append_eot),
     .fallback = "0",
     .help = "end each document with the id of <|endoftext|>"},
    {.help = "Output"},
    {.name = "output-format",
     .type = OPTION_CHOICE,
     .offset = FIELD(output_format),
     .fallback = "tokens",
     .choices = output_formats,
     .help = "tokens: a binary token stream; ids: one JSON array of ids a line; "
             "pieces: one id and its text a line, an empty line after each document"},
    {.name = "decode",
     .type = OPTION_BOOL,
     .offset = FIELD(decode),
     .fallback = "0",
     .help = "from ids back to the text, byte for byte"},
    {.name = "decode-format",
     .type = OPTION_CHOICE,
     .offset = FIELD(decode_format),
     .fallback = "text",
     .choices = decode_formats,
     .help = "with --decode: text: documents one behind the other; lines: one a line; "
             "jsonl: one object a line, its text in --field"},
    {.name = "keep-eot",
     .type = OPTION_BOOL,
     .offset = FIELD(keep_eot),
     .fallback = "0",
     .help = "with --decode: write the <|endoftext|> that --append-eot put behind documents"},
    {.name = "output",
     .type = OPTION_STRING,
     .offset = FIELD(output),
     .fallback = "-",
     .metavar = "FILE",
     .short_name = 'o',
     .help = "the file to write"},
    {.help = "Running"},
    {.name = "threads",
     .type = OPTION_INT,
     .offset = FIELD(threads),
     .fallback = "1",
     .min = 0,
     .max = 1024,
     .metavar = "N",
     .help = "threads, 0 for one a processor; the output does not depend on it"},
    {.name = "stats",
     .type = OPTION_BOOL,
     .offset = FIELD(stats),
     .fallback = "0",
     .help = "print documents, bytes, tokens, bytes per token and the longest piece to stderr"},
    {.name = "quiet",
     .type = OPTION_BOOL,
     .offset = FIELD(quiet),
     .fallback = "0",
     .short_name = 'q',
     .help = "no progress and no summary on stderr"},
};

const struct option_table config_table = {
    .tool = "gpt2-tokenize",
    .usage = "[options] [FILE...]",
    .summary = "Text to the token ids of GPT-2, and back.",
    .specs = specs,
    .count = sizeof specs / sizeof *specs,
};

static int index_of(const char *value, const char *const *choices)
{
    for (int i = 0; choices[i]; i++)
        if (strcmp(value, choices[i]) == 0)
            return i;
    return -1;
}

static enum status check_options(const struct plan *p, const struct config *c,
                                 const struct options *o, struct error *e)
{
    bool from_ids = p->input == INPUT_IDS || p->input == INPUT_TOKENS;
    const char *why = NULL;
    if (c->decode && !from_ids)
        why = "--decode reads --input-format tokens or ids";
    else if (c->decode && options_given(o, "output-format"))
        why = "with --decode the form of the output is --decode-format, not --output-format";
    else if (c->decode && c->append_eot)
        why = "--append-eot does not go with --decode";
    else if (!c->decode && (options_given(o, "decode-format") || c->keep_eot))
        why = "--decode-format and --keep-eot need --decode";
    else if (c->keep_eot && p->input != INPUT_TOKENS)
        why = "--keep-eot needs a token stream, which says how its documents end";
    else if (from_ids && c->allow_special)
        why = "--allow-special is for text, and ids are read";
    else if (p->vocab_size && p->input != INPUT_IDS)
        why = "--vocab-size needs --input-format ids; text has the size of its vocabulary";
    else if (p->vocab_size && c->vocab)
        why = "--vocab-size is for ids without text; leave out --vocab";
    else if (p->vocab_size && (c->decode || p->output == FORM_PIECES || c->append_eot))
        why = "ids with --vocab-size have no text and no <|endoftext|>";
    else if (p->skip_bad && (p->input == INPUT_TEXT || p->input == INPUT_TOKENS))
        why = "--skip-bad is for input in lines";
    return why ? error_set(e, STATUS_USAGE, "%s", why) : STATUS_OK;
}

enum status plan_resolve(struct plan *p, const struct config *c, const struct options *o,
                         struct error *e)
{
    *p = (struct plan){
        .input = c->decode ? INPUT_TOKENS : INPUT_JSONL,
        .field = c->field,
        .vocab_size = (uint32_t)c->vocab_size,
        .threads = c->threads ? (int)c->threads : cpu_count(),
        .skip_bad = (uint64_t)c->skip_bad,
        .allow_special = c->allow_special,
        .append_eot = c->append_eot,
        .keep_eot = c->keep_eot,
    };
    if (c->input_format)
        p->input = (enum input_kind)index_of(c->input_format, input_formats);
    p->output = c->decode ? FORM_TEXT + (enum output_form)index_of(c->decode_format, decode_formats)
                          : (enum output_form)index_of(c->output_format, output_formats);
    return check_options(p, c, o, e);
}

bool plan_needs_text(const struct plan *p)
{
    if (p->input == INPUT_IDS && p->vocab_size)
        return false;
    return p->input != INPUT_TOKENS || p->output >= FORM_PIECES || p->append_eot;
}

bool plan_encodes(const struct plan *p)
{
    return p->input != INPUT_IDS && p->input != INPUT_TOKENS;
}
