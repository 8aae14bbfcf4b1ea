/* reader.c - cuts text where its encoding does not notice, lines at line ends, and token streams at
 * blocks. */
#define _GNU_SOURCE /* memrchr */
#include "gpt2-tokenize/reader.h"
#include "base/io.h"

#include <stdlib.h>
#include <string.h>

struct reader {
    const struct plan *plan;
    char **files;
    size_t file_count, next_file;
    struct input in;
    bool is_open;
    char **names;       /* of the files opened so far, for batches that outlive the input */
    struct strbuf rest; /* read, but behind the last cut */
    bool at_end;        /* of this file */
    bool continues;     /* the next batch begins inside a document */
    uint64_t line, document, total_bytes, done_bytes;
    struct token_reader *tokens;
    struct vocab_info vocab;
    bool ends_with_eot;
};

static enum status next_file(struct reader *r, struct error *e)
{
    const char *path = r->file_count ? r->files[r->next_file] : NULL;
    TRY(input_open(&r->in, path, e));
    r->is_open = true;
    r->names[r->next_file] = strdup(r->in.name);
    if (!r->names[r->next_file])
        return error_memory(e, strlen(r->in.name), "a file name");
    r->next_file++;
    r->at_end = r->continues = false;
    r->line = 1;
    r->document = 1;
    if (r->plan->input != INPUT_TOKENS)
        return STATUS_OK;
    TRY(token_reader_open(&r->tokens, &r->in, e));
    const struct vocab_info *vocab = token_reader_vocab(r->tokens);
    bool eot = token_reader_ends_with_eot(r->tokens);
    if (r->next_file == 1) {
        r->vocab = *vocab;
        r->ends_with_eot = eot;
        return STATUS_OK;
    }
    TRY(vocab_info_match(&r->vocab, r->names[0], vocab, r->in.name, e));
    if (eot != r->ends_with_eot)
        return error_set(e, STATUS_DATA, "%s: documents %s with <|endoftext|>, but those of %s %s",
                         r->in.name, eot ? "end" : "do not end", r->names[0],
                         eot ? "do not" : "do");
    return STATUS_OK;
}

static void close_file(struct reader *r)
{
    r->done_bytes += r->in.offset;
    token_reader_free(r->tokens);
    r->tokens = NULL;
    input_close(&r->in);
    r->is_open = false;
}

enum status reader_open(struct reader **out, const struct plan *plan, char **files, size_t count,
                        struct error *e)
{
    struct reader *r = calloc(1, sizeof *r);
    *out = r;
    if (!r)
        return error_memory(e, sizeof *r, "the reader");
    r->plan = plan;
    r->files = files;
    r->file_count = count;
    r->names = calloc(count + 1, sizeof *r->names);
    if (!r->names)
        return error_memory(e, count * sizeof *r->names, "file names");
    r->total_bytes = files_total_bytes(files, count);
    return next_file(r, e);
}

/* --- text and lines --------------------------------------------------------------------------- */

/* The line that begins at `from` is longer than a batch may be. */
static enum status line_too_long(const struct reader *r, struct error *e)
{
    return error_set(e, STATUS_DATA, "%s line %llu is longer than %zu bytes", r->in.name,
                     (unsigned long long)r->line, BATCH_LINE_LIMIT_BYTES);
}

/* How many bytes of data make a batch when more of the file follows; 0 = read on. */
static size_t find_cut(const struct reader *r, const struct strbuf *data)
{
    if (r->plan->input == INPUT_TEXT)
        return bpe_safe_cut(data->data, data->length);
    const char *lf = memrchr(data->data, '\n', data->length);
    if (lf)
        return (size_t)(lf - data->data) + 1;
    return r->plan->input == INPUT_LINES ? bpe_safe_cut(data->data, data->length) : 0;
}

static uint64_t count_lines(const char *text, size_t n)
{
    uint64_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    return lines;
}

/* Reads until there is a place to cut or the file ends. */
static enum status fill(struct reader *r, struct batch *b, size_t *cut, struct error *e)
{
    size_t want = BATCH_BYTES;
    struct strbuf *data = &b->data;
    if (!strbuf_append(data, r->rest.data, r->rest.length))
        return error_memory(e, r->rest.length, "a batch of text");
    strbuf_clear(&r->rest);
    for (*cut = 0; *cut == 0;) {
        size_t got, room = want > data->length ? want - data->length : BATCH_BYTES;
        if (!strbuf_reserve(data, room))
            return error_memory(e, data->length + room, "a batch of text");
        TRY(input_read(&r->in, data->data + data->length, room, &got, e));
        data->length += got;
        data->data[data->length] = '\0';
        r->at_end = got < room;
        *cut = r->at_end ? data->length : find_cut(r, data);
        if (r->at_end)
            break;
        if (*cut == 0 && data->length > BATCH_LINE_LIMIT_BYTES &&
            (r->plan->input == INPUT_JSONL || r->plan->input == INPUT_IDS))
            return line_too_long(r, e);
        want = 2 * data->length;
    }
    return STATUS_OK;
}

