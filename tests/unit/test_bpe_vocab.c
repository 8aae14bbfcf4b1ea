/* Vocabularies in all their forms: one fingerprint, and clear refusals. */
#include "base/io.h"
#include "bpe_test.h"
#include "tap.h"

#include <unistd.h>

static struct error e;
static char dir[] = "/tmp/test_bpe_vocab.XXXXXX";

static const char *write_text(const char *name, const char *text)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (file_write_atomic(path, text, strlen(text), &e) != STATUS_OK)
        exit(1);
    return path;
}

static uint64_t fingerprint_of(const char *path)
{
    struct bpe *b = NULL;
    if (bpe_load(&b, path, &e) != STATUS_OK) {
        printf("# %s\n", e.message);
        return 0;
    }
    uint64_t f = bpe_fingerprint(b);
    bpe_free(b);
    return f;
}

static void check_refused(const char *name, const char *text, const char *why)
{
    struct bpe *b = NULL;
    const char *path = write_text(name, text);
    CHECK_INT(bpe_load(&b, path, &e), STATUS_DATA);
    CHECK(b == NULL);
    CHECK_CONTAINS(e.message, why);
    CHECK_CONTAINS(e.message, name);
    remove(path);
}

static void test_line_ends(void)
{
    uint64_t want = fingerprint_of(write_text("m.txt", "#version: 0.2\nt h\nth e\n"));
    CHECK(want != 0);
    CHECK(fingerprint_of(write_text("m.txt", "#version: 0.2\nt h\nth e")) == want);
    CHECK(fingerprint_of(write_text("m.txt", "t h\nth e\n")) == want);
    CHECK(fingerprint_of(write_text("m.txt", "#version: 0.2\r\nt h\r\nth e\r\n")) == want);
    CHECK(fingerprint_of(write_text("m.txt", "#version: 0.2\nt h\nth e\n\n")) == want);
    CHECK(fingerprint_of(write_text("m.txt", "#version: 0.2\nt h\nth e\ne r\n")) != want);
    /* A merge may begin with '#', and its second symbol may be U+0105 or the like, whose second
     * byte is 0x85: no line end. */
    CHECK(fingerprint_of(write_text("m.txt", "# #\n## \xC4\x85\n")) != 0);
}

static void test_refusals(void)
{
    check_refused("m.txt", "#version: 0.2\nt h\nthe y\n", "line 3 merges \"the\"");
    check_refused("m.txt", "t h\nt h\n", "merge 1 has made already");
    check_refused("m.txt", "t h\nh e\nth e\nt he\n", "merge 3 has made already");
    check_refused("m.txt", "t h e\n", "not two symbols");
    check_refused("m.txt", "th\n", "not two symbols");
    check_refused("m.txt", " t\n", "not two symbols");
    check_refused("m.txt", "t h\n\nth e\n", "line 2 is empty");
    check_refused("m.txt", "t \xE2\x82\xAC\n", "byte alphabet");
    check_refused("m.txt", "t \xC2\xA0\n", "byte alphabet");
    check_refused("m.txt", "t \xC4\n", "byte alphabet");
    check_refused("m.txt", "", "no merges");
    check_refused("tokenizer.json", "{", "not JSON");
    check_refused("tokenizer.json", "{}", "no model.vocab");
    check_refused("tokenizer.json",
                  "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":"
                  "{\"type\":\"Whitespace\"}}",
                  "not ByteLevel");
    check_refused("tokenizer.json",
                  "{\"model\":{\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":"
                  "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}}",
                  "add_prefix_space");
    check_refused("tokenizer.json",
                  "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":"
                  "{\"type\":\"ByteLevel\"}}",
                  "no token for the byte 0x00");
}

static void test_missing(void)
{
    struct bpe *b = NULL;
    char path[256];
    snprintf(path, sizeof path, "%s/none", dir);
    CHECK_INT(bpe_load(&b, path, &e), STATUS_FAILED);
    CHECK_CONTAINS(e.message, "No such file");
    snprintf(path, sizeof path, "%s/empty", dir);
    CHECK(dir_create(path, &e) == STATUS_OK);
    CHECK_INT(bpe_load(&b, path, &e), STATUS_DATA);
    CHECK_CONTAINS(e.message, "no vocabulary here");
}

static void test_export(void)
{
    struct bpe *gpt2 = load_vocab(GPT2_VOCAB), *again = NULL;
    char path[256];
    static const char *const forms[] = {"", "/merges.txt", "/tokenizer.json", "/vocab.json"};
    CHECK(bpe_export(gpt2, dir, &e) == STATUS_OK);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        snprintf(path, sizeof path, "%s%s", dir, forms[i]);
        CHECK_INT(bpe_load(&again, path, &e), STATUS_OK);
        if (!again)
            continue;
        CHECK(bpe_fingerprint(again) == bpe_fingerprint(gpt2));
        CHECK_INT(bpe_vocab_size(again), 50257);
        for (uint32_t id = 0; id < 50257; id++) {
            size_t n, m;
            const char *a = bpe_token(gpt2, id, &n), *c = bpe_token(again, id, &m);
            if (n != m || memcmp(a, c, n) != 0) {
                CHECK_INT(id, -1);
                break;
            }
        }
        bpe_free(again);
        again = NULL;
    }
    char *text = NULL, *original = NULL;
    size_t n, m;
    snprintf(path, sizeof path, "%s/merges.txt", dir);
    CHECK(file_read_all(path, 1 << 24, &text, &n, &e) == STATUS_OK);
    CHECK(file_read_all(GPT2_VOCAB, 1 << 24, &original, &m, &e) == STATUS_OK);
    CHECK(n == m && memcmp(text, original, n) == 0);
    free(text);
    free(original);
    bpe_free(gpt2);
}

