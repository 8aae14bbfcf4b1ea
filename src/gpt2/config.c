#include "gpt2/config.h"

#include "base/checked.h"
#include "base/io.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Products want a multiple of 128 columns; 50257 becomes 50304 as others do. */
#define VOCAB_ALIGN 128
#define CONFIG_LIMIT_BYTES (1u << 20)

int64_t gpt2_vocab_padded(const struct gpt2_config *c)
{
    return round_up_i64(c->vocab, VOCAB_ALIGN);
}

static enum status check_range(const char *what, int64_t value, int64_t low, int64_t high,
                               struct error *e)
{
    if (value < low || value > high)
        return error_set(e, STATUS_USAGE, "%s is %lld, must be between %lld and %lld", what,
                         (long long)value, (long long)low, (long long)high);
    return STATUS_OK;
}

static enum status check_dropout(const char *what, float p, struct error *e)
{
    if (!(p >= 0.0f && p < 1.0f))
        return error_set(e, STATUS_USAGE, "%s is %g, must be at least 0 and below 1", what, p);
    return STATUS_OK;
}

enum status gpt2_config_check(const struct gpt2_config *c, struct error *e)
{
    TRY(check_range("number of layers", c->layers, 1, 1000, e));
    TRY(check_range("number of heads", c->heads, 1, 4096, e));
    TRY(check_range("hidden width", c->channels, 8, 1 << 20, e));
    TRY(check_range("context width", c->context, 1, 1 << 24, e));
    TRY(check_range("vocabulary size", c->vocab, 2, INT32_MAX - VOCAB_ALIGN, e));
    if (c->channels % c->heads != 0) {
        int64_t below = c->channels / c->heads * c->heads;
        return error_set(e, STATUS_USAGE,
                         "hidden width %lld is not a multiple of %lld heads (nearest widths: %lld, "
                         "%lld)",
                         (long long)c->channels, (long long)c->heads,
                         (long long)max_i64(below, c->heads), (long long)(below + c->heads));
    }
    int64_t head_dim = c->channels / c->heads;
    if (head_dim % 8 != 0 || head_dim > 128) {
        int64_t nearest = min_i64(128, max_i64(8, (head_dim + 4) / 8 * 8));
        return error_set(
            e, STATUS_USAGE,
            "hidden width %lld over %lld heads gives head dimension %lld, which must be "
            "a multiple of 8 up to 128 (nearest width: %lld)",
            (long long)c->channels, (long long)c->heads, (long long)head_dim,
            (long long)(nearest * c->heads));
    }
    if (!(c->epsilon > 0.0f))
        return error_set(e, STATUS_USAGE, "layer norm epsilon is %g, must be above 0", c->epsilon);
    TRY(check_dropout("embd_pdrop", c->embd_pdrop, e));
    TRY(check_dropout("resid_pdrop", c->resid_pdrop, e));
    return check_dropout("attn_pdrop", c->attn_pdrop, e);
}

static enum status read_integer(const json_t *json, const char *name, const char *key,
                                int64_t fallback, int64_t *out, struct error *e)
{
    const json_t *v = json_object_get(json, key);
    *out = fallback;
    if (!v || json_is_null(v))
        return STATUS_OK;
    if (!json_is_integer(v))
        return error_set(e, STATUS_DATA, "%s: \"%s\" is not a whole number", name, key);
    *out = json_integer_value(v);
    return STATUS_OK;
}

static enum status read_real(const json_t *json, const char *name, const char *key, double fallback,
                             float *out, struct error *e)
{
    const json_t *v = json_object_get(json, key);
    *out = (float)fallback;
    if (!v || json_is_null(v))
        return STATUS_OK;
    if (!json_is_number(v))
        return error_set(e, STATUS_DATA, "%s: \"%s\" is not a number", name, key);
    *out = (float)json_number_value(v);
    return STATUS_OK;
}

/* A setting that changes the formulas and that we do not compute must not be passed over. */
static enum status require_bool(const json_t *json, const char *name, const char *key, bool want,
                                struct error *e)
{
    const json_t *v = json_object_get(json, key);
    if (v && json_is_boolean(v) && json_is_true(v) != want)
        return error_set(e, STATUS_DATA, "%s: \"%s\" is %s; only %s is supported", name, key,
                         want ? "false" : "true", want ? "true" : "false");
    return STATUS_OK;
}

static enum status check_kind(const json_t *json, const char *name, int64_t channels,
                              struct error *e)
{
    const char *type = json_string_value(json_object_get(json, "model_type"));
    if (type && strcmp(type, "gpt2") != 0)
        return error_set(e, STATUS_DATA, "%s: model_type is \"%s\", expected \"gpt2\"", name, type);
    const char *act = json_string_value(json_object_get(json, "activation_function"));
    if (act && strcmp(act, "gelu_new") != 0 && strcmp(act, "gelu_pytorch_tanh") != 0)
        return error_set(e, STATUS_DATA,
                         "%s: activation_function is \"%s\"; GPT-2's \"gelu_new\" is supported",
                         name, act);
    int64_t inner;
    TRY(read_integer(json, name, "n_inner", 4 * channels, &inner, e));
    if (inner != 4 * channels)
        return error_set(e, STATUS_DATA, "%s: n_inner is %lld; only 4 * n_embd = %lld is supported",
                         name, (long long)inner, (long long)(4 * channels));
    TRY(require_bool(json, name, "scale_attn_weights", true, e));
    TRY(require_bool(json, name, "scale_attn_by_inverse_layer_idx", false, e));
    TRY(require_bool(json, name, "add_cross_attention", false, e));
    return require_bool(json, name, "tie_word_embeddings", true, e);
}