static enum status next_text(struct reader *r, struct batch *b, bool *more, struct error *e)
{
    size_t cut;
    TRY(fill(r, b, &cut, e));
    if (!strbuf_append(&r->rest, b->data.data + cut, b->data.length - cut))
        return error_memory(e, b->data.length - cut, "a batch of text");
    b->data.length = cut;
    b->first_line = r->line;
    b->continues = r->continues;
    bool whole_line = cut > 0 && b->data.data[cut - 1] == '\n';
    if (r->plan->input == INPUT_TEXT)
        b->open = !r->at_end;
    else if (r->plan->input == INPUT_LINES)
        b->open = !r->at_end && !whole_line;
    r->continues = b->open;
    if (r->plan->input != INPUT_TEXT)
        r->line += count_lines(b->data.data, cut);
    /* An empty file is one empty document of text, but no line. */
    *more = cut > 0 || b->continues || (r->plan->input == INPUT_TEXT && r->in.offset == 0);
    return STATUS_OK;
}

/* --- token streams ---------------------------------------------------------------------------- */

static enum status add_block(struct reader *r, struct batch *b, const struct token_block *block,
                             struct error *e)
{
    size_t at = b->data.length / block->id_bytes, bytes = (size_t)block->n * block->id_bytes;
    b->id_bytes = block->id_bytes;
    if (b->data.length == 0) {
        void *memory = b->data.data;
        token_reader_swap(r->tokens, &memory, &b->data.capacity);
        b->data.data = memory;
        b->data.length = bytes;
    } else if (!strbuf_append(&b->data, block->ids, bytes)) {
        return error_memory(e, bytes, "a block of ids");
    }
    for (uint32_t i = 0; i < block->documents; i++) {
        at += block->ends[i];
        TRY(ends_push(&b->data_ends, at, e));
    }
    r->document += block->documents;
    return STATUS_OK;
}

/* Where documents end with <|endoftext|>, the last id of one that goes on is kept for the next
 * batch: whether it is that end is not known yet. With --decode-format jsonl a document is kept
 * whole, for a character may be split between ids. */
static enum status next_tokens(struct reader *r, struct batch *b, bool *more, struct error *e)
{
    struct token_block block;
    size_t n, ended = 0;
    *more = true;
    b->continues = r->continues;
    b->first_document = r->document;
    if (!strbuf_append(&b->data, r->rest.data, r->rest.length))
        return error_memory(e, r->rest.length, "a block of ids");
    strbuf_clear(&r->rest);
    do {
        TRY(token_reader_block(r->tokens, &block, e));
        if (!block.ids) {
            r->at_end = true;
            *more = b->data_ends.count > 0;
            return STATUS_OK;
        }
        TRY(add_block(r, b, &block, e));
        n = b->data.length / b->id_bytes;
        ended = b->data_ends.count ? b->data_ends.at[b->data_ends.count - 1] : 0;
        b->open = n > ended;
    } while (b->open && r->plan->output == FORM_JSONL);
    if (!b->open) {
        r->continues = false;
        return STATUS_OK;
    }
    r->continues = true;
    if (!r->ends_with_eot)
        return STATUS_OK;
    b->data.length -= b->id_bytes;
    if (!strbuf_append(&r->rest, b->data.data + b->data.length, b->id_bytes))
        return error_memory(e, b->id_bytes, "a block of ids");
    r->continues = n - 1 > ended || (b->continues && b->data_ends.count == 0);
    return STATUS_OK;
}

/* --- both ------------------------------------------------------------------------------------- */

enum status reader_next(struct reader *r, struct batch *b, bool *more, struct error *e)
{
    *more = false;
    while (!*more) {
        if (!r->is_open) {
            if (r->next_file >= r->file_count)
                return STATUS_OK;
            TRY(next_file(r, e));
        }
        b->file = r->names[r->next_file - 1];
        TRY(r->plan->input == INPUT_TOKENS ? next_tokens(r, b, more, e) : next_text(r, b, more, e));
        b->done_bytes = r->done_bytes + r->in.offset;
        if (r->at_end)
            close_file(r);
    }
    return STATUS_OK;
}

const struct vocab_info *reader_vocab(const struct reader *r)
{
    return &r->vocab;
}

bool reader_ends_with_eot(const struct reader *r)
{
    return r->ends_with_eot;
}

uint64_t reader_total_bytes(const struct reader *r)
{
    return r->total_bytes;
}

void reader_free(struct reader *r)
{
    if (!r)
        return;
    if (r->is_open)
        close_file(r);
    for (size_t i = 0; r->names && i < r->file_count + 1; i++)
        free(r->names[i]);
    free(r->names);
    strbuf_release(&r->rest);
    free(r);
}
