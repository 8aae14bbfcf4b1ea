/* options_private.h - what the options*.c files share; not for other folders. */
#ifndef BASE_OPTIONS_PRIVATE_H
#define BASE_OPTIONS_PRIVATE_H

#include "base/options.h"
#include "base/strbuf.h"

/* Equal when '_' and '-' are taken as the same; a has a_length bytes, b is NUL-terminated. */
bool options_same_name(const char *a, size_t a_length, const char *b);
/* The known long name nearest to the first n bytes of `typed` (Damerau-Levenshtein, transpositions of
 * neighbours; a name that begins with what was typed wins); with_builtins adds --help and its like. */
const char *options_nearest(const struct option_table *table, const char *typed, size_t n,
                            bool with_builtins);
/* The text of --help; false when out of memory. */
bool options_help(const struct option_table *table, struct strbuf *out) MUST_CHECK;
/* Appends a JSON string literal; bytes that are not UTF-8 become U+FFFD. */
bool options_json_string(struct strbuf *out, const char *text) MUST_CHECK;

#endif
