/* source.c - a merge list being read: symbols, the check that each part exists, and the line format
 * of vocab.bpe and merges.txt. */
#include "bpe/bpe_private.h"
#include "base/hash.h"

#include <stdlib.h>

enum status bpe_source_init(struct bpe_source *s, const char *name, struct error *e)
{
    memset(s, 0, sizeof *s);
    s->name = name;
    s->capacity = 16384; /* a quarter of GPT-2's */
    s->slot_mask = 65536 - 1;
    s->offset = malloc((s->capacity + 1) * sizeof *s->offset);
    s->pairs = malloc(2 * s->capacity * sizeof *s->pairs);
    s->slots = malloc((s->slot_mask + 1) * sizeof *s->slots);
    if (!s->offset || !s->pairs || !s->slots)
        return error_memory(e, s->capacity * 20ull, "a merge list");
    s->offset[0] = 0;
    memset(s->slots, 0xFF, (s->slot_mask + 1) * sizeof *s->slots);
    return STATUS_OK;
}

void bpe_source_release(struct bpe_source *s)
{
    strbuf_release(&s->text);
    free(s->offset);
    free(s->pairs);
    free(s->slots);
    memset(s, 0, sizeof *s);
}

const char *bpe_source_token(const struct bpe_source *s, uint32_t internal, size_t *bytes,
                             char one_byte[1])
{
    if (internal < 256) {
        one_byte[0] = (char)internal;
        *bytes = 1;
        return one_byte;
    }
    uint32_t k = internal - 256;
    *bytes = s->offset[k + 1] - s->offset[k];
    return s->text.data + s->offset[k];
}

/* The slot where these bytes are, or the free one where they belong. */
static size_t slot_of(const struct bpe_source *s, const char *bytes, size_t n)
{
    size_t i = hash64(bytes, n) & s->slot_mask;
    for (; s->slots[i] != BPE_NONE; i = (i + 1) & s->slot_mask) {
        size_t length;
        char one[1];
        const char *have = bpe_source_token(s, s->slots[i], &length, one);
        if (length == n && memcmp(have, bytes, n) == 0)
            break;
    }
    return i;
}

uint32_t bpe_source_find(const struct bpe_source *s, const char *bytes, size_t n)
{
    return n == 1 ? (uint8_t)bytes[0] : s->slots[slot_of(s, bytes, n)];
}

static enum status grow(struct bpe_source *s, struct error *e)
{
    uint32_t capacity = 4 * s->capacity;
    size_t slots = 4 * (s->slot_mask + 1);
    size_t *offset = realloc(s->offset, (capacity + 1) * sizeof *offset);
    s->offset = offset ? offset : s->offset;
    uint32_t *pairs = realloc(s->pairs, 2 * (size_t)capacity * sizeof *pairs);
    s->pairs = pairs ? pairs : s->pairs;
    uint32_t *table = realloc(s->slots, slots * sizeof *table);
    s->slots = table ? table : s->slots;
    if (!offset || !pairs || !table)
        return error_memory(e, capacity * 20ull, "a merge list");
    s->capacity = capacity;
    s->slot_mask = slots - 1;
    memset(s->slots, 0xFF, slots * sizeof *table);
    for (uint32_t k = 0; k < s->merges; k++) {
        size_t n = s->offset[k + 1] - s->offset[k];
        s->slots[slot_of(s, s->text.data + s->offset[k], n)] = 256 + k;
    }
    return STATUS_OK;
}

/* The internal number of one part of a merge. Its bytes are appended to s->text. */
static enum status add_part(struct bpe_source *s, const char *symbol, size_t symbol_bytes,
                            const char *place, uint64_t number, uint32_t *internal, struct error *e)
{
    size_t n;
    int shown = symbol_bytes > 100 ? 100 : (int)symbol_bytes;
    if (!strbuf_reserve(&s->text, symbol_bytes))
        return error_memory(e, symbol_bytes, "a merge list");
    char *at = s->text.data + s->text.length;
    if (!bpe_alphabet_decode(symbol, symbol_bytes, at, &n) || n == 0)
        return error_set(e, STATUS_DATA,
                         "%s: %s %llu: \"%.*s\" is not written in GPT-2's byte alphabet", s->name,
                         place, (unsigned long long)number, shown, symbol);
    *internal = bpe_source_find(s, at, n);
    if (*internal == BPE_NONE)
        return error_set(
            e, STATUS_DATA,
            "%s: %s %llu merges \"%.*s\", which is neither a byte nor the result of an "
            "earlier merge",
            s->name, place, (unsigned long long)number, shown, symbol);
    s->text.length += n;
    return STATUS_OK;
}

enum status bpe_source_add(struct bpe_source *s, const char *left, size_t left_bytes,
                           const char *right, size_t right_bytes, const char *place,
                           uint64_t number, struct error *e)
{
    if (s->merges == BPE_MAX_MERGES)
        return error_set(e, STATUS_DATA, "%s: more than %u merges", s->name, BPE_MAX_MERGES);
    if (s->merges == s->capacity)
        TRY(grow(s, e));
    size_t begin = s->text.length;
    uint32_t pair[2];
    TRY(add_part(s, left, left_bytes, place, number, &pair[0], e));
    TRY(add_part(s, right, right_bytes, place, number, &pair[1], e));
    size_t n = s->text.length - begin, slot = slot_of(s, s->text.data + begin, n);
    if (n > BPE_MAX_TOKEN_BYTES)
        return error_set(e, STATUS_DATA, "%s: %s %llu makes a token of %zu bytes, the limit is %d",
                         s->name, place, (unsigned long long)number, n, BPE_MAX_TOKEN_BYTES);
    if (s->slots[slot] != BPE_NONE)
        return error_set(e, STATUS_DATA, "%s: %s %llu makes a token that merge %u has made already",
                         s->name, place, (unsigned long long)number, s->slots[slot] - 255);
    s->slots[slot] = 256 + s->merges;
    s->pairs[2 * s->merges] = pair[0];
    s->pairs[2 * s->merges + 1] = pair[1];
    s->merges++;
    s->offset[s->merges] = s->text.length;
    return STATUS_OK;
}

/* Lines end with LF only: U+0085 or U+2028 inside a line are no ends. A CR before the LF belongs to
 * the line end, for it is not in the alphabet. The last line may lack its LF. */
enum status bpe_source_parse_merges(struct bpe_source *s, const char *text, size_t bytes,
                                    struct error *e)
{
    uint64_t number = 0, blank = 0;
    for (size_t at = 0; at < bytes;) {
        const char *line = text + at, *end = memchr(line, '\n', bytes - at);
        size_t n = end ? (size_t)(end - line) : bytes - at;
        at += n + 1;
        number++;
        n -= n > 0 && line[n - 1] == '\r';
        if (number == 1 && n >= 9 && memcmp(line, "#version:", 9) == 0)
            continue;
        if (n == 0) {
            blank = blank ? blank : number;
            continue;
        }
        if (blank)
            return error_set(e, STATUS_DATA, "%s: line %llu is empty, expected a merge", s->name,
                             (unsigned long long)blank);
        const char *space = memchr(line, ' ', n);
        size_t left = space ? (size_t)(space - line) : n;
        if (!space || left == 0 || left + 1 == n || memchr(space + 1, ' ', n - left - 1))
            return error_set(e, STATUS_DATA,
                             "%s: line %llu: \"%.*s\" is not two symbols with one space between "
                             "them",
                             s->name, (unsigned long long)number, n > 100 ? 100 : (int)n, line);
        TRY(bpe_source_add(s, line, left, space + 1, n - left - 1, "line", number, e));
    }
    return STATUS_OK;
}
