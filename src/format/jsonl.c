/* jsonl.c - JSON lines: trees through jansson, and one string field without a tree.
 *
 * The scanner checks the syntax of the whole line (RFC 8259), nesting up to DEPTH_LIMIT. Raw bytes
 * that are not UTF-8 inside a string are kept as they are. */
#include "format/jsonl.h"

#include <stdint.h>
#include <string.h>

#define DEPTH_LIMIT 256

enum status jsonl_parse(const char *text, size_t bytes, const char *name, uint64_t line,
                        json_t **out, struct error *e)
{
    json_error_t why;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (*out)
        return STATUS_OK;
    return error_set(e, STATUS_DATA, "%s line %llu column %d: not a JSON object or array: %s", name,
                     (unsigned long long)line, why.position, why.text);
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Bytes of the valid UTF-8 sequence at p (at most n), 0 when there is none. */
static size_t utf8_length(const uint8_t *p, size_t n)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t want = p[0] < 0x80 ? 1 : p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    if (want <= 1)
        return want;
    if (p[0] > 0xF4 || want > n)
        return 0;
    uint32_t code = p[0] & (0x7Fu >> want);
    for (size_t i = 1; i < want; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3F);
    }
    bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    return code < smallest[want] || surrogate || code > 0x10FFFF ? 0 : want;
}

static bool append_escape(struct strbuf *out, uint8_t c)
{
    static const char letters[] = "btn\0fr"; /* for codes 8 to 13 */
    if (c == '"' || c == '\\')
        return strbuf_putc(out, '\\') && strbuf_putc(out, (char)c);
    if (c >= 8 && c <= 13 && letters[c - 8])
        return strbuf_putc(out, '\\') && strbuf_putc(out, letters[c - 8]);
    return strbuf_printf(out, c < 0x80 ? "\\u%04x" : "\\udc%02x", c);
}

bool jsonl_append_string(struct strbuf *out, const char *text, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t start = 0, i = 0, length = out->length;
    if (!strbuf_putc(out, '"'))
        return false;
    while (i < bytes) {
        size_t n = utf8_length(p + i, bytes - i);
        if (n > 0 && p[i] >= 0x20 && p[i] != '"' && p[i] != '\\' && p[i] != 0x7F) {
            i += n;
            continue;
        }
        if (!strbuf_append(out, text + start, i - start) || !append_escape(out, p[i]))
            goto failed;
        start = ++i;
    }
    if (strbuf_append(out, text + start, bytes - start) && strbuf_putc(out, '"'))
        return true;
failed:
    out->length = length;
    out->data[length] = '\0';
    return false;
}

/* --- scanning one line ------------------------------------------------------------------------ */

struct scanner {
    const uint8_t *text, *p, *end;
    const char *name;
    uint64_t line;
    struct error *e;
};

static enum status syntax(const struct scanner *s, const uint8_t *at, const char *what)
{
    return error_set(s->e, STATUS_DATA, "%s line %llu column %zu: %s", s->name,
                     (unsigned long long)s->line, (size_t)(at - s->text) + 1, what);
}

static void skip_space(struct scanner *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\r' || *s->p == '\n'))
        s->p++;
}

static bool next_is(struct scanner *s, uint8_t c)
{
    if (s->p >= s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

static bool hex4(const struct scanner *s, const uint8_t *p, uint32_t *code)
{
    uint32_t v = 0;
    if (s->end - p < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i], lower = c | 0x20;
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint32_t)(c - '0');
        else if (lower >= 'a' && lower <= 'f')
            v = v << 4 | (uint32_t)(lower - 'a' + 10);
        else
            return false;
    }
    *code = v;
    return true;
}

/* A \u escape; s->p is behind the 'u'. Lone U+DC80..U+DCFF are bytes; other lone surrogates keep
 * their three-byte form, so that nothing is lost. */
