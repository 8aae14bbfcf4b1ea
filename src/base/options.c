/* options.c - parsing: the command line is walked twice, first for --config, --help and --version,
 * then for values, so that the command line wins over a configuration file wherever that stands. */
#include "base/options.h"
#include "base/io.h"
#include "base/options_private.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CONFIG_LIMIT_BYTES ((size_t)16 << 20)

enum builtin { NOT_BUILTIN, BUILTIN_HELP, BUILTIN_VERSION, BUILTIN_CONFIG, BUILTIN_PRINT_CONFIG };

/* One element of the command line. */
struct argument {
    const struct option_spec *spec; /* NULL for a positional argument or a built-in option */
    enum builtin builtin;
    const char *value; /* NULL for a boolean without one */
    const char *shown; /* as typed, for messages */
};

/* A walk over argv. */
struct walk {
    const struct option_table *table;
    int argc, next;
    char **argv;
    const char *bundle;   /* the rest of -abc after -a */
    bool only_positional; /* "--" was seen */
};

bool options_same_name(const char *a, size_t a_length, const char *b)
{
    for (size_t i = 0; i < a_length; i++) {
        char x = a[i] == '_' ? '-' : a[i], y = b[i] == '_' ? '-' : b[i];
        if (x != y || x == '\0')
            return false;
    }
    return b[a_length] == '\0';
}

static const struct option_spec *find_long(const struct option_table *t, const char *name, size_t n)
{
    for (size_t i = 0; i < t->count; i++) {
        const struct option_spec *s = &t->specs[i];
        if (s->name && (options_same_name(name, n, s->name) ||
                        (s->alias && options_same_name(name, n, s->alias))))
            return s;
    }
    return NULL;
}

static const struct option_spec *find_short(const struct option_table *t, char c)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->specs[i].name && t->specs[i].short_name == c)
            return &t->specs[i];
    return NULL;
}

static enum builtin find_builtin(const struct option_table *t, const char *name, size_t n)
{
    if (options_same_name(name, n, "help"))
        return BUILTIN_HELP;
    if (options_same_name(name, n, "version"))
        return BUILTIN_VERSION;
    if (options_same_name(name, n, "print-config"))
        return BUILTIN_PRINT_CONFIG;
    if (t->config_file && options_same_name(name, n, "config"))
        return BUILTIN_CONFIG;
    return NOT_BUILTIN;
}

static bool parse_bool(const char *text, bool *out)
{
    bool is_true = strcmp(text, "1") == 0 || strcasecmp(text, "true") == 0;
    if (!is_true && strcmp(text, "0") != 0 && strcasecmp(text, "false") != 0)
        return false;
    *out = is_true;
    return true;
}

/* --- values ------------------------------------------------------------------------------------
 */

static enum status check_range(const struct option_spec *s, double value, const char *text,
                               const char *what, struct error *e)
{
    if (!(s->min < s->max) || (value >= s->min && value <= s->max))
        return STATUS_OK;
    /* 2^63 and infinity stand for "no limit". */
    bool low = s->min > -0x1p63, high = s->max < 0x1p63;
    if (low && high)
        return error_set(e, STATUS_USAGE, "%s: %s is out of range, allowed are %.15g to %.15g",
                         what, text, s->min, s->max);
    return error_set(e, STATUS_USAGE, "%s: %s is out of range, allowed is %s %.15g", what, text,
                     low ? "at least" : "at most", low ? s->min : s->max);
}

static enum status keep_string(struct options *o, const char *text, const char **out,
                               struct error *e)
{
    char **list = realloc(o->strings, (o->string_count + 1) * sizeof *list);
    char *copy = strdup(text);
    if (list)
        o->strings = list;
    if (!list || !copy) {
        free(copy);
        return error_memory(e, strlen(text) + 1, "an option value");
    }
    o->strings[o->string_count++] = copy;
    *out = copy;
    return STATUS_OK;
}

static enum status check_choice(const struct option_spec *s, const char *text, const char *what,
                                struct error *e)
{
    struct strbuf all = {0};
    bool ok = true, found = false;
    for (size_t i = 0; s->choices[i]; i++) {
        found = found || strcmp(text, s->choices[i]) == 0;
        ok = ok && strbuf_printf(&all, "%s%s", i ? ", " : "", s->choices[i]);
    }
    enum status st = STATUS_OK;
    if (!found)
        st = error_set(e, STATUS_USAGE, "%s: \"%s\" is not one of %s", what, text,
                       ok ? all.data : "the choices");
    strbuf_release(&all);
    return st;
}