enum status gpt2_config_from_json(struct gpt2_config *c, const json_t *json, const char *name,
                                  struct error *e)
{
    if (!json_is_object(json))
        return error_set(e, STATUS_DATA, "%s: not a JSON object", name);
    TRY(read_integer(json, name, "n_layer", 12, &c->layers, e));
    TRY(read_integer(json, name, "n_head", 12, &c->heads, e));
    TRY(read_integer(json, name, "n_embd", 768, &c->channels, e));
    TRY(read_integer(json, name, "n_positions", 1024, &c->context, e));
    TRY(read_integer(json, name, "vocab_size", 50257, &c->vocab, e));
    TRY(read_integer(json, name, "eos_token_id", 50256, &c->eot, e));
    if (c->eot < 0 || c->eot >= c->vocab)
        c->eot = -1;
    TRY(read_real(json, name, "layer_norm_epsilon", 1e-5, &c->epsilon, e));
    TRY(read_real(json, name, "embd_pdrop", 0.1, &c->embd_pdrop, e));
    TRY(read_real(json, name, "resid_pdrop", 0.1, &c->resid_pdrop, e));
    TRY(read_real(json, name, "attn_pdrop", 0.1, &c->attn_pdrop, e));
    TRY(check_kind(json, name, c->channels, e));
    if (gpt2_config_check(c, e) != STATUS_OK) {
        e->status = STATUS_DATA; /* it came from a file */
        return error_context(e, "%s", name);
    }
    return STATUS_OK;
}

enum status gpt2_config_load(struct gpt2_config *c, const char *path, struct error *e)
{
    enum status st;
    char *text = NULL;
    json_t *json = NULL;
    json_error_t where;
    size_t bytes;

    TRY_OUT(file_read_all(path, CONFIG_LIMIT_BYTES, &text, &bytes, e));
    json = json_loadb(text, bytes, 0, &where);
    if (!json) {
        st = error_set(e, STATUS_DATA, "%s:%d:%d: %s", path, where.line, where.column, where.text);
        goto out;
    }
    st = gpt2_config_from_json(c, json, path, e);
out:
    json_decref(json);
    free(text);
    return st;
}

/* The shortest decimal that names the same float: 0.1 and not 0.10000000149. */
static json_t *json_float(float f)
{
    for (int digits = 1; digits < 9; digits++) {
        char text[32];
        snprintf(text, sizeof text, "%.*g", digits, (double)f);
        if (strtof(text, NULL) == f)
            return json_real(strtod(text, NULL));
    }
    return json_real((double)f);
}

json_t *gpt2_config_to_json(const struct gpt2_config *c, const char *torch_dtype)
{
    return json_pack(
        "{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:n, s:I, s:o, s:o, s:o, s:o, s:f, s:b, "
        "s:b, s:b, s:o, s:o, s:s}",
        "architectures", "GPT2LMHeadModel", "model_type", "gpt2", "activation_function", "gelu_new",
        "n_layer", (json_int_t)c->layers, "n_head", (json_int_t)c->heads, "n_embd",
        (json_int_t)c->channels, "n_positions", (json_int_t)c->context, "n_inner", "vocab_size",
        (json_int_t)c->vocab, "layer_norm_epsilon", json_float(c->epsilon), "embd_pdrop",
        json_float(c->embd_pdrop), "resid_pdrop", json_float(c->resid_pdrop), "attn_pdrop",
        json_float(c->attn_pdrop), "initializer_range", 0.02, "scale_attn_weights", 1,
        "tie_word_embeddings", 1, "use_cache", 1, "bos_token_id",
        c->eot >= 0 ? json_integer(c->eot) : json_null(), "eos_token_id",
        c->eot >= 0 ? json_integer(c->eot) : json_null(), "torch_dtype", torch_dtype);
}

int64_t gpt2_parameters(const struct gpt2_config *c)
{
    int64_t n = c->channels;
    int64_t block = 12 * n * n + 13 * n; /* qkv 3, proj 1, fc 4, fcproj 4; biases 9, norms 4 */
    return (c->vocab + c->context) * n + c->layers * block + 2 * n;
}

double gpt2_train_flops_per_token(const struct gpt2_config *c, int64_t time)
{
    double n = (double)(gpt2_parameters(c) - c->context * c->channels);
    return 6.0 * n + 12.0 * (double)c->layers * (double)c->channels * (double)time;
}
