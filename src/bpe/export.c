/* export.c - the files from which Hugging Face's AutoTokenizer builds the same tokenizer. */
#include "bpe/bpe_private.h"
#include "base/io.h"

#include <stdlib.h>

/* Each put_* returns false when out of memory. */
static bool put_symbol(struct strbuf *out, const struct bpe *b, uint32_t id, bool quoted)
{
    size_t n, begin = out->length;
    const char *text = bpe_token(b, id, &n);
    if (!bpe_alphabet_encode(out, text, n))
        return false;
    if (!quoted || (!memchr(text, '"', n) && !memchr(text, '\\', n)))
        return true;
    out->length = begin; /* again, with escapes */
    for (size_t i = 0; i < n; i++)
        if (((text[i] == '"' || text[i] == '\\') && !strbuf_putc(out, '\\')) ||
            !bpe_alphabet_encode(out, text + i, 1))
            return false;
    return true;
}

/* A special token is written as it is, with JSON's escapes. */
static bool put_special(struct strbuf *out, const struct bpe *b, uint32_t id)
{
    size_t n;
    const char *text = bpe_token(b, id, &n);
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)text[i];
        bool ok = c < 0x20 ? strbuf_printf(out, "\\u%04x", c)
                           : ((c != '"' && c != '\\') || strbuf_putc(out, '\\')) &&
                                 strbuf_putc(out, text[i]);
        if (!ok)
            return false;
    }
    return true;
}

/* is_special[id] for each id, malloc'ed. */
static bool *mark_specials(const struct bpe *b)
{
    bool *special = malloc(b->size * sizeof *special);
    if (!special)
        return NULL;
    memset(special, 1, b->size * sizeof *special);
    for (uint32_t i = 0; i < 256 + b->merges; i++)
        special[b->external[i]] = false;
    return special;
}

static bool put_vocab(struct strbuf *out, const struct bpe *b, const bool *special)
{
    if (!strbuf_putc(out, '{'))
        return false;
    for (uint32_t id = 0; id < b->size; id++)
        if (!strbuf_puts(out, id ? ",\"" : "\"") ||
            !(special[id] ? put_special(out, b, id) : put_symbol(out, b, id, true)) ||
            !strbuf_printf(out, "\":%u", id))
            return false;
    return strbuf_putc(out, '}');
}

static bool put_merge(struct strbuf *out, const struct bpe *b, uint32_t k, bool quoted)
{
    return put_symbol(out, b, b->external[b->pairs[2 * k]], quoted) && strbuf_putc(out, ' ') &&
           put_symbol(out, b, b->external[b->pairs[2 * k + 1]], quoted);
}

static bool put_merges_txt(struct strbuf *out, const struct bpe *b)
{
    if (!strbuf_puts(out, "#version: 0.2\n"))
        return false;
    for (uint32_t k = 0; k < b->merges; k++)
        if (!put_merge(out, b, k, false) || !strbuf_putc(out, '\n'))
            return false;
    return true;
}

static bool put_added_tokens(struct strbuf *out, const struct bpe *b, const bool *special)
{
    bool first = true;
    for (uint32_t id = 0; id < b->size; id++) {
        if (!special[id])
            continue;
        if (!strbuf_printf(out, "%s{\"id\":%u,\"content\":\"", first ? "" : ",", id) ||
            !put_special(out, b, id) ||
            !strbuf_puts(out, "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                              "\"normalized\":false,\"special\":true}"))
            return false;
        first = false;
    }
    return true;
}

static bool put_tokenizer(struct strbuf *out, const struct bpe *b, const bool *special)
{
    static const char byte_level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                     "\"trim_offsets\":true,\"use_regex\":true}";
    if (!strbuf_puts(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
                          "\"added_tokens\":[") ||
        !put_added_tokens(out, b, special) ||
        !strbuf_printf(out,
                       "],\"normalizer\":null,\"pre_tokenizer\":%s,\"post_processor\":%s,"
                       "\"decoder\":%s,\"model\":{\"type\":\"BPE\",\"dropout\":null,"
                       "\"unk_token\":null,\"continuing_subword_prefix\":\"\","
                       "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false,"
                       "\"ignore_merges\":false,\"vocab\":",
                       byte_level, byte_level, byte_level) ||
        !put_vocab(out, b, special) || !strbuf_puts(out, ",\"merges\":["))
        return false;
    for (uint32_t k = 0; k < b->merges; k++)
        if (!strbuf_puts(out, k ? ",\"" : "\"") || !put_merge(out, b, k, true) ||
            !strbuf_putc(out, '"'))
            return false;
    return strbuf_puts(out, "]}}\n");
}

static enum status write_file(const char *dir, const char *name, bool built,
                              const struct strbuf *text, struct error *e)
{
    char *path = path_join(dir, name);
    enum status st = built && path ? file_write_atomic(path, text->data, text->length, e)
                                   : error_memory(e, text->length, name);
    free(path);
    return st;
}

enum status bpe_export(const struct bpe *b, const char *dir, struct error *e)
{
    static const char config[] =
        "{\"add_bos_token\":false,\"add_prefix_space\":false,\"bos_token\":\"<|endoftext|>\","
        "\"clean_up_tokenization_spaces\":false,\"eos_token\":\"<|endoftext|>\","
        "\"errors\":\"replace\",\"model_max_length\":1000000000000000019884624838656,"
        "\"tokenizer_class\":\"GPT2Tokenizer\",\"unk_token\":\"<|endoftext|>\"}\n";
    static const char map[] = "{\"bos_token\":\"<|endoftext|>\",\"eos_token\":\"<|endoftext|>\","
                              "\"unk_token\":\"<|endoftext|>\"}\n";
    struct strbuf text = {0};
    enum status st = STATUS_OK;
    bool *special = mark_specials(b);
    if (!special)
        return error_memory(e, b->size, "a vocabulary");
    TRY_OUT(write_file(dir, "merges.txt", put_merges_txt(&text, b), &text, e));
    strbuf_clear(&text);
    TRY_OUT(write_file(dir, "vocab.json", put_vocab(&text, b, special) && strbuf_putc(&text, '\n'),
                       &text, e));
    strbuf_clear(&text);
    TRY_OUT(write_file(dir, "tokenizer.json", put_tokenizer(&text, b, special), &text, e));
    strbuf_clear(&text);
    TRY_OUT(write_file(dir, "tokenizer_config.json", strbuf_puts(&text, config), &text, e));
    strbuf_clear(&text);
    TRY_OUT(write_file(dir, "special_tokens_map.json", strbuf_puts(&text, map), &text, e));
out:
    free(special);
    strbuf_release(&text);
    return st;
}
