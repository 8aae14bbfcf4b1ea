/* source_jsonl.c - one document a line: {"input_ids":[1,2,...],...} or [1,2,...].
 * The line is scanned as it comes and never held, so its length does not matter. */
#include "shard-pack/byte_source.h"
#include "shard-pack/source.h"
#include "format/token_ids.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define BLOCK_IDS ((uint32_t)128 << 10)
#define DEPTH_LIMIT 64
#define KEY_LIMIT 256

struct jsonl {
    struct source *source;
    const struct source_sink *sink;
    struct byte_source bytes;
    uint64_t line, line_offset; /* number from 1; of its first byte */
    struct error *e;
    enum status io; /* a failure to read, which is not the line's fault */
    /* the block being filled */
    void *ids;
    uint32_t id_bytes;
    uint32_t *ends;
    uint32_t n, documents;
    uint32_t open_from; /* where the current document begins in the block */
    bool document_out;  /* a part of it has left already */
};

/* The next byte without taking it; -1 at the end of the input, or when reading failed. */
static int look(struct jsonl *j)
{
    if (j->bytes.p == j->bytes.end) {
        if (j->io == STATUS_OK)
            j->io = byte_source_fill(&j->bytes, j->e);
        if (j->io != STATUS_OK || j->bytes.p == j->bytes.end)
            return -1;
    }
    return *j->bytes.p;
}

static enum status bad(struct jsonl *j, const char *what)
{
    if (j->io != STATUS_OK)
        return j->io;
    uint64_t at = j->bytes.offset - (uint64_t)(j->bytes.end - j->bytes.p);
    return error_set(j->e, STATUS_DATA, "%s line %" PRIu64 " column %" PRIu64 ": %s",
                     j->source->in->name, j->line, at - j->line_offset + 1, what);
}

static int skip_space(struct jsonl *j)
{
    int c;
    while ((c = look(j)) == ' ' || c == '\t' || c == '\r')
        j->bytes.p++;
    return c;
}

static bool take(struct jsonl *j, int c)
{
    if (look(j) != c)
        return false;
    j->bytes.p++;
    return true;
}

/* --- the block -------------------------------------------------------------------------------- */

static enum status flush(struct jsonl *j)
{
    struct token_block b = {.ids = j->ids,
                            .id_bytes = j->id_bytes,
                            .n = j->n,
                            .ends = j->ends,
                            .documents = j->documents};
    j->document_out = j->document_out || j->n > j->open_from;
    j->n = j->documents = j->open_from = 0;
    return j->sink->block(j->sink->arg, &b, j->e);
}

static enum status put(struct jsonl *j, uint32_t id)
{
    if (j->n == BLOCK_IDS)
        TRY(flush(j));
    if (j->id_bytes == 2)
        ((uint16_t *)j->ids)[j->n++] = (uint16_t)id;
    else
        ((uint32_t *)j->ids)[j->n++] = id;
    return STATUS_OK;
}

static enum status end_document(struct jsonl *j)
{
    if (j->documents == BLOCK_IDS)
        TRY(flush(j));
    j->ends[j->documents++] = j->n - j->open_from;
    j->open_from = j->n;
    j->document_out = false;
    return STATUS_OK;
}

/* --- one line --------------------------------------------------------------------------------- */

static enum status scan_id(struct jsonl *j)
{
    uint64_t id = 0;
    int c = look(j), digits = 0;
    for (; c >= '0' && c <= '9'; c = look(j)) {
        id = digits < 12 ? id * 10 + (uint64_t)(c - '0') : id;
        digits++;
        j->bytes.p++;
    }
    if (digits == 0)
        return bad(j, "expected a token id, a number not below 0");
    if (c == '.' || c == 'e' || c == 'E')
        return bad(j, "a token id is a whole number");
    if (digits > 12 || id >= j->source->vocab.size) {
        char what[96];
        snprintf(what, sizeof what, "token id %" PRIu64 ", but the vocabulary has %" PRIu32 " ids",
                 id, j->source->vocab.size);
        return bad(j, what);
    }
    return put(j, (uint32_t)id);
}

/* Behind '['. */
static enum status scan_ids(struct jsonl *j)
{
    if (skip_space(j) == ']') {
        j->bytes.p++;
        return STATUS_OK;
    }
    for (;;) {
        skip_space(j);
        TRY(scan_id(j));
        int c = skip_space(j);
        if (c != ',' && c != ']')
            return bad(j, "expected ',' or ']' in an array of token ids");
        j->bytes.p++;
        if (c == ']')
            return STATUS_OK;
    }
}

/* A string behind its opening quote; its bytes go to key (NUL-terminated, cut) unless NULL. */
static enum status scan_string(struct jsonl *j, char *key)
{
    size_t n = 0;
    for (;;) {
        int c = look(j);
        if (c < 0x20)
            return bad(j, c < 0 || c == '\n' ? "the line ends inside a string"
                                             : "control character inside a string");
        j->bytes.p++;
        if (c == '"')
            break;
        if (key && n + 2 < KEY_LIMIT)
            key[n++] = (char)c;
        if (c == '\\') { /* the escaped byte cannot end the string */
            if ((c = look(j)) < 0x20)
                return bad(j, "the line ends inside a string");
            j->bytes.p++;
            if (key && n + 2 < KEY_LIMIT)
                key[n++] = (char)c;
        }
    }
    if (key)
        key[n] = '\0';
    return STATUS_OK;
}

