/* The three ways to merge a piece against the plain reference, on GPT-2's merges and on small lists
 * that are made to be awkward. */
#include "bpe_test.h"
#include "tap.h"

#include <time.h>

static struct error e;
static struct bpe_window window;

static struct bpe *from_merges(const char *merges)
{
    char path[] = "/tmp/test_bpe_merge.XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f || fputs(merges, f) < 0 || fclose(f) != 0)
        exit(1);
    struct bpe *b = load_vocab(path);
    remove(path);
    return b;
}

static bool same(const uint32_t *a, size_t n, const uint32_t *b, size_t m)
{
    return n == m && memcmp(a, b, n * sizeof *a) == 0;
}

/* Window, heap and long form of text; the reference too when n is small enough for it. */
static bool all_agree(const struct bpe *b, const char *text, size_t n)
{
    uint32_t *heap = malloc((n + 1) * sizeof *heap), *other = malloc((n + 1) * sizeof *other);
    struct token_buffer whole = {0};
    size_t count, got;
    bool ok = bpe_merge_heap(b, text, n, heap, &count, &e) == STATUS_OK;
    if (n <= BPE_WINDOW_BYTES) {
        got = bpe_merge_window(b, &window, text, n, other);
        ok = ok && same(heap, count, other, got);
    }
    if (n <= 1500) {
        got = reference_merge(b, (const uint8_t *)text, n, other);
        ok = ok && same(heap, count, other, got);
    }
    ok = ok && bpe_merge_long(b, &window, text, n, &whole, &e) == STATUS_OK &&
         same(heap, count, whole.ids, whole.length);
    if (!ok)
        printf("# disagreement on %zu bytes: %.60s\n", n, text);
    free(heap);
    free(other);
    token_buffer_release(&whole);
    return ok;
}

static int disagreements(const struct bpe *b, struct random *r, const char *alphabet, size_t most,
                         int rounds)
{
    int wrong = 0;
    char *text = malloc(most + 1);
    uint32_t letters = (uint32_t)strlen(alphabet);
    for (int i = 0; i < rounds && wrong < 3; i++) {
        size_t n = 1 + random_below(r, (uint32_t)most);
        for (size_t k = 0; k < n; k++)
            text[k] = alphabet[random_below(r, letters)];
        text[n] = '\0';
        wrong += !all_agree(b, text, n);
    }
    free(text);
    return wrong;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Time for n bytes by the long form. */
static double time_long(const struct bpe *b, const char *text, size_t n)
{
    struct token_buffer out = {0};
    double begin = seconds();
    CHECK(bpe_merge_long(b, &window, text, n, &out, &e) == STATUS_OK);
    double took = seconds() - begin;
    token_buffer_release(&out);
    return took;
}

/* A chain t1 t2 t3 ... of two-byte tokens in which t(i) t(i+1) merge the sooner the further right
 * they stand: which of them pair up depends on the far end, so no window sees it. */
static void test_chain(void)
{
    enum { SIDE = 40, TOKENS = SIDE * SIDE };
    struct strbuf merges = {0}, text = {0};
    bool ok = true;
    for (int i = 0; i < TOKENS; i++) {
        char token[3] = {(char)('!' + i / SIDE), (char)('!' + SIDE + i % SIDE), 0};
        ok = ok && strbuf_printf(&merges, "%c %c\n", token[0], token[1]) &&
             strbuf_puts(&text, token);
    }
    for (int i = TOKENS - 2; i >= 0; i--)
        ok = ok && strbuf_printf(&merges, "%.2s %.2s\n", text.data + 2 * i, text.data + 2 * i + 2);
    struct strbuf padded = {0};
    for (int i = 0; i < 3000; i++)
        ok = ok && strbuf_putc(&padded, 'z');
    ok = ok && strbuf_append(&padded, text.data, text.length);
    CHECK(ok);
    struct bpe *b = from_merges(merges.data);
    for (size_t n = padded.length - 8; n <= padded.length; n++)
        CHECK(all_agree(b, padded.data, n));
    bpe_free(b);
    strbuf_release(&merges);
    strbuf_release(&text);
    strbuf_release(&padded);
}

int main(void)
{
    struct bpe *gpt2 = load_vocab(GPT2_VOCAB);
    struct random r = {0};

    CASE("GPT-2's merges, random letters")
    {
        CHECK_INT(disagreements(gpt2, &r, "etaoinshrdlu", 40, 3000), 0);
        CHECK_INT(disagreements(gpt2, &r, "abcdefghijklmnopqrstuvwxyz", 300, 300), 0);
        CHECK_INT(disagreements(gpt2, &r, "aab", 300, 300), 0);
        CHECK_INT(disagreements(gpt2, &r, "-=", 1500, 50), 0);
        CHECK_INT(disagreements(gpt2, &r, "theinga", 20000, 20), 0);
        CHECK_INT(disagreements(gpt2, &r, "\xC3\x82\xA0", 20000, 20), 0);
    }

    CASE("runs of one character at every length around the window")
    {
        int wrong = 0;
        char *text = malloc(30000);
        for (const char *c = "a-= e\n0"; *c; c++) {
            memset(text, *c, 30000);
            for (size_t n = 1; n < 200; n++)
                wrong += !all_agree(gpt2, text, n);
            for (size_t n = BPE_WINDOW_BYTES - 3; n < BPE_WINDOW_BYTES + 4; n++)
                wrong += !all_agree(gpt2, text, n);
            wrong += !all_agree(gpt2, text, 29999);
        }
        free(text);
        CHECK_INT(wrong, 0);
    }

    CASE("overlapping pairs merge from the left")
    {
        struct bpe *b = from_merges("a a\naa a\naa aa\nb a\n");
        CHECK_INT(disagreements(b, &r, "a", 70, 200), 0);
        CHECK_INT(disagreements(b, &r, "aaab", 200, 500), 0);
        bpe_free(b);
    }

    CASE("tokens longer than a window's overlap go by the heap")
    {
        struct strbuf merges = {0};
        struct strbuf half = {0};
        bool ok = strbuf_putc(&half, 'a');
        for (int i = 0; i < 13 && ok; i++) { /* a, aa, aaaa, ... 8192 of them */
            ok = strbuf_printf(&merges, "%s %s\n", half.data, half.data);
            struct strbuf twice = {0};
            ok = ok && strbuf_append(&twice, half.data, half.length) &&
                 strbuf_append(&twice, half.data, half.length);
            strbuf_release(&half);
            half = twice;
        }
        CHECK(ok);
        struct bpe *b = from_merges(merges.data);
        CHECK_INT(disagreements(b, &r, "a", 40000, 10), 0);
        bpe_free(b);
        strbuf_release(&merges);
        strbuf_release(&half);
    }

    CASE("windows that do not fit together go by the heap") test_chain();

    CASE("time grows with the length, not with its square")
    {
        size_t n = 1 << 21;
        char *text = malloc(n);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + random_below(&r, 26));
        double one = time_long(gpt2, text, n / 8), eight = time_long(gpt2, text, n);
        CHECK(eight < 24 * one + 0.1); /* 8 when linear, 64 when quadratic */
        memset(text, 'a', n);
        one = time_long(gpt2, text, n / 8), eight = time_long(gpt2, text, n);
        CHECK(eight < 24 * one + 0.1);
        free(text);
    }
    bpe_free(gpt2);
    return tap_done();
}
