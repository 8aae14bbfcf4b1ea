#include "gpt2-infer/job.h"

#include "format/jsonl.h"

#include <stdlib.h>
#include <string.h>

bool id_list_put(struct id_list *l, int32_t id)
{
    if (l->length == l->capacity) {
        int64_t capacity = l->capacity ? 2 * l->capacity : 64;
        int32_t *ids = realloc(l->ids, (size_t)capacity * sizeof *ids);
        if (!ids)
            return false;
        l->ids = ids;
        l->capacity = capacity;
    }
    l->ids[l->length++] = id;
    return true;
}

void job_free(struct job *job)
{
    if (!job)
        return;
    free(job->id);
    free(job->ids.ids);
    free(job->gold);
    generate_params_release(&job->params);
    strbuf_release(&job->answer);
    free(job);
}

enum status job_fail(struct job *job, const struct error *e, struct error *out)
{
    struct strbuf *a = &job->answer;
    job->failed = job->done = true;
    job->error = *e;
    strbuf_clear(a);
    bool ok = strbuf_puts(a, "{\"id\":");
    ok = ok && (job->id ? strbuf_puts(a, job->id)
                        : strbuf_printf(a, "%llu", (unsigned long long)job->number));
    ok = ok &&
         strbuf_printf(a, ",\"error\":{\"line\":%llu,\"message\":", (unsigned long long)job->line);
    ok = ok && jsonl_append_string(a, e->message, strlen(e->message)) && strbuf_puts(a, "}}");
    return ok ? STATUS_OK : error_memory(out, 256, "an answer");
}

enum status job_reader_init(struct job_reader *r, const struct engine *g, const char *name,
                            struct error *e)
{
    *r = (struct job_reader){.g = g, .name = name};
    return g->bpe ? bpe_state_new(&r->state, g->bpe, e) : STATUS_OK;
}

void job_reader_release(struct job_reader *r)
{
    if (r->state)
        bpe_state_free(r->state);
    token_buffer_release(&r->tokens);
    strbuf_release(&r->text);
}

enum status job_encode(struct job_reader *r, const char *text, size_t bytes, struct id_list *out,
                       struct error *e)
{
    if (!r->state)
        return error_set(e, STATUS_DATA,
                         "the model's folder has no tokenizer: give ids, or --vocab");
    r->tokens.length = 0;
    TRY(bpe_encode(r->state, text, bytes, r->g->o->allow_special, &r->tokens, e));
    for (size_t i = 0; i < r->tokens.length; i++)
        if (!id_list_put(out, (int32_t)r->tokens.ids[i]))
            return error_memory(e, r->tokens.length * sizeof *out->ids, "token ids");
    return STATUS_OK;
}

/* Append the ids of one record's text; what is classified goes into the template first. */
static enum status encode_text(struct job_reader *r, const char *text, size_t bytes,
                               struct id_list *out, struct error *e)
{
    const char *template = r->g->o->template;
    const char *hole = strstr(template, "{}");
    if (r->g->o->task != TASK_CLASSIFY || strcmp(template, "{}") == 0)
        return job_encode(r, text, bytes, out, e);
    struct strbuf whole = {0};
    enum status st;
    if (!strbuf_append(&whole, template, (size_t)(hole - template)) ||
        !strbuf_append(&whole, text, bytes) || !strbuf_puts(&whole, hole + 2))
        st = error_memory(e, bytes, "a text");
    else
        st = job_encode(r, whole.data, whole.length, out, e);
    strbuf_release(&whole);
    return st;
}

static enum status read_ids(const json_t *array, const char *name, int64_t vocab,
                            struct id_list *out, struct error *e)
{
    if (!json_is_array(array))
        return error_set(e, STATUS_DATA, "field \"%s\" must be a list of token ids", name);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
            return error_set(e, STATUS_DATA, "field \"%s\": item %zu is not a token id below %lld",
                             name, i, (long long)vocab);
        if (!id_list_put(out, (int32_t)json_integer_value(v)))
            return error_memory(e, i * sizeof *out->ids, "token ids");
    }
    return STATUS_OK;
}

/* The first of the fields `text_names` or `ids_names` that the object has; *found says if any. */
static enum status read_text(struct job_reader *r, const json_t *object, const char *record,
                             size_t length, const char *const *text_names,
                             const char *const *ids_names, struct job *job, bool *found,
                             struct error *e)
{
    *found = true;
    for (int i = 0; ids_names[i]; i++) {
        const json_t *v = json_object_get(object, ids_names[i]);
        if (v)
            return read_ids(v, ids_names[i], r->g->vocab, &job->ids, e);
    }
    for (int i = 0; text_names[i]; i++) {
        const json_t *v = json_object_get(object, text_names[i]);
        if (!v)
            continue;
        if (json_is_array(v)) /* ids under the text's name */
            return read_ids(v, text_names[i], r->g->vocab, &job->ids, e);
        /* byte for byte: a JSON tree cannot hold every string that a record may carry */
        TRY(jsonl_string_field(record, length, text_names[i], r->name, job->line, &r->text, e));
        return encode_text(r, r->text.data ? r->text.data : "", r->text.length, &job->ids, e);
    }
    *found = false;
    return STATUS_OK;
}

static enum status read_generate(struct job_reader *r, const json_t *object, const char *record,
                                 size_t length, struct job *job, struct error *e)
{
    const char *const texts[] = {r->g->o->field, NULL};
    static const char *const ids[] = {"prompt_ids", NULL};
    bool found;
    TRY(read_text(r, object, record, length, texts, ids, job, &found, e));
    if (!found)
        return error_set(e, STATUS_DATA, "the record has neither \"%s\" nor \"prompt_ids\"",
                         r->g->o->field);
    return generate_params_read(&job->params, object, e);
}

