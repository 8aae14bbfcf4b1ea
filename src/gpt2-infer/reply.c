/* reply.c - answers as the clients want them, built while tokens come. */
#include "base/log.h"
#include "format/jsonl.h"
#include "gpt2-infer/serve_private.h"

#include <string.h>

bool reply_put_error(struct strbuf *out, const char *type, const char *message)
{
    return strbuf_puts(out, "{\"error\":{\"message\":") &&
           jsonl_append_string(out, message, strlen(message)) &&
           strbuf_printf(out, ",\"type\":\"%s\"}}\n", type);
}

const char *reply_content_type(const struct request *r)
{
    switch (r->reply) {
    case REPLY_LINES:
        return "application/jsonlines";
    case REPLY_TEXT:
        return "text/plain; charset=utf-8";
    case REPLY_EVENTS:
        return "text/event-stream";
    default:
        return "application/json";
    }
}

bool reply_is_streamed(const struct request *r)
{
    return r->reply == REPLY_LINES || r->reply == REPLY_TEXT || r->reply == REPLY_EVENTS;
}

/* --- OpenAI's objects ------------------------------------------------------------------------- */

static bool put_head(struct strbuf *out, const struct request *r)
{
    const char *model = r->server->g->model_name;
    return strbuf_printf(out,
                         "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%lld,"
                         "\"model\":",
                         r->id, (long long)r->created) &&
           jsonl_append_string(out, model, strlen(model)) && strbuf_puts(out, ",\"choices\":[");
}

static const char *completion_reason(const struct item *item)
{
    return item->n.why == GPT2_FINISH_LENGTH ? "length" : "stop";
}

/* {"tokens":[...],"token_logprobs":[...],"top_logprobs":null,"text_offset":[...]} of tokens from
 * `first` on. */
static bool put_logprobs(struct strbuf *out, const struct item *item)
{
    const struct generation *n = &item->n;
    size_t bytes, offset = 0;
    bool ok = strbuf_puts(out, "{\"tokens\":[");
    for (int64_t i = 0; ok && i < n->ids.length; i++) {
        const char *text = bpe_token(n->g->bpe, (uint32_t)n->ids.ids[i], &bytes);
        ok = (i == 0 || strbuf_putc(out, ',')) && jsonl_append_string(out, text, bytes);
    }
    ok = ok && strbuf_puts(out, "],\"token_logprobs\":") &&
         json_put_reals(out, n->logprobs, n->ids.length) &&
         strbuf_puts(out, ",\"top_logprobs\":null,\"text_offset\":[");
    for (int64_t i = 0; ok && i < n->ids.length; i++) {
        ok = strbuf_printf(out, i ? ",%zu" : "%zu", offset);
        bpe_token(n->g->bpe, (uint32_t)n->ids.ids[i], &bytes);
        offset += bytes;
    }
    return ok && strbuf_puts(out, "]}");
}

static bool put_choice(struct strbuf *out, const struct request *r, const struct item *item,
                       const char *text, size_t bytes, bool final)
{
    bool ok = strbuf_puts(out, "{\"text\":") && jsonl_append_string(out, text, bytes) &&
              strbuf_printf(out, ",\"index\":%zu,\"logprobs\":", (size_t)(item - r->items));
    if (r->want_logprobs && final)
        ok = ok && put_logprobs(out, item);
    else
        ok = ok && strbuf_puts(out, "null");
    if (final)
        return ok && strbuf_printf(out, ",\"finish_reason\":\"%s\"}", completion_reason(item));
    return ok && strbuf_puts(out, ",\"finish_reason\":null}");
}

static bool put_usage(struct strbuf *out, const struct request *r)
{
    long long prompt = r->prompt_tokens, made = r->new_tokens;
    return strbuf_printf(out,
                         ",\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,"
                         "\"total_tokens\":%lld}",
                         prompt, made, prompt + made);
}

