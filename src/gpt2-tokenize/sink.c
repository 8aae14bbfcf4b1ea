/* sink.c - writes batches, and counts what passed. */
#include "gpt2-tokenize/sink.h"

enum status sink_open(struct sink *s, const struct plan *plan, const char *path,
                      const struct vocab_info *vocab, bool ends_with_eot, const char *provenance,
                      struct error *e)
{
    s->plan = plan;
    bool binary = plan->output == FORM_TOKENS;
    TRY(output_open(&s->out, path, binary ? OUTPUT_BINARY : OUTPUT_TEXT, e));
    if (!binary)
        return STATUS_OK;
    return token_writer_open(&s->writer, &s->out, vocab, ends_with_eot, provenance, e);
}

static enum status write_tokens(struct sink *s, const struct batch *b, struct error *e)
{
    size_t at = 0;
    for (size_t d = 0; d < b->ends.count; d++) {
        TRY(token_writer_put(s->writer, b->ids.ids + at, b->ends.at[d] - at, e));
        TRY(token_writer_end_document(s->writer, e));
        at = b->ends.at[d];
    }
    if (at == b->ids.length)
        return STATUS_OK;
    return token_writer_put(s->writer, b->ids.ids + at, b->ids.length - at, e);
}

static enum status count_bad(struct sink *s, const struct batch *b, struct error *e)
{
    if (b->bad == 0)
        return STATUS_OK;
    if (s->bad == 0)
        s->first_bad = b->first_bad;
    s->bad += b->bad;
    if (s->bad <= s->plan->skip_bad)
        return STATUS_OK;
    *e = b->first_bad;
    if (s->plan->skip_bad > 0)
        return error_context(e, "%llu bad lines so far, --skip-bad allows %llu",
                             (unsigned long long)s->bad, (unsigned long long)s->plan->skip_bad);
    return e->status;
}

enum status sink_write(struct sink *s, const struct batch *b, struct error *e)
{
    if (b->error.status != STATUS_OK) {
        *e = b->error;
        return e->status;
    }
    TRY(count_bad(s, b, e));
    TRY(s->writer ? write_tokens(s, b, e) : output_write(&s->out, b->text.data, b->text.length, e));
    s->documents += b->documents;
    s->text_bytes += b->text_bytes;
    s->tokens += b->tokens;
    return STATUS_OK;
}

enum status sink_commit(struct sink *s, struct error *e)
{
    if (s->writer)
        TRY(token_writer_finish(s->writer, NULL, NULL, e));
    return output_commit(&s->out, e);
}

void sink_close(struct sink *s)
{
    token_writer_free(s->writer);
    s->writer = NULL;
    output_close(&s->out);
}
