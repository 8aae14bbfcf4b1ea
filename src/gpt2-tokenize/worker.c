/* worker.c - what is done with a batch, by any thread. */
#include "gpt2-tokenize/worker.h"
#include "format/jsonl.h"

#include <string.h>

void worker_init(struct worker *w, const struct plan *plan, const struct bpe *bpe,
                 uint32_t vocab_size, bool strip_eot)
{
    *w =
        (struct worker){.plan = plan, .bpe = bpe, .vocab_size = vocab_size, .strip_eot = strip_eot};
}

void worker_release(struct worker *w)
{
    bpe_state_free(w->state);
    strbuf_release(&w->scratch);
}

static enum status encode(struct worker *w, struct batch *b, const char *text, size_t n,
                          struct error *e)
{
    b->text_bytes += n;
    return bpe_encode(w->state, text, n, w->plan->allow_special, &b->ids, e);
}

static enum status end_document(struct worker *w, struct batch *b, struct error *e)
{
    if (w->plan->append_eot) {
        TRY(token_buffer_reserve(&b->ids, 1, e));
        b->ids.ids[b->ids.length++] = bpe_eot(w->bpe);
    }
    return ends_push(&b->ends, b->ids.length, e);
}

/* --- input in lines --------------------------------------------------------------------------- */

static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r')
            return false;
    return true;
}

/* A line that holds a record: JSON object or array of ids. */
static enum status record(struct worker *w, struct batch *b, const char *line, size_t n,
                          uint64_t number, struct error *e)
{
    size_t before = b->ids.length;
    enum status st;
    if (w->plan->input == INPUT_IDS) {
        st = ids_parse(line, n, w->vocab_size, b->file, number, &b->ids, e);
        if (st == STATUS_OK)
            b->text_bytes += n;
    } else {
        st = jsonl_string_field(line, n, w->plan->field, b->file, number, &w->scratch, e);
        if (st == STATUS_OK)
            return encode(w, b, w->scratch.data ? w->scratch.data : "", w->scratch.length, e);
    }
    if (st == STATUS_DATA)
        b->ids.length = before;
    return st;
}

/* Lines that cannot be read are counted; the sink decides whether they are too many. */
static enum status records(struct worker *w, struct batch *b, struct error *e)
{
    const char *at = b->data.data, *end = at + b->data.length;
    for (uint64_t number = b->first_line; at < end; number++) {
        const char *lf = memchr(at, '\n', (size_t)(end - at));
        size_t n = lf ? (size_t)(lf - at) : (size_t)(end - at);
        struct error why = {0};
        enum status st = is_blank(at, n) ? STATUS_OK : record(w, b, at, n, number, &why);
        if (st == STATUS_DATA) {
            if (b->bad++ == 0)
                b->first_bad = why;
        } else if (st != STATUS_OK) {
            *e = why;
            return st;
        } else if (!is_blank(at, n)) {
            TRY(end_document(w, b, e));
        }
        at += n + 1;
    }
    return STATUS_OK;
}

static enum status lines(struct worker *w, struct batch *b, struct error *e)
{
    const char *at = b->data.data, *end = at + b->data.length, *lf;
    bool inside = b->continues;
    while (at < end && (lf = memchr(at, '\n', (size_t)(end - at)))) {
        TRY(encode(w, b, at, (size_t)(lf - at), e));
        TRY(end_document(w, b, e));
        at = lf + 1;
        inside = false;
    }
    if (at < end)
        TRY(encode(w, b, at, (size_t)(end - at), e));
    return (at < end || inside) && !b->open ? end_document(w, b, e) : STATUS_OK;
}

/* --- token streams ---------------------------------------------------------------------------- */

static enum status widen(struct worker *w, struct batch *b, struct error *e)
{
    size_t n = b->id_bytes ? b->data.length / b->id_bytes : 0, at = 0;
    TRY(token_buffer_reserve(&b->ids, n + 1, e));
    for (size_t d = 0; d < b->data_ends.count + b->open; d++) {
        bool ended = d < b->data_ends.count;
        size_t end = ended ? b->data_ends.at[d] : n, count = end - at;
        TRY(token_buffer_reserve(&b->ids, count, e));
        uint32_t *to = b->ids.ids + b->ids.length;
        if (b->id_bytes == 2) {
            const uint16_t *from = (const uint16_t *)b->data.data + at;
            for (size_t i = 0; i < count; i++)
                to[i] = from[i];
        } else if (count) {
            memcpy(to, (const uint32_t *)b->data.data + at, count * sizeof *to);
        }
        b->ids.length += count;
        at = end;
        if (ended)
            TRY(end_document(w, b, e));
    }
    b->text_bytes += b->data.length;
    return STATUS_OK;
}

/* --- one batch -------------------------------------------------------------------------------- */

static enum status to_ids(struct worker *w, struct batch *b, struct error *e)
{
    switch (w->plan->input) {
    case INPUT_TEXT:
        TRY(encode(w, b, b->data.data ? b->data.data : "", b->data.length, e));
        return b->open ? STATUS_OK : end_document(w, b, e);
    case INPUT_LINES:
        return lines(w, b, e);
    case INPUT_JSONL:
    case INPUT_IDS:
        return records(w, b, e);
    case INPUT_TOKENS:
        return w->plan->output >= FORM_TEXT ? STATUS_OK : widen(w, b, e);
    }
    return STATUS_OK;
}

static enum status to_output(struct worker *w, struct batch *b, struct error *e)
{
    switch (w->plan->output) {
    case FORM_TOKENS:
        return STATUS_OK;
    case FORM_IDS:
        return render_ids(b, &b->text, e);
    case FORM_PIECES:
        return render_pieces(b, w->bpe, &b->text, e);
    case FORM_TEXT:
    case FORM_LINES:
    case FORM_JSONL:
        return render_text(w, b, &b->text, e);
    }
    return STATUS_OK;
}

void worker_run(struct worker *w, struct batch *b)
{
    enum status st = STATUS_OK;
    if (!w->state && plan_encodes(w->plan))
        st = bpe_state_new(&w->state, w->bpe, &b->error);
    if (st == STATUS_OK)
        st = to_ids(w, b, &b->error);
    if (st == STATUS_OK)
        st = to_output(w, b, &b->error);
    b->error.status = st;
    bool decodes_stream = b->id_bytes && w->plan->output >= FORM_TEXT;
    b->documents = decodes_stream ? b->data_ends.count : b->ends.count;
    b->tokens = decodes_stream ? b->data.length / b->id_bytes : b->ids.length;
    if (w->plan->output >= FORM_TEXT)
        b->text_bytes = b->text.length;
}
