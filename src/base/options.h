/* options.h - one table per tool: it parses the command line and configuration files, prints --help
 * with the live defaults, and echoes the effective configuration as JSON.
 *
 * '_' and '-' are the same inside a name. A value follows as --name=V or --name V. A boolean takes
 * an optional 0|1|true|false (so `--bf16`, `--bf16 1` and `--bf16=0` all work). Numbers are parsed
 * strictly. An unknown option is an error that names the nearest known one. Precedence: table
 * default < --config FILE.json < command line. --help, --version and --print-config are handled
 * here and reported as an action. */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_type {
    OPTION_BOOL, /* bool */
    OPTION_INT,  /* int64_t; accepts 1e6 when integral, so that a hyperparameters file moves over */
    OPTION_SIZE, /* int64_t bytes; accepts KiB MiB GiB TiB, KB MB GB TB and plain bytes */
    OPTION_FLOAT,  /* double */
    OPTION_STRING, /* const char * (owned by the table's parse; NULL when unset without default) */
    OPTION_CHOICE, /* const char *, one of choices */
};

struct option_spec {
    const char *name; /* long name without dashes; a NULL name with help set is a heading */
    enum option_type type;
    size_t offset;        /* of the field in the tool's configuration struct */
    const char *fallback; /* default value as text, parsed like any value; NULL = unset (0/NULL) */
    const char *metavar;  /* in --help; NULL chooses by type */
    const char *help;     /* one sentence; may hold newlines */
    double min, max;      /* inclusive numeric bounds, checked when min < max */
    const char *const *choices; /* NULL-terminated, for OPTION_CHOICE */
    char short_name;            /* 'o' for -o; 0 for none */
    const char *alias;          /* a second long name; NULL for none */
};

struct option_table {
    const char *tool;    /* "gpt2-tokenize" */
    const char *usage;   /* "[options] [FILE...]"; several lines allowed */
    const char *summary; /* one sentence */
    const struct option_spec *specs;
    size_t count;
    bool config_file; /* accepts --config FILE.json */
    /* Optional. Asked about a configuration file's key that is no option, value as text ("" for an
     * array or object). *known false: the usual error follows. Else STATUS_OK passes over the key,
     * because its value asks for what is done anyway, or e says what to do instead. */
    enum status (*foreign)(const char *key, const char *value, bool *known, struct error *e);
};

enum option_action { OPTIONS_RUN, OPTIONS_EXIT /* help/version was printed to stdout: exit 0 */ };

/* What parse allocated; release after the configuration is no longer used. */
struct options {
    const struct option_table *table;
    char **positional; /* arguments that are not options, in order */
    size_t positional_count;
    bool *given;       /* [count]: set by command line or config file, not by default */
    bool print_config; /* --print-config was given: the tool calls options_print_config and exits */
    /* private */
    char **strings;
    size_t string_count;
};

/* config: the tool's struct, sizes and types as the table says. Defaults are applied first. */
enum status options_parse(struct options *o, const struct option_table *table, int argc,
                          char **argv, void *config, enum option_action *action,
                          struct error *e) MUST_CHECK;
bool options_given(const struct options *o, const char *name);
/* The effective configuration, one JSON object with sorted-as-table keys (names with '_'). */
enum status options_print_config(const struct options *o, const void *config, FILE *f,
                                 struct error *e) MUST_CHECK;
/* The same text, malloc'ed, for provenance blocks; NULL when out of memory. */
char *options_config_json(const struct options *o, const void *config);
void options_release(struct options *o);

/* Strict number parsing shared with others; each fails with STATUS_USAGE naming `what`. */
enum status parse_i64(const char *text, const char *what, int64_t *out, struct error *e) MUST_CHECK;
enum status parse_f64(const char *text, const char *what, double *out, struct error *e) MUST_CHECK;
enum status parse_size(const char *text, const char *what, int64_t *bytes,
                       struct error *e) MUST_CHECK;

#define PROJECT_VERSION "0.1.0"

#endif
