/* split.h - GPT-2's pattern as a state machine over 64 bytes at a time; not for other folders.
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * Classes are bit masks, one bit a byte (every byte of a character has the character's class), and
 * the places where a piece begins follow from them by shifts:
 *   - letters, numbers, others: the first of a run, unless a U+0020 stands before it;
 *   - spaces: the first of a run, and the last of a run of two or more that a non-space follows;
 *   - 's and the like: an apostrophe that begins a piece; no piece begins inside, one does behind.
 */
#ifndef BPE_SPLIT_H
#define BPE_SPLIT_H

#include "bpe/split_mask.h"
#include "bpe/unicode.h"
#include <stdbool.h>

struct split_state {
    const struct unicode_classes *classes;
    const uint8_t *text;
    size_t bytes;
    size_t at;               /* of the block that split_next returns next */
    struct split_mask ahead; /* masks of that block */
    uint64_t letter, number, other, space,
        blank;           /* bit 0: the class of the byte before the block */
    uint64_t clear, set; /* begins of the next block that a contraction rules out or forces */
    unsigned spill;      /* bytes of the next block that belong to a character begun before it */
    enum unicode_class spill_class;
};

/* Reads one block; bits behind the end of the text are spaces, as (?!\S) sees the end. */
static inline void split_read(struct split_state *s, size_t at)
{
    size_t n = s->bytes - at;
    if (n >= 64) {
        split_mask_read(&s->ahead, s->text + at);
    } else {
        uint8_t rest[64];
        memset(rest, '\n', sizeof rest);
        memcpy(rest, s->text + at, n);
        split_mask_read(&s->ahead, rest);
    }
    s->ahead.space2 = s->ahead.space3 = 0;
}

void split_read_unicode(struct split_state *s, size_t at, uint64_t high);

static inline void split_load(struct split_state *s, size_t at)
{
    if (at >= s->bytes) {
        memset(&s->ahead, 0, sizeof s->ahead);
        s->ahead.space = ~0ull;
        return;
    }
    split_read(s, at);
    if (__builtin_expect(s->ahead.high != 0, 0))
        split_read_unicode(s, at, s->ahead.high);
}

static inline void split_init(struct split_state *s, const struct unicode_classes *classes,
                              const char *text, size_t bytes)
{
    memset(s, 0, sizeof *s);
    s->classes = classes;
    s->text = (const uint8_t *)text;
    s->bytes = bytes;
    split_load(s, 0);
}

/* Handles the apostrophes at `marks` (which begin pieces) of the block at `at`. */
uint64_t split_contractions(struct split_state *s, size_t at, uint64_t marks, uint64_t begins);

/* Bit i of the result: a piece begins at s->at + i (before the call). Call while s->at < bytes. */
static inline uint64_t split_next(struct split_state *s)
{
    struct split_mask m = s->ahead;
    size_t at = s->at;
    split_load(s, at + 64);
    s->at = at + 64;

    uint64_t other = ~(m.letter | m.number | m.space);
    uint64_t run = (m.letter & (m.letter << 1 | s->letter)) |
                   (m.number & (m.number << 1 | s->number)) | (other & (other << 1 | s->other));
    uint64_t begins = ~m.space & ~run & ~(m.blank << 1 | s->blank);

    uint64_t follows = m.space >> 1 | s->ahead.space << 63; /* the next character is a space */
    uint64_t first = m.space;
    if (__builtin_expect((m.space2 | m.space3) != 0, 0)) {
        uint64_t wide = m.space2 | m.space3;
        uint64_t after2 = m.space >> 2 | s->ahead.space << 62;
        uint64_t after3 = m.space >> 3 | s->ahead.space << 61;
        follows = (follows & ~wide) | (after2 & m.space2) | (after3 & m.space3);
        first &= ~(m.space2 << 1 | m.space3 << 1 | m.space3 << 2);
    }
    first &= ~m.space_tail;
    begins |= first & (~(m.space << 1 | s->space) | ~follows);

    uint64_t marks = m.apostrophe & begins;
    uint64_t clear = s->clear, set = s->set;
    s->clear = s->set = 0;
    if (marks)
        begins = split_contractions(s, at, marks, begins);
    begins = (begins & ~clear) | set;

    s->letter = m.letter >> 63;
    s->number = m.number >> 63;
    s->other = other >> 63;
    s->space = m.space >> 63;
    s->blank = m.blank >> 63;
    if (s->bytes - at < 64)
        begins &= (1ull << (s->bytes - at)) - 1;
    return begins;
}

/* The plain form, one piece at a time: the length of the piece that begins at text[0..n), n > 0.
 * Tests compare the two. */
size_t split_piece(const struct unicode_classes *classes, const char *text, size_t n);

#endif
