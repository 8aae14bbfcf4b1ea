#define _GNU_SOURCE
#include "gpt2-infer/text_stream.h"

#include <string.h>

/* Looks for stop texts that end in the last `added` bytes; the one that begins first wins. */
static void find_stop(struct text_stream *t, const struct generate_params *p, size_t added)
{
    size_t best = t->text.length;
    for (size_t i = 0; i < p->stop_count; i++) {
        size_t n = p->stop_bytes[i], back = added + n - 1;
        size_t from = t->text.length > back ? t->text.length - back : 0;
        const char *at = memmem(t->text.data + from, t->text.length - from, p->stops[i], n);
        if (at && (size_t)(at - t->text.data) < best) {
            best = (size_t)(at - t->text.data);
            t->stopped = true;
        }
    }
    if (t->stopped) {
        t->text.length = best;
        t->text.data[best] = '\0';
    }
}

bool text_stream_put(struct text_stream *t, const struct generate_params *p, const char *bytes,
                     size_t length)
{
    if (!strbuf_append(&t->text, bytes, length))
        return false;
    if (p->stop_count > 0 && length > 0)
        find_stop(t, p, length);
    return true;
}

/* Bytes at the end of s[0..n) that begin a character and lack its end. */
static size_t cut_character(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)s[n - back];
        if ((c & 0xC0) == 0x80)
            continue;
        size_t want = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        return want > back ? back : 0;
    }
    return 0;
}

size_t text_stream_safe(const struct text_stream *t, const struct generate_params *p, bool final)
{
    size_t length = t->text.length, held = 0;
    if (final || t->stopped || length == 0)
        return length;
    for (size_t i = 0; i < p->stop_count; i++) {
        size_t n = p->stop_bytes[i] - 1;
        for (n = n < length ? n : length; n > held; n--) /* longest end that begins a stop */
            if (memcmp(t->text.data + length - n, p->stops[i], n) == 0)
                held = n;
    }
    length -= held;
    return length - cut_character(t->text.data, length);
}
