/* parse.c - bodies of requests to items: what to generate and how to answer. */
#include "base/philox.h"
#include "format/jsonl.h"
#include "gpt2-infer/serve_private.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REQUEST_STREAM (0x487474ull << 32)
#define COMPLETION_DEFAULT_TOKENS 16

void request_free(struct request *r)
{
    for (size_t i = 0; i < r->count; i++) {
        generation_release(&r->items[i].n);
        job_free(r->items[i].job);
    }
    free(r->items);
    strbuf_release(&r->body);
    strbuf_release(&r->out);
    free(r);
}

/* A new item with the server's defaults and a seed of its own. */
static enum status add_item(struct request *r, struct job **job, struct error *e)
{
    struct server *s = r->server;
    int64_t limit = s->g->o->queue_limit;
    if ((int64_t)r->count >= limit)
        return error_set(e, STATUS_DATA, "more than %lld texts in one request (--queue-limit)",
                         (long long)limit);
    struct item *items = realloc(r->items, (r->count + 1) * sizeof *items);
    if (!items)
        return error_memory(e, (r->count + 1) * sizeof *items, "a request");
    r->items = items;
    items[r->count] = (struct item){.job = calloc(1, sizeof *items->job)};
    *job = items[r->count].job;
    if (!*job)
        return error_memory(e, sizeof **job, "a request");
    (*job)->number = r->count;
    (*job)->line = r->count + 1;
    (*job)->gold_index = -1;
    r->count++;
    TRY(generate_params_default(&(*job)->params, s->g, 0, e));
    (*job)->params.seed = philox_key(s->nonce, REQUEST_STREAM + s->requests * 65536 + r->count);
    return STATUS_OK;
}

/* Limits of the endpoint, and what the decoder would refuse. */
static enum status check_item(struct request *r, const struct job *job, struct error *e)
{
    const struct engine *g = r->server->g;
    if (job->params.max_new_tokens > g->o->max_request_tokens)
        return error_set(e, STATUS_DATA, "%lld new tokens are asked for, at most %lld are given",
                         (long long)job->params.max_new_tokens,
                         (long long)g->o->max_request_tokens);
    if (job->ids.length == 0)
        return error_set(e, STATUS_DATA, "the prompt is empty; at least one token is needed");
    if (job->ids.length > g->context && !job->params.slide)
        return error_set(e, STATUS_DATA, "the prompt has %lld tokens, the model's context is %lld",
                         (long long)job->ids.length, (long long)g->context);
    return STATUS_OK;
}

/* One record of /invocations. Alone, what is wrong with it is the request's error; among others it
 * is its own answer. */
static enum status add_record(struct request *r, const json_t *object, const char *text,
                              size_t length, bool alone, struct error *e)
{
    struct job *job;
    struct error why;
    TRY(add_item(r, &job, e));
    enum status st =
        object ? job_from_object(&r->server->reader, object, text, length, job, &why) : STATUS_DATA;
    if (!object) { /* a line: parse it here */
        json_t *parsed = NULL;
        st = jsonl_parse(text, length, "the body", job->line, &parsed, &why);
        if (st == STATUS_OK)
            st = job_from_object(&r->server->reader, parsed, text, length, job, &why);
        json_decref(parsed);
    }
    if (st == STATUS_OK)
        st = check_item(r, job, &why);
    if (st == STATUS_OK)
        return STATUS_OK;
    if (alone || st != STATUS_DATA) {
        *e = why;
        return st;
    }
    return job_fail(job, &why, e);
}

static enum status parse_list(struct request *r, const json_t *list, struct error *e)
{
    r->reply = REPLY_JSON_LIST;
    if (json_array_size(list) == 0)
        return error_set(e, STATUS_DATA, "the list of records is empty");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *object = json_array_get(list, i);
        char *text = json_dumps(object, JSON_ENCODE_ANY); /* strings are read from text */
        if (!text)
            return error_memory(e, 256, "a record");
        enum status st = add_record(r, object, text, strlen(text), false, e);
        free(text);
        TRY(st);
    }
    return STATUS_OK;
}

