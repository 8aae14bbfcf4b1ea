/* vocab_info.c - the vocabulary's identity as JSON. */
#include "format/vocab_info.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum status vocab_info_to_json(const struct vocab_info *v, struct strbuf *out, struct error *e)
{
    if (strbuf_printf(
            out, "{\"size\":%" PRIu32 ",\"fingerprint\":\"%016" PRIx64 "\",\"eot\":%" PRId64 "}",
            v->size, v->fingerprint, v->eot))
        return STATUS_OK;
    return error_memory(e, 96, "a vocabulary description");
}

/* Exactly 16 hexadecimal digits. */
static bool parse_fingerprint(const char *text, uint64_t *out)
{
    if (!text || strspn(text, "0123456789abcdefABCDEF") != 16 || text[16] != '\0')
        return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

enum status vocab_info_from_json(const char *json, size_t bytes, const char *name,
                                 struct vocab_info *v, struct error *e)
{
    json_error_t why;
    json_t *root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &why);
    enum status st = STATUS_OK;
    if (!root)
        return error_set(e, STATUS_DATA, "%s: vocabulary description is not JSON: %s (byte %d)",
                         name, why.text, why.position);
    const json_t *size = json_object_get(root, "size"), *eot = json_object_get(root, "eot");
    const char *print = json_string_value(json_object_get(root, "fingerprint"));
    struct vocab_info found = {0};
    if (!json_is_integer(size) || json_integer_value(size) < 1 ||
        json_integer_value(size) > (json_int_t)INT32_MAX)
        TRY_OUT(error_set(e, STATUS_DATA,
                          "%s: vocabulary description has no \"size\" between 1 and %d", name,
                          INT32_MAX));
    found.size = (uint32_t)json_integer_value(size);
    if (!parse_fingerprint(print, &found.fingerprint))
        TRY_OUT(error_set(e, STATUS_DATA,
                          "%s: vocabulary description has \"fingerprint\" \"%.40s\", expected 16 "
                          "hexadecimal digits",
                          name, print ? print : ""));
    found.eot = json_integer_value(eot);
    if (!json_is_integer(eot) || found.eot < -1 || found.eot >= (int64_t)found.size)
        TRY_OUT(error_set(e, STATUS_DATA,
                          "%s: vocabulary description has no \"eot\" between -1 and %" PRIu32, name,
                          found.size - 1));
    *v = found;
out:
    json_decref(root);
    return st;
}

enum status vocab_info_match(const struct vocab_info *a, const char *name_a,
                             const struct vocab_info *b, const char *name_b, struct error *e)
{
    if (a->size != b->size)
        return error_set(e, STATUS_DATA,
                         "%s has a vocabulary of %" PRIu32 " ids, %s one of %" PRIu32, name_a,
                         a->size, name_b, b->size);
    if (a->fingerprint && b->fingerprint && a->fingerprint != b->fingerprint)
        return error_set(e, STATUS_DATA,
                         "%s and %s have different vocabularies of the same size: fingerprints "
                         "%016" PRIx64 " and %016" PRIx64,
                         name_a, name_b, a->fingerprint, b->fingerprint);
    return STATUS_OK;
}