static enum status scan_unicode(struct scanner *s, struct strbuf *out)
{
    uint32_t code, low;
    if (!hex4(s, s->p, &code))
        return syntax(s, s->p, "\\u without four hexadecimal digits");
    s->p += 4;
    if (code >= 0xD800 && code < 0xDC00 && s->end - s->p >= 6 && s->p[0] == '\\' &&
        s->p[1] == 'u' && hex4(s, s->p + 2, &low) && low >= 0xDC00 && low < 0xE000) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        s->p += 6;
    }
    char b[4];
    size_t n;
    if (code < 0x80) {
        b[0] = (char)code, n = 1;
    } else if (code >= 0xDC80 && code <= 0xDCFF) {
        b[0] = (char)(code - 0xDC00), n = 1;
    } else if (code < 0x800) {
        b[0] = (char)(0xC0 | code >> 6), b[1] = (char)(0x80 | (code & 0x3F)), n = 2;
    } else if (code < 0x10000) {
        b[0] = (char)(0xE0 | code >> 12), b[1] = (char)(0x80 | (code >> 6 & 0x3F));
        b[2] = (char)(0x80 | (code & 0x3F)), n = 3;
    } else {
        b[0] = (char)(0xF0 | code >> 18), b[1] = (char)(0x80 | (code >> 12 & 0x3F));
        b[2] = (char)(0x80 | (code >> 6 & 0x3F)), b[3] = (char)(0x80 | (code & 0x3F)), n = 4;
    }
    if (out && !strbuf_append(out, b, n))
        return error_memory(s->e, n, "a string");
    return STATUS_OK;
}

static enum status scan_escape(struct scanner *s, struct strbuf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->p >= s->end)
        return syntax(s, s->p, "the line ends inside a string");
    uint8_t c = *s->p++;
    if (c == 'u')
        return scan_unicode(s, out);
    const char *at = c ? strchr(from, c) : NULL;
    if (!at)
        return syntax(s, s->p - 1, "unknown escape in a string");
    if (out && !strbuf_putc(out, to[at - from]))
        return error_memory(s->e, 1, "a string");
    return STATUS_OK;
}

/* A string; s->p is behind the opening quote. out may be NULL. */
static enum status scan_string(struct scanner *s, struct strbuf *out)
{
    if (out)
        strbuf_clear(out);
    for (;;) {
        const uint8_t *start = s->p;
        while (s->p < s->end && *s->p != '"' && *s->p != '\\' && *s->p >= 0x20)
            s->p++;
        if (out && !strbuf_append(out, start, (size_t)(s->p - start)))
            return error_memory(s->e, (unsigned long long)(s->p - start), "a string");
        if (s->p >= s->end)
            return syntax(s, s->p, "the line ends inside a string");
        if (*s->p < 0x20)
            return syntax(s, s->p, "control character inside a string; it needs an escape");
        if (*s->p++ == '"')
            return STATUS_OK;
        TRY(scan_escape(s, out));
    }
}

static void skip_digits(struct scanner *s)
{
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
}

static enum status scan_number(struct scanner *s)
{
    const uint8_t *start = s->p, *digits;
    next_is(s, '-');
    digits = s->p;
    skip_digits(s);
    if (s->p == digits || (*digits == '0' && s->p - digits > 1))
        return syntax(s, start, "malformed number");
    if (next_is(s, '.')) {
        digits = s->p;
        skip_digits(s);
        if (s->p == digits)
            return syntax(s, start, "malformed number");
    }
    if (next_is(s, 'e') || next_is(s, 'E')) {
        if (!next_is(s, '+'))
            next_is(s, '-');
        digits = s->p;
        skip_digits(s);
        if (s->p == digits)
            return syntax(s, start, "malformed number");
    }
    return STATUS_OK;
}

static enum status scan_scalar(struct scanner *s)
{
    static const char *const words[] = {"true", "false", "null"};
    if (next_is(s, '"'))
        return scan_string(s, NULL);
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(s->end - s->p) >= n && memcmp(s->p, words[i], n) == 0) {
            s->p += n;
            return STATUS_OK;
        }
    }
    if (s->p < s->end && (*s->p == '-' || (*s->p >= '0' && *s->p <= '9')))
        return scan_number(s);
    return syntax(s, s->p, "expected a JSON value");
}

