/* source.c - tells formats apart by their first bytes and runs the right reader. */
#include "shard-pack/source.h"
#include "base/le.h"

#include <string.h>

const char *const input_format_names[] = {"auto", "tokens", "bin", "jsonl", NULL};
const char *const split_names[] = {"none", "eot-begins", "eot-ends", NULL};

static bool is_bin_magic(const uint8_t *p, size_t got)
{
    return got >= 4 && (le32_get(p) == LLMC_MAGIC_GPT2 || le32_get(p) == LLMC_MAGIC_LLAMA3);
}

static bool ends_with(const char *text, const char *tail)
{
    size_t n = strlen(text), m = strlen(tail);
    return n >= m && strcmp(text + n - m, tail) == 0;
}

/* What gzip holds is told by the name; without one it is JSON lines. */
static enum input_format detect(const uint8_t *p, size_t got, const char *name)
{
    size_t i = 0;
    if (got >= 2 && p[0] == 0x1f && p[1] == 0x8b)
        return ends_with(name, ".bin.gz") ? INPUT_BIN : INPUT_JSONL;
    if (got >= 1 && p[0] == 0x89)
        return INPUT_TOKENS;
    if (is_bin_magic(p, got) || ends_with(name, ".bin"))
        return INPUT_BIN;
    if (got >= 3 && memcmp(p, "\xEF\xBB\xBF", 3) == 0)
        i = 3;
    while (i < got && strchr(" \t\r\n", p[i]) && p[i])
        i++;
    if (i < got && (p[i] == '{' || p[i] == '['))
        return INPUT_JSONL;
    return INPUT_TOKENS; /* whose reader says what the bytes look like instead */
}

enum status source_open(struct source *s, struct input *in, const struct source_options *o,
                        struct error *e)
{
    const uint8_t *head;
    size_t got;
    *s = (struct source){.in = in, .format = o->format, .options = o, .vocab = o->vocab};
    TRY(input_peek(in, 64, &head, &got, e));
    if (s->format == INPUT_AUTO)
        s->format = detect(head, got, in->name);
    if (got == 0)
        return error_set(e, STATUS_DATA, "%s is empty", in->name);
    s->ends_with_eot = s->format == INPUT_BIN && o->split != SPLIT_NONE;
    if (s->format != INPUT_TOKENS)
        return STATUS_OK;
    enum status st = token_reader_open(&s->reader, in, e);
    if (st == STATUS_DATA && o->format == INPUT_AUTO && got && head[0] != 0x89)
        return error_context(e, "cannot tell the format (--input-format says it)");
    if (st != STATUS_OK)
        return st;
    s->vocab = *token_reader_vocab(s->reader);
    s->ends_with_eot = token_reader_ends_with_eot(s->reader);
    s->provenance = token_reader_provenance(s->reader);
    return STATUS_OK;
}

static enum status run_tokens(struct source *s, const struct source_sink *sink, struct error *e)
{
    struct token_block b;
    for (;;) {
        TRY(token_reader_block(s->reader, &b, e));
        if (!b.ids)
            return STATUS_OK;
        TRY(sink->block(sink->arg, &b, e));
    }
}

enum status source_run(struct source *s, const struct source_sink *sink, int64_t *bad_left,
                       struct error *e)
{
    if (s->format == INPUT_TOKENS)
        return run_tokens(s, sink, e);
    if (s->format == INPUT_BIN)
        return source_run_bin(s, sink, e);
    return source_run_jsonl(s, sink, bad_left, e);
}

void source_close(struct source *s)
{
    token_reader_free(s->reader);
    *s = (struct source){0};
}
