/* strbuf.h - a growing byte string. Zero-initialise, free with strbuf_release.
 * data is NUL-terminated after any append. Appends return false only when out of memory;
 * a failed append leaves the contents as they were. */
#ifndef BASE_STRBUF_H
#define BASE_STRBUF_H

#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

struct strbuf {
    char *data;
    size_t length;
    size_t capacity;
};

bool strbuf_append(struct strbuf *s, const void *data, size_t bytes) MUST_CHECK;
bool strbuf_puts(struct strbuf *s, const char *text) MUST_CHECK;
bool strbuf_putc(struct strbuf *s, char c) MUST_CHECK;
bool strbuf_printf(struct strbuf *s, const char *fmt, ...) PRINTF_LIKE(2, 3) MUST_CHECK;
bool strbuf_reserve(struct strbuf *s, size_t more) MUST_CHECK;
void strbuf_clear(struct strbuf *s); /* keeps the memory */
void strbuf_release(struct strbuf *s);

#endif
