/* Tab-separated rows: which column is what, and one row. */
#include "sst2-fetch/row.h"
#include <string.h>
#include <strings.h>

struct field {
    const char *text;
    size_t bytes;
};

/* Splits at tabs; returns the number of fields, also when it is more than ROW_COLUMNS. */
static int split_fields(const char *line, size_t bytes, struct field out[ROW_COLUMNS])
{
    int n = 0;
    const char *p = line, *end = line + bytes;
    for (;;) {
        const char *tab = memchr(p, '\t', (size_t)(end - p));
        if (n < ROW_COLUMNS)
            out[n] = (struct field){p, (size_t)((tab ? tab : end) - p)};
        n++;
        if (!tab)
            return n;
        p = tab + 1;
    }
}

static bool field_is(struct field f, const char *const *names)
{
    while (f.bytes > 0 && f.text[f.bytes - 1] == ' ')
        f.bytes--;
    for (; *names; names++)
        if (strlen(*names) == f.bytes && strncasecmp(f.text, *names, f.bytes) == 0)
            return true;
    return false;
}

static bool field_integer(struct field f, int64_t *value)
{
    bool negative = f.bytes > 0 && *f.text == '-';
    size_t i = negative;
    int64_t v = 0;
    if (i == f.bytes || f.bytes > 18)
        return false;
    for (; i < f.bytes; i++) {
        if (f.text[i] < '0' || f.text[i] > '9')
            return false;
        v = v * 10 + (f.text[i] - '0');
    }
    *value = negative ? -v : v;
    return true;
}

static const char *const sentence_names[] = {"sentence", "text", "review", NULL};
static const char *const label_names[] = {"label", "sentiment", "class", NULL};
static const char *const index_names[] = {"index", "idx", "id", NULL};

static bool is_header(const struct field *f, int n)
{
    bool sentence = false;
    for (int i = 0; i < n; i++) {
        int64_t unused;
        if (field_integer(f[i], &unused))
            return false;
        sentence |= field_is(f[i], sentence_names);
    }
    return sentence;
}

static enum status columns_by_name(struct row_reader *r, const struct field *f, int n,
                                   struct error *e)
{
    for (int i = 0; i < n; i++) {
        int *slot = field_is(f[i], sentence_names) ? &r->sentence_column
                    : field_is(f[i], label_names)  ? &r->label_column
                    : field_is(f[i], index_names)  ? &r->index_column
                                                   : NULL;
        if (!slot)
            continue;
        if (*slot >= 0)
            return error_set(e, STATUS_DATA, "%s:1: columns %d and %d of the header name the same",
                             r->in->name, *slot + 1, i + 1);
        *slot = i;
    }
    return STATUS_OK;
}

struct column_facts {
    bool integers; /* every line */
    bool labels;   /* every line is -1, 0 or 1 */
    bool counts;   /* 0, 1, 2, ... or 1, 2, 3, ... */
};

static void column_facts(const struct row_reader *r, int column, struct column_facts *facts)
{
    *facts = (struct column_facts){true, true, true};
    int64_t first = 0;
    for (int i = 0, row = 0; i < r->ahead_count; i++) {
        struct field f[ROW_COLUMNS];
        int64_t v;
        /* Rows of another width, blank ones too, are reported when they are read. */
        if (split_fields(r->ahead[i], r->ahead_bytes[i], f) != r->columns)
            continue;
        if (!field_integer(f[column], &v)) {
            *facts = (struct column_facts){false, false, false};
            return;
        }
        if (row == 0)
            first = v;
        facts->labels &= v >= -1 && v <= 1;
        facts->counts &= (first == 0 || first == 1) && v == first + row;
        row++;
    }
}

/* Without a header: the sentence is the column that is not all numbers. A column of numbers is the
 * label when all are -1, 0 or 1, and the index otherwise. One or two rows "0, 1" fit both; the
 * split decides then. */
static enum status columns_by_content(struct row_reader *r, struct error *e)
{
    int text_columns = 0;
    for (int i = 0; i < r->columns; i++) {
        struct column_facts facts;
        column_facts(r, i, &facts);
        bool index = facts.integers && (!facts.labels || (facts.counts && r->is_test));
        if (!facts.integers) {
            r->sentence_column = i;
            text_columns++;
        } else if (index && r->index_column < 0) {
            r->index_column = i;
        } else if (facts.labels && r->label_column < 0) {
            r->label_column = i;
        }
    }
    /* One column of nothing but numbers is still a column of sentences. */
    if (text_columns == 0 && r->columns == 1) {
        r->sentence_column = 0;
        r->label_column = r->index_column = -1;
        return STATUS_OK;
    }
    if (text_columns != 1)
        return error_set(e, STATUS_DATA,
                         "%s:1: found %d columns of text and no header, cannot tell which is the "
                         "sentence; expected a header line such as sentence<TAB>label",
                         r->in->name, text_columns);
    return STATUS_OK;
}

enum status row_detect_columns(struct row_reader *r, bool *header, struct error *e)
{
    struct field f[ROW_COLUMNS];
    int n = split_fields(r->ahead[0], r->ahead_bytes[0], f);
    if (n > ROW_COLUMNS)
        return error_set(e, STATUS_DATA,
                         "%s:1: found %d tab-separated columns, expected at most %d", r->in->name,
                         n, ROW_COLUMNS);
    r->columns = n;
    *header = is_header(f, n);
    return *header ? columns_by_name(r, f, n, e) : columns_by_content(r, e);
}

static enum status parse_label(const struct row_reader *r, struct field f, int *label,
                               struct error *e)
{
    static const char *const negative[] = {"0", "negative", NULL};
    static const char *const positive[] = {"1", "positive", NULL};
    static const char *const none[] = {"-1", "", NULL};
    if (field_is(f, negative))
        *label = 0;
    else if (field_is(f, positive))
        *label = 1;
    else if (field_is(f, none))
        *label = -1;
    else
        return error_set(e, STATUS_DATA, "%s:%llu: label '%.*s' is not 0, 1 or -1", r->in->name,
                         (unsigned long long)r->line, (int)(f.bytes < 40 ? f.bytes : 40), f.text);
    return STATUS_OK;
}

enum status row_parse_tsv(struct row_reader *r, const char *line, size_t bytes, struct row *row,
                          struct error *e)
{
    struct field f[ROW_COLUMNS];
    int n = split_fields(line, bytes, f);
    if (n != r->columns)
        return error_set(e, STATUS_DATA, "%s:%llu: found %d tab-separated fields, expected %d",
                         r->in->name, (unsigned long long)r->line, n, r->columns);
    struct field s = f[r->sentence_column];
    if (s.bytes == 0)
        return error_set(e, STATUS_DATA, "%s:%llu: the sentence is empty", r->in->name,
                         (unsigned long long)r->line);
    row->sentence = s.text;
    row->sentence_bytes = s.bytes;
    if (r->index_column >= 0) {
        struct field index = f[r->index_column];
        if (!field_integer(index, &row->idx) || row->idx < 0)
            return error_set(e, STATUS_DATA,
                             "%s:%llu: index '%.*s' is not a whole number from 0 on", r->in->name,
                             (unsigned long long)r->line,
                             (int)(index.bytes < 40 ? index.bytes : 40), index.text);
    }
    if (r->label_column >= 0)
        TRY(parse_label(r, f[r->label_column], &row->label, e));
    return STATUS_OK;
}
