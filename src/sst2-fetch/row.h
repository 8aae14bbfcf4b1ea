/* row.h - rows of SST-2 out of a stream: TSV in its wild forms, or JSON lines.
 *
 * TSV: a header line or none; columns in any order; LF or CRLF; a byte order mark; quotes are just
 * characters; no escapes. Without a header the columns are told apart by their first lines.
 * JSON lines: "sentence" (or "text"), optional "label" and "idx" (or "index").
 * The sentence is the published bytes; a byte that is not UTF-8 stays. Label -1 means none. */
#ifndef SST2_FETCH_ROW_H
#define SST2_FETCH_ROW_H

#include "base/strbuf.h"
#include "sst2-fetch/stream.h"

struct row {
    int64_t idx;          /* as published, or the place in the file counting from 0 */
    const char *sentence; /* not NUL-terminated; valid until the next call */
    size_t sentence_bytes;
    int label;     /* 0 or 1; -1 none */
    uint64_t line; /* in the file, from 1 */
};

enum { ROW_LOOKAHEAD = 64, ROW_COLUMNS = 8 };

struct row_reader {
    struct stream *in; /* not owned */
    uint64_t rows;     /* rows handed out or refused */
    bool bad_row;      /* the last failure concerns one row: reading may go on behind it */
    /* private */
    bool is_json, is_test;
    int columns, sentence_column, label_column, index_column; /* -1: no such column */
    char *ahead[ROW_LOOKAHEAD];
    size_t ahead_bytes[ROW_LOOKAHEAD];
    int ahead_count, ahead_used;
    uint64_t line, blank_line, held_line;
    struct strbuf held;
    struct strbuf sentence, scratch;
};

/* is_test: the split has no labels, so a lone column of numbers before the text is an index. */
enum status row_reader_open(struct row_reader *r, struct stream *in, bool is_test,
                            struct error *e) MUST_CHECK;
/* *end is true behind the last row. On failure see bad_row. */
enum status row_reader_next(struct row_reader *r, struct row *row, bool *end,
                            struct error *e) MUST_CHECK;
void row_reader_close(struct row_reader *r);

/* For one form each; used by row.c. */
enum status row_parse_tsv(struct row_reader *r, const char *line, size_t bytes, struct row *row,
                          struct error *e) MUST_CHECK;
enum status row_parse_json(struct row_reader *r, const char *line, size_t bytes, struct row *row,
                           struct error *e) MUST_CHECK;
/* Finds out the columns from the lines read ahead; *header when the first of them is a header. */
enum status row_detect_columns(struct row_reader *r, bool *header, struct error *e) MUST_CHECK;

#endif
