/* source_json.c - tokenizer.json, and the id map of vocab.json. */
#include "bpe/bpe_private.h"

#include <jansson.h>
#include <stdlib.h>

void bpe_ids_release(struct bpe_ids *ids)
{
    for (uint32_t i = 0; i < ids->special_count; i++)
        free(ids->specials[i].text);
    free(ids->specials);
    free(ids->external);
    memset(ids, 0, sizeof *ids);
}

static enum status parse(const char *name, const char *text, size_t bytes, json_t **root,
                         struct error *e)
{
    json_error_t why;
    *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!*root)
        return error_set(e, STATUS_DATA, "%s line %d column %d: not JSON: %s", name, why.line,
                         why.column, why.text);
    return STATUS_OK;
}

/* One entry of the id map: a byte, a merge, or a special token. */
static enum status place_entry(const struct bpe_source *s, struct bpe_ids *ids, const char *name,
                               const char *token, size_t n, json_int_t id, char *scratch,
                               struct error *e)
{
    int shown = n > 100 ? 100 : (int)n;
    size_t bytes;
    if (id < 0 || id >= (json_int_t)ids->size)
        return error_set(e, STATUS_DATA,
                         "%s: token \"%.*s\" has id %lld, expected ids 0 to %u without gaps", name,
                         shown, token, (long long)id, ids->size - 1);
    bool is_eot = n == BPE_EOT_BYTES && memcmp(token, BPE_EOT_TEXT, n) == 0;
    if (!is_eot && bpe_alphabet_decode(token, n, scratch, &bytes) && bytes > 0) {
        uint32_t internal = bpe_source_find(s, scratch, bytes);
        if (internal != BPE_NONE) {
            ids->external[internal] = (uint32_t)id;
            return STATUS_OK;
        }
    }
    char *text = malloc(n + 1);
    if (!text)
        return error_memory(e, n + 1, "a special token");
    memcpy(text, token, n);
    text[n] = '\0';
    if (is_eot)
        ids->eot = (uint32_t)id;
    ids->specials[ids->special_count++] = (struct bpe_special){(uint32_t)id, text};
    return STATUS_OK;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = ((const struct bpe_special *)a)->id, y = ((const struct bpe_special *)b)->id;
    return x < y ? -1 : x > y;
}

/* Every byte and every merge has an id, no id is used twice, and <|endoftext|> is there. */
static enum status check_ids(const struct bpe_source *s, struct bpe_ids *ids, const char *name,
                             struct error *e)
{
    enum status st = STATUS_OK;
    uint8_t *used = calloc(ids->size, 1);
    if (!used)
        return error_memory(e, ids->size, "the id map");
    for (uint32_t i = 0; i < 256 + s->merges + ids->special_count && st == STATUS_OK; i++) {
        uint32_t id =
            i < 256 + s->merges ? ids->external[i] : ids->specials[i - 256 - s->merges].id;
        if (id == BPE_NONE && i < 256)
            st = error_set(e, STATUS_DATA, "%s: no token for the byte 0x%02X", name, i);
        else if (id == BPE_NONE)
            st =
                error_set(e, STATUS_DATA, "%s: no token for the result of merge %u", name, i - 255);
        else if (used[id]++)
            st = error_set(e, STATUS_DATA, "%s: id %u belongs to two tokens", name, id);
    }
    free(used);
    if (st == STATUS_OK && ids->size != 256 + s->merges + ids->special_count)
        st = error_set(e, STATUS_DATA, "%s: %u entries for %u tokens: one is listed twice", name,
                       ids->size, 256 + s->merges + ids->special_count);
    if (st == STATUS_OK && ids->eot == BPE_NONE)
        st = error_set(e, STATUS_DATA, "%s: no token %s", name, BPE_EOT_TEXT);
    return st;
}

/* vocab: object of token to id; added: array of {id, content} that may repeat entries, or NULL. */
static enum status build_ids(const struct bpe_source *s, struct bpe_ids *ids, const char *name,
                             const json_t *vocab, const json_t *added, struct error *e)
{
    const char *token;
    json_t *value;
    size_t i, entries = json_object_size(vocab), most = entries + json_array_size(added),
              longest = 0;
    json_object_foreach((json_t *)vocab, token, value) longest =
        strlen(token) > longest ? strlen(token) : longest;
    json_array_foreach(added, i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        if (!content || !json_is_integer(json_object_get(value, "id")))
            return error_set(e, STATUS_DATA, "%s: added_tokens[%zu] lacks content or id", name, i);
        entries += json_object_get(vocab, content) == NULL;
        longest = strlen(content) > longest ? strlen(content) : longest;
    }
    if (most > BPE_MAX_MERGES)
        return error_set(e, STATUS_DATA, "%s: more than %u tokens", name, BPE_MAX_MERGES);
    ids->size = (uint32_t)entries;
    ids->eot = BPE_NONE;
    ids->external = malloc((256 + (size_t)s->merges) * sizeof *ids->external);
    ids->specials = calloc(most + 1, sizeof *ids->specials);
    char *scratch = malloc(longest + 16);
    enum status st = STATUS_OK;
    if (!ids->external || !ids->specials || !scratch)
        TRY_OUT(error_memory(e, most * sizeof *ids->specials, "the id map"));
    memset(ids->external, 0xFF, (256 + (size_t)s->merges) * sizeof *ids->external);
    json_object_foreach((json_t *)vocab, token, value)
    {
        if (!json_is_integer(value))
            TRY_OUT(error_set(e, STATUS_DATA, "%s: the id of token \"%.100s\" is not an integer",
                              name, token));
        TRY_OUT(
            place_entry(s, ids, name, token, strlen(token), json_integer_value(value), scratch, e));
    }
    json_array_foreach(added, i, value)
    {
        token = json_string_value(json_object_get(value, "content"));
        json_int_t id = json_integer_value(json_object_get(value, "id"));
        const json_t *known = json_object_get(vocab, token);
        if (known && json_integer_value(known) != id)
            TRY_OUT(error_set(e, STATUS_DATA, "%s: token \"%.100s\" has two ids, %lld and %lld",
                              name, token, (long long)json_integer_value(known), (long long)id));
        if (!known)
            TRY_OUT(place_entry(s, ids, name, token, strlen(token), id, scratch, e));
    }
    qsort(ids->specials, ids->special_count, sizeof *ids->specials, by_id);
    st = check_ids(s, ids, name, e);
out:
    free(scratch);
    return st;
}

