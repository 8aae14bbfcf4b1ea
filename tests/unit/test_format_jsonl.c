/* test_format_jsonl.c - escapes and bytes survive, syntax errors are placed. */
#include "format_test.h"
#include "format/jsonl.h"

static struct error e;

static enum status field(const char *line, size_t bytes, struct strbuf *out)
{
    return jsonl_string_field(line, bytes, "s", "in.jsonl", 7, out, &e);
}

static void test_values(void)
{
    static const struct {
        const char *line, *want;
        size_t bytes;
    } good[] = {
        {"{\"s\":\"a b \"}", "a b ", 4},
        {" { \"idx\" : -0.5e+3 , \"s\" : \"x\" , \"label\" : 1 } \r", "x", 1},
        {"{\"s\":\"\\u0000\\n\\\"\\\\\\/\"}", "\0\n\"\\/", 5},
        {"{\"s\":\"\\u00e9\\u20ac\\ud83d\\ude00\"}", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9},
        {"{\"s\":\"\\udcff\\udc80\"}", "\xff\x80", 2},
        {"{\"s\":\"\\ud800x\"}", "\xed\xa0\x80x", 4},
        {"{\"s\":\"\xff\xfe\"}", "\xff\xfe", 2},
        {"{\"a\":{\"s\":\"no\"},\"s\":\"yes\",\"b\":[[],{},[1,{\"s\":2}]]}", "yes", 3},
        {"{\"s\":\"one\",\"s\":\"two\"}", "two", 3},
        {"{\"\\u0073\":\"key with an escape\"}", "key with an escape", 18},
        {"{\"n\":null,\"t\":true,\"f\":false,\"s\":\"\"}", "", 0},
    };
    struct strbuf out = {0};
    CASE("values")
    {
        for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
            CHECK_OK(field(good[i].line, strlen(good[i].line), &out));
            CHECK_INT(out.length, good[i].bytes);
            CHECK(out.length == good[i].bytes &&
                  (!out.length || memcmp(out.data, good[i].want, out.length) == 0));
        }
    }
    CASE("a byte order mark is accepted on line 1 only")
    {
        const char *line = "\xEF\xBB\xBF{\"s\":\"x\"}";
        CHECK_OK(jsonl_string_field(line, strlen(line), "s", "f", 1, &out, &e));
        CHECK_ERROR(jsonl_string_field(line, strlen(line), "s", "f", 2, &out, &e), STATUS_DATA,
                    "line 2 column 1");
    }
    strbuf_release(&out);
}

static void test_errors(void)
{
    static const struct {
        const char *line, *words;
    } bad[] = {
        {"", "column 1: expected a JSON object"},
        {"[1]", "column 1: expected a JSON object"},
        {"{\"s\":\"x\"", "column 9: expected ',' or '}'"},
        {"{\"s\":\"x", "ends inside a string"},
        {"{\"s\":\"x\\", "ends inside a string"},
        {"{\"s\":\"\\q\"}", "column 8: unknown escape"},
        {"{\"s\":\"\\u12g4\"}", "four hexadecimal"},
        {"{\"s\":\"a\tb\"}", "control character"},
        {"{\"s\":3}", "\"s\" is not a string"},
        {"{\"s\":[}", "expected a JSON value"},
        {"{\"t\":\"x\"}", "no field \"s\""},
        {"{}", "no field \"s\""},
        {"{\"s\":\"x\"} y", "text after"},
        {"{\"s\":\"x\",}", "expected a key"},
        {"{s:1}", "expected a key"},
        {"{\"s\" \"x\"}", "expected ':'"},
        {"{\"a\":01,\"s\":\"x\"}", "malformed number"},
        {"{\"a\":-,\"s\":\"x\"}", "malformed number"},
        {"{\"a\":1.,\"s\":\"x\"}", "malformed number"},
        {"{\"a\":1e,\"s\":\"x\"}", "malformed number"},
        {"{\"a\":[1,],\"s\":\"x\"}", "expected a JSON value"},
        {"{\"a\":[1},\"s\":\"x\"}", "closing bracket"},
        {"{\"a\":nul,\"s\":\"x\"}", "expected a JSON value"},
    };
    struct strbuf out = {0};
    CASE("errors name file, line and column")
    {
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            CHECK_ERROR(field(bad[i].line, strlen(bad[i].line), &out), STATUS_DATA, bad[i].words);
            CHECK_CONTAINS(e.message, "in.jsonl line 7");
        }
    }
    CASE("nesting is bounded")
    {
        char deep[2100] = "{\"a\":";
        memset(deep + 5, '[', 2000);
        CHECK_ERROR(field(deep, strlen(deep), &out), STATUS_DATA, "nested");
    }
    CASE("no cut of a good line is accepted, nor read past its end")
    {
        const char *line = "{\"k\":[1,{\"z\":-1.5e7}],\"s\":\"a\\u00e9\\udc80\\n\"}";
        for (size_t n = 0; n < strlen(line); n++) {
            char *exact = malloc(n ? n : 1); /* so that a sanitizer sees one byte too many */
            memcpy(exact, line, n);
            CHECK(field(exact, n, &out) == STATUS_DATA);
            free(exact);
        }
    }
    strbuf_release(&out);
}

static void test_round_trip(void)
{
    struct strbuf line = {0}, out = {0};
    char bytes[256 * 3];
    CASE("every byte and every pair survive")
    {
        uint32_t state = 1;
        for (int round = 0; round < 3000; round++) {
            size_t n = 0;
            if (round == 0)
                for (int c = 0; c < 256; c++)
                    bytes[n++] = (char)c;
            else
                for (int i = 0; i < 40; i++) {
                    state = state * 1664525u + 1013904223u;
                    bytes[n++] = (char)(state >> (round % 2 ? 24 : 25));
                }
            strbuf_clear(&line);
            CHECK(strbuf_puts(&line, "{\"s\":"));
            CHECK(jsonl_append_string(&line, bytes, n));
            CHECK(strbuf_putc(&line, '}'));
            CHECK_OK(field(line.data, line.length, &out));
            CHECK_INT(out.length, n);
            CHECK(memcmp(out.data, bytes, n) == 0);
            for (size_t i = 0; i < line.length; i++)
                CHECK((unsigned char)line.data[i] >= 0x20);
        }
    }
    CASE("what is valid UTF-8 stays readable")
    {
        strbuf_clear(&line);
        CHECK(jsonl_append_string(&line, "\xc3\xa9\xf0\x9f\x98\x80\t\xff", 8));
        CHECK_STR(line.data, "\"\xc3\xa9\xf0\x9f\x98\x80\\t\\udcff\"");
    }
    CASE("jansson reads the trees")
    {
        json_t *root;
        CHECK_OK(jsonl_parse("{\"a\":[1,2]}", 11, "f", 3, &root, &e));
        CHECK_INT(json_array_size(json_object_get(root, "a")), 2);
        json_decref(root);
        CHECK_ERROR(jsonl_parse("{\"a\":[1,2}", 10, "f", 3, &root, &e), STATUS_DATA,
                    "f line 3 column");
    }
    strbuf_release(&line);
    strbuf_release(&out);
}

int main(void)
{
    test_values();
    test_errors();
    test_round_trip();
    return tap_done();
}
