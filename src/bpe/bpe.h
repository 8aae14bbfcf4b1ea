/* bpe.h - GPT-2's byte-level byte-pair encoding, exactly as OpenAI's encoder does it.
 *
 * A text is split into pieces by GPT-2's pattern (contractions, letters, numbers, other, spaces)
 * with the classes of Unicode 15.0 (White_Space for \s), each piece's bytes are merged by rank.
 * Invalid UTF-8 is data: each bad byte is a class of its own ("other") and survives the round trip.
 * Source: openai/gpt-2 encoder.py; Sennrich et al. 2016. */
#ifndef BPE_BPE_H
#define BPE_BPE_H

#include "base/error.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* GPT-2's own merge list among the files that come with the programs (base/share.h). */
#define BPE_GPT2_FILE "gpt2/vocab.bpe"

struct bpe;       /* vocabulary: immutable after load, shared between threads */
struct bpe_state; /* one thread's scratch and cache */

/* path: vocab.bpe / merges.txt, a tokenizer.json, or a folder holding one of these. The fingerprint
 * is of the merge list itself, so all forms of one vocabulary have the same. */
enum status bpe_load(struct bpe **b, const char *path, struct error *e) MUST_CHECK;
/* The same without the tables that only encoding uses, in less time: no bpe_state_new of it. */
enum status bpe_load_decoder(struct bpe **b, const char *path, struct error *e) MUST_CHECK;
void bpe_free(struct bpe *b);
uint32_t bpe_vocab_size(const struct bpe *b); /* 50257 for GPT-2 */
uint64_t bpe_fingerprint(const struct bpe *b);
uint32_t bpe_eot(const struct bpe *b); /* 50256 */
/* The bytes of one id (not NUL-terminated). id < vocab size. */
const char *bpe_token(const struct bpe *b, uint32_t id, size_t *bytes);

enum status bpe_state_new(struct bpe_state **s, const struct bpe *b, struct error *e) MUST_CHECK;
void bpe_state_free(struct bpe_state *s);

struct token_buffer {
    uint32_t *ids;
    size_t length, capacity;
};
/* Room for `more` ids behind length. */
enum status token_buffer_reserve(struct token_buffer *t, size_t more, struct error *e) MUST_CHECK;
void token_buffer_release(struct token_buffer *t);

/* Append the ids of text to out. allow_special: "<|endoftext|>" in the text becomes its id. */
enum status bpe_encode(struct bpe_state *s, const char *text, size_t bytes, bool allow_special,
                       struct token_buffer *out, struct error *e) MUST_CHECK;
/* What this thread's state has seen since it was made. */
struct bpe_stats {
    size_t longest_piece_bytes; /* of the pieces that the pattern made */
};
void bpe_state_stats(const struct bpe_state *s, struct bpe_stats *stats);
/* A place <= bytes where a long text may be cut without changing its encoding (0 = none found), so
 * that input streams in bounded memory and encodes in parallel. */
size_t bpe_safe_cut(const char *text, size_t bytes);
/* Append the bytes of ids; an id out of range is STATUS_DATA naming its index. */
enum status bpe_decode(const struct bpe *b, const uint32_t *ids, size_t n, struct strbuf *out,
                       struct error *e) MUST_CHECK;
enum status bpe_decode_u16(const struct bpe *b, const uint16_t *ids, size_t n, struct strbuf *out,
                           struct error *e) MUST_CHECK;
/* Length of the well-formed UTF-8 character at text[0..bytes), bytes > 0, and its code point; 0
 * when there is none. */
unsigned bpe_utf8_length(const char *text, size_t bytes, uint32_t *code);
/* Write merges.txt, vocab.json, tokenizer.json, tokenizer_config.json, special_tokens_map.json into
 * dir, as Hugging Face's AutoTokenizer reads them. */
enum status bpe_export(const struct bpe *b, const char *dir, struct error *e) MUST_CHECK;

#endif