/* Parses text (NULL: a boolean switched on) into the field of `config`. `what` names the option. */
static enum status store(struct options *o, const struct option_spec *s, void *config,
                         const char *text, const char *what, struct error *e)
{
    char *field = (char *)config + s->offset;
    int64_t integer = 0;
    double real = 0;
    bool truth = true;
    const char *string = NULL;
    switch (s->type) {
    case OPTION_BOOL:
        if (text && !parse_bool(text, &truth))
            return error_set(e, STATUS_USAGE, "%s: expected 0, 1, true or false, found \"%s\"",
                             what, text);
        memcpy(field, &truth, sizeof truth);
        return STATUS_OK;
    case OPTION_INT:
    case OPTION_SIZE:
        TRY((s->type == OPTION_INT ? parse_i64 : parse_size)(text, what, &integer, e));
        TRY(check_range(s, (double)integer, text, what, e));
        memcpy(field, &integer, sizeof integer);
        return STATUS_OK;
    case OPTION_FLOAT:
        TRY(parse_f64(text, what, &real, e));
        TRY(check_range(s, real, text, what, e));
        memcpy(field, &real, sizeof real);
        return STATUS_OK;
    case OPTION_CHOICE:
        TRY(check_choice(s, text, what, e));
        /* fall through */
    case OPTION_STRING:
        TRY(keep_string(o, text, &string, e));
        memcpy(field, &string, sizeof string);
        return STATUS_OK;
    }
    return error_set(e, STATUS_USAGE, "%s: unknown option type", what);
}

static enum status store_defaults(struct options *o, void *config, struct error *e)
{
    static const size_t field_bytes[] = {
        [OPTION_BOOL] = sizeof(bool),     [OPTION_INT] = sizeof(int64_t),
        [OPTION_SIZE] = sizeof(int64_t),  [OPTION_FLOAT] = sizeof(double),
        [OPTION_STRING] = sizeof(char *), [OPTION_CHOICE] = sizeof(char *),
    };
    for (size_t i = 0; i < o->table->count; i++) {
        const struct option_spec *s = &o->table->specs[i];
        if (!s->name)
            continue;
        memset((char *)config + s->offset, 0, field_bytes[s->type]);
        if (s->fallback && store(o, s, config, s->fallback, s->name, e) != STATUS_OK)
            return error_context(e, "default value");
    }
    return STATUS_OK;
}

/* --- configuration files -------------------------------------------------------------------------
 */

/* SageMaker's SDK stores each hyperparameter as JSON inside a JSON string: "\"gpt2-xl\"". */
static char *unquote(const char *text)
{
    size_t n = strlen(text);
    if (n < 2 || text[0] != '"' || text[n - 1] != '"')
        return strdup(text);
    json_t *inner = json_loads(text, JSON_DECODE_ANY, NULL);
    char *copy = strdup(json_is_string(inner) ? json_string_value(inner) : text);
    json_decref(inner);
    return copy;
}

/* *text is malloc'ed. */
static enum status value_text(const json_t *value, const char *what, char **text, struct error *e)
{
    char number[64];
    *text = NULL;
    switch (json_typeof(value)) {
    case JSON_STRING:
        *text = unquote(json_string_value(value));
        break;
    case JSON_INTEGER:
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        *text = strdup(number);
        break;
    case JSON_REAL:
        snprintf(number, sizeof number, "%.17g", json_real_value(value));
        *text = strdup(number);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *text = strdup(json_is_true(value) ? "true" : "false");
        break;
    default:
        return error_set(e, STATUS_USAGE, "%s: expected a number, a boolean or a string, found %s",
                         what, json_is_array(value) ? "an array" : "an object");
    }
    return *text ? STATUS_OK : error_memory(e, 64, "an option value");
}

static enum status foreign_entry(const struct option_table *t, const char *path, const char *key,
                                 const json_t *value, struct error *e)
{
    bool known = false;
    if (t->foreign) {
        char *text = NULL;
        struct error ignored;
        if (value_text(value, key, &text, &ignored) != STATUS_OK)
            text = NULL;
        enum status st = t->foreign(key, text ? text : "", &known, e);
        free(text);
        if (known)
            return st == STATUS_OK ? st : error_context(e, "%s", path);
    }
    return error_set(e, STATUS_USAGE, "%s: unknown key \"%s\"; the nearest known one is \"%s\"",
                     path, key, options_nearest(t, key, strlen(key), false));
}