/* The prompt's bytes before the text when the client asked to hear them again. */
static bool put_echo(struct strbuf *text, const struct item *item)
{
    const struct job *job = item->job;
    for (int64_t i = 0; i < job->ids.length; i++) {
        size_t bytes;
        const char *p = bpe_token(item->n.g->bpe, (uint32_t)job->ids.ids[i], &bytes);
        if (!strbuf_append(text, p, bytes))
            return false;
    }
    return true;
}

static bool put_completion(struct request *r)
{
    struct strbuf text = {0};
    bool ok = put_head(&r->out, r);
    for (size_t i = 0; ok && i < r->count; i++) {
        const struct item *item = &r->items[i];
        strbuf_clear(&text);
        ok = (i == 0 || strbuf_putc(&r->out, ',')) && (!r->echo || put_echo(&text, item)) &&
             strbuf_append(&text, item->n.stream.text.data, item->n.stream.text.length) &&
             put_choice(&r->out, r, item, text.data ? text.data : "", text.length, true);
    }
    strbuf_release(&text);
    return ok && strbuf_puts(&r->out, "]") && put_usage(&r->out, r) && strbuf_puts(&r->out, "}\n");
}

/* What an item's text has grown by, as one event. */
static bool put_event(struct request *r, struct item *item)
{
    struct strbuf text = {0};
    const struct strbuf *all = &item->n.stream.text;
    size_t safe = text_stream_safe(&item->n.stream, &item->job->params, item->finished);
    bool ok = true, first = r->echo && !item->echoed;
    if (safe <= item->shown && !item->finished && !first)
        return true;
    if (first)
        ok = put_echo(&text, item);
    item->echoed = true;
    if (safe > item->shown)
        ok = ok && strbuf_append(&text, all->data + item->shown, safe - item->shown);
    item->shown = safe > item->shown ? safe : item->shown;
    ok = ok && strbuf_puts(&r->out, "data: ") && put_head(&r->out, r) &&
         put_choice(&r->out, r, item, text.data ? text.data : "", text.length, item->finished) &&
         strbuf_puts(&r->out, "]}\n\n");
    strbuf_release(&text);
    return ok;
}

/* --- ours ------------------------------------------------------------------------------------- */

static bool put_answer(struct strbuf *out, const struct item *item)
{
    return strbuf_append(out, item->job->answer.data, item->job->answer.length);
}

static bool put_ready_lines(struct request *r)
{
    bool ok = true;
    for (; ok && r->next_line < r->count && r->items[r->next_line].finished; r->next_line++)
        ok = put_answer(&r->out, &r->items[r->next_line]) && strbuf_putc(&r->out, '\n');
    return ok;
}

static bool put_text(struct request *r, struct item *item)
{
    size_t safe = text_stream_safe(&item->n.stream, &item->job->params, item->finished);
    bool ok = safe <= item->shown ||
              strbuf_append(&r->out, item->n.stream.text.data + item->shown, safe - item->shown);
    item->shown = safe > item->shown ? safe : item->shown;
    return ok;
}

bool reply_progress(struct request *r, struct item *item)
{
    if (r->reply == REPLY_EVENTS)
        return put_event(r, item);
    if (r->reply == REPLY_TEXT)
        return put_text(r, item);
    return r->reply != REPLY_LINES || put_ready_lines(r);
}

bool reply_complete(struct request *r)
{
    bool ok = true;
    switch (r->reply) {
    case REPLY_EVENTS:
        return strbuf_puts(&r->out, "data: [DONE]\n\n");
    case REPLY_COMPLETION:
        return put_completion(r);
    case REPLY_JSON:
        return put_answer(&r->out, &r->items[0]) && strbuf_putc(&r->out, '\n');
    case REPLY_JSON_LIST:
        ok = strbuf_putc(&r->out, '[');
        for (size_t i = 0; ok && i < r->count; i++)
            ok = (i == 0 || strbuf_putc(&r->out, ',')) && put_answer(&r->out, &r->items[i]);
        return ok && strbuf_puts(&r->out, "]\n");
    default:
        return ok;
    }
}
