/* options_help.c - what the table tells people: --help, the nearest name, the effective
 * configuration. */
#include "base/options.h"
#include "base/options_private.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN 30
#define HELP_WIDTH 96

static const struct option_spec builtin_specs[] = {
    {.name = "config",
     .type = OPTION_STRING,
     .metavar = "FILE.json",
     .help = "take options from a JSON object; the command line wins over it"},
    {.name = "print-config",
     .type = OPTION_BOOL,
     .help = "print the effective configuration as JSON and exit"},
    {.name = "help", .type = OPTION_BOOL, .short_name = 'h', .help = "print this text and exit"},
    {.name = "version", .type = OPTION_BOOL, .help = "print the version and exit"},
};
#define BUILTIN_COUNT (sizeof builtin_specs / sizeof builtin_specs[0])

/* --- nearest name ------------------------------------------------------------------------------
 */

/* Optimal string alignment distance; names longer than the table are compared by their beginning.
 */
static size_t edit_distance(const char *a, size_t n, const char *b, size_t m)
{
    enum { LIMIT = 63 };
    size_t d[3][LIMIT + 1];
    n = n < LIMIT ? n : LIMIT;
    m = m < LIMIT ? m : LIMIT;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *row = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            char x = a[i - 1] == '_' ? '-' : a[i - 1], y = b[j - 1] == '_' ? '-' : b[j - 1];
            size_t best = up[j - 1] + (x != y);
            best = up[j] + 1 < best ? up[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = up2[j - 2] + 1 < best ? up2[j - 2] + 1 : best;
            row[j] = best;
        }
    }
    return d[n % 3][m];
}

struct nearest {
    const char *name;
    size_t distance;
};

static void consider(struct nearest *best, const char *typed, size_t n, const char *name)
{
    if (!name)
        return;
    size_t m = strlen(name);
    bool begins = n >= 3 && m > n && edit_distance(typed, n, name, n) == 0;
    size_t distance = begins ? 1 : edit_distance(typed, n, name, m);
    if (!best->name || distance < best->distance)
        *best = (struct nearest){name, distance};
}

const char *options_nearest(const struct option_table *table, const char *typed, size_t n,
                            bool with_builtins)
{
    struct nearest best = {0};
    for (size_t i = 0; i < table->count; i++) {
        if (!table->specs[i].name)
            continue;
        consider(&best, typed, n, table->specs[i].name);
        consider(&best, typed, n, table->specs[i].alias);
    }
    for (size_t i = table->config_file ? 0 : 1; with_builtins && i < BUILTIN_COUNT; i++)
        consider(&best, typed, n, builtin_specs[i].name);
    return best.name ? best.name : "help";
}

/* --- --help --------------------------------------------------------------------------------------
 */

/* Appends words from `column`, breaking lines at HELP_WIDTH and at newlines in the text. */
static bool put_wrapped(struct strbuf *out, const char *text, size_t column, size_t indent)
{
    bool ok = true, first = true;
    while (*text && ok) {
        if (*text == '\n') {
            ok = strbuf_printf(out, "\n%*s", (int)indent, "");
            column = indent;
            first = true;
            text++;
            continue;
        }
        if (*text == ' ') {
            text++;
            continue;
        }
        size_t n = strcspn(text, " \n");
        if (!first && column + 1 + n > HELP_WIDTH) {
            ok = strbuf_printf(out, "\n%*s", (int)indent, "");
            column = indent;
            first = true;
        }
        ok = ok && (first || strbuf_putc(out, ' ')) && strbuf_append(out, text, n);
        column += n + !first;
        first = false;
        text += n;
    }
    return ok;
}

static const char *metavar_of(const struct option_spec *s)
{
    static const char *const by_type[] = {
        [OPTION_BOOL] = "0|1", [OPTION_INT] = "N",       [OPTION_SIZE] = "SIZE",
        [OPTION_FLOAT] = "X",  [OPTION_STRING] = "TEXT", [OPTION_CHOICE] = "WORD",
    };
    return s->metavar ? s->metavar : by_type[s->type];
}

/* "help text (a|b|c; 1 to 10; default 3)" */
static bool put_description(struct strbuf *out, const struct option_spec *s, bool builtin)
{
    const char *between = "";
    bool ok = strbuf_printf(out, "%s (", s->help ? s->help : "");
    size_t opened = out->length;
    if (s->type == OPTION_CHOICE) {
        for (size_t i = 0; s->choices[i]; i++)
            ok = ok && strbuf_printf(out, "%s%s", i ? "|" : "", s->choices[i]);
        between = "; ";
    }
    if (s->min < s->max) {
        bool low = s->min > -0x1p63, high = s->max < 0x1p63;
        if (low && high)
            ok = ok && strbuf_printf(out, "%s%.15g to %.15g", between, s->min, s->max);
        else
            ok = ok && strbuf_printf(out, "%s%s %.15g", between, low ? "at least" : "at most",
                                     low ? s->min : s->max);
        between = "; ";
    }
    if (s->fallback)
        ok = ok && strbuf_printf(out, "%sdefault %s", between, s->fallback);
    else if (s->type == OPTION_BOOL && !builtin)
        ok = ok && strbuf_printf(out, "%sdefault 0", between);
    if (!ok)
        return false;
    if (out->length > opened)
        return strbuf_putc(out, ')');
    out->length -= 2; /* nothing between the brackets */
    out->data[out->length] = '\0';
    return true;
}

