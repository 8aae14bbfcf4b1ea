/* encode.c - text to ids: pieces from the splitter, each looked up in this thread's cache and
 * merged when it is not there.
 *
 * A piece of at most 15 bytes (nearly all of them) is its own key: 16 bytes, the last one its
 * length, in a two-way table (a bucket is one cache line). Pieces up to LONG_BYTES have a second
 * table; still longer ones are merged each time. A collision or a full arena only costs a merge, so
 * nobody can make the cache grow or degrade. */
#define _GNU_SOURCE /* memmem */
#include "bpe/bpe_private.h"
#include "bpe/split.h"
#include "base/hash.h"

#include <assert.h>
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

#define SHORT_TABLE_BYTES (2 * sizeof(struct short_entry) << SHORT_BITS)
#define LONG_TABLE_BYTES (sizeof(struct long_entry) << LONG_BITS)

struct bpe_state {
    const struct bpe *b;
    struct short_entry *shorts; /* [1 << SHORT_BITS][2] */
    void *shorts_memory;        /* what was allocated for it, before alignment */
    struct long_entry *longs;   /* [1 << LONG_BITS] */
    uint32_t *arena;
    size_t arena_used;
    struct bpe_window window;
    uint32_t merged[LONG_BYTES];
    struct bpe_stats stats;
};

/* Also of a new state: fresh memory that is read first is the kernel's shared page of zeros, and
 * the write that takes it away from there interrupts every other processor the program runs on. */
static void clear_tables(struct bpe_state *s)
{
    memset(s->shorts, 0, SHORT_TABLE_BYTES);
    memset(s->longs, 0, LONG_TABLE_BYTES);
    s->arena_used = 0;
}

