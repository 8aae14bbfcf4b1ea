/* Ids against the plain reference, through caches, cuts, special tokens and back. */
#include "bpe_test.h"
#include "tap.h"

static struct error e;
static struct bpe *gpt2;

static bool equals(const struct token_buffer *got, const uint32_t *want, size_t count)
{
    if (got->length == count && (count == 0 || memcmp(got->ids, want, count * sizeof *want) == 0))
        return true;
    printf("# %zu ids, want %zu\n", got->length, count);
    return false;
}

/* Encodes into a fresh buffer. */
static struct token_buffer encode(struct bpe_state *s, const char *text, size_t n, bool special)
{
    struct token_buffer out = {0};
    if (bpe_encode(s, text, n, special, &out, &e) != STATUS_OK)
        tap_fail_(__FILE__, __LINE__, "%s", e.message);
    return out;
}

/* The ids are the reference's, and decode to the text. */
static bool is_exact(struct bpe_state *s, const char *text, size_t n)
{
    size_t count;
    uint32_t *want = reference_encode(gpt2, text, n, &count);
    struct token_buffer got = encode(s, text, n, false);
    struct strbuf back = {0};
    bool ok = equals(&got, want, count) &&
              bpe_decode(gpt2, got.ids, got.length, &back, &e) == STATUS_OK && back.length == n &&
              (n == 0 || memcmp(back.data, text, n) == 0);
    free(want);
    token_buffer_release(&got);
    strbuf_release(&back);
    return ok;
}