static enum status scan_key(struct scanner *s, struct strbuf *out)
{
    skip_space(s);
    if (!next_is(s, '"'))
        return syntax(s, s->p, "expected a key in double quotes");
    TRY(scan_string(s, out));
    skip_space(s);
    if (!next_is(s, ':'))
        return syntax(s, s->p, "expected ':' after a key");
    skip_space(s);
    return STATUS_OK;
}

/* Any value, checked and passed over. A stack of closing brackets instead of recursion. */
static enum status skip_value(struct scanner *s)
{
    uint8_t closing[DEPTH_LIMIT];
    int depth = 0;
    for (;;) {
        skip_space(s);
        bool object = s->p < s->end && *s->p == '{';
        if (object || (s->p < s->end && *s->p == '[')) {
            if (depth == DEPTH_LIMIT)
                return syntax(s, s->p, "JSON nested more than 256 deep");
            closing[depth] = object ? '}' : ']';
            s->p++;
            skip_space(s);
            if (!next_is(s, closing[depth])) {
                depth++;
                if (object)
                    TRY(scan_key(s, NULL));
                continue;
            }
        } else {
            TRY(scan_scalar(s));
        }
        for (skip_space(s); depth > 0 && next_is(s, closing[depth - 1]); skip_space(s))
            depth--;
        if (depth == 0)
            return STATUS_OK;
        if (!next_is(s, ','))
            return syntax(s, s->p, "expected ',' or a closing bracket");
        if (closing[depth - 1] == '}')
            TRY(scan_key(s, NULL));
    }
}

/* The members of the object; s->p is behind '{'. */
static enum status scan_members(struct scanner *s, const char *field, struct strbuf *key,
                                struct strbuf *out, bool *found)
{
    size_t length = strlen(field);
    skip_space(s);
    if (next_is(s, '}'))
        return STATUS_OK;
    for (;;) {
        TRY(scan_key(s, key));
        bool wanted = key->length == length && (!length || memcmp(key->data, field, length) == 0);
        if (wanted) {
            if (!next_is(s, '"')) {
                TRY(skip_value(&(struct scanner){s->text, s->p, s->end, s->name, s->line, s->e}));
                return error_set(s->e, STATUS_DATA,
                                 "%s line %llu column %zu: field \"%s\" is not a string", s->name,
                                 (unsigned long long)s->line, (size_t)(s->p - s->text) + 1, field);
            }
            TRY(scan_string(s, out));
            *found = true;
        } else {
            TRY(skip_value(s));
        }
        skip_space(s);
        if (next_is(s, '}'))
            return STATUS_OK;
        if (!next_is(s, ','))
            return syntax(s, s->p, "expected ',' or '}'");
    }
}

enum status jsonl_string_field(const char *text, size_t bytes, const char *field, const char *name,
                               uint64_t line, struct strbuf *out, struct error *e)
{
    const uint8_t *p = (const uint8_t *)text;
    struct scanner s = {p, p, p + bytes, name, line, e};
    struct strbuf key = {0};
    enum status st = STATUS_OK;
    bool found = false;
    strbuf_clear(out);
    if (line == 1 && bytes >= 3 && memcmp(p, "\xEF\xBB\xBF", 3) == 0)
        s.p += 3; /* a byte order mark at the start of the file */
    skip_space(&s);
    if (!next_is(&s, '{'))
        TRY_OUT(syntax(&s, s.p, "expected a JSON object"));
    TRY_OUT(scan_members(&s, field, &key, out, &found));
    skip_space(&s);
    if (s.p < s.end)
        TRY_OUT(syntax(&s, s.p, "text after the JSON object"));
    if (!found)
        TRY_OUT(error_set(e, STATUS_DATA, "%s line %llu: the object has no field \"%s\"", name,
                          (unsigned long long)line, field));
out:
    strbuf_release(&key);
    return st;
}
