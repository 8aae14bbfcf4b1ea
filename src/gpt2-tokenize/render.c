/* render.c - ids as text for people, and decoded documents. */
#include "format/jsonl.h"
#include "gpt2-tokenize/worker.h"

#include <stdio.h>
#include <string.h>

static enum status no_memory(const struct strbuf *out, struct error *e)
{
    return error_memory(e, out->length, "the output of a batch");
}

/* --- ids -------------------------------------------------------------------------------------- */

static char *put_number(char *to, uint32_t v)
{
    char digits[10];
    int n = 0;
    do {
        digits[n++] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    while (n)
        *to++ = digits[--n];
    return to;
}

/* One array a line; a document that began in an earlier batch goes on where it was left. */
enum status render_ids(const struct batch *b, struct strbuf *out, struct error *e)
{
    size_t at = 0;
    bool inside = b->continues;
    for (size_t d = 0; d < b->ends.count + b->open; d++) {
        size_t end = d < b->ends.count ? b->ends.at[d] : b->ids.length;
        if (!strbuf_reserve(out, 11 * (end - at) + 4))
            return no_memory(out, e);
        char *to = out->data + out->length;
        for (; at < end; at++) {
            *to++ = inside ? ',' : '[';
            to = put_number(to, b->ids.ids[at]);
            inside = true;
        }
        if (d < b->ends.count) {
            if (!inside)
                *to++ = '[';
            *to++ = ']';
            *to++ = '\n';
            inside = false;
        }
        out->length = (size_t)(to - out->data);
    }
    return STATUS_OK;
}

/* --- pieces ----------------------------------------------------------------------------------- */

/* Bytes as people can read them: a token need not be whole characters, so what is no UTF-8 is
 * written \xHH. */
static bool put_visible(struct strbuf *out, const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text;
    for (size_t i = 0; i < n;) {
        uint32_t code;
        unsigned length = bpe_utf8_length(text + i, n - i, &code);
        bool ok;
        if (p[i] == '\n' || p[i] == '\t' || p[i] == '\r')
            ok = strbuf_printf(out, "\\%c", p[i] == '\n' ? 'n' : p[i] == '\t' ? 't' : 'r');
        else if (p[i] == '"' || p[i] == '\\')
            ok = strbuf_printf(out, "\\%c", p[i]);
        else if (length == 0 || p[i] < 0x20 || p[i] == 0x7F || (code >= 0x80 && code < 0xA0))
            ok = strbuf_printf(out, "\\x%02X", p[i]), length = 1;
        else
            ok = strbuf_append(out, text + i, length);
        if (!ok)
            return false;
        i += length;
    }
    return true;
}

enum status render_pieces(const struct batch *b, const struct bpe *bpe, struct strbuf *out,
                          struct error *e)
{
    size_t at = 0;
    for (size_t d = 0; d < b->ends.count + b->open; d++) {
        size_t end = d < b->ends.count ? b->ends.at[d] : b->ids.length;
        for (; at < end; at++) {
            size_t n;
            const char *text = bpe_token(bpe, b->ids.ids[at], &n);
            if (!strbuf_printf(out, "%u\t\"", b->ids.ids[at]) || !put_visible(out, text, n) ||
                !strbuf_puts(out, "\"\n"))
                return no_memory(out, e);
        }
        if (d < b->ends.count && !strbuf_putc(out, '\n'))
            return no_memory(out, e);
    }
    return STATUS_OK;
}

/* --- decoded text ----------------------------------------------------------------------------- */

static enum status decode_range(const struct bpe *bpe, const struct batch *b, size_t from,
                                size_t to, struct strbuf *out, struct error *e)
{
    if (b->id_bytes == 2)
        return bpe_decode_u16(bpe, (const uint16_t *)b->data.data + from, to - from, out, e);
    const uint32_t *ids = b->id_bytes == 4 ? (const uint32_t *)b->data.data : b->ids.ids;
    return bpe_decode(bpe, ids + from, to - from, out, e);
}

static uint32_t id_at(const struct batch *b, size_t i)
{
    if (b->id_bytes == 2)
        return ((const uint16_t *)b->data.data)[i];
    return b->id_bytes == 4 ? ((const uint32_t *)b->data.data)[i] : b->ids.ids[i];
}

static enum status put_document(const struct worker *w, struct strbuf *out, struct error *e)
{
    if (!strbuf_putc(out, '{') ||
        !jsonl_append_string(out, w->plan->field, strlen(w->plan->field)) ||
        !strbuf_putc(out, ':') || !jsonl_append_string(out, w->scratch.data, w->scratch.length) ||
        !strbuf_puts(out, "}\n"))
        return no_memory(out, e);
    return STATUS_OK;
}

static enum status check_line(const struct batch *b, size_t d, const struct strbuf *out,
                              size_t begin, struct error *e)
{
    if (!memchr(out->data + begin, '\n', out->length - begin))
        return STATUS_OK;
    uint64_t number = b->first_document ? b->first_document + d : b->first_line + d;
    return error_set(e, STATUS_DATA,
                     "%s document %llu holds a line feed, so it is no line; use --decode-format "
                     "jsonl or text",
                     b->file, (unsigned long long)number);
}

/* Token streams are decoded from b->data as they are, other input from b->ids. */
enum status render_text(struct worker *w, const struct batch *b, struct strbuf *out,
                        struct error *e)
{
    const struct ends *ends = b->id_bytes ? &b->data_ends : &b->ends;
    size_t total = b->id_bytes ? b->data.length / b->id_bytes : b->ids.length, at = 0;
    for (size_t d = 0; d < ends->count + b->open; d++) {
        bool ended = d < ends->count;
        size_t end = ended ? ends->at[d] : total, stop = end;
        if (ended && w->strip_eot && end > at && id_at(b, end - 1) == bpe_eot(w->bpe))
            stop--;
        if (w->plan->output == FORM_JSONL) {
            strbuf_clear(&w->scratch);
            TRY(decode_range(w->bpe, b, at, stop, &w->scratch, e));
            TRY(put_document(w, out, e));
        } else {
            size_t begin = out->length;
            TRY(decode_range(w->bpe, b, at, stop, out, e));
            if (w->plan->output == FORM_LINES) {
                TRY(check_line(b, d, out, begin, e));
                if (ended && !strbuf_putc(out, '\n'))
                    return no_memory(out, e);
            }
        }
        at = end;
    }
    return STATUS_OK;
}