/* true, false, null or a number, loosely: it is not used. */
static enum status skip_word(struct jsonl *j)
{
    int c = look(j), n = 0;
    for (; (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '.' ||
           c == 'E';
         c = look(j), n++)
        j->bytes.p++;
    return n ? STATUS_OK : bad(j, "expected a JSON value");
}

static enum status skip_value(struct jsonl *j)
{
    char closing[DEPTH_LIMIT];
    int depth = 0;
    do {
        int c = skip_space(j);
        if (c == '{' || c == '[') {
            if (depth == DEPTH_LIMIT)
                return bad(j, "JSON nested more than 64 deep");
            closing[depth++] = c == '{' ? '}' : ']';
            j->bytes.p++;
        } else if (depth > 0 && c == closing[depth - 1]) {
            depth--;
            j->bytes.p++;
        } else if (depth > 0 && (c == ',' || c == ':')) {
            j->bytes.p++;
        } else if (take(j, '"')) {
            TRY(scan_string(j, NULL));
        } else {
            TRY(skip_word(j));
        }
    } while (depth > 0);
    return STATUS_OK;
}

/* Behind '{'. */
static enum status scan_object(struct jsonl *j)
{
    char key[KEY_LIMIT], what[KEY_LIMIT + 64];
    const char *field = j->source->options->field;
    bool found = false;
    if (skip_space(j) != '}') {
        for (;;) {
            skip_space(j);
            if (!take(j, '"'))
                return bad(j, "expected a key in double quotes");
            TRY(scan_string(j, key));
            skip_space(j);
            if (!take(j, ':'))
                return bad(j, "expected ':' after a key");
            skip_space(j);
            if (strcmp(key, field) == 0) {
                if (found)
                    return bad(j, "the field with the ids is there twice");
                if (!take(j, '['))
                    return bad(j, "the field with the ids is not an array");
                TRY(scan_ids(j));
                found = true;
            } else {
                TRY(skip_value(j));
            }
            skip_space(j);
            if (!take(j, ','))
                break;
        }
    }
    if (!take(j, '}'))
        return bad(j, "expected ',' or '}'");
    if (found)
        return STATUS_OK;
    snprintf(what, sizeof what, "the object has no field \"%.200s\" with an array of ids", field);
    return bad(j, what);
}

/* A line that is not blank; the newline behind it is left. */
static enum status scan_line(struct jsonl *j)
{
    if (take(j, '['))
        TRY(scan_ids(j));
    else if (take(j, '{'))
        TRY(scan_object(j));
    else
        return bad(j, "expected a JSON object or an array of token ids");
    int c = skip_space(j);
    if (j->io != STATUS_OK)
        return j->io;
    return c < 0 || c == '\n' ? STATUS_OK : bad(j, "text after the JSON value");
}

/* --- the file --------------------------------------------------------------------------------- */

/* Forgets the line's ids and moves to its end. */
static enum status skip_line(struct jsonl *j, int64_t *bad_left, struct error *e)
{
    if (j->io != STATUS_OK || e->status != STATUS_DATA || *bad_left <= 0 || j->document_out)
        return e->status;
    --*bad_left;
    j->source->bad++;
    j->n = j->open_from;
    for (int c = look(j); c >= 0 && c != '\n'; c = look(j))
        j->bytes.p++;
    return j->io;
}

static enum status scan_file(struct jsonl *j, int64_t *bad_left)
{
    if (look(j) == 0xEF && j->bytes.end - j->bytes.p >= 3 && j->bytes.p[1] == 0xBB &&
        j->bytes.p[2] == 0xBF)
        j->bytes.p += 3; /* a byte order mark */
    for (;;) {
        int c = skip_space(j);
        if (c < 0)
            return j->io;
        if (c == '\n') {
            j->bytes.p++;
            j->line++;
            j->line_offset = j->bytes.offset - (uint64_t)(j->bytes.end - j->bytes.p);
            continue;
        }
        enum status st = scan_line(j);
        if (st == STATUS_OK)
            TRY(end_document(j));
        else
            TRY(skip_line(j, bad_left, j->e));
    }
}

enum status source_run_jsonl(struct source *s, const struct source_sink *sink, int64_t *bad_left,
                             struct error *e)
{
    struct jsonl j = {.source = s, .sink = sink, .line = 1, .e = e};
    enum status st = STATUS_OK;
    j.id_bytes = s->vocab.size <= 65536 ? 2 : 4;
    j.ids = malloc((size_t)BLOCK_IDS * j.id_bytes);
    j.ends = malloc((size_t)BLOCK_IDS * sizeof *j.ends);
    if (!j.ids || !j.ends)
        TRY_OUT(error_memory(e, BLOCK_IDS * 8ull, "a block of ids"));
    TRY_OUT(byte_source_open(&j.bytes, s->in, e));
    TRY_OUT(scan_file(&j, bad_left));
    if (j.n || j.documents)
        TRY_OUT(flush(&j));
out:
    byte_source_close(&j.bytes);
    free(j.ids);
    free(j.ends);
    return st;
}
