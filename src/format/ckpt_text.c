/* ckpt_text.c - a manifest's text without ever holding its list of files as one JSON value. Only
 * brackets and strings are told apart here; the JSON parser judges every part. */
#include "format/ckpt_private.h"

#include <stdlib.h>
#include <string.h>

#define FLAGS (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL)

/* --- finding the list ------------------------------------------------------------------------- */

static size_t skip_space(const char *s, size_t i, size_t n)
{
    while (i < n && strchr(" \t\r\n", s[i]) && s[i])
        i++;
    return i;
}

/* i: at the opening quote. Behind the closing one; n when there is none. */
static size_t skip_string(const char *s, size_t i, size_t n)
{
    for (i++; i < n && s[i] != '"'; i++)
        if (s[i] == '\\')
            i++;
    return i < n ? i + 1 : n;
}

/* Behind the value that begins at i; n when it does not end. */
static size_t skip_value(const char *s, size_t i, size_t n)
{
    int64_t depth = 0;
    while (i < n) {
        if (s[i] == '"') {
            i = skip_string(s, i, n);
        } else {
            if (depth == 0 && (s[i] == ',' || s[i] == '}' || s[i] == ']'))
                return i;
            depth += s[i] == '{' || s[i] == '[' ? 1 : s[i] == '}' || s[i] == ']' ? -1 : 0;
            i++;
        }
        if (depth == 0 && (s[i - 1] == '"' || s[i - 1] == '}' || s[i - 1] == ']'))
            return i;
    }
    return n;
}

/* Sets begin and end of the outermost object's "files" when that is an array. */
static void find_files(struct ckpt_text *t)
{
    const char *s = t->data;
    const size_t n = t->bytes;
    size_t i = skip_space(s, 0, n);
    if (i == n || s[i] != '{')
        return;
    do {
        size_t key = skip_space(s, i + 1, n);
        if (key == n || s[key] != '"')
            return;
        size_t colon = skip_space(s, skip_string(s, key, n), n);
        if (colon == n || s[colon] != ':')
            return;
        size_t value = skip_space(s, colon + 1, n), end = skip_value(s, value, n);
        if (strncmp(s + key, "\"files\"", 7) == 0 && value < n && s[value] == '[') {
            if (end == n || s[end - 1] != ']')
                return;
            t->begin = t->at = value + 1;
            t->end = end - 1;
            return;
        }
        i = skip_space(s, end, n);
    } while (i < n && s[i] == ',');
}

/* --- the rest --------------------------------------------------------------------------------- */

/* Hands out the text; of the list only its line ends, so that messages name the right lines. */
static size_t read_rest(void *buffer, size_t room, void *arg)
{
    struct ckpt_text *t = arg;
    char *out = buffer;
    size_t n = 0;
    for (; n < room && t->at < t->bytes; t->at++)
        if (t->at < t->begin || t->at >= t->end || t->data[t->at] == '\n')
            out[n++] = t->data[t->at];
    return n;
}

enum status ckpt_text_open(struct ckpt_text *t, const char *name, const char *data, size_t bytes,
                           json_t **rest, struct error *e)
{
    json_error_t why;
    *t = (struct ckpt_text){.name = name, .data = data, .bytes = bytes};
    find_files(t);
    t->at = 0;
    *rest = json_load_callback(read_rest, t, FLAGS, &why);
    t->at = t->begin;
    return *rest ? STATUS_OK
                 : error_set(e, STATUS_DATA, "%s line %d column %d: not JSON: %s", name, why.line,
                             why.column, why.text);
}

/* --- its entries ------------------------------------------------------------------------------ */

static enum status wrong_at(const struct ckpt_text *t, size_t at, int more_lines, const char *what,
                            struct error *e)
{
    int line = 1 + more_lines;
    for (size_t i = 0; i < at; i++)
        line += t->data[i] == '\n';
    return error_set(e, STATUS_DATA, "%s line %d: not JSON: %s", t->name, line, what);
}

enum status ckpt_text_next(struct ckpt_text *t, json_t **entry, struct error *e)
{
    json_error_t why;
    const bool first = t->at == t->begin;
    size_t at = skip_space(t->data, t->at, t->end);
    *entry = NULL;
    if (at == t->end)
        return STATUS_OK;
    if (!first) {
        if (t->data[at] != ',')
            return wrong_at(t, at, 0, "expected ',' between two files", e);
        at = skip_space(t->data, at + 1, t->end);
    }
    *entry = json_loadb(t->data + at, t->end - at, FLAGS | JSON_DISABLE_EOF_CHECK, &why);
    if (!*entry)
        return wrong_at(t, at, why.line > 0 ? why.line - 1 : 0, why.text, e);
    t->at = at + (size_t)why.position;
    return STATUS_OK;
}
