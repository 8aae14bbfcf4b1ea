#include "sdp/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

json_t *sdp_state_to_json(const struct sdp_state *s)
{
    char consumed[20], digest[20];
    snprintf(consumed, sizeof consumed, "%016" PRIx64, s->consumed);
    snprintf(digest, sizeof digest, "%016" PRIx64, s->data_digest);
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:{s:f, s:f, s:I, s:I, s:I, s:I}, s:I, "
        "s:b, s:s, s:I}",
        "step", (json_int_t)s->step, "adam_steps", (json_int_t)s->adam_steps, "samples",
        (json_int_t)s->samples, "tokens", (json_int_t)s->tokens, "skipped", (json_int_t)s->skipped,
        "skipped_in_row", (json_int_t)s->skipped_in_row, "consumed_digest", consumed, "loss_scale",
        "scale", s->scale.scale, "minimum", s->scale.minimum, "window", (json_int_t)s->scale.window,
        "hysteresis", (json_int_t)s->scale.hysteresis, "good", (json_int_t)s->scale.good,
        "tolerance", (json_int_t)s->scale.tolerance, "seed", (json_int_t)s->seed, "shuffle",
        (int)s->shuffle, "data_digest", digest, "data_samples", (json_int_t)s->data_samples);
}

struct reader {
    const char *name;
    struct error *e;
    enum status status;
};

static const json_t *get(struct reader *r, const json_t *json, const char *key, bool right)
{
    if (!right && r->status == STATUS_OK)
        r->status = error_set(r->e, STATUS_DATA, "%s: state has no valid \"%s\"", r->name, key);
    return json_object_get(json, key);
}

static int64_t get_integer(struct reader *r, const json_t *json, const char *key)
{
    return json_integer_value(get(r, json, key, json_is_integer(json_object_get(json, key))));
}

static double get_number(struct reader *r, const json_t *json, const char *key)
{
    return json_number_value(get(r, json, key, json_is_number(json_object_get(json, key))));
}

static uint64_t get_hex(struct reader *r, const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));
    char *end = NULL;
    uint64_t value = text ? strtoull(text, &end, 16) : 0;
    get(r, json, key, text && *text && !*end);
    return value;
}

enum status sdp_state_from_json(const json_t *json, const char *name, struct sdp_state *s,
                                struct error *e)
{
    struct reader r = {.name = name, .e = e};
    const json_t *scale = json_object_get(json, "loss_scale");
    *s = (struct sdp_state){
        .step = get_integer(&r, json, "step"),
        .adam_steps = get_integer(&r, json, "adam_steps"),
        .samples = get_integer(&r, json, "samples"),
        .tokens = get_integer(&r, json, "tokens"),
        .skipped = get_integer(&r, json, "skipped"),
        .skipped_in_row = get_integer(&r, json, "skipped_in_row"),
        .consumed = get_hex(&r, json, "consumed_digest"),
        .scale = {.scale = get_number(&r, scale, "scale"),
                  .minimum = get_number(&r, scale, "minimum"),
                  .window = get_integer(&r, scale, "window"),
                  .hysteresis = get_integer(&r, scale, "hysteresis"),
                  .good = get_integer(&r, scale, "good"),
                  .tolerance = get_integer(&r, scale, "tolerance")},
        .seed = (uint64_t)get_integer(&r, json, "seed"),
        .shuffle = json_is_true(
            get(&r, json, "shuffle", json_is_boolean(json_object_get(json, "shuffle")))),
        .data_digest = get_hex(&r, json, "data_digest"),
        .data_samples = get_integer(&r, json, "data_samples"),
    };
    if (r.status == STATUS_OK && (s->step < 0 || s->samples < 0 || s->adam_steps < 0))
        return error_set(e, STATUS_DATA, "%s: state has a negative count", name);
    return r.status;
}
