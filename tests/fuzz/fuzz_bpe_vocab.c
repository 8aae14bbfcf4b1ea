/* Any bytes as a vocabulary: as merges.txt, tokenizer.json, and vocab.json beside good merges.
 * Promises: nothing crashes; a refusal says why; what is accepted encodes text so that it comes
 * back, and has the same fingerprint when it is exported and loaded again. */
// sources: src/bpe/*.c src/base/*.c
// libs: -ljansson -lxxhash
#define _GNU_SOURCE
#include "fuzz.h"
#include "base/io.h"
#include "bpe/bpe.h"

static const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("#version: 0.2\nt h\nth e\n\xC4\xA0 the\n"),
    FUZZ_SEED("a b\r\nab ab\r\nabab c"),
    FUZZ_SEED("\xC4\x80 \xC5\x83\n\xC2\xA1 \xC2\xAE\n"),
    FUZZ_SEED(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\",[\"ab\",\"c\"]]},"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"added_tokens\":[{\"id\":1,\"content\":\"<|endoftext|>\"}]}"),
    FUZZ_SEED("{\"<|endoftext|>\":0,\"a\":1,\"b\":2,\"ab\":3}"),
};
static const size_t fuzz_seed_count = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

static const char dir[] = "fuzz_bpe_vocab.d"; /* in the folder that the runner removes */

static const char *write_input(const char *name, const void *data, size_t bytes)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    FUZZ_CHECK(f && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
    return path;
}

static void check_round_trip(const struct bpe *b)
{
    static const char text[] = "the abab\xC3\xA9 <|endoftext|>\xFF theaabc";
    struct error e = {0};
    struct bpe_state *s = NULL;
    struct token_buffer ids = {0};
    struct strbuf back = {0};
    FUZZ_CHECK(bpe_state_new(&s, b, &e) == STATUS_OK);
    FUZZ_CHECK(bpe_encode(s, text, sizeof text, true, &ids, &e) == STATUS_OK);
    FUZZ_CHECK(bpe_decode(b, ids.ids, ids.length, &back, &e) == STATUS_OK);
    FUZZ_CHECK(back.length == sizeof text && memcmp(back.data, text, sizeof text) == 0);
    bpe_state_free(s);
    token_buffer_release(&ids);
    strbuf_release(&back);
}

static void check_export(const struct bpe *b)
{
    struct error e = {0};
    char out[128];
    struct bpe *again = NULL;
    snprintf(out, sizeof out, "%s/out", dir);
    FUZZ_CHECK(dir_create(out, &e) == STATUS_OK && bpe_export(b, out, &e) == STATUS_OK);
    FUZZ_CHECK(bpe_load(&again, out, &e) == STATUS_OK);
    FUZZ_CHECK(bpe_fingerprint(again) == bpe_fingerprint(b));
    FUZZ_CHECK(bpe_vocab_size(again) == bpe_vocab_size(b) && bpe_eot(again) == bpe_eot(b));
    bpe_free(again);
}

static void check_load(const char *path, bool export)
{
    struct error e = {0};
    struct bpe *b = NULL;
    enum status st = bpe_load(&b, path, &e);
    FUZZ_CHECK((st == STATUS_OK) == (b != NULL));
    FUZZ_CHECK(st == STATUS_OK || (st == STATUS_DATA && strstr(e.message, dir)));
    if (b)
        check_round_trip(b);
    if (b && export)
        check_export(b);
    bpe_free(b);
}

static void fuzz_one(const uint8_t *data, size_t bytes)
{
    static unsigned runs;
    struct error e = {0};
    FUZZ_CHECK(dir_create(dir, &e) == STATUS_OK);
    check_load(write_input("m.txt", data, bytes), ++runs % 64 == 0); /* it syncs five files */
    check_load(write_input("tokenizer.json", data, bytes), false);
    write_input("merges.txt", "a b\n", 4);
    check_load(write_input("vocab.json", data, bytes), false);
    remove(write_input("vocab.json", "", 0));
    remove(write_input("tokenizer.json", "", 0));
}
