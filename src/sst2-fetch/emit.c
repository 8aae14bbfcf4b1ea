#include "sst2-fetch/emit.h"
#include "format/jsonl.h"
#include <string.h>

static bool append_jsonl(struct strbuf *b, const struct row *row)
{
    return strbuf_printf(b, "{\"idx\":%lld,\"sentence\":", (long long)row->idx) &&
           jsonl_append_string(b, row->sentence, row->sentence_bytes) &&
           (row->label < 0 || strbuf_printf(b, ",\"label\":%d", row->label)) &&
           strbuf_puts(b, "}\n");
}

static bool append_tsv_header(struct strbuf *b, bool with_labels)
{
    return strbuf_puts(b, with_labels ? "sentence\tlabel\n" : "index\tsentence\n");
}

static bool append_tsv(struct emitter *m, struct strbuf *b, const struct row *row)
{
    if (m->rows == 0) {
        m->with_labels = !m->is_test || row->label >= 0;
        if (!append_tsv_header(b, m->with_labels))
            return false;
    }
    if (m->with_labels)
        return strbuf_append(b, row->sentence, row->sentence_bytes) &&
               strbuf_printf(b, "\t%d\n", row->label);
    return strbuf_printf(b, "%lld\t", (long long)row->idx) &&
           strbuf_append(b, row->sentence, row->sentence_bytes) && strbuf_putc(b, '\n');
}

static bool append_text(struct strbuf *b, const struct row *row)
{
    return strbuf_append(b, row->sentence, row->sentence_bytes) && strbuf_putc(b, '\n');
}

/* The first byte that the format cannot hold; NULL when it holds all. */
static const char *misfit(enum emit_format format, const char *s, size_t n)
{
    if (format == EMIT_JSONL)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (s[i] == '\n' || (format == EMIT_TSV && s[i] == '\t') ||
            (s[i] == '\r' && i + 1 == n)) /* would be read back as a part of CRLF */
            return s + i;
    return NULL;
}

enum status emitter_write(struct emitter *m, const struct row *row, const char *name,
                          struct error *e)
{
    const char *bad = misfit(m->format, row->sentence, row->sentence_bytes);
    if (bad)
        return error_set(e, STATUS_DATA,
                         "%s:%llu: the sentence has a %s at byte %zu, which --format %s cannot "
                         "hold; use --format jsonl",
                         name, (unsigned long long)row->line, *bad == '\t' ? "tab" : "line end",
                         (size_t)(bad - row->sentence), m->format == EMIT_TSV ? "tsv" : "text");
    strbuf_clear(&m->line);
    bool ok = m->format == EMIT_JSONL ? append_jsonl(&m->line, row)
              : m->format == EMIT_TSV ? append_tsv(m, &m->line, row)
                                      : append_text(&m->line, row);
    if (!ok)
        return error_memory(e, row->sentence_bytes, "a line");
    m->rows++;
    m->positive += row->label == 1;
    m->negative += row->label == 0;
    return output_write(m->out, m->line.data, m->line.length, e);
}

enum status emitter_finish(struct emitter *m, struct error *e)
{
    if (m->format != EMIT_TSV || m->rows > 0)
        return STATUS_OK;
    strbuf_clear(&m->line);
    if (!append_tsv_header(&m->line, !m->is_test))
        return error_memory(e, 0, "a line");
    return output_write(m->out, m->line.data, m->line.length, e);
}

void emitter_release(struct emitter *m)
{
    strbuf_release(&m->line);
}
