/* source.c - a merge list being read: symbols, the check that each part exists, and the line format
 * of vocab.bpe and merges.txt. */
#include "bpe/bpe_private.h"
#include "base/hash.h"

#include <assert.h>
#include <stdlib.h>

#define NUMBER_MASK ((1u << BPE_ID_BITS) - 1) /* the rest of a slot is bits of the hash */

enum status bpe_source_init(struct bpe_source *s, const char *name, size_t capacity,
                            size_t text_bytes, struct error *e)
{
    size_t slots = 1024;
    memset(s, 0, sizeof *s);
    s->name = name;
    s->capacity = capacity < BPE_MAX_MERGES ? (uint32_t)capacity : BPE_MAX_MERGES;
    while (slots < 2 * (size_t)s->capacity)
        slots *= 2;
    s->slot_mask = slots - 1;
    s->offset = malloc((256 + (size_t)s->capacity + 1) * sizeof *s->offset);
    s->pairs = malloc((2 * (size_t)s->capacity + 1) * sizeof *s->pairs);
    s->slots = malloc(slots * sizeof *s->slots);
    if (!s->offset || !s->pairs || !s->slots || !strbuf_reserve(&s->text, 256 + text_bytes + 16))
        return error_memory(e, s->capacity * 12ull + slots * 4 + text_bytes, "a merge list");
    memset(s->slots, 0xFF, slots * sizeof *s->slots);
    for (uint32_t i = 0; i < 256; i++) {
        s->offset[i] = i;
        s->text.data[i] = (char)i;
    }
    s->text.length = s->offset[256] = 256;
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

/* The first n <= 8 of the bytes at p, where at least 8 may be read. */
static inline uint64_t head(const char *p, size_t n)
{
    return bpe_load64(p) & (n >= 8 ? ~0ull : (1ull << 8 * n) - 1);
}

static inline uint64_t hash_of(const char *bytes, size_t n)
{
    if (n > 16)
        return hash64(bytes, n);
    uint64_t high = n > 8 ? head(bytes + 8, n - 8) : n;
    uint64_t h = (head(bytes, n) ^ high * 0x9E3779B97F4A7C15ull) * 0xD6E8FEB86659FD93ull;
    return h ^ h >> 32;
}

static inline bool equal(const char *a, const char *b, size_t n)
{
    if (n > 16)
        return memcmp(a, b, n) == 0;
    uint64_t differ = head(a, n) ^ head(b, n);
    if (n > 8)
        differ |= head(a + 8, n - 8) ^ head(b + 8, n - 8);
    return differ == 0;
}

/* Bytes to be looked up; those behind them may be read (see bpe_source_find). */
struct key {
    const char *bytes;
    size_t n;
    uint32_t tag; /* of its slot: bits of the hash above those of the internal number */
    size_t slot;  /* the first where it may be */
};

static inline struct key key_of(const struct bpe_source *s, const char *bytes, size_t n)
{
    uint64_t hash = hash_of(bytes, n);
    return (struct key){bytes, n, (uint32_t)(hash >> 32) & ~NUMBER_MASK, hash & s->slot_mask};
}

/* The slot where the bytes are, or the free one where they belong. */
static size_t slot_of(const struct bpe_source *s, const struct key *key)
{
    size_t i = key->slot;
    for (; s->slots[i] != BPE_NONE; i = (i + 1) & s->slot_mask) {
        uint32_t internal = s->slots[i] & NUMBER_MASK, begin;
        if ((s->slots[i] & ~NUMBER_MASK) != key->tag)
            continue;
        begin = s->offset[internal];
        if (s->offset[internal + 1] - begin == key->n &&
            equal(s->text.data + begin, key->bytes, key->n))
            break;
    }
    return i;
}

static uint32_t find(const struct bpe_source *s, const struct key *key)
{
    if (key->n == 1)
        return (uint8_t)key->bytes[0];
    uint32_t slot = s->slots[slot_of(s, key)];
    return slot == BPE_NONE ? BPE_NONE : slot & NUMBER_MASK;
}

uint32_t bpe_source_find(const struct bpe_source *s, const char *bytes, size_t n)
{
    struct key key = key_of(s, bytes, n);
    return find(s, &key);
}

struct place {
    const char *name;
    uint64_t number;
};

static enum status not_in_alphabet(const struct bpe_source *s, const char *symbol, size_t bytes,
                                   const struct place *at, struct error *e)
{
    return error_set(
        e, STATUS_DATA, "%s: %s %llu: \"%.*s\" is not written in GPT-2's byte alphabet", s->name,
        at->name, (unsigned long long)at->number, bytes > 100 ? 100 : (int)bytes, symbol);
}

static enum status no_such_token(const struct bpe_source *s, const char *symbol, size_t bytes,
                                 const struct place *at, struct error *e)
{
    return error_set(e, STATUS_DATA,
                     "%s: %s %llu merges \"%.*s\", which is neither a byte nor the result of an "
                     "earlier merge",
                     s->name, at->name, (unsigned long long)at->number,
                     bytes > 100 ? 100 : (int)bytes, symbol);
}

/* The three keys are made before the first is looked up, so that their slots arrive meanwhile. */
enum status bpe_source_add(struct bpe_source *s, const char *left, size_t left_bytes,
                           const char *right, size_t right_bytes, const char *place,
                           uint64_t number, struct error *e)
{
    const struct place at = {place, number};
    if (s->merges == BPE_MAX_MERGES)
        return error_set(e, STATUS_DATA, "%s: more than %u merges", s->name, BPE_MAX_MERGES);
    assert(s->merges < s->capacity);
    if (!strbuf_reserve(&s->text, left_bytes + right_bytes + 16))
        return error_memory(e, left_bytes + right_bytes, "a merge list");
    char *text = s->text.data + s->text.length;
    size_t n, m;
    if (!bpe_alphabet_decode(left, left_bytes, text, &n) || n == 0)
        return not_in_alphabet(s, left, left_bytes, &at, e);
    if (!bpe_alphabet_decode(right, right_bytes, text + n, &m) || m == 0)
        return not_in_alphabet(s, right, right_bytes, &at, e);
    struct key key[3] = {key_of(s, text, n), key_of(s, text + n, m), key_of(s, text, n + m)};
    uint32_t *pair = s->pairs + 2 * s->merges;
    for (int i = 0; i < 3; i++)
        __builtin_prefetch(&s->slots[key[i].slot]);
    if ((pair[0] = find(s, &key[0])) == BPE_NONE)
        return no_such_token(s, left, left_bytes, &at, e);
    if ((pair[1] = find(s, &key[1])) == BPE_NONE)
        return no_such_token(s, right, right_bytes, &at, e);
    size_t slot = slot_of(s, &key[2]);
    if (n + m > BPE_MAX_TOKEN_BYTES)
        return error_set(e, STATUS_DATA, "%s: %s %llu makes a token of %zu bytes, the limit is %d",
                         s->name, place, (unsigned long long)number, n + m, BPE_MAX_TOKEN_BYTES);
    if (s->slots[slot] != BPE_NONE)
        return error_set(e, STATUS_DATA, "%s: %s %llu makes a token that merge %u has made already",
                         s->name, place, (unsigned long long)number,
                         (s->slots[slot] & NUMBER_MASK) - 255);
    s->slots[slot] = key[2].tag | (256 + s->merges);
    s->merges++;
    s->text.length += n + m;
    s->offset[256 + s->merges] = (uint32_t)s->text.length;
    return STATUS_OK;
}

static size_t count_line_feeds(const char *text, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += text[i] == '\n';
    return n;
}

/* Lines end with LF only: U+0085 or U+2028 inside a line are no ends. A CR before the LF belongs to
 * the line end, for it is not in the alphabet. The last line may lack its LF. */
enum status bpe_source_parse_merges(struct bpe_source *s, const char *name, const char *text,
                                    size_t bytes, struct error *e)
{
    uint64_t number = 0, blank = 0;
    size_t list_begin = 0;
    bool as_listed = bytes > 0 && text[bytes - 1] == '\n';
    TRY(bpe_source_init(s, name, count_line_feeds(text, bytes) + 1, bytes, e));
    for (size_t at = 0; at < bytes;) {
        const char *line = text + at, *end = memchr(line, '\n', bytes - at);
        size_t n = end ? (size_t)(end - line) : bytes - at;
        at += n + 1;
        number++;
        if (n > 0 && line[n - 1] == '\r') {
            n--;
            as_listed = false;
        }
        if (number == 1 && n >= 9 && memcmp(line, "#version:", 9) == 0) {
            list_begin = at;
            continue;
        }
        if (n == 0) {
            blank = blank ? blank : number;
            as_listed = false;
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
    if (as_listed && s->merges > 0) {
        s->list = text + list_begin;
        s->list_bytes = bytes - list_begin;
    }
    return STATUS_OK;
}
