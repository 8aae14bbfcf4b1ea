/* strbuf.c - growth is by doubling, so n appends cost O(n) copies. */
#include "base/strbuf.h"
#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool strbuf_reserve(struct strbuf *s, size_t more)
{
    size_t need;
    if (!checked_add_size(s->length, more, &need) || !checked_add_size(need, 1, &need))
        return false;
    if (need <= s->capacity)
        return true;
    size_t capacity = s->capacity ? s->capacity : 64;
    while (capacity < need) {
        if (!checked_mul_size(capacity, 2, &capacity)) {
            capacity = need;
            break;
        }
    }
    char *data = realloc(s->data, capacity);
    if (!data)
        return false;
    data[s->length] = '\0';
    s->data = data;
    s->capacity = capacity;
    return true;
}

bool strbuf_append(struct strbuf *s, const void *data, size_t bytes)
{
    if (!strbuf_reserve(s, bytes))
        return false;
    if (bytes)
        memcpy(s->data + s->length, data, bytes);
    s->length += bytes;
    s->data[s->length] = '\0';
    return true;
}

bool strbuf_puts(struct strbuf *s, const char *text)
{
    return strbuf_append(s, text, strlen(text));
}

bool strbuf_putc(struct strbuf *s, char c)
{
    return strbuf_append(s, &c, 1);
}

bool strbuf_printf(struct strbuf *s, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    bool ok = false;
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n >= 0 && strbuf_reserve(s, (size_t)n)) {
        vsnprintf(s->data + s->length, (size_t)n + 1, fmt, again);
        s->length += (size_t)n;
        ok = true;
    }
    va_end(again);
    va_end(ap);
    return ok;
}

void strbuf_clear(struct strbuf *s)
{
    s->length = 0;
    if (s->data)
        s->data[0] = '\0';
}

void strbuf_release(struct strbuf *s)
{
    free(s->data);
    *s = (struct strbuf){0};
}