enum status bpe_state_new(struct bpe_state **out, const struct bpe *b, struct error *e)
{
    struct bpe_state *s = calloc(1, sizeof *s);
    *out = NULL;
    assert(b->pair_table);
    if (s) {
        s->b = b;
        s->shorts_memory = malloc(SHORT_TABLE_BYTES + 64);
        s->longs = malloc(LONG_TABLE_BYTES);
        s->arena = malloc(ARENA_WORDS * sizeof *s->arena);
        if (s->shorts_memory && s->longs && s->arena) {
            s->shorts = (void *)(((uintptr_t)s->shorts_memory + 63) & ~(uintptr_t)63);
            clear_tables(s);
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
    free(s->shorts_memory);
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
    if (s->arena_used + words > ARENA_WORDS)
        clear_tables(s);
    size_t at = s->arena_used;
    s->arena_used += words;
    return (uint32_t)at;
}

/* The first of the two entries where a piece may be. */
static inline struct short_entry *short_bucket(const struct bpe_state *s, uint64_t low,
                                               uint64_t high)
{
    return s->shorts +
           2 * ((low ^ high * 0x9E3779B97F4A7C15ull) * 0xD6E8FEB86659FD93ull >> (64 - SHORT_BITS));
}

/* Merge a piece of 1 to LONG_BYTES bytes into s->merged, as external ids. */
static size_t merge_piece(struct bpe_state *s, const char *text, size_t n)
{
    size_t count = bpe_merge_window(s->b, &s->window, text, n, s->merged);
    for (size_t i = 0; i < count; i++)
        s->merged[i] = s->b->external[s->merged[i]];
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

/* A piece that was split off, with what its lookup needs: keys are made for many pieces before the
 * first of them is looked up, so that the cache lines of their buckets arrive meanwhile. */
struct piece {
    const char *text;
    size_t n;
    uint64_t low, high; /* the key, when n <= SHORT_BYTES */
};

#define GROUP_PIECES 128

/* `end` is the end of the text, which the 16 bytes that are read may not pass. */
static inline void piece_init(const struct bpe_state *s, struct piece *p, const char *text,
                              size_t n, const char *end)
{
    p->text = text;
    p->n = n;
    if (__builtin_expect(n > SHORT_BYTES, 0))
        return;
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
    p->low = low & low_mask[n];
    p->high = (high & high_mask[n]) | (uint64_t)n << 56;
    __builtin_prefetch(short_bucket(s, p->low, p->high));
}

/* The slow half of a short piece: its ids are in the arena, or it is not cached. */
static __attribute__((noinline)) size_t short_miss(struct bpe_state *s, const struct piece *p,
                                                   uint32_t *out)
{
    struct short_entry *bucket = short_bucket(s, p->low, p->high);
    for (int way = 0; way < 2; way++) {
        const struct short_entry *have = bucket + way;
        if (have->low == p->low && have->high == p->high) {
            memcpy(out, s->arena + have->id[0], have->id[1] * sizeof *out);
            return have->id[1];
        }
    }
    size_t count = merge_piece(s, p->text, p->n);
    struct short_entry made = {p->low, p->high, {0}};
    if (count <= INLINE_IDS) {
        memcpy(made.id, s->merged, count * sizeof *made.id);
        made.id[3] |= (uint32_t)count << 24;
    } else {
        made.id[0] = arena_take(s, count);
        made.id[1] = (uint32_t)count;
        made.id[3] = IN_ARENA << 24;
        memcpy(s->arena + made.id[0], s->merged, count * sizeof *s->merged);
    }
    bucket[1] = bucket[0]; /* the older one leaves */
    bucket[0] = made;
    memcpy(out, s->merged, count * sizeof *out);
    return count;
}

/* A short piece to `to`, where SHORT_BYTES ids have room. Returns how many ids. */
static inline size_t short_piece(struct bpe_state *s, const struct piece *p, uint32_t *to)
{
    const struct short_entry *bucket = short_bucket(s, p->low, p->high);
    bool first = (bucket[0].low == p->low) & (bucket[0].high == p->high);
    bool second = (bucket[1].low == p->low) & (bucket[1].high == p->high);
    const struct short_entry *entry = bucket + second;
    uint32_t count = entry->id[3] >> 24;
    if (__builtin_expect((first | second) & (count != IN_ARENA), 1)) {
        for (unsigned i = 0; i < INLINE_IDS; i++)
            to[i] = entry->id[i] & ID_MASK;
        return count;
    }
    return short_miss(s, p, to);
}

static enum status encode_group(struct bpe_state *s, const struct piece *pieces, size_t count,
                                struct token_buffer *out, struct error *e)
{
    TRY(token_buffer_reserve(out, (count + 1) * SHORT_BYTES, e));
    uint32_t *to = out->ids + out->length;
    size_t longest = 0;
    for (size_t i = 0; i < count; i++) {
        if (__builtin_expect(pieces[i].n <= SHORT_BYTES, 1)) {
            longest = pieces[i].n > longest ? pieces[i].n : longest;
            to += short_piece(s, &pieces[i], to);
            continue;
        }
        out->length = (size_t)(to - out->ids);
        TRY(long_piece(s, pieces[i].text, pieces[i].n, out, e));
        TRY(token_buffer_reserve(out, (count - i) * SHORT_BYTES, e));
        to = out->ids + out->length;
    }
    out->length = (size_t)(to - out->ids);
    if (longest > s->stats.longest_piece_bytes)
        s->stats.longest_piece_bytes = longest;
    return STATUS_OK;
}

static enum status encode_plain(struct bpe_state *s, const char *text, size_t bytes,
                                struct token_buffer *out, struct error *e)
{
    struct split_state split;
    struct piece pieces[GROUP_PIECES + 1];
    const char *piece = text, *end = text + bytes;
    size_t count = 0;
    if (bytes == 0)
        return STATUS_OK;
    split_init(&split, &s->b->classes, text, bytes);
    while (split.at < bytes) {
        const char *block = text + split.at;
        uint64_t begins = split_next(&split);
        if (block == text)
            begins &= ~1ull; /* nothing ends where the text begins */
        for (; begins; begins &= begins - 1) {
            const char *next = block + __builtin_ctzll(begins);
            piece_init(s, &pieces[count++], piece, (size_t)(next - piece), end);
            piece = next;
        }
        if (count > GROUP_PIECES - 64) {
            TRY(encode_group(s, pieces, count, out, e));
            count = 0;
        }
    }
    piece_init(s, &pieces[count++], piece, (size_t)(end - piece), end);
    return encode_group(s, pieces, count, out, e);
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