enum status bpe_json_vocab(const struct bpe_source *s, struct bpe_ids *ids, const char *name,
                           const char *text, size_t bytes, struct error *e)
{
    json_t *root;
    TRY(parse(name, text, bytes, &root, e));
    enum status st =
        json_is_object(root)
            ? build_ids(s, ids, name, root, NULL, e)
            : error_set(e, STATUS_DATA, "%s: expected one object of token to id", name);
    json_decref(root);
    return st;
}

/* Merges are "LEFT RIGHT" in older files and [LEFT, RIGHT] in newer ones. */
static enum status add_merges(struct bpe_source *s, const json_t *merges, struct error *e)
{
    size_t i;
    json_t *m;
    json_array_foreach(merges, i, m)
    {
        const char *left = json_string_value(m), *right;
        const char *space = left ? strchr(left, ' ') : NULL;
        size_t left_bytes;
        if (json_is_array(m) && json_array_size(m) == 2) {
            left = json_string_value(json_array_get(m, 0));
            right = json_string_value(json_array_get(m, 1));
            left_bytes = left ? strlen(left) : 0;
        } else {
            right = space ? space + 1 : NULL;
            left_bytes = space ? (size_t)(space - left) : 0;
        }
        if (!left || !right)
            return error_set(e, STATUS_DATA, "%s: merge %zu is not a pair of symbols", s->name,
                             i + 1);
        TRY(bpe_source_add(s, left, left_bytes, right, strlen(right), "merge", i + 1, e));
    }
    return STATUS_OK;
}

static const json_t *first_byte_level(const json_t *pre)
{
    const char *type = json_string_value(json_object_get(pre, "type"));
    if (type && strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(pre, "pretokenizers");
        return json_array_size(list) == 1 ? first_byte_level(json_array_get(list, 0)) : NULL;
    }
    return type && strcmp(type, "ByteLevel") == 0 ? pre : NULL;
}

/* A tokenizer that splits or normalises text in another way would get other ids from us: refuse. */
static enum status check_kind(const char *name, const json_t *root, struct error *e)
{
    const json_t *model = json_object_get(root, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    const json_t *pre = first_byte_level(json_object_get(root, "pre_tokenizer"));
    const json_t *normalizer = json_object_get(root, "normalizer");
    const char *wrong = NULL;
    if (!json_is_object(json_object_get(model, "vocab")) ||
        !json_is_array(json_object_get(model, "merges")))
        wrong = "it has no model.vocab and model.merges";
    else if (type && strcmp(type, "BPE") != 0)
        wrong = "its model is not BPE";
    else if (!pre)
        wrong = "its pre_tokenizer is not ByteLevel";
    else if (json_is_false(json_object_get(pre, "use_regex")))
        wrong = "its pre_tokenizer does not use GPT-2's pattern";
    else if (json_is_true(json_object_get(pre, "add_prefix_space")))
        wrong = "it puts a space before each text (add_prefix_space)";
    else if (normalizer && !json_is_null(normalizer))
        wrong = "it normalises text";
    else if (json_is_true(json_object_get(model, "ignore_merges")))
        wrong = "it ignores merges for whole words (ignore_merges)";
    if (wrong)
        return error_set(e, STATUS_DATA, "%s is not a GPT-2 tokenizer: %s", name, wrong);
    return STATUS_OK;
}

enum status bpe_json_tokenizer(struct bpe_source *s, struct bpe_ids *ids, const char *name,
                               const char *text, size_t bytes, struct error *e)
{
    json_t *root;
    TRY(parse(name, text, bytes, &root, e));
    enum status st = STATUS_OK;
    TRY_OUT(check_kind(name, root, e));
    const json_t *model = json_object_get(root, "model"),
                 *merges = json_object_get(model, "merges");
    TRY_OUT(bpe_source_init(s, name, json_array_size(merges), bytes, e));
    TRY_OUT(add_merges(s, merges, e));
    TRY_OUT(build_ids(s, ids, name, json_object_get(model, "vocab"),
                      json_object_get(root, "added_tokens"), e));
out:
    json_decref(root);
    return st;
}
