/* params.c - generation settings: from the command line, then from fields of a record. */
#include "base/philox.h"
#include "gpt2-infer/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEED_STREAM (0x526563ull << 32) /* "Rec": seeds of records without their own */
#define MAX_STOPS 64

void generate_params_release(struct generate_params *p)
{
    for (size_t i = 0; i < p->stop_count; i++)
        free(p->stops[i]);
    free(p->stops);
    free(p->stop_bytes);
    p->stops = NULL;
    p->stop_bytes = NULL;
    p->stop_count = 0;
}

enum status generate_params_add_stop(struct generate_params *p, const char *text, size_t bytes,
                                     struct error *e)
{
    if (bytes == 0)
        return error_set(e, STATUS_DATA, "a stop text is empty");
    if (p->stop_count == MAX_STOPS)
        return error_set(e, STATUS_DATA, "more than %d stop texts", MAX_STOPS);
    char **stops = realloc(p->stops, (p->stop_count + 1) * sizeof *stops);
    if (stops)
        p->stops = stops;
    size_t *sizes = realloc(p->stop_bytes, (p->stop_count + 1) * sizeof *sizes);
    if (sizes)
        p->stop_bytes = sizes;
    char *copy = malloc(bytes + 1);
    if (!stops || !sizes || !copy) {
        free(copy);
        return error_memory(e, bytes, "a stop text");
    }
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    p->stops[p->stop_count] = copy;
    p->stop_bytes[p->stop_count++] = bytes;
    return STATUS_OK;
}

enum status generate_params_default(struct generate_params *p, const struct engine *g,
                                    uint64_t number, struct error *e)
{
    const struct infer_options *o = g->o;
    *p = (struct generate_params){
        .max_new_tokens = o->max_new_tokens,
        .top_k = o->top_k,
        .temperature = o->temperature,
        .top_p = o->top_p,
        .seed = philox_key((uint64_t)o->seed, SEED_STREAM + number),
        .ignore_eos = o->ignore_eos,
        .logprobs = o->logprobs,
        .slide = strcmp(o->long_prompt, "slide") == 0,
    };
    return o->stop ? generate_params_add_stop(p, o->stop, strlen(o->stop), e) : STATUS_OK;
}

/* --- fields: absent or null leaves *out alone ------------------------------------------------- */

static const json_t *field(const json_t *object, const char *name)
{
    const json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

static enum status read_integer(const json_t *object, const char *name, int64_t max, int64_t *out,
                                struct error *e)
{
    const json_t *v = field(object, name);
    if (!v)
        return STATUS_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > max)
        return error_set(e, STATUS_DATA, "field \"%s\" must be a whole number from 0 to %lld", name,
                         (long long)max);
    *out = json_integer_value(v);
    return STATUS_OK;
}

static enum status read_number(const json_t *object, const char *name, double max, double *out,
                               struct error *e)
{
    const json_t *v = field(object, name);
    if (!v)
        return STATUS_OK;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= 0.0 && x <= max))
        return error_set(e, STATUS_DATA, "field \"%s\" must be a number from 0 to %g", name, max);
    *out = x;
    return STATUS_OK;
}

static enum status read_bool(const json_t *object, const char *name, bool *out, struct error *e)
{
    const json_t *v = field(object, name);
    if (!v)
        return STATUS_OK;
    if (!json_is_boolean(v) && !json_is_integer(v))
        return error_set(e, STATUS_DATA, "field \"%s\" must be true or false", name);
    *out = json_is_integer(v) ? json_integer_value(v) != 0 : json_is_true(v);
    return STATUS_OK;
}

static enum status read_stops(struct generate_params *p, const json_t *object, struct error *e)
{
    const json_t *v = field(object, "stop");
    if (!v)
        return STATUS_OK;
    if (!json_is_string(v) && !json_is_array(v))
        return error_set(e, STATUS_DATA, "field \"stop\" must be a text or a list of texts");
    generate_params_release(p); /* the record's replace the command line's */
    if (json_is_string(v))
        return generate_params_add_stop(p, json_string_value(v), json_string_length(v), e);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *s = json_array_get(v, i);
        if (!json_is_string(s))
            return error_set(e, STATUS_DATA, "field \"stop\": item %zu is not a text", i);
        TRY(generate_params_add_stop(p, json_string_value(s), json_string_length(s), e));
    }
    return STATUS_OK;
}

enum status generate_params_read(struct generate_params *p, const json_t *object, struct error *e)
{
    int64_t seed = -1;
    TRY(read_integer(object, "max_new_tokens", 1000000000, &p->max_new_tokens, e));
    TRY(read_integer(object, "top_k", INT32_MAX, &p->top_k, e));
    TRY(read_integer(object, "seed", INT64_MAX, &seed, e));
    TRY(read_number(object, "temperature", 100.0, &p->temperature, e));
    TRY(read_number(object, "top_p", 1.0, &p->top_p, e));
    TRY(read_bool(object, "ignore_eos", &p->ignore_eos, e));
    TRY(read_bool(object, "logprobs", &p->logprobs, e));
    if (seed >= 0)
        p->seed = (uint64_t)seed;
    const json_t *longer = field(object, "long_prompt");
    if (longer) {
        const char *word = json_string_value(longer);
        if (!word || (strcmp(word, "slide") != 0 && strcmp(word, "refuse") != 0))
            return error_set(e, STATUS_DATA,
                             "field \"long_prompt\" must be \"slide\" or \"refuse\"");
        p->slide = strcmp(word, "slide") == 0;
    }
    return read_stops(p, object, e);
}