static enum status store_entry(struct options *o, void *config, const char *path, const char *key,
                               const json_t *value, bool *seen, struct error *e)
{
    const struct option_table *t = o->table;
    const struct option_spec *s = find_long(t, key, strlen(key));
    if (!s)
        return foreign_entry(t, path, key, value, e);
    size_t index = (size_t)(s - t->specs);
    if (seen[index])
        return error_set(e, STATUS_USAGE, "%s: key \"%s\" sets --%s a second time", path, key,
                         s->name);
    seen[index] = true;
    if (json_is_null(value)) /* how the effective configuration shows an option that is not set */
        return STATUS_OK;
    struct strbuf what = {0};
    char *text = NULL;
    enum status st;
    if (!strbuf_printf(&what, "%s: \"%s\"", path, key))
        TRY_OUT(error_memory(e, strlen(path), "a message"));
    TRY_OUT(value_text(value, what.data, &text, e));
    TRY_OUT(store(o, s, config, text, what.data, e));
    o->given[index] = true;
out:
    free(text);
    strbuf_release(&what);
    return st;
}

static enum status load_config(struct options *o, void *config, const char *path, struct error *e)
{
    char *text = NULL;
    size_t bytes;
    json_t *root = NULL;
    json_error_t where;
    const char *key;
    json_t *value;
    bool *seen = calloc(o->table->count + 1, sizeof *seen);
    enum status st;
    if (!seen)
        TRY_OUT(error_memory(e, o->table->count, "option flags"));
    TRY_OUT(file_read_all(path, CONFIG_LIMIT_BYTES, &text, &bytes, e));
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        TRY_OUT(error_set(e, STATUS_USAGE, "%s line %d column %d: not JSON: %s", path, where.line,
                          where.column, where.text));
    if (!json_is_object(root))
        TRY_OUT(error_set(e, STATUS_USAGE, "%s: expected a JSON object of options", path));
    json_object_foreach(root, key, value)
        TRY_OUT(store_entry(o, config, path, key, value, seen, e));
out:
    json_decref(root);
    free(text);
    free(seen);
    return st == STATUS_OK ? st : error_context(e, "--config");
}

/* --- the command line
 * ------------------------------------------------------------------------------ */

/* The value of an option that needs one: after '=', or the next argument. */
static enum status take_value(struct walk *w, struct argument *a, const char *attached,
                              struct error *e)
{
    if (attached) {
        a->value = attached;
        return STATUS_OK;
    }
    if (w->next >= w->argc)
        return error_set(e, STATUS_USAGE, "%s needs a value", a->shown);
    const char *next = w->argv[w->next];
    size_t n = strncmp(next, "--", 2) == 0 ? strcspn(next + 2, "=") : 0;
    if (n && (find_long(w->table, next + 2, n) || find_builtin(w->table, next + 2, n)))
        return error_set(e, STATUS_USAGE,
                         "%s needs a value, found the option %s (write %s=%s if that is the value)",
                         a->shown, next, a->shown, next);
    a->value = next;
    w->next++;
    return STATUS_OK;
}

static enum status next_long(struct walk *w, struct argument *a, const char *text, struct error *e)
{
    const char *name = text + 2;
    size_t n = strcspn(name, "=");
    const char *attached = name[n] == '=' ? name + n + 1 : NULL;
    bool ignored;
    a->spec = find_long(w->table, name, n);
    if (!a->spec)
        a->builtin = find_builtin(w->table, name, n);
    if (!a->spec && a->builtin == NOT_BUILTIN)
        return error_set(e, STATUS_USAGE, "unknown option --%.*s; the nearest known one is --%s",
                         (int)n, name, options_nearest(w->table, name, n, true));
    if (a->spec && a->spec->type == OPTION_BOOL) {
        a->value = attached;
        if (!attached && w->next < w->argc && parse_bool(w->argv[w->next], &ignored))
            a->value = w->argv[w->next++];
        return STATUS_OK;
    }
    if (a->spec || a->builtin == BUILTIN_CONFIG)
        return take_value(w, a, attached, e);
    if (attached)
        return error_set(e, STATUS_USAGE, "--%.*s takes no value, found \"%s\"", (int)n, name,
                         attached);
    return STATUS_OK;
}

/* -o VALUE, -oVALUE, and -qv for two booleans. */
static enum status next_short(struct walk *w, struct argument *a, const char *letters,
                              struct error *e)
{
    a->spec = find_short(w->table, letters[0]);
    w->bundle = NULL;
    if (!a->spec && letters[0] == 'h') {
        a->builtin = BUILTIN_HELP;
        return STATUS_OK;
    }
    if (!a->spec)
        return error_set(e, STATUS_USAGE, "unknown option -%c; --help lists the known ones",
                         letters[0]);
    if (a->spec->type != OPTION_BOOL)
        return take_value(w, a, letters[1] ? letters + 1 : NULL, e);
    if (letters[1])
        w->bundle = letters + 1;
    return STATUS_OK;
}

