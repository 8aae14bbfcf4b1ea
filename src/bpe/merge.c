/* merge.c - byte-pair merging of one piece (Sennrich et al. 2016), three ways with one result.
 *
 * The rule: among all adjacent pairs take the merge of lowest rank, the leftmost of equals, until
 * none applies. An internal number grows with its rank, so the result of the merge orders the
 * pairs. A part of a merge always has a smaller number than its result (the loader checks it), so a
 * merge never brings forth a pair of lower rank, and "lowest first" is the same as "rank by rank".
 */
#include "bpe/bpe_private.h"

#include <stdlib.h>

#define NO_KEY UINT32_MAX

/* --- up to 4096 bytes: keys in an array, minima of each 64 ------------------------------------ */

static uint32_t least_of(const uint32_t *v, size_t n)
{
    uint32_t least = NO_KEY;
    for (size_t i = 0; i < n; i++)
        least = v[i] < least ? v[i] : least;
    return least;
}

static inline uint32_t window_key(uint32_t merged, size_t at)
{
    return merged == BPE_NONE ? NO_KEY : merged << 12 | (uint32_t)at;
}

/* Joins the symbol at i with its right neighbour into `merged`. Positions whose key changed are put
 * into touched. */
static inline unsigned window_join(const struct bpe *b, struct bpe_window *w, size_t n, size_t i,
                                   uint32_t merged, size_t touched[3])
{
    size_t j = w->next[i], k = w->next[j];
    unsigned count = 0;
    w->symbol[i] = merged;
    w->next[i] = (uint16_t)k;
    w->previous[k] = (uint16_t)i;
    w->key[j] = NO_KEY;
    w->key[i] = k < n ? window_key(bpe_pair_find(b, merged, w->symbol[k]), i) : NO_KEY;
    if (i > 0) {
        size_t p = w->previous[i];
        w->key[p] = window_key(bpe_pair_find(b, w->symbol[p], merged), p);
        touched[count++] = p;
    }
    touched[count++] = i;
    touched[count++] = j;
    return count;
}

/* Keys are padded with NO_KEY to a multiple of 8, so that the search for the least has no tail. */
static size_t window_init(const struct bpe *b, struct bpe_window *w, const char *text, size_t n,
                          size_t multiple)
{
    const uint8_t *t = (const uint8_t *)text;
    size_t padded = (n + multiple - 1) / multiple * multiple;
    for (size_t i = 0; i < n; i++) {
        w->symbol[i] = t[i];
        w->next[i] = (uint16_t)(i + 1);
        w->previous[i + 1] = (uint16_t)i;
        if (i + 1 < n)
            w->key[i] = window_key(b->byte_pair[t[i] << 8 | t[i + 1]], i);
    }
    for (size_t i = n - 1; i < padded; i++)
        w->key[i] = NO_KEY;
    return padded;
}

static void merge_flat(const struct bpe *b, struct bpe_window *w, size_t n, size_t padded)
{
    size_t touched[3];
    for (;;) {
        uint32_t least = least_of(w->key, padded);
        if (least == NO_KEY)
            return;
        window_join(b, w, n, least & 0xFFF, least >> 12, touched);
    }
}

static void merge_blocks(const struct bpe *b, struct bpe_window *w, size_t n, size_t padded)
{
    size_t blocks = padded / 64, touched[3];
    for (size_t i = 0; i < blocks; i++)
        w->least[i] = least_of(w->key + 64 * i, 64);
    for (;;) {
        uint32_t least = least_of(w->least, blocks);
        if (least == NO_KEY)
            return;
        unsigned count = window_join(b, w, n, least & 0xFFF, least >> 12, touched);
        size_t last = SIZE_MAX;
        for (unsigned i = 0; i < count; i++) {
            size_t block = touched[i] / 64;
            if (block != last)
                w->least[block] = least_of(w->key + 64 * block, 64);
            last = block;
        }
    }
}

