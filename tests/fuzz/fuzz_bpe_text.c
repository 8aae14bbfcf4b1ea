/* Any bytes as text. Promises: the ids are those of the plain reference encoder, by GPT-2's merges
 * and by a short list that makes long chains; the text comes back; a safe cut changes nothing, with
 * special tokens or without; the cache does not change what it answers. */
// clang-format off
// sources: src/bpe/*.c src/base/*.c
// libs: -Itests/unit -ljansson -lxxhash
#define _GNU_SOURCE
#include "fuzz.h"
#include "bpe_test.h"
#include <sys/mman.h>

/* GPT-2's merges, put in by the assembler from the repository's root. */
__asm__(".section .rodata\n"
        "gpt2_begin: .incbin \"share/gpt2/vocab.bpe\"\n"
        "gpt2_end: .previous\n");
extern const char gpt2_begin[], gpt2_end[];
// clang-format on

static const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("hello world, it's 42 o'clock: they'll've \n\n  done\t!"),
    FUZZ_SEED("a<|endoftext|><|endoftext|> b<|endof"),
    FUZZ_SEED("caf\xC3\xA9 \xC2\xA0\xC2\x85 \xE2\x80\x80\xE3\x80\x80 \xE2\x85\xA7 \xC2\xB2"),
    FUZZ_SEED("\xE4\xB8\xAD\xE6\x96\x87\xE3\x80\x82\xF0\x9F\x98\x80\xF0\xA0\x80\x80\xCC\x81"),
    FUZZ_SEED("\xFF\xC3\xE2\x80\xED\xA0\x80\xF0\x9F\x98\x80\xF4\x90\x80\x80\x00\x1C\x1F\x7F"),
    FUZZ_SEED("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
    FUZZ_SEED("================--------------------------------________________        "),
    FUZZ_SEED("abababababcbabcbabababcbcbcbabababcbcbababcbcbabcbcbabcbcbcbaba"),
    FUZZ_SEED("supercalifragilisticexpialidociousantidisestablishmentarianismpneumono"),
};
static const size_t fuzz_seed_count = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

struct subject {
    struct bpe *b;
    struct bpe_state *state;
};

static void open_subject(struct subject *s, const char *merges, size_t bytes)
{
    struct error e = {0};
    char path[64];
    int fd = memfd_create("merges", 0);
    FUZZ_CHECK(fd >= 0 && write(fd, merges, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    FUZZ_CHECK(bpe_load(&s->b, path, &e) == STATUS_OK);
    FUZZ_CHECK(bpe_state_new(&s->state, s->b, &e) == STATUS_OK);
    close(fd);
}

static bool same_ids(const struct token_buffer *a, const uint32_t *ids, size_t n)
{
    return a->length == n && (n == 0 || memcmp(a->ids, ids, n * sizeof *ids) == 0);
}

static void check_cut(struct subject *s, const char *text, size_t n, bool special)
{
    struct error e = {0};
    struct token_buffer whole = {0}, parts = {0};
    size_t cut = bpe_safe_cut(text, n);
    FUZZ_CHECK(cut <= n);
    FUZZ_CHECK(bpe_encode(s->state, text, n, special, &whole, &e) == STATUS_OK);
    FUZZ_CHECK(bpe_encode(s->state, text, cut, special, &parts, &e) == STATUS_OK);
    FUZZ_CHECK(bpe_encode(s->state, text + cut, n - cut, special, &parts, &e) == STATUS_OK);
    FUZZ_CHECK(same_ids(&parts, whole.ids, whole.length));
    token_buffer_release(&whole);
    token_buffer_release(&parts);
}

static void check_text(struct subject *s, const char *text, size_t n)
{
    struct error e = {0};
    struct token_buffer got = {0};
    struct strbuf back = {0};
    size_t count;
    FUZZ_CHECK(bpe_encode(s->state, text, n, false, &got, &e) == STATUS_OK);
    uint32_t *want = reference_encode(s->b, text, n, &count);
    FUZZ_CHECK(same_ids(&got, want, count));
    FUZZ_CHECK(bpe_decode(s->b, got.ids, got.length, &back, &e) == STATUS_OK);
    FUZZ_CHECK(back.length == n && (n == 0 || memcmp(back.data, text, n) == 0));
    for (size_t seen = n; seen > 0 && seen + 40 > n; seen -= 13 < seen ? 13 : seen) {
        check_cut(s, text, seen, false);
        check_cut(s, text, seen, true);
    }
    free(want);
    token_buffer_release(&got);
    strbuf_release(&back);
}

static void fuzz_one(const uint8_t *data, size_t bytes)
{
    static const char chain[] = "b c\nb a\na b\nab ab\nba ba\na a\naa aa\naa a\n- -\n-- --\n";
    static struct subject gpt2, small;
    /* Exactly as long as the text, so that reading past its end is noticed. */
    char *text = malloc(bytes ? bytes : 1);
    FUZZ_CHECK(text);
    memcpy(text, data, bytes);
    if (!gpt2.b) {
        open_subject(&gpt2, gpt2_begin, (size_t)(gpt2_end - gpt2_begin));
        open_subject(&small, chain, sizeof chain - 1);
    }
    size_t n = bytes < 2000 ? bytes : 2000; /* the reference is quadratic */
    check_text(&gpt2, text + (bytes - n), n);
    check_text(&small, text + (bytes - n), n);
    free(text);
}
