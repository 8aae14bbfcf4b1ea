/* bpe_private.h - what the files of src/bpe share; not for other folders.
 *
 * Inside, a token has an internal number: byte b is b, the k-th merge is 256 + k. So of two
 * possible merges the one with the smaller result has the smaller rank, and a rank needs no table
 * of its own. `external` maps to the ids that the world sees. */
#ifndef BPE_PRIVATE_H
#define BPE_PRIVATE_H

#include "bpe/bpe.h"
#include "bpe/unicode.h"
#include <string.h>

#define BPE_EOT_TEXT "<|endoftext|>"
#define BPE_EOT_BYTES (sizeof BPE_EOT_TEXT - 1)

#define BPE_NONE UINT32_MAX
#define BPE_ID_BITS 19 /* of an internal number: 256 + 2^19 - 4096 merges fit */
#define BPE_MAX_MERGES ((1u << BPE_ID_BITS) - 4096)
#define BPE_MAX_TOKEN_BYTES 65535 /* longest token that a vocabulary may hold */

struct bpe {
    uint32_t merges; /* how many */
    uint32_t size;   /* external vocabulary */
    uint32_t eot;    /* external id */
    bool own_order;  /* ids are not the ones that the merge list alone gives */
    uint64_t fingerprint;
    uint32_t longest_bytes; /* of any token */

    uint32_t *pairs;    /* [merges][2]: left and right internal numbers */
    uint32_t *external; /* [256 + merges] */
    uint32_t *internal; /* [size]: the way back; special tokens follow the merges */
    char *text;         /* bytes of all tokens by internal number, and 16 bytes more */
    uint32_t *offset;   /* [size + 1] into text: files are too small for more than 32 bits */
    /* [size] by id: at most 15 bytes of text and the length, 255 when longer. What is between the
     * text and the length means nothing. */
    uint8_t (*short_token)[16];

    /* For encoding only; NULL when the vocabulary was loaded without. */
    uint32_t *byte_pair;   /* [256 * 256]: internal number of the merge of two bytes or BPE_NONE */
    uint64_t *pair_table;  /* open addressing: left | right | result, BPE_PAIR_EMPTY when free */
    uint64_t *pair_filter; /* a bit for each hash that is in the table, and few others */
    uint32_t pair_shift, filter_shift;
    size_t pair_mask;

    struct unicode_classes classes;
};

#define BPE_PAIR_EMPTY UINT64_MAX
#define BPE_PAIR_VALUE_BITS 21
#define BPE_FILTER_FACTOR 8 /* bits of the filter a slot of the table */

static inline uint64_t bpe_pair_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 21 | right;
}

static inline uint64_t bpe_pair_hash(uint64_t key)
{
    return key * 0x9E3779B97F4A7C15ull;
}

/* The internal number of the merge of left and right, BPE_NONE when they do not merge. Most pairs
 * do not, and the filter says so from a tenth of the memory that the table takes. */
static inline uint32_t bpe_pair_find(const struct bpe *b, uint32_t left, uint32_t right)
{
    uint64_t key = bpe_pair_key(left, right), hash = bpe_pair_hash(key);
    size_t bit = (size_t)(hash >> b->filter_shift);
    if (!(b->pair_filter[bit / 64] >> bit % 64 & 1))
        return BPE_NONE;
    for (size_t i = (size_t)(hash >> b->pair_shift);; i = (i + 1) & b->pair_mask) {
        uint64_t entry = b->pair_table[i];
        if (entry >> BPE_PAIR_VALUE_BITS == key)
            return (uint32_t)entry & ((1u << BPE_PAIR_VALUE_BITS) - 1);
        if (entry == BPE_PAIR_EMPTY)
            return BPE_NONE;
    }
}

/* --- the merge list as a file holds it (source.c, source_json.c) ------------------------------ */

/* A vocabulary being read. Tokens are kept as bytes, by internal number. */
struct bpe_source {
    const char *name;   /* for messages */
    struct strbuf text; /* bytes of the internal tokens, one after the other */
    uint32_t *offset;   /* [256 + merges + 1] into text */
    uint32_t *pairs;    /* [merges][2] */
    uint32_t merges, capacity;
    uint32_t *slots; /* open addressing by bytes: bits of the hash | internal number, or BPE_NONE */
    size_t slot_mask;
    /* The merges as "LEFT RIGHT\n" each, when the file has them so; not owned. NULL = it does not.
     */
    const char *list;
    size_t list_bytes;
};

