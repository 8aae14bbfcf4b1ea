#include "sst2-fetch/row.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* No sentence comes near: a longer line is a wrong file. */
static const size_t LINE_LIMIT = (size_t)16 << 20;

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t')
            return false;
    return true;
}

static bool starts_with(const char *s, size_t n, const char *prefix)
{
    size_t k = strlen(prefix);
    return n >= k && strncasecmp(s, prefix, k) == 0;
}

/* What a server or proxy sends instead of the data would otherwise be read as one column of text.
 */
static enum status refuse_other_files(const struct row_reader *r, const char *s, size_t n,
                                      struct error *e)
{
    while (n > 0 && (*s == ' ' || *s == '\t'))
        s++, n--;
    if (starts_with(s, n, "<!doctype html") || starts_with(s, n, "<html"))
        return error_set(e, STATUS_DATA, "%s: this is a web page (HTML), not SST-2 data",
                         r->in->name);
    if (starts_with(s, n, "<?xml"))
        return error_set(e, STATUS_DATA, "%s: this is an XML document, not SST-2 data",
                         r->in->name);
    if (n >= 4 && memcmp(s, "PAR1", 4) == 0)
        return error_set(e, STATUS_DATA, "%s: this is a Parquet file; TSV or JSON lines are read",
                         r->in->name);
    if (memchr(s, '\0', n < 512 ? n : 512))
        return error_set(e, STATUS_DATA, "%s: this is a binary file; TSV or JSON lines are read",
                         r->in->name);
    return STATUS_OK;
}

static enum status read_ahead(struct row_reader *r, struct error *e)
{
    /* One column of 64 short lines decides as well as the whole file; few long ones are enough. */
    size_t total = 0;
    while (r->ahead_count < ROW_LOOKAHEAD && total < (1u << 20)) {
        const char *line;
        size_t n;
        TRY(stream_line(r->in, &line, &n, LINE_LIMIT, e));
        if (!line)
            break;
        if (r->ahead_count == 0 && n >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0)
            line += 3, n -= 3;
        char *copy = malloc(n + 1);
        if (!copy)
            return error_memory(e, n + 1, "a line");
        memcpy(copy, line, n);
        copy[n] = '\0';
        r->ahead[r->ahead_count] = copy;
        r->ahead_bytes[r->ahead_count++] = n;
        total += n;
    }
    return STATUS_OK;
}

enum status row_reader_open(struct row_reader *r, struct stream *in, bool is_test, struct error *e)
{
    memset(r, 0, sizeof(*r));
    r->in = in;
    r->is_test = is_test;
    r->sentence_column = r->label_column = r->index_column = -1;
    TRY(read_ahead(r, e));
    if (r->ahead_count == 0)
        return error_set(e, STATUS_DATA, "%s: the file is empty, expected rows of SST-2", in->name);
    const char *first = r->ahead[0];
    TRY(refuse_other_files(r, first, r->ahead_bytes[0], e));
    while (*first == ' ' || *first == '\t')
        first++;
    if (*first == '[' && (first[1] == '{' || first[1] == '\0'))
        return error_set(e, STATUS_DATA,
                         "%s: this looks like one JSON array; JSON lines have one object a line",
                         in->name);
    /* A TSV sentence may start with a brace too, but does not go on and end like an object. */
    size_t n = r->ahead_bytes[0];
    if (*first == '{') {
        const char *last = r->ahead[0] + n;
        while (last > first && (last[-1] == ' ' || last[-1] == '\t'))
            last--;
        const char *p = first + 1;
        while (*p == ' ')
            p++;
        r->is_json = *p == '"' || (*p == '}' && p + 1 == last);
    }
    if (r->is_json)
        return STATUS_OK;
    bool header = false;
    TRY(row_detect_columns(r, &header, e));
    if (header) {
        r->ahead_used = 1;
        r->line = 1;
    }
    return STATUS_OK;
}

static enum status next_line(struct row_reader *r, const char **line, size_t *n, struct error *e)
{
    if (r->ahead_used < r->ahead_count) {
        *line = r->ahead[r->ahead_used];
        *n = r->ahead_bytes[r->ahead_used++];
    } else {
        TRY(stream_line(r->in, line, n, LINE_LIMIT, e));
    }
    if (*line)
        r->line++;
    return STATUS_OK;
}

/* A blank line is nothing at the end of a file and a bad row elsewhere, so the row behind it waits
 * in r->held while the blank one is reported. */
static enum status next_row_line(struct row_reader *r, const char **line, size_t *n,
                                 struct error *e)
{
    if (r->held_line > 0) {
        *line = r->held.data;
        *n = r->held.length;
        r->held_line = 0;
        return STATUS_OK;
    }
    uint64_t blank = 0;
    for (;;) {
        TRY(next_line(r, line, n, e));
        if (!*line || !is_blank(*line, *n))
            break;
        if (!blank)
            blank = r->line;
    }
    if (!*line || !blank)
        return STATUS_OK;
    strbuf_clear(&r->held);
    if (!strbuf_append(&r->held, *line, *n))
        return error_memory(e, *n, "a line");
    r->held_line = r->line;
    r->bad_row = true;
    r->rows += r->line - blank - 1; /* the caller counts one more for this failure */
    return error_set(e, STATUS_DATA, "%s:%llu: a blank line where a row was expected", r->in->name,
                     (unsigned long long)blank);
}

enum status row_reader_next(struct row_reader *r, struct row *row, bool *end, struct error *e)
{
    const char *line;
    size_t n;
    *end = false;
    r->bad_row = false;
    enum status st = next_row_line(r, &line, &n, e);
    if (st == STATUS_OK && !line) {
        *end = true;
        return STATUS_OK;
    }
    if (st == STATUS_OK) {
        *row = (struct row){.idx = (int64_t)r->rows, .label = -1, .line = r->line};
        st = r->is_json ? row_parse_json(r, line, n, row, e) : row_parse_tsv(r, line, n, row, e);
        r->bad_row = st == STATUS_DATA;
    }
    if (st == STATUS_OK || r->bad_row)
        r->rows++;
    return st;
}

void row_reader_close(struct row_reader *r)
{
    for (int i = 0; i < r->ahead_count; i++)
        free(r->ahead[i]);
    strbuf_release(&r->held);
    strbuf_release(&r->sentence);
    strbuf_release(&r->scratch);
    memset(r, 0, sizeof(*r));
}