static size_t put_code_point(char *to, uint32_t c)
{
    if (c < 0x80)
        return to[0] = (char)c, 1;
    if (c < 0x800)
        return to[0] = (char)(0xC0 | c >> 6), to[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return to[0] = (char)(0xE0 | c >> 12), to[1] = (char)(0x80 | (c >> 6 & 63)),
               to[2] = (char)(0x80 | (c & 63)), 3;
    return to[0] = (char)(0xF0 | c >> 18), to[1] = (char)(0x80 | (c >> 12 & 63)),
           to[2] = (char)(0x80 | (c >> 6 & 63)), to[3] = (char)(0x80 | (c & 63)), 4;
}

/* "a<c>b 1<c> <c> <c><c>", enough neighbours to show the class of c. */
static bool code_point_is_exact(struct bpe_state *s, uint32_t c)
{
    char text[64], one[4];
    size_t n = put_code_point(one, c), at = 0;
    for (const char *p = "a@b 1@ @ @@"; *p; p++) {
        memcpy(text + at, *p == '@' ? one : p, *p == '@' ? n : 1);
        at += *p == '@' ? n : 1;
    }
    return is_exact(s, text, at);
}

static void test_known(struct bpe_state *s)
{
    static const struct {
        const char *text;
        size_t bytes, count;
        uint32_t ids[12];
    } cases[] = {
        {"", 0, 0, {0}},
        {"hello world", 11, 2, {31373, 995}},
        {"a  b", 4, 3, {64, 220, 275}},
        {"hello  ", 7, 3, {31373, 220, 220}},
        {"\n\n", 2, 1, {628}},
        {"a\n\nb", 4, 4, {64, 198, 198, 65}},
        {"a\0b", 3, 3, {64, 188, 65}},
        {"<|endoftext|>", 13, 7, {27, 91, 437, 1659, 5239, 91, 29}},
        {" The quick brown fox", 20, 4, {383, 2068, 7586, 21831}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct token_buffer got = encode(s, cases[i].text, cases[i].bytes, false);
        CHECK(equals(&got, cases[i].ids, cases[i].count));
        token_buffer_release(&got);
    }
}

static void test_special(struct bpe_state *s)
{
    static const char text[] = "a <|endoftext|><|endoftext|> b<|endoftext|";
    struct token_buffer got = encode(s, text, sizeof text - 1, true);
    static const uint32_t want[] = {64, 220, 50256, 50256, 275, 27, 91, 437, 1659, 5239, 91};
    CHECK(equals(&got, want, sizeof want / sizeof *want));
    token_buffer_release(&got);
    got = encode(s, "<|endoftext|>", 13, true);
    CHECK_INT(got.length, 1);
    token_buffer_release(&got);
}

/* What is encoded in two parts equals what is encoded in one. */
static bool cut_is_safe(struct bpe_state *s, const char *text, size_t n, bool special)
{
    size_t cut = bpe_safe_cut(text, n);
    if (cut >= n && n > 0)
        return false;
    struct token_buffer whole = encode(s, text, n, special), parts = {0};
    bool ok = bpe_encode(s, text, cut, special, &parts, &e) == STATUS_OK &&
              bpe_encode(s, text + cut, n - cut, special, &parts, &e) == STATUS_OK &&
              equals(&parts, whole.ids, whole.length);
    token_buffer_release(&whole);
    token_buffer_release(&parts);
    return ok;
}

/* The cut must also hold for every way the text can go on. */
static int unsafe_cuts(struct bpe_state *s, struct random *r, int rounds)
{
    int wrong = 0;
    for (int i = 0; i < rounds && wrong < 3; i++) {
        size_t n;
        char *text = random_text(r, 1 + random_below(r, 200), &n);
        size_t seen = 1 + random_below(r, (uint32_t)n), cut = bpe_safe_cut(text, seen);
        for (int special = 0; special < 2; special++) {
            struct token_buffer whole = encode(s, text, n, special), parts = {0};
            bool ok = bpe_encode(s, text, cut, special, &parts, &e) == STATUS_OK &&
                      bpe_encode(s, text + cut, n - cut, special, &parts, &e) == STATUS_OK;
            wrong += !ok || cut > seen || !equals(&parts, whole.ids, whole.length);
            token_buffer_release(&whole);
            token_buffer_release(&parts);
        }
        wrong += !cut_is_safe(s, text, n, true);
        free(text);
    }
    return wrong;
}

/* At every place of a group and a batch, after short tokens and long ones: what is before it comes
 * out, and its index is named. */
static int bad_id_anywhere(void)
{
    uint16_t ids[4200];
    int wrong = 0;
    for (size_t at = 0; at < 4200; at += at < 12 || at > 4090 ? 1 : 97) {
        char where[32];
        struct strbuf out = {0}, want = {0};
        for (size_t i = 0; i < 4200; i++) {
            size_t n;
            ids[i] = (uint16_t)(i % 5 == 3 ? 10221 + i : i); /* some of them are long */
            const char *text = bpe_token(gpt2, ids[i], &n);
            wrong += i < at && !strbuf_append(&want, text, n);
        }
        ids[at] = 50257;
        snprintf(where, sizeof where, "token %zu ", at);
        wrong += bpe_decode_u16(gpt2, ids, 4200, &out, &e) != STATUS_DATA ||
                 !strstr(e.message, where) || out.length != want.length ||
                 (out.length && memcmp(out.data, want.data, out.length) != 0);
        strbuf_release(&out);
        strbuf_release(&want);
    }
    return wrong;
}

static void test_decode_errors(void)
{
    static const uint32_t bad[] = {0, 1, 50257};
    static const uint16_t bad16[] = {50256, 60000};
    struct strbuf out = {0};
    CHECK_INT(bpe_decode(gpt2, bad, 3, &out, &e), STATUS_DATA);
    CHECK_CONTAINS(e.message, "token 2");
    CHECK_CONTAINS(e.message, "50257");
    CHECK_INT(bpe_decode_u16(gpt2, bad16, 2, &out, &e), STATUS_DATA);
    CHECK_CONTAINS(e.message, "token 1");
    strbuf_clear(&out);
    CHECK_INT(bpe_decode_u16(gpt2, bad16, 1, &out, &e), STATUS_OK);
    CHECK_STR(out.data, "<|endoftext|>");
    strbuf_release(&out);
    CHECK_INT(bad_id_anywhere(), 0);
}

/* Every id, long ones too, in one go and one by one. */
static void test_decode_all(void)
{
    struct strbuf at_once = {0}, single = {0};
    uint32_t *ids = malloc(bpe_vocab_size(gpt2) * sizeof *ids);
    bool ok = true;
    for (uint32_t id = 0; id < bpe_vocab_size(gpt2); id++) {
        size_t n;
        const char *text = bpe_token(gpt2, id, &n);
        ids[id] = id;
        ok = ok && strbuf_append(&single, text, n);
    }
    CHECK(ok && bpe_decode(gpt2, ids, bpe_vocab_size(gpt2), &at_once, &e) == STATUS_OK);
    CHECK_INT(at_once.length, single.length);
    CHECK(memcmp(at_once.data, single.data, single.length) == 0);
    free(ids);
    strbuf_release(&at_once);
    strbuf_release(&single);
}

int main(void)
{
    struct random r = {7};
    struct bpe_state *s = NULL;
    bool small = getenv("SMALL") != NULL; /* under a sanitizer */
    gpt2 = load_vocab(GPT2_VOCAB);
    if (bpe_state_new(&s, gpt2, &e) != STATUS_OK)
        return 1;

    CASE("size, end of text, bytes")
    {
        size_t n;
        CHECK_INT(bpe_vocab_size(gpt2), 50257);
        CHECK_INT(bpe_eot(gpt2), 50256);
        CHECK(memcmp(bpe_token(gpt2, 50256, &n), "<|endoftext|>", 13) == 0 && n == 13);
    }
    CASE("known ids") test_known(s);
    CASE("special text only when allowed") test_special(s);

    CASE("awkward text and random bytes, twice over, so that the cache answers too")
    {
        int wrong = 0;
        for (int i = 0; i < (small ? 300 : 4000) && wrong < 3; i++) {
            size_t n;
            char *text = random_text(&r, random_below(&r, 400), &n);
            wrong += !is_exact(s, text, n) || !is_exact(s, text, n);
            for (size_t k = 0; k < n; k++)
                text[k] = (char)random_below(&r, 256);
            wrong += !is_exact(s, text, n) || !is_exact(s, text, n);
            free(text);
        }
        CHECK_INT(wrong, 0);
    }

    CASE("every code point")
    {
        int wrong = 0;
        for (uint32_t c = 0; c <= 0x10FFFF && wrong < 3; c += small ? 97 : 1)
            wrong += !code_point_is_exact(s, c);
        CHECK_INT(wrong, 0);
    }

    CASE("more pieces than the cache holds")
    {
        struct strbuf text = {0};
        bool ok = true;
        for (int i = 0; i < (small ? 20000 : 300000) && ok; i++) {
            char word[40];
            uint32_t n = 1 + random_below(&r, 39);
            for (uint32_t k = 0; k < n; k++)
                word[k] = (char)('a' + random_below(&r, 26));
            word[0] = ' ';
            ok = strbuf_append(&text, word, n);
        }
        CHECK(ok);
        CHECK(is_exact(s, text.data, text.length));
        strbuf_release(&text);
    }

    CASE("safe cuts are safe, whatever follows")
    {
        CHECK_INT(unsafe_cuts(s, &r, small ? 2000 : 20000), 0);
    }

    CASE("a safe cut is found near the end of text in any script")
    {
        static const char *const texts[] = {"the words of a text", "\xE4\xB8\xAD\xE3\x80\x82", "a1",
                                            "\xE0\xB8\x81\xE0\xB8\xB4", "x\n"};
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            struct strbuf text = {0};
            bool ok = true;
            for (int k = 0; k < 100; k++)
                ok = ok && strbuf_puts(&text, texts[i]);
            CHECK(ok && bpe_safe_cut(text.data, text.length) > text.length - 24);
            strbuf_release(&text);
        }
        CHECK_INT(bpe_safe_cut("aaaaaaaa", 8), 0);
        CHECK_INT(bpe_safe_cut("        ", 8), 0);
        CHECK_INT(bpe_safe_cut("", 0), 0);
    }
    CASE("decoding refuses ids out of range") test_decode_errors();
    CASE("every id decodes") test_decode_all();
    CASE("the longest piece is counted")
    {
        struct bpe_state *fresh = NULL;
        struct bpe_stats stats;
        CHECK(bpe_state_new(&fresh, gpt2, &e) == STATUS_OK);
        struct token_buffer out = encode(fresh, "ab abcdefgh c", 13, false);
        bpe_state_stats(fresh, &stats);
        CHECK_INT(stats.longest_piece_bytes, 9);
        bpe_state_free(fresh);
        token_buffer_release(&out);
    }
    bpe_state_free(s);
    bpe_free(gpt2);
    return tap_done();
}
