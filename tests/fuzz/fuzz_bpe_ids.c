/* Any bytes as a line of token ids. Promises: nothing crashes; a refusal names file and line; it is
 * accepted exactly when jansson, an independent parser, finds an array of integers in range, and
 * then with the same ids. */
// sources: src/gpt2-tokenize/ids.c src/bpe/*.c src/base/*.c
// libs: -ljansson -lxxhash
#include "fuzz.h"
#include "gpt2-tokenize/worker.h"
#include <jansson.h>

static const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("[1, 2,3]"),
    FUZZ_SEED("[]"),
    FUZZ_SEED(" [ 511 ]\r"),
    FUZZ_SEED("[512]"),
    FUZZ_SEED("[0,00,01]"),
    FUZZ_SEED("[-0,-1,1.0,1e2]"),
    FUZZ_SEED("[4294967296,18446744073709551616]"),
    FUZZ_SEED("[[1],{\"a\":2},null,\"3\"]"),
};
static const size_t fuzz_seed_count = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

enum { VOCAB = 512 };

/* The ids, or -1: refused. To jansson -0 is an integer and a raw NUL ends a number; to us neither.
 */
static long by_jansson(const char *text, size_t bytes, uint32_t *ids)
{
    json_t *root = json_loadb(text, bytes, 0, NULL), *value;
    size_t i;
    long count = json_is_array(root) ? (long)json_array_size(root) : -1;
    json_array_foreach(root, i, value)
    {
        bool ok = json_is_integer(value) && json_integer_value(value) >= 0 &&
                  json_integer_value(value) < VOCAB;
        if (!ok) {
            count = -1;
            break;
        }
        ids[i] = (uint32_t)json_integer_value(value);
    }
    json_decref(root);
    return memchr(text, '-', bytes) || memchr(text, '\0', bytes) ? -1 : count;
}

static void fuzz_one(const uint8_t *data, size_t bytes)
{
    struct error e = {0};
    struct token_buffer got = {0};
    uint32_t *want = malloc((bytes + 1) * sizeof *want);
    FUZZ_CHECK(want);
    const char *lf = bytes ? memchr(data, '\n', bytes) : NULL; /* a line has none */
    size_t n = lf ? (size_t)(lf - (const char *)data) : bytes;
    char *line = malloc(n + 1);
    FUZZ_CHECK(line);
    memcpy(line, data, n);
    line[n] = '\0';
    long count = by_jansson(line, n, want);
    enum status st = ids_parse(line, n, VOCAB, "in.ids", 7, &got, &e);
    if (count < 0) {
        FUZZ_CHECK(st == STATUS_DATA && strstr(e.message, "in.ids line 7"));
    } else {
        FUZZ_CHECK(st == STATUS_OK && got.length == (size_t)count);
        FUZZ_CHECK(count == 0 || memcmp(got.ids, want, got.length * sizeof *want) == 0);
    }
    token_buffer_release(&got);
    free(want);
    free(line);
}