static enum status parse_json_body(struct request *r, struct error *e)
{
    json_t *root = NULL;
    r->reply = REPLY_JSON;
    TRY(jsonl_parse(r->body.data, r->body.length, "the body", 1, &root, e));
    const json_t *instances = json_object_get(root, "instances");
    enum status st;
    if (json_is_array(root))
        st = parse_list(r, root, e);
    else if (json_is_array(instances))
        st = parse_list(r, instances, e);
    else
        st = add_record(r, root, r->body.data, r->body.length, true, e);
    json_decref(root);
    return st;
}

static enum status parse_lines(struct request *r, struct error *e)
{
    r->reply = REPLY_LINES;
    for (size_t at = 0; at < r->body.length;) {
        const char *line = r->body.data + at;
        const char *end = memchr(line, '\n', r->body.length - at);
        size_t n = end ? (size_t)(end - line) : r->body.length - at;
        at += n + 1;
        if (strspn(line, " \t\r") < n)
            TRY(add_record(r, NULL, line, n, false, e));
    }
    return r->count ? STATUS_OK : error_set(e, STATUS_DATA, "the body holds no records");
}

/* Query arguments as settings: numbers and true/false as themselves, anything else as text. */
static enum MHD_Result take_argument(void *arg, enum MHD_ValueKind kind, const char *key,
                                     const char *value)
{
    json_t *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : json_true();
    (void)kind;
    if (!v || json_is_object(v) || json_is_array(v)) {
        json_decref(v);
        v = json_string(value);
    }
    json_object_set_new(arg, key, v);
    return MHD_YES;
}

static enum status parse_text(struct request *r, struct error *e)
{
    struct job *job;
    r->reply = REPLY_TEXT;
    TRY(add_item(r, &job, e));
    json_t *settings = json_object();
    if (!settings)
        return error_memory(e, 64, "settings");
    MHD_get_connection_values(r->connection, MHD_GET_ARGUMENT_KIND, take_argument, settings);
    enum status st = generate_params_read(&job->params, settings, e);
    json_decref(settings);
    TRY(st);
    TRY(job_encode(&r->server->reader, r->body.data, r->body.length, &job->ids, e));
    return check_item(r, job, e);
}

/* --- /v1/completions -------------------------------------------------------------------------- */

static enum status read_count(const json_t *root, const char *name, int64_t max, int64_t *out,
                              struct error *e)
{
    const json_t *v = json_object_get(root, name);
    if (!v || json_is_null(v))
        return STATUS_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > max)
        return error_set(e, STATUS_DATA, "field \"%s\" must be a whole number from 0 to %lld", name,
                         (long long)max);
    *out = json_integer_value(v);
    return STATUS_OK;
}

static enum status prompt_ids(struct request *r, const json_t *list, struct job *job,
                              struct error *e)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= r->server->g->vocab)
            return error_set(e, STATUS_DATA, "item %zu of a prompt is not a token id below %lld", i,
                             (long long)r->server->g->vocab);
        if (!id_list_put(&job->ids, (int32_t)id))
            return error_memory(e, i * 4, "token ids");
    }
    return STATUS_OK;
}

/* n items of one prompt, which is a text or a list of ids. */
static enum status add_prompt(struct request *r, const json_t *root, const json_t *prompt,
                              int64_t n, struct error *e)
{
    for (int64_t k = 0; k < n; k++) {
        struct job *job;
        TRY(add_item(r, &job, e));
        job->params.max_new_tokens = COMPLETION_DEFAULT_TOKENS;
        TRY(generate_params_read(&job->params, root, e));
        TRY(read_count(root, "max_tokens", INT32_MAX, &job->params.max_new_tokens, e));
        job->params.logprobs = true; /* kept; shown when asked for */
        if (k > 0 && json_is_integer(json_object_get(root, "seed")))
            job->params.seed = philox_key(job->params.seed, (uint64_t)k);
        if (json_is_string(prompt))
            TRY(job_encode(&r->server->reader, json_string_value(prompt),
                           json_string_length(prompt), &job->ids, e));
        else
            TRY(prompt_ids(r, prompt, job, e));
        TRY(check_item(r, job, e));
        r->prompt_tokens += k == 0 ? job->ids.length : 0;
    }
    return STATUS_OK;
}

