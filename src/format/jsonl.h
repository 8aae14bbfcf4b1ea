/* jsonl.h - JSON objects one a line: reading with place in messages, and exact string escapes. */
#ifndef FORMAT_JSONL_H
#define FORMAT_JSONL_H

#include "base/io.h"
#include "base/strbuf.h"
#include <jansson.h>

/* Parse one line (no LF). name and line number are for messages; failure is STATUS_DATA with
 * column. */
enum status jsonl_parse(const char *text, size_t bytes, const char *name, uint64_t line,
                        json_t **out, struct error *e) MUST_CHECK;
/* Append a JSON string literal. Bytes that are not valid UTF-8 are written as U+DC80+byte-0x80 lone
 * surrogate escapes (Python's surrogateescape), so that every byte string survives a round trip
 * through jsonl_string_field. */
bool jsonl_append_string(struct strbuf *out, const char *text, size_t bytes) MUST_CHECK;
/* The value of string field `field` of the object on this line, decoded into out (cleared first),
 * without building a tree: jansson refuses NUL and lone surrogates, which are data here. Duplicate
 * keys: the last wins. Not an object, no such field, not a string: STATUS_DATA naming line and
 * column. */
enum status jsonl_string_field(const char *text, size_t bytes, const char *field, const char *name,
                               uint64_t line, struct strbuf *out, struct error *e) MUST_CHECK;

#endif