/* *more is false at the end. */
static enum status next_argument(struct walk *w, struct argument *a, bool *more, struct error *e)
{
    *a = (struct argument){0};
    *more = true;
    if (w->bundle) {
        a->shown = w->argv[w->next - 1];
        return next_short(w, a, w->bundle, e);
    }
    if (w->next >= w->argc) {
        *more = false;
        return STATUS_OK;
    }
    const char *text = w->argv[w->next++];
    a->shown = text;
    if (w->only_positional || text[0] != '-' || text[1] == '\0')
        return STATUS_OK;
    if (strcmp(text, "--") == 0) {
        w->only_positional = true;
        return next_argument(w, a, more, e);
    }
    return text[1] == '-' ? next_long(w, a, text, e) : next_short(w, a, text + 1, e);
}

static enum status print_and_check(const char *text, struct error *e)
{
    if (fputs(text, stdout) < 0 || fflush(stdout) != 0)
        return error_errno(e, "writing <stdout>");
    return STATUS_OK;
}

static enum status act_on_builtin(struct options *o, void *config, const struct argument *a,
                                  enum option_action *action, struct error *e)
{
    struct strbuf text = {0};
    bool ok = true;
    switch (a->builtin) {
    case BUILTIN_CONFIG:
        return load_config(o, config, a->value, e);
    case BUILTIN_PRINT_CONFIG:
        o->print_config = true;
        return STATUS_OK;
    case BUILTIN_HELP:
        ok = options_help(o->table, &text);
        break;
    case BUILTIN_VERSION:
        ok = strbuf_printf(&text, "%s %s\n", o->table->tool, PROJECT_VERSION);
        break;
    case NOT_BUILTIN:
        return STATUS_OK;
    }
    *action = OPTIONS_EXIT;
    enum status st = ok ? print_and_check(text.data, e) : error_memory(e, 4096, "the help text");
    strbuf_release(&text);
    return st;
}

/* `--max_steps=5` is shown as `--max_steps` in messages about its value. */
static enum status store_argument(struct options *o, void *config, const struct argument *a,
                                  struct error *e)
{
    char what[128];
    const struct option_spec *s = a->spec;
    if (strncmp(a->shown, "--", 2) == 0)
        snprintf(what, sizeof what, "%.*s", (int)strcspn(a->shown, "="), a->shown);
    else
        snprintf(what, sizeof what, "-%c (--%s)", s->short_name, s->name);
    TRY(store(o, s, config, a->value, what, e));
    o->given[s - o->table->specs] = true;
    return STATUS_OK;
}

enum status options_parse(struct options *o, const struct option_table *table, int argc,
                          char **argv, void *config, enum option_action *action, struct error *e)
{
    *o = (struct options){.table = table};
    *action = OPTIONS_RUN;
    enum status st;
    o->given = calloc(table->count + 1, sizeof *o->given);
    o->positional = calloc((size_t)argc + 1, sizeof *o->positional);
    if (!o->given || !o->positional)
        TRY_OUT(error_memory(e, table->count + (size_t)argc * sizeof *o->positional, "options"));
    TRY_OUT(store_defaults(o, config, e));
    for (int pass = 0; pass < 2; pass++) {
        struct walk w = {.table = table, .argc = argc, .next = 1, .argv = argv};
        for (;;) {
            struct argument a;
            bool more;
            TRY_OUT(next_argument(&w, &a, &more, e));
            if (!more)
                break;
            if (pass == 0 && a.builtin != NOT_BUILTIN) {
                TRY_OUT(act_on_builtin(o, config, &a, action, e));
                if (*action == OPTIONS_EXIT)
                    goto out;
            } else if (pass == 1 && a.spec) {
                TRY_OUT(store_argument(o, config, &a, e));
            } else if (pass == 1 && a.builtin == NOT_BUILTIN) {
                o->positional[o->positional_count++] = (char *)a.shown;
            }
        }
    }
out:
    if (st != STATUS_OK)
        options_release(o);
    return st;
}

bool options_given(const struct options *o, const char *name)
{
    const struct option_spec *s = find_long(o->table, name, strlen(name));
    assert(s);
    return s && o->given[s - o->table->specs];
}

void options_release(struct options *o)
{
    for (size_t i = 0; i < o->string_count; i++)
        free(o->strings[i]);
    free(o->strings);
    free(o->positional);
    free(o->given);
    *o = (struct options){.table = o->table};
}