/* score, classify, logits: an optional context, then the text. */
static enum status read_scored(struct job_reader *r, const json_t *object, const char *record,
                               size_t length, struct job *job, struct error *e)
{
    static const char *const context_texts[] = {"context", "prompt", NULL};
    static const char *const context_ids[] = {"context_ids", "prompt_ids", NULL};
    static const char *const no_context[] = {NULL};
    const char *const texts[] = {r->g->o->field, "continuation", NULL};
    static const char *const ids[] = {"ids", "continuation_ids", NULL};
    bool scores = r->g->o->task == TASK_SCORE, found;
    if (r->g->o->prepend_eot) {
        if (r->g->eot < 0)
            return error_set(e, STATUS_DATA, "the model has no end-of-text token to put in front");
        if (!id_list_put(&job->ids, (int32_t)r->g->eot))
            return error_memory(e, sizeof *job->ids.ids, "token ids");
    }
    TRY(read_text(r, object, record, length, scores ? context_texts : no_context,
                  scores ? context_ids : no_context, job, &found, e));
    job->first = job->ids.length;
    TRY(read_text(r, object, record, length, texts, ids, job, &found, e));
    if (!found)
        return error_set(e, STATUS_DATA, "the record has neither \"%s\" nor \"ids\"",
                         r->g->o->field);
    return STATUS_OK;
}

static enum status read_gold(const json_t *object, struct job *job, struct error *e)
{
    const json_t *v = json_object_get(object, "label");
    job->gold_index = -1;
    if (json_is_integer(v))
        job->gold_index = json_integer_value(v);
    else if (json_is_string(v) && !(job->gold = strdup(json_string_value(v))))
        return error_memory(e, json_string_length(v), "a label");
    return STATUS_OK;
}

enum status job_from_object(struct job_reader *r, const json_t *object, const char *record,
                            size_t length, struct job *job, struct error *e)
{
    const json_t *id = json_object_get(object, "id");
    if (!json_is_object(object))
        return error_set(e, STATUS_DATA, "the record is not a JSON object");
    if (id && !(job->id = json_dumps(id, JSON_ENCODE_ANY | JSON_COMPACT)))
        return error_memory(e, 64, "a record's id");
    if (r->g->o->task == TASK_GENERATE || r->g->o->serve)
        return read_generate(r, object, record, length, job, e);
    if (r->g->o->task == TASK_CLASSIFY)
        TRY(read_gold(object, job, e));
    return read_scored(r, object, record, length, job, e);
}

/* Lone surrogate escapes are bytes here but no JSON text for jansson: blank them for the tree only.
 * Texts are read from the record itself. */
static void blank_lone_surrogates(char *s, size_t n)
{
    for (size_t i = 0; i + 6 <= n; i++) {
        if (s[i] != '\\')
            continue;
        if (s[i + 1] != 'u') {
            i++;
            continue;
        }
        bool surrogate = (s[i + 2] | 0x20) == 'd' && strchr("89abAB", s[i + 3]);
        bool low = (s[i + 2] | 0x20) == 'd' && strchr("cdefCDEF", s[i + 3]);
        bool pair = surrogate && i + 12 <= n && s[i + 6] == '\\' && s[i + 7] == 'u' &&
                    (s[i + 8] | 0x20) == 'd' && strchr("cdefCDEF", s[i + 9]);
        if (low || (surrogate && !pair))
            memcpy(s + i + 2, "fffd", 4);
        i += pair ? 11 : 5;
    }
}

static enum status parse_json(struct job_reader *r, const char *bytes, size_t length,
                              struct job *job, struct error *e)
{
    json_t *object = NULL;
    enum status st = jsonl_parse(bytes, length, r->name, job->line, &object, e);
    if (st != STATUS_OK) {
        char *copy = malloc(length + 1);
        struct error second;
        if (!copy)
            return error_memory(e, length, "a record");
        memcpy(copy, bytes, length);
        blank_lone_surrogates(copy, length);
        st = jsonl_parse(copy, length, r->name, job->line, &object, &second);
        free(copy);
    }
    if (st == STATUS_OK)
        st = job_from_object(r, object, bytes, length, job, e);
    json_decref(object);
    return st;
}

static enum status parse_raw(struct job_reader *r, const char *bytes, size_t length,
                             struct job *job, struct error *e)
{
    if (r->g->o->prepend_eot && r->g->o->task != TASK_GENERATE) {
        if (r->g->eot < 0)
            return error_set(e, STATUS_DATA, "the model has no end-of-text token to put in front");
        if (!id_list_put(&job->ids, (int32_t)r->g->eot))
            return error_memory(e, sizeof *job->ids.ids, "token ids");
        job->first = 1;
    }
    return encode_text(r, bytes, length, &job->ids, e);
}

enum status job_parse(struct job_reader *r, const char *bytes, size_t length, bool raw,
                      uint64_t number, uint64_t line, struct job **out, struct error *e)
{
    struct error why;
    struct job *job = calloc(1, sizeof *job);
    *out = NULL;
    if (!job)
        return error_memory(e, sizeof *job, "a record");
    job->number = number;
    job->line = line;
    job->bytes = length;
    job->gold_index = -1;
    enum status st = generate_params_default(&job->params, r->g, number, &why);
    if (st == STATUS_OK)
        st = raw ? parse_raw(r, bytes, length, job, &why) : parse_json(r, bytes, length, job, &why);
    if (st == STATUS_DATA || st == STATUS_USAGE)
        st = job_fail(job, &why, &why);
    if (st != STATUS_OK) {
        *e = why;
        job_free(job);
        return st;
    }
    *out = job;
    return STATUS_OK;
}