static bool put_option(struct strbuf *out, const struct option_spec *s, bool builtin)
{
    struct strbuf left = {0}, right = {0};
    bool ok = s->short_name ? strbuf_printf(&left, "  -%c, ", s->short_name)
                            : strbuf_puts(&left, "      ");
    ok = ok && strbuf_printf(&left, "--%s", s->name);
    if (s->type == OPTION_BOOL && !builtin)
        ok = ok && strbuf_printf(&left, "[=%s]", metavar_of(s));
    else if (s->type != OPTION_BOOL)
        ok = ok && strbuf_printf(&left, " %s", metavar_of(s));
    if (s->alias)
        ok = ok && strbuf_printf(&left, ", --%s", s->alias);
    ok = ok && put_description(&right, s, builtin);
    if (ok && left.length + 2 > HELP_COLUMN)
        ok = strbuf_printf(out, "%s\n%*s", left.data, HELP_COLUMN, "");
    else if (ok)
        ok = strbuf_printf(out, "%-*s", HELP_COLUMN, left.data);
    ok = ok && put_wrapped(out, right.data, HELP_COLUMN, HELP_COLUMN) && strbuf_putc(out, '\n');
    strbuf_release(&left);
    strbuf_release(&right);
    return ok;
}

static bool put_usage(struct strbuf *out, const struct option_table *t)
{
    const char *line = t->usage;
    bool ok = true;
    for (bool first = true; ok && *line; first = false) {
        size_t n = strcspn(line, "\n");
        ok =
            strbuf_printf(out, "%s%s %.*s\n", first ? "Usage: " : "       ", t->tool, (int)n, line);
        line += n + (line[n] == '\n');
    }
    return ok && put_wrapped(out, t->summary, 0, 0) && strbuf_putc(out, '\n');
}

bool options_help(const struct option_table *t, struct strbuf *out)
{
    bool ok = put_usage(out, t);
    if (t->count && t->specs[0].name)
        ok = ok && strbuf_puts(out, "\nOptions:\n");
    for (size_t i = 0; i < t->count && ok; i++) {
        const struct option_spec *s = &t->specs[i];
        ok = s->name ? put_option(out, s, false)
                     : !s->help || strbuf_printf(out, "\n%s:\n", s->help);
    }
    ok = ok && strbuf_puts(out, "\nCommon:\n");
    for (size_t i = t->config_file ? 0 : 1; i < BUILTIN_COUNT && ok; i++)
        ok = put_option(out, &builtin_specs[i], true);
    return ok;
}

/* --- effective configuration
 * ------------------------------------------------------------------------ */

bool options_json_string(struct strbuf *out, const char *text)
{
    json_t *check = json_string(text); /* NULL when not UTF-8 */
    bool valid = check != NULL, ok = strbuf_putc(out, '"');
    json_decref(check);
    for (const unsigned char *p = (const unsigned char *)text; *p && ok; p++) {
        if (*p == '"' || *p == '\\')
            ok = strbuf_printf(out, "\\%c", *p);
        else if (*p < 0x20 || *p == 0x7f)
            ok = strbuf_printf(out, "\\u%04x", *p);
        else if (*p >= 0x80 && !valid)
            ok = strbuf_puts(out, "\\ufffd");
        else
            ok = strbuf_putc(out, (char)*p);
    }
    return ok && strbuf_putc(out, '"');
}

/* The shortest decimal that reads back as the same double. */
static bool put_double(struct strbuf *out, double value)
{
    char text[64];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return strbuf_puts(out, text);
}

static bool put_value(struct strbuf *out, const struct option_spec *s, const void *config)
{
    const char *field = (const char *)config + s->offset;
    bool truth;
    int64_t integer;
    double real;
    const char *string;
    switch (s->type) {
    case OPTION_BOOL:
        memcpy(&truth, field, sizeof truth);
        return strbuf_puts(out, truth ? "true" : "false");
    case OPTION_INT:
    case OPTION_SIZE:
        memcpy(&integer, field, sizeof integer);
        return strbuf_printf(out, "%lld", (long long)integer);
    case OPTION_FLOAT:
        memcpy(&real, field, sizeof real);
        return put_double(out, real);
    case OPTION_STRING:
    case OPTION_CHOICE:
        memcpy(&string, field, sizeof string);
        return string ? options_json_string(out, string) : strbuf_puts(out, "null");
    }
    return false;
}

char *options_config_json(const struct options *o, const void *config)
{
    struct strbuf out = {0};
    bool ok = strbuf_putc(&out, '{');
    bool first = true;
    for (size_t i = 0; i < o->table->count && ok; i++) {
        const struct option_spec *s = &o->table->specs[i];
        if (!s->name)
            continue;
        ok = strbuf_puts(&out, first ? "\n  \"" : ",\n  \"");
        for (const char *p = s->name; *p && ok; p++)
            ok = strbuf_putc(&out, *p == '-' ? '_' : *p);
        ok = ok && strbuf_puts(&out, "\": ") && put_value(&out, s, config);
        first = false;
    }
    if (ok && strbuf_puts(&out, "\n}\n"))
        return out.data;
    strbuf_release(&out);
    return NULL;
}

enum status options_print_config(const struct options *o, const void *config, FILE *f,
                                 struct error *e)
{
    char *text = options_config_json(o, config);
    if (!text)
        return error_memory(e, 4096, "the configuration");
    bool ok = fputs(text, f) >= 0 && fflush(f) == 0;
    int saved = errno;
    free(text);
    errno = saved;
    return ok ? STATUS_OK : error_errno(e, "writing the configuration");
}
