/* encode.c - text to ids: pieces from the splitter, each looked up in this thread's cache and
 * merged when it is not there.
 *
 * A piece of at most 15 bytes (nearly all of them) is its own key: 16 bytes, the last one its
 * length, in a direct-mapped table. Pieces up to LONG_BYTES have a second table; still longer ones
 * are merged each time. A collision or a full arena only costs a merge, so nobody can make the
 * cache grow or degrade. */
#define _GNU_SOURCE /* memmem */
#include "bpe/bpe_private.h"
#include "bpe/split.h"
#include "base/hash.h"

#include <stdlib.h>

#define SHORT_BYTES 15
#define SHORT_BITS 15
#define LONG_BYTES 256
#define LONG_BITS 14
#define ARENA_WORDS (1u << 19)
#define INLINE_IDS 4
#define ID_MASK 0xFFFFFFu /* external ids are below 2^20 */
#define IN_ARENA 0xFFu

struct short_entry {
    uint64_t low, high; /* the piece, zeros, its length in the top byte; high is 0 when free */
    /* The top byte of id[3] is how many ids there are; IN_ARENA: id[1] of them at arena[id[0]]. */
    uint32_t id[INLINE_IDS];
};

struct long_entry {
    uint64_t hash;
    uint32_t at;           /* in the arena: ids, then the bytes of the piece */
    uint16_t bytes, count; /* bytes is 0 when free */
};

struct bpe_state {
    const struct bpe *b;
    struct short_entry *shorts; /* [1 << SHORT_BITS] */
    struct long_entry *longs;   /* [1 << LONG_BITS] */
    uint32_t *arena;
    size_t arena_used;
    struct bpe_window window;
    uint32_t merged[LONG_BYTES];
    struct bpe_stats stats;
};

enum status bpe_state_new(struct bpe_state **out, const struct bpe *b, struct error *e)
{
    struct bpe_state *s = calloc(1, sizeof *s);
    *out = NULL;
    if (s) {
        s->b = b;
        size_t bytes = sizeof *s->shorts << SHORT_BITS;
        s->shorts = aligned_alloc(64, bytes);
        s->longs = calloc((size_t)1 << LONG_BITS, sizeof *s->longs);
        s->arena = malloc(ARENA_WORDS * sizeof *s->arena);
        if (s->shorts && s->longs && s->arena) {
            memset(s->shorts, 0, bytes);
            *out = s;
            return STATUS_OK;
        }
    }
    bpe_state_free(s);
    return error_memory(e, ARENA_WORDS * sizeof(uint32_t), "the cache of pieces");
}

void bpe_state_free(struct bpe_state *s)
{
    if (!s)
        return;
    free(s->shorts);
    free(s->longs);
    free(s->arena);
    free(s);
}

void bpe_state_stats(const struct bpe_state *s, struct bpe_stats *stats)
{
    *stats = s->stats;
}

void token_buffer_release(struct token_buffer *t)
{
    free(t->ids);
    memset(t, 0, sizeof *t);
}

enum status token_buffer_reserve(struct token_buffer *t, size_t more, struct error *e)
{
    if (more <= t->capacity - t->length)
        return STATUS_OK;
    size_t need, capacity, bytes;
    if (__builtin_add_overflow(t->length, more, &need) ||
        __builtin_add_overflow(need, need / 2, &capacity) ||
        __builtin_mul_overflow(capacity, sizeof *t->ids, &bytes))
        return error_memory(e, more, "token ids");
    uint32_t *ids = realloc(t->ids, bytes);
    if (!ids)
        return error_memory(e, bytes, "token ids");
    t->ids = ids;
    t->capacity = capacity;
    return STATUS_OK;
}

/* --- the cache -------------------------------------------------------------------------------- */

/* Room in the arena; when it is full the cache starts afresh. */
static uint32_t arena_take(struct bpe_state *s, size_t words)
{
    if (s->arena_used + words > ARENA_WORDS) {
        memset(s->shorts, 0, sizeof *s->shorts << SHORT_BITS);
        memset(s->longs, 0, sizeof *s->longs << LONG_BITS);
        s->arena_used = 0;
    }
    size_t at = s->arena_used;
    s->arena_used += words;
    return (uint32_t)at;
}

