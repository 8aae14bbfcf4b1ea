/* The block splitter against the plain form of the pattern, and both against pieces by hand. */
#include "bpe_test.h"
#include "tap.h"

static struct unicode_classes classes;

/* The pieces of the block splitter as lengths. */
static size_t split_blocks(const char *text, size_t bytes, size_t *lengths)
{
    struct split_state s;
    size_t count = 0, piece = 0;
    split_init(&s, &classes, text, bytes);
    while (s.at < bytes) {
        size_t at = s.at;
        for (uint64_t begins = split_next(&s); begins; begins &= begins - 1) {
            size_t next = at + (size_t)__builtin_ctzll(begins);
            if (next > 0)
                lengths[count++] = next - piece;
            piece = next;
        }
    }
    if (bytes > 0)
        lengths[count++] = bytes - piece;
    return count;
}

/* Prints the first difference; true when there is none. */
static bool same_split(const char *text, size_t bytes)
{
    size_t *lengths = malloc((bytes + 1) * sizeof *lengths), at = 0;
    size_t count = split_blocks(text, bytes, lengths);
    bool same = true;
    for (size_t i = 0; i < count && same; i++) {
        size_t want = at < bytes ? split_piece(&classes, text + at, bytes - at) : 0;
        same = lengths[i] == want;
        if (!same)
            printf("# piece %zu at byte %zu of %zu: %zu bytes, want %zu\n", i, at, bytes,
                   lengths[i], want);
        at += lengths[i];
    }
    free(lengths);
    return same && at == bytes;
}

static void check_pieces(const char *text, const char *want)
{
    struct strbuf got = {0};
    size_t n = strlen(text);
    bool ok = true;
    for (size_t at = 0; at < n;) {
        size_t piece = split_piece(&classes, text + at, n - at);
        ok = ok && (at == 0 || strbuf_putc(&got, '|')) && strbuf_append(&got, text + at, piece);
        at += piece;
    }
    CHECK(ok);
    CHECK_STR(got.data, want);
    CHECK(same_split(text, n));
    strbuf_release(&got);
}

static void test_by_hand(void)
{
    static const char *const cases[][2] = {
        {"hello world", "hello| world"},
        {"a  b", "a| | b"},
        {"a \n b", "a| \n| b"},
        {"a\n\nb", "a|\n|\n|b"},
        {"a\n\n", "a|\n\n"},
        {"a \t", "a| \t"},
        {"it's we'll they've I'm he'd don't you're",
         "it|'s| we|'ll| they|'ve| I|'m| he|'d| don|'t| you|'re"},
        {"'sa 'sb", "'s|a| '|sb"},
        {"'lx 'l", "'|lx| '|l"},
        {"''s", "''|s"},
        {"'s's", "'s|'s"},
        {"IT'S", "IT|'|S"},
        {"a1b2 3c", "a|1|b|2| 3|c"},
        {"x!? ...y", "x|!?| ...|y"},
        {"caf\xC3\xA9 \xC3\xA9t\xC3\xA9", "caf\xC3\xA9| \xC3\xA9t\xC3\xA9"},
        {"a\xC2\xA0\xC2\xA0z", "a|\xC2\xA0|\xC2\xA0|z"},
        {"a \xE3\x80\x80z", "a| |\xE3\x80\x80|z"},
        {"a\xE3\x80\x80 z", "a|\xE3\x80\x80| z"},
        {"1\xC2\xB2 \xE2\x85\xA7", "1\xC2\xB2| \xE2\x85\xA7"},
        {"\xFF\xFE x", "\xFF\xFE| x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_pieces(cases[i][0], cases[i][1]);
}

int main(void)
{
    struct random r = {0};
    unicode_classes_init(&classes);

    CASE("pieces by hand") test_by_hand();

    CASE("the two splitters agree on awkward text of every length and offset")
    {
        int wrong = 0;
        for (int i = 0; i < 20000 && wrong < 3; i++) {
            size_t n;
            char *text = random_text(&r, random_below(&r, 300), &n);
            wrong += !same_split(text, n);
            free(text);
        }
        CHECK_INT(wrong, 0);
    }

    CASE("the two splitters agree on random bytes")
    {
        int wrong = 0;
        for (int i = 0; i < 5000 && wrong < 3; i++) {
            char text[400];
            size_t n = random_below(&r, sizeof text);
            for (size_t k = 0; k < n; k++)
                text[k] = (char)random_below(&r, 256);
            wrong += !same_split(text, n);
        }
        CHECK_INT(wrong, 0);
    }

    CASE("each fragment across each place of a block edge")
    {
        int wrong = 0;
        for (size_t i = 0; i < sizeof awkward / sizeof *awkward; i++)
            for (size_t k = 0; k < sizeof awkward / sizeof *awkward; k++)
                for (size_t pad = 56; pad < 66; pad++) {
                    char text[160];
                    memset(text, 'x', sizeof text);
                    int n = snprintf(text + pad, 40, "%s%sy", awkward[i], awkward[k]);
                    wrong += !same_split(text, pad + (size_t)n);
                    wrong += !same_split(text, pad + (size_t)n - 1);
                }
        CHECK_INT(wrong, 0);
    }
    return tap_done();
}
