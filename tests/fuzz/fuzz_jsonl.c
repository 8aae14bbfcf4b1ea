/* Any bytes as a line of JSON. Promises: nothing crashes; a refusal names file and line; a string
 * that is read and written again reads back the same; and where jansson, an independent parser,
 * accepts the line as an object, the field is found with the same text. */
// sources: src/format/jsonl.c src/base/*.c
// libs: -ljansson -lxxhash
#include "fuzz.h"
#include "format/jsonl.h"

static const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("{\"s\":\"a b \"}"),
    FUZZ_SEED(" { \"idx\" : -0.5e+3 , \"s\" : \"x\" , \"label\" : 1 } \r"),
    FUZZ_SEED("{\"s\":\"\\u0000\\n\\\"\\\\\\/\\b\\f\\r\\t\"}"),
    FUZZ_SEED("{\"s\":\"\\u00e9\\u20ac\\ud83d\\ude00\\udcff\\ud800x\"}"),
    FUZZ_SEED("{\"a\":{\"s\":\"no\"},\"s\":\"yes\",\"b\":[[],{},[1,{\"s\":2}],true,false,null]}"),
    FUZZ_SEED("{\"s\":\"\xff\xfe\xc3\xa9\xf0\x9f\x98\x80\"}"),
    FUZZ_SEED("\xef\xbb\xbf{\"\\u0073\":\"k\",\"s\":\"l\"}"),
};
static const size_t fuzz_seed_count = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

static void fuzz_one(const uint8_t *data, size_t bytes)
{
    struct error e = {0};
    struct strbuf text = {0}, line = {0}, again = {0};
    const char *p = (const char *)data;
    enum status st = jsonl_string_field(p, bytes, "s", "in.jsonl", 2, &text, &e);
    json_t *root = json_loadb(p, bytes, JSON_ALLOW_NUL, NULL);
    const json_t *field = json_object_get(root, "s");
    if (st == STATUS_OK) {
        FUZZ_CHECK(strbuf_puts(&line, "{\"s\":"));
        FUZZ_CHECK(jsonl_append_string(&line, text.data ? text.data : "", text.length));
        FUZZ_CHECK(strbuf_putc(&line, '}'));
        FUZZ_CHECK(jsonl_string_field(line.data, line.length, "s", "f", 2, &again, &e) ==
                   STATUS_OK);
        FUZZ_CHECK(again.length == text.length);
        FUZZ_CHECK(text.length == 0 || memcmp(again.data, text.data, text.length) == 0);
    } else {
        FUZZ_CHECK(st == STATUS_DATA && strstr(e.message, "in.jsonl line 2"));
    }
    /* Meant to differ: a field that is there twice, once not as a string; and jansson lets a raw
     * NUL end a number. */
    if (json_is_string(field) && !strstr(e.message, "is not a string") && !memchr(data, 0, bytes)) {
        FUZZ_CHECK(st == STATUS_OK && text.length == json_string_length(field));
        FUZZ_CHECK(text.length == 0 ||
                   memcmp(text.data, json_string_value(field), text.length) == 0);
    }
    json_decref(root);
    strbuf_release(&text);
    strbuf_release(&line);
    strbuf_release(&again);
}