static inline size_t short_slot(uint64_t low, uint64_t high)
{
    return (size_t)((low ^ high * 0x9E3779B97F4A7C15ull) * 0xD6E8FEB86659FD93ull >>
                    (64 - SHORT_BITS));
}

/* Merge a piece of 1 to LONG_BYTES bytes into s->merged, as external ids. */
static size_t merge_piece(struct bpe_state *s, const char *text, size_t n)
{
    size_t count = bpe_merge_window(s->b, &s->window, text, n, s->merged);
    for (size_t i = 0; i < count; i++)
        s->merged[i] = s->b->external[s->merged[i]];
    return count;
}

/* The slow half of a short piece: its ids are in the arena, or it is not cached. */
static __attribute__((noinline)) size_t short_miss(struct bpe_state *s, const char *text, size_t n,
                                                   uint64_t low, uint64_t high, uint32_t *out)
{
    struct short_entry *entry = &s->shorts[short_slot(low, high)];
    if (entry->low == low && entry->high == high) {
        memcpy(out, s->arena + entry->id[0], entry->id[1] * sizeof *out);
        return entry->id[1];
    }
    size_t count = merge_piece(s, text, n);
    struct short_entry made = {low, high, {0}};
    if (count <= INLINE_IDS) {
        memcpy(made.id, s->merged, count * sizeof *made.id);
        made.id[3] |= (uint32_t)count << 24;
    } else {
        made.id[0] = arena_take(s, count);
        made.id[1] = (uint32_t)count;
        made.id[3] = IN_ARENA << 24;
        memcpy(s->arena + made.id[0], s->merged, count * sizeof *s->merged);
    }
    *entry = made;
    memcpy(out, s->merged, count * sizeof *out);
    return count;
}

/* A piece of more than SHORT_BYTES. Appends to out. */
static __attribute__((noinline)) enum status long_piece(struct bpe_state *s, const char *text,
                                                        size_t n, struct token_buffer *out,
                                                        struct error *e)
{
    if (n > s->stats.longest_piece_bytes)
        s->stats.longest_piece_bytes = n;
    if (n > LONG_BYTES) {
        size_t begin = out->length;
        TRY(bpe_merge_long(s->b, &s->window, text, n, out, e));
        for (size_t i = begin; i < out->length; i++)
            out->ids[i] = s->b->external[out->ids[i]];
        return STATUS_OK;
    }
    TRY(token_buffer_reserve(out, n, e));
    uint32_t *to = out->ids + out->length;
    uint64_t hash = hash64(text, n);
    struct long_entry *entry = &s->longs[hash >> (64 - LONG_BITS)];
    if (entry->bytes == n && entry->hash == hash &&
        memcmp(s->arena + entry->at + entry->count, text, n) == 0) {
        memcpy(to, s->arena + entry->at, entry->count * sizeof *to);
        out->length += entry->count;
        return STATUS_OK;
    }
    size_t count = merge_piece(s, text, n);
    uint32_t at = arena_take(s, count + (n + 3) / 4);
    memcpy(s->arena + at, s->merged, count * sizeof *to);
    memcpy(s->arena + at + count, text, n);
    *entry = (struct long_entry){hash, at, (uint16_t)n, (uint16_t)count};
    memcpy(to, s->merged, count * sizeof *to);
    out->length += count;
    return STATUS_OK;
}

/* --- pieces to ids ---------------------------------------------------------------------------- */

static const uint64_t low_mask[16] = {
    0,     0xFF,  0xFFFF, 0xFFFFFF, 0xFFFFFFFF, 0xFFFFFFFFFF, 0xFFFFFFFFFFFF, 0xFFFFFFFFFFFFFF,
    ~0ull, ~0ull, ~0ull,  ~0ull,    ~0ull,      ~0ull,        ~0ull,          ~0ull};
