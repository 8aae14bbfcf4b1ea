/* One row as a JSON object. */
#include "sst2-fetch/row.h"
#include "format/jsonl.h"
#include <string.h>

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

/* A copy that the JSON parser accepts: it refuses NUL and lone surrogates (\u0000, \ud800), which
 * may stand in a sentence, and bytes that are not UTF-8. Numbers and keys are not touched. The
 * sentence itself is taken from the original. */
static bool copy_for_scalars(struct strbuf *out, const char *line, size_t bytes)
{
    strbuf_clear(out);
    if (!strbuf_append(out, line, bytes))
        return false;
    char *p = out->data;
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)p[i] >= 0x80) {
            p[i] = '?';
        } else if (p[i] == '\\' && i + 1 < bytes) {
            if (p[i + 1] == 'u' && i + 5 < bytes && is_hex(p[i + 2]) && is_hex(p[i + 3]) &&
                is_hex(p[i + 4]) && is_hex(p[i + 5]))
                memcpy(p + i + 2, "003f", 4);
            i++;
        }
    }
    return true;
}

static enum status json_label(const struct row_reader *r, const json_t *v, int *label,
                              struct error *e)
{
    const char *text = json_string_value(v);
    json_int_t n = json_integer_value(v);
    if (!v || json_is_null(v))
        *label = -1;
    else if (json_is_integer(v) && n >= -1 && n <= 1)
        *label = (int)n;
    else if (text && strcmp(text, "negative") == 0)
        *label = 0;
    else if (text && strcmp(text, "positive") == 0)
        *label = 1;
    else if (json_is_integer(v))
        return error_set(e, STATUS_DATA, "%s:%llu: label %lld is not 0, 1 or -1", r->in->name,
                         (unsigned long long)r->line, (long long)n);
    else
        return error_set(e, STATUS_DATA, "%s:%llu: \"label\" is not 0, 1, -1 or null", r->in->name,
                         (unsigned long long)r->line);
    return STATUS_OK;
}

enum status row_parse_json(struct row_reader *r, const char *line, size_t bytes, struct row *row,
                           struct error *e)
{
    json_t *object = NULL;
    enum status st;
    if (!copy_for_scalars(&r->scratch, line, bytes))
        return error_memory(e, bytes, "a line");
    TRY(jsonl_parse(r->scratch.data, r->scratch.length, r->in->name, r->line, &object, e));
    if (!json_is_object(object)) {
        st = error_set(e, STATUS_DATA, "%s:%llu: found JSON that is not an object", r->in->name,
                       (unsigned long long)r->line);
        goto out;
    }
    const char *field = json_object_get(object, "sentence") ? "sentence" : "text";
    if (!json_object_get(object, field)) {
        st = error_set(e, STATUS_DATA, "%s:%llu: the object has no field \"sentence\" or \"text\"",
                       r->in->name, (unsigned long long)r->line);
        goto out;
    }
    TRY_OUT(jsonl_string_field(line, bytes, field, r->in->name, r->line, &r->sentence, e));
    if (r->sentence.length == 0) {
        st = error_set(e, STATUS_DATA, "%s:%llu: the sentence is empty", r->in->name,
                       (unsigned long long)r->line);
        goto out;
    }
    row->sentence = r->sentence.data;
    row->sentence_bytes = r->sentence.length;
    const json_t *idx = json_object_get(object, "idx");
    if (!idx)
        idx = json_object_get(object, "index");
    if (idx && (!json_is_integer(idx) || json_integer_value(idx) < 0)) {
        st = error_set(e, STATUS_DATA, "%s:%llu: \"idx\" is not a whole number from 0 on",
                       r->in->name, (unsigned long long)r->line);
        goto out;
    }
    if (idx)
        row->idx = json_integer_value(idx);
    st = json_label(r, json_object_get(object, "label"), &row->label, e);
out:
    json_decref(object);
    return st;
}