/* capacity: not less than the merges that will be added, unless there are too many for any
 * vocabulary. text_bytes: of the file. */
enum status bpe_source_init(struct bpe_source *s, const char *name, size_t capacity,
                            size_t text_bytes, struct error *e) MUST_CHECK;
void bpe_source_release(struct bpe_source *s);
/* Add the merge of two symbols written in GPT-2's printable alphabet. place is for messages. */
enum status bpe_source_add(struct bpe_source *s, const char *left, size_t left_bytes,
                           const char *right, size_t right_bytes, const char *place,
                           uint64_t number, struct error *e) MUST_CHECK;
/* The internal number of a byte string, BPE_NONE when it is no token. Up to 8 bytes behind it are
 * read, whatever they are. */
uint32_t bpe_source_find(const struct bpe_source *s, const char *bytes, size_t n);

/* Lines of "LEFT RIGHT" (vocab.bpe, merges.txt), into a source that is not initialised yet. The
 * text stays as long as the source. */
enum status bpe_source_parse_merges(struct bpe_source *s, const char *name, const char *text,
                                    size_t bytes, struct error *e) MUST_CHECK;

/* A token of an id map that is neither a byte nor a merge. */
struct bpe_special {
    uint32_t id;
    char *text;
};

/* Ids as vocab.json or tokenizer.json give them. */
struct bpe_ids {
    uint32_t *external; /* [256 + merges] */
    uint32_t size, eot;
    struct bpe_special *specials; /* by rising id */
    uint32_t special_count;
};
void bpe_ids_release(struct bpe_ids *ids);
/* tokenizer.json: fills the source, which is not initialised yet, and the ids. */
enum status bpe_json_tokenizer(struct bpe_source *s, struct bpe_ids *ids, const char *name,
                               const char *text, size_t bytes, struct error *e) MUST_CHECK;
/* vocab.json, for a source that is complete. */
enum status bpe_json_vocab(const struct bpe_source *s, struct bpe_ids *ids, const char *name,
                           const char *text, size_t bytes, struct error *e) MUST_CHECK;

/* --- GPT-2's printable alphabet (alphabet.c) -------------------------------------------------- */

/* The code point that stands for a byte, and the place of a byte in GPT-2's id order. */
uint32_t bpe_alphabet_code(uint8_t byte);
uint32_t bpe_alphabet_rank(uint8_t byte);
/* Bytes of a symbol into out (room for symbol_bytes); false when it is not in the alphabet. */
bool bpe_alphabet_decode(const char *symbol, size_t symbol_bytes, char *out, size_t *bytes);
/* Append the symbol for bytes. */
bool bpe_alphabet_encode(struct strbuf *out, const char *bytes, size_t n) MUST_CHECK;

/* --- merging one piece (merge.c) -------------------------------------------------------------- */

/* Every function writes internal numbers to out, which has room for n, and they agree on every
 * input: apply the merge of lowest rank, leftmost first, until none applies. */
#define BPE_WINDOW_BYTES 4096u
/* n <= BPE_WINDOW_BYTES; scratch belongs to one thread. Returns how many. */
struct bpe_window {
    uint32_t symbol[BPE_WINDOW_BYTES], key[BPE_WINDOW_BYTES];
    uint16_t next[BPE_WINDOW_BYTES + 1], previous[BPE_WINDOW_BYTES + 1];
    uint32_t least[BPE_WINDOW_BYTES / 64]; /* of each 64 keys */
};
size_t bpe_merge_window(const struct bpe *b, struct bpe_window *w, const char *text, size_t n,
                        uint32_t *out);
/* Any n < 2^32, with a heap of n log n and 24 bytes of memory a byte of text. */
enum status bpe_merge_heap(const struct bpe *b, const char *text, size_t n, uint32_t *out,
                           size_t *count, struct error *e) MUST_CHECK;
/* Any n, appended to out: windows that are proved to fit together, the heap where they do not. */
enum status bpe_merge_long(const struct bpe *b, struct bpe_window *w, const char *text, size_t n,
                           struct token_buffer *out, struct error *e) MUST_CHECK;

static inline uint64_t bpe_load64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

#endif
