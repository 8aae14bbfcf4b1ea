/* ids.c - a JSON array of token ids, parsed strictly. */
#include "gpt2-tokenize/worker.h"

struct scan {
    const char *at, *begin, *end;
    const char *name;
    uint64_t line;
};

static void skip_blanks(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

static enum status bad(const struct scan *s, struct error *e, const char *expected)
{
    unsigned long long line = s->line, column = (unsigned long long)(s->at - s->begin) + 1;
    if (s->at == s->end)
        return error_set(e, STATUS_DATA, "%s line %llu column %llu: the line ends, expected %s",
                         s->name, line, column, expected);
    unsigned char c = (unsigned char)*s->at;
    if (c > ' ' && c < 0x7F)
        return error_set(e, STATUS_DATA, "%s line %llu column %llu: found '%c', expected %s",
                         s->name, line, column, c, expected);
    return error_set(e, STATUS_DATA, "%s line %llu column %llu: found byte 0x%02X, expected %s",
                     s->name, line, column, c, expected);
}

static bool is_digit(const struct scan *s)
{
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

static enum status parse_id(struct scan *s, uint32_t vocab_size, uint32_t *id, struct error *e)
{
    const char *begin = s->at;
    uint64_t value = 0;
    if (!is_digit(s))
        return bad(s, e, "a token id");
    for (; is_digit(s) && value < (uint64_t)1 << 40; s->at++)
        value = 10 * value + (uint64_t)(*s->at - '0');
    bool leading_zero = *begin == '0' && s->at - begin > 1;
    if (value < vocab_size && !leading_zero) {
        *id = (uint32_t)value;
        return STATUS_OK;
    }
    unsigned long long column = (unsigned long long)(begin - s->begin) + 1;
    if (leading_zero)
        return error_set(e, STATUS_DATA, "%s line %llu column %llu: a number with a leading zero",
                         s->name, (unsigned long long)s->line, column);
    return error_set(
        e, STATUS_DATA, "%s line %llu column %llu: token id %.*s, but the vocabulary has %u ids",
        s->name, (unsigned long long)s->line, column, (int)(s->at - begin), begin, vocab_size);
}

enum status ids_parse(const char *text, size_t bytes, uint32_t vocab_size, const char *name,
                      uint64_t line, struct token_buffer *out, struct error *e)
{
    struct scan s = {text, text, text + bytes, name, line};
    skip_blanks(&s);
    if (s.at == s.end || *s.at != '[')
        return bad(&s, e, "'[' of an array of token ids");
    s.at++;
    skip_blanks(&s);
    bool empty = s.at < s.end && *s.at == ']';
    TRY(token_buffer_reserve(out, bytes / 2 + 1, e)); /* an id and its comma are two bytes */
    while (!empty) {
        uint32_t id = 0;
        TRY(parse_id(&s, vocab_size, &id, e));
        out->ids[out->length++] = id;
        skip_blanks(&s);
        if (s.at < s.end && *s.at == ']')
            break;
        if (s.at == s.end || *s.at != ',')
            return bad(&s, e, "',' or ']'");
        s.at++;
        skip_blanks(&s);
    }
    s.at++;
    skip_blanks(&s);
    return s.at == s.end ? STATUS_OK : bad(&s, e, "the end of the line");
}