/* A map as trainers make it: the special token first, merges in another order of ids. */
static void test_own_order(void)
{
    struct strbuf json = {0};
    bool ok = strbuf_puts(&json, "{\"<|endoftext|>\":0");
    for (uint32_t i = 0; i < 256; i++) {
        char byte = (char)i;
        ok = ok && strbuf_puts(&json, i == '"' || i == '\\' ? ",\"\\" : ",\"") &&
             bpe_alphabet_encode(&json, &byte, 1) && strbuf_printf(&json, "\":%u", 1 + i);
    }
    ok = ok && strbuf_puts(&json, ",\"the\":257,\"th\":258,\"<pad>\":259}");
    CHECK(ok);
    write_text("merges.txt", "t h\nth e\n");
    struct bpe *b = NULL;
    struct bpe_state *s = NULL;
    struct token_buffer out = {0};
    struct strbuf back = {0};
    CHECK_INT(bpe_load(&b, write_text("vocab.json", json.data), &e), STATUS_OK);
    if (b && bpe_state_new(&s, b, &e) == STATUS_OK) {
        static const uint32_t want[] = {257, 1 + ' ', 258, 0};
        CHECK_INT(bpe_vocab_size(b), 260);
        CHECK_INT(bpe_eot(b), 0);
        CHECK(bpe_encode(s, "the th<|endoftext|>", 19, true, &out, &e) == STATUS_OK);
        CHECK(out.length == 4 && memcmp(out.ids, want, sizeof want) == 0);
        CHECK(bpe_decode(b, out.ids, out.length, &back, &e) == STATUS_OK);
        CHECK_STR(back.data, "the th<|endoftext|>");
        CHECK(bpe_fingerprint(b) != fingerprint_of(write_text("m.txt", "t h\nth e\n")));
    }
    bpe_state_free(s);
    bpe_free(b);
    strbuf_clear(&json);
    check_refused("vocab.json", "{\"a\":0,\"b\":0,\"<|endoftext|>\":1}",
                  "no token for the byte 0x00");
    check_refused("vocab.json", "{\"a\":7}", "without gaps");
    token_buffer_release(&out);
    strbuf_release(&json);
    strbuf_release(&back);
}

/* An added token that stands for a merge, twice: as many entries as a vocabulary without gaps has.
 */
static void test_listed_twice(void)
{
    struct strbuf json = {0};
    bool ok =
        strbuf_puts(&json, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"merges\":["
                           "\"t h\"],\"vocab\":{\"<|endoftext|>\":0");
    for (uint32_t i = 0; i < 256; i++) {
        char byte = (char)i;
        ok = ok && strbuf_puts(&json, i == '"' || i == '\\' ? ",\"\\" : ",\"") &&
             bpe_alphabet_encode(&json, &byte, 1) && strbuf_printf(&json, "\":%u", 1 + i);
    }
    CHECK(ok && strbuf_puts(&json, "}},\"added_tokens\":[{\"id\":257,\"content\":\"th\"},"
                                   "{\"id\":257,\"content\":\"th\"}]}"));
    check_refused("tokenizer.json", json.data, "one is listed twice");
    strbuf_release(&json);
}

/* Without the tables for encoding everything else is the same. */
static void test_decoder(void)
{
    static const uint32_t ids[] = {15496, 995, 50256, 11907, 188};
    struct bpe *whole = load_vocab(GPT2_VOCAB), *decoder = NULL;
    struct strbuf a = {0}, b = {0};
    CHECK_INT(bpe_load_decoder(&decoder, GPT2_VOCAB, &e), STATUS_OK);
    if (decoder) {
        CHECK(bpe_fingerprint(decoder) == bpe_fingerprint(whole));
        CHECK_INT(bpe_vocab_size(decoder), 50257);
        CHECK_INT(bpe_eot(decoder), 50256);
        CHECK(bpe_decode(whole, ids, 5, &a, &e) == STATUS_OK);
        CHECK(bpe_decode(decoder, ids, 5, &b, &e) == STATUS_OK);
        CHECK(a.length == b.length && memcmp(a.data, b.data, a.length) == 0);
        CHECK(bpe_export(decoder, dir, &e) == STATUS_OK);
    }
    strbuf_release(&a);
    strbuf_release(&b);
    bpe_free(whole);
    bpe_free(decoder);
}

int main(void)
{
    if (!mkdtemp(dir))
        return 1;
    CASE("merges with and without final newline, header and CR") test_line_ends();
    CASE("bad vocabularies are refused with place and reason") test_refusals();
    CASE("missing files") test_missing();
    CASE("exported files load as the same vocabulary") test_export();
    CASE("a vocabulary for decoding alone") test_decoder();
    CASE("ids in an order of their own") test_own_order();
    CASE("a token that is listed twice") test_listed_twice();
    CASE("the alphabet is a bijection")
    {
        bool seen[512] = {0};
        for (uint32_t i = 0; i < 256; i++) {
            struct strbuf symbol = {0};
            char byte = (char)i, back[4];
            size_t n = 0;
            CHECK(!seen[bpe_alphabet_code((uint8_t)i)]);
            seen[bpe_alphabet_code((uint8_t)i)] = true;
            CHECK(bpe_alphabet_encode(&symbol, &byte, 1));
            CHECK(bpe_alphabet_decode(symbol.data, symbol.length, back, &n) && n == 1 &&
                  back[0] == byte);
            strbuf_release(&symbol);
        }
    }
    return dir_remove(dir, &e) == STATUS_OK ? tap_done() : 1;
}