size_t bpe_merge_window(const struct bpe *b, struct bpe_window *w, const char *text, size_t n,
                        uint32_t *out)
{
    if (n <= 128)
        merge_flat(b, w, n, window_init(b, w, text, n, 8));
    else
        merge_blocks(b, w, n, window_init(b, w, text, n, 64));
    size_t count = 0;
    for (size_t i = 0; i < n; i = w->next[i])
        out[count++] = w->symbol[i];
    return count;
}

/* --- any length, with a heap ------------------------------------------------------------------ */

struct heap {
    uint64_t *key; /* merged << 32 | position; the least is first */
    size_t length;
};

static void heap_sink(struct heap *h, size_t i)
{
    uint64_t key = h->key[i];
    for (size_t child; (child = 2 * i + 1) < h->length; i = child) {
        child += child + 1 < h->length && h->key[child + 1] < h->key[child];
        if (h->key[child] >= key)
            break;
        h->key[i] = h->key[child];
    }
    h->key[i] = key;
}

static void heap_push(struct heap *h, uint64_t key)
{
    size_t i = h->length++;
    for (; i > 0 && h->key[(i - 1) / 2] > key; i = (i - 1) / 2)
        h->key[i] = h->key[(i - 1) / 2];
    h->key[i] = key;
}

static uint64_t heap_pop(struct heap *h)
{
    uint64_t least = h->key[0];
    h->key[0] = h->key[--h->length];
    if (h->length)
        heap_sink(h, 0);
    return least;
}

struct symbols {
    uint32_t *id;       /* [n]; BPE_NONE where a symbol was joined to the left */
    uint32_t *next;     /* [n] */
    uint32_t *previous; /* [n + 1] */
};

/* An entry is stale when the pair at its position is no longer the one that was pushed. Each merge
 * takes out its own entry and adds at most two, and there are at most n - 1 merges, but stale ones
 * stay: 2n entries suffice, for each merge pushes two and pops at least one. */
static void merge_with_heap(const struct bpe *b, struct symbols *s, size_t n, struct heap *h)
{
    while (h->length) {
        uint64_t top = heap_pop(h);
        uint32_t i = (uint32_t)top, merged = (uint32_t)(top >> 32);
        if (s->id[i] == BPE_NONE || s->next[i] >= n)
            continue;
        uint32_t j = s->next[i];
        if (bpe_pair_find(b, s->id[i], s->id[j]) != merged)
            continue;
        uint32_t k = s->next[j];
        s->id[i] = merged;
        s->id[j] = BPE_NONE;
        s->next[i] = k;
        s->previous[k] = i;
        uint32_t with = k < n ? bpe_pair_find(b, merged, s->id[k]) : BPE_NONE;
        if (with != BPE_NONE)
            heap_push(h, (uint64_t)with << 32 | i);
        if (i == 0)
            continue;
        uint32_t p = s->previous[i];
        with = bpe_pair_find(b, s->id[p], merged);
        if (with != BPE_NONE)
            heap_push(h, (uint64_t)with << 32 | p);
    }
}

enum status bpe_merge_heap(const struct bpe *b, const char *text, size_t n, uint32_t *out,
                           size_t *count, struct error *e)
{
    const uint8_t *t = (const uint8_t *)text;
    struct symbols s = {out, NULL, NULL};
    struct heap h = {NULL, 0};
    *count = 0;
    if (n >= UINT32_MAX)
        return error_set(e, STATUS_DATA, "a run of %zu bytes without a break, the limit is 4 GiB",
                         n);
    s.next = malloc((n + 1) * sizeof *s.next);
    s.previous = malloc((n + 1) * sizeof *s.previous);
    h.key = malloc(2 * (n + 1) * sizeof *h.key);
    if (!s.next || !s.previous || !h.key) {
        free(s.next);
        free(s.previous);
        free(h.key);
        return error_memory(e, 24ull * n, "a long run of text without a break");
    }
    for (size_t i = 0; i < n; i++) {
        s.id[i] = t[i];
        s.next[i] = (uint32_t)i + 1;
        s.previous[i + 1] = (uint32_t)i;
        uint32_t merged = i + 1 < n ? b->byte_pair[t[i] << 8 | t[i + 1]] : BPE_NONE;
        if (merged != BPE_NONE)
            h.key[h.length++] = (uint64_t)merged << 32 | i;
    }
    for (size_t i = h.length / 2; i-- > 0;)
        heap_sink(&h, i);
    merge_with_heap(b, &s, n, &h);
    for (size_t i = 0; i < n; i++) /* close the gaps, in place */
        if (out[i] != BPE_NONE)
            out[(*count)++] = out[i];
    free(s.next);
    free(s.previous);
    free(h.key);
    return STATUS_OK;
}