static enum status add_prompts(struct request *r, const json_t *root, int64_t n, struct error *e)
{
    const json_t *prompt = json_object_get(root, "prompt"), *first = json_array_get(prompt, 0);
    if (json_is_string(prompt) || json_is_integer(first))
        return add_prompt(r, root, prompt, n, e);
    if (!first)
        return error_set(e, STATUS_DATA,
                         "\"prompt\" must be a text, a list of texts, or lists of token ids");
    for (size_t i = 0; i < json_array_size(prompt); i++) {
        const json_t *one = json_array_get(prompt, i);
        if (!json_is_string(one) && !json_is_array(one))
            return error_set(e, STATUS_DATA, "item %zu of \"prompt\" is neither a text nor ids", i);
        TRY(add_prompt(r, root, one, n, e));
    }
    return STATUS_OK;
}

static enum status parse_completion(struct request *r, const json_t *root, struct error *e)
{
    int64_t n = 1;
    const json_t *logprobs = json_object_get(root, "logprobs");
    if (!json_is_object(root))
        return error_set(e, STATUS_DATA, "the body is not a JSON object");
    if (!r->server->g->bpe)
        return error_set(e, STATUS_DATA, "the model has no tokenizer; use /invocations with ids");
    TRY(read_count(root, "n", 128, &n, e));
    r->echo = json_is_true(json_object_get(root, "echo"));
    r->want_logprobs = json_is_integer(logprobs) || json_is_true(logprobs);
    r->reply = json_is_true(json_object_get(root, "stream")) ? REPLY_EVENTS : REPLY_COMPLETION;
    return add_prompts(r, root, n > 0 ? n : 1, e);
}

/* OpenAI's "logprobs" is a number; as a setting it would be a wrong boolean. */
static enum status parse_completion_body(struct request *r, struct error *e)
{
    json_t *root = NULL;
    TRY(jsonl_parse(r->body.data, r->body.length, "the body", 1, &root, e));
    enum status st = parse_completion(r, root, e);
    json_decref(root);
    return st;
}

static bool is_type(const char *header, const char *type)
{
    size_t n = strlen(type);
    return strncasecmp(header, type, n) == 0 && strchr("; \t", header[n]); /* or the end */
}

enum status request_parse(struct request *r, const char *type, struct error *e)
{
    enum status st;
    if (r->body.length == 0)
        return error_set(e, STATUS_DATA, "the body is empty");
    r->created = (int64_t)time(NULL);
    snprintf(r->id, sizeof r->id, "cmpl-%016llx",
             (unsigned long long)philox_key(r->server->nonce, r->server->requests));
    if (r->route == ROUTE_COMPLETIONS)
        st = parse_completion_body(r, e);
    else if (!type || is_type(type, "application/json") ||
             is_type(type, "application/x-www-form-urlencoded")) /* curl -d */
        st = parse_json_body(r, e);
    else if (is_type(type, "application/jsonlines") || is_type(type, "application/x-ndjson") ||
             is_type(type, "application/jsonl"))
        st = parse_lines(r, e);
    else if (is_type(type, "text/plain"))
        st = parse_text(r, e);
    else
        return error_set(e, STATUS_USAGE,
                         "content type \"%.100s\" is not one of application/json, "
                         "application/jsonlines, text/plain",
                         type);
    TRY(st);
    r->prompt_tokens = 0;
    for (size_t i = 0; i < r->count; i++) { /* only now do items stay where they are */
        struct item *item = &r->items[i];
        item->request = r;
        item->finished = item->job->done; /* failed records are answered already */
        r->finished += item->finished;
        r->prompt_tokens += item->job->ids.length;
        generation_init(&item->n, r->server->g, item->job);
    }
    strbuf_release(&r->body);
    return STATUS_OK;
}