static const uint64_t high_mask[16] = {0,
                                       0,
                                       0,
                                       0,
                                       0,
                                       0,
                                       0,
                                       0,
                                       0,
                                       0xFF,
                                       0xFFFF,
                                       0xFFFFFF,
                                       0xFFFFFFFF,
                                       0xFFFFFFFFFF,
                                       0xFFFFFFFFFFFF,
                                       0xFFFFFFFFFFFFFF};

/* A piece of n <= SHORT_BYTES bytes to `to`, where INLINE_IDS and SHORT_BYTES ids have room; `end`
 * is the end of the text, which the 16 bytes that are read may not pass. Returns how many ids. */
static inline size_t short_piece(struct bpe_state *s, const char *text, size_t n, const char *end,
                                 uint32_t *to)
{
    uint64_t low, high;
    if (__builtin_expect(end - text >= 16, 1)) {
        low = bpe_load64(text);
        high = bpe_load64(text + 8);
    } else {
        char copy[16] = {0};
        memcpy(copy, text, (size_t)(end - text));
        low = bpe_load64(copy);
        high = bpe_load64(copy + 8);
    }
    low &= low_mask[n];
    high = (high & high_mask[n]) | (uint64_t)n << 56;
    const struct short_entry *entry = &s->shorts[short_slot(low, high)];
    uint32_t count = entry->id[3] >> 24;
    if (__builtin_expect(entry->low == low && entry->high == high && count != IN_ARENA, 1)) {
        for (unsigned i = 0; i < INLINE_IDS; i++)
            to[i] = entry->id[i] & ID_MASK;
        return count;
    }
    return short_miss(s, text, n, low, high, to);
}

static enum status encode_plain(struct bpe_state *s, const char *text, size_t bytes,
                                struct token_buffer *out, struct error *e)
{
    struct split_state split;
    const char *piece = text, *end = text + bytes;
    size_t longest = 0;
    split_init(&split, &s->b->classes, text, bytes);
    while (split.at < bytes) {
        const char *block = text + split.at;
        uint64_t begins = split_next(&split);
        if (block == text)
            begins &= ~1ull;
        /* Pieces that end in this block: 64 bytes and what a short one had before it. */
        TRY(token_buffer_reserve(out, 64 + 2 * SHORT_BYTES, e));
        uint32_t *to = out->ids + out->length;
        for (; begins; begins &= begins - 1) {
            const char *next = block + __builtin_ctzll(begins);
            size_t n = (size_t)(next - piece);
            if (__builtin_expect(n <= SHORT_BYTES, 1)) {
                longest = n > longest ? n : longest;
                to += short_piece(s, piece, n, end, to);
            } else {
                out->length = (size_t)(to - out->ids);
                TRY(long_piece(s, piece, n, out, e));
                TRY(token_buffer_reserve(out, 64 + 2 * SHORT_BYTES, e));
                to = out->ids + out->length;
            }
            piece = next;
        }
        out->length = (size_t)(to - out->ids);
    }
    size_t n = (size_t)(end - piece);
    if (n > SHORT_BYTES) {
        TRY(long_piece(s, piece, n, out, e));
    } else if (n > 0) {
        longest = n > longest ? n : longest;
        TRY(token_buffer_reserve(out, 2 * SHORT_BYTES, e));
        out->length += short_piece(s, piece, n, end, out->ids + out->length);
    }
    if (longest > s->stats.longest_piece_bytes)
        s->stats.longest_piece_bytes = longest;
    return STATUS_OK;
}

enum status bpe_encode(struct bpe_state *s, const char *text, size_t bytes, bool allow_special,
                       struct token_buffer *out, struct error *e)
{
    while (allow_special && bytes >= BPE_EOT_BYTES) {
        const char *eot = memmem(text, bytes, BPE_EOT_TEXT, BPE_EOT_BYTES);
        if (!eot)
            break;
        TRY(encode_plain(s, text, (size_t)(eot - text), out, e));
        TRY(token_buffer_reserve(out, 1, e));
        out->ids[out->length++] = s->b->eot;
        bytes -= (size_t)(eot - text) + BPE_EOT_BYTES;
        text = eot + BPE_EOT_BYTES;
    }
    return encode_plain(s, text, bytes, out, e);
}