/* --- any length, by windows ------------------------------------------------------------------- */

/* A sequence of tokens is the encoding of its text if and only if each two neighbours, encoded
 * together, come out as themselves. (Consider the first merge that would cross from one token into
 * its neighbour: up to it both were merged as if alone, so the pair alone would have crossed as
 * well; and the other way round.) So if one window encodes as ... t u v ..., and a second window
 * that begins where u begins encodes as u w ..., then ... t u w ... is the encoding of both
 * together: t u were neighbours in the first, all others in the second. Only that u has to be
 * checked. This takes linear time and no memory, whatever the length. */

#define OVERLAP_BYTES 512u

/* The bytes of internal tokens in out[from, to). */
static size_t bytes_of(const struct bpe *b, const uint32_t *out, size_t from, size_t to)
{
    size_t bytes = 0;
    for (size_t i = from; i < to; i++)
        bytes += b->offset[out[i] + 1] - b->offset[out[i]];
    return bytes;
}

/* Writes to out->ids + out->length without changing length. *fits is false when two windows do not
 * agree, which GPT-2's own vocabulary has not been seen to do. */
static enum status merge_by_windows(const struct bpe *b, struct bpe_window *w, const char *text,
                                    size_t n, struct token_buffer *out, size_t *count, bool *fits,
                                    struct error *e)
{
    size_t at = 0, total = 0;
    uint32_t expected = BPE_NONE;
    *fits = true;
    for (;;) {
        size_t length = n - at < BPE_WINDOW_BYTES ? n - at : BPE_WINDOW_BYTES;
        TRY(token_buffer_reserve(out, total + length, e));
        uint32_t *tokens = out->ids + out->length + total;
        size_t got = bpe_merge_window(b, w, text + at, length, tokens), keep = got;
        if (expected != BPE_NONE && tokens[0] != expected) {
            *fits = false;
            return STATUS_OK;
        }
        if (at + length == n) {
            *count = total + got;
            return STATUS_OK;
        }
        for (size_t dropped = 0; dropped < OVERLAP_BYTES && keep > 0;)
            dropped += bytes_of(b, tokens, keep - 1, keep), keep--;
        if (keep == 0) {
            *fits = false;
            return STATUS_OK;
        }
        expected = tokens[keep];
        at += bytes_of(b, tokens, 0, keep);
        total += keep;
    }
}

enum status bpe_merge_long(const struct bpe *b, struct bpe_window *w, const char *text, size_t n,
                           struct token_buffer *out, struct error *e)
{
    bool fits = b->longest_bytes <= OVERLAP_BYTES;
    size_t count;
    if (n <= BPE_WINDOW_BYTES) {
        TRY(token_buffer_reserve(out, n, e));
        out->length += bpe_merge_window(b, w, text, n, out->ids + out->length);
        return STATUS_OK;
    }
    if (fits)
        TRY(merge_by_windows(b, w, text, n, out, &count, &fits, e));
    if (!fits) {
        TRY(token_buffer_reserve(out, n, e));
        TRY(bpe_merge_heap(b, text, n, out->ids + out->length, &count, e));
    }
    out->length += count;
    return STATUS_OK;
}
