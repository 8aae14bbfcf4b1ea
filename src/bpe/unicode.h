/* unicode.h - the four character classes of GPT-2's pattern, by Unicode 15.0 whatever library is
 * installed, so that the same text gives the same ids everywhere. */
#ifndef BPE_UNICODE_H
#define BPE_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum unicode_class {
    CLASS_OTHER, /* everything else, unassigned code points and bytes that are not UTF-8 included */
    CLASS_LETTER, /* \p{L} */
    CLASS_NUMBER, /* \p{N} */
    CLASS_SPACE,  /* White_Space: with U+0085, without U+001C-1F, U+200B and U+FEFF */
};

/* A flat two-stage table over all code points: class = second[first[c >> 8]][c & 255]. */
#define UNICODE_MAX_PAGES 200
struct unicode_classes {
    uint8_t first[0x1100];
    uint8_t second[UNICODE_MAX_PAGES][256];
};

void unicode_classes_init(struct unicode_classes *u);

static inline enum unicode_class unicode_class_of(const struct unicode_classes *u, uint32_t c)
{
    return (enum unicode_class)u->second[u->first[c >> 8]][c & 255];
}

/* The same without a table, by binary search. */
enum unicode_class unicode_class_search(uint32_t c);

#define UNICODE_BAD UINT32_MAX

/* Decode the character at p[0..n), n > 0: its length, and its code point in *code. A byte that does
 * not begin a well-formed sequence (overlong, surrogate, above U+10FFFF, cut) is UNICODE_BAD and of
 * length 1. */
static inline unsigned unicode_decode_code(const uint8_t *p, size_t n, uint32_t *code)
{
    uint32_t lead = p[0];
    *code = lead;
    if (lead < 0x80)
        return 1;
    *code = UNICODE_BAD;
    if (lead < 0xC2 || n < 2 || (p[1] & 0xC0) != 0x80)
        return 1;
    uint32_t c = p[1] & 0x3Fu;
    if (lead < 0xE0) {
        *code = (lead & 0x1F) << 6 | c;
        return 2;
    }
    if (n < 3 || (p[2] & 0xC0) != 0x80)
        return 1;
    c = c << 6 | (p[2] & 0x3Fu);
    if (lead < 0xF0) {
        c |= (lead & 0x0F) << 12;
        if (c < 0x800 || c - 0xD800 < 0x800)
            return 1;
        *code = c;
        return 3;
    }
    if (lead > 0xF4 || n < 4 || (p[3] & 0xC0) != 0x80)
        return 1;
    c = (lead & 0x07) << 18 | c << 6 | (p[3] & 0x3Fu);
    if (c < 0x10000 || c > 0x10FFFF)
        return 1;
    *code = c;
    return 4;
}

/* The same with the class; a bad byte is CLASS_OTHER. */
static inline unsigned unicode_decode(const struct unicode_classes *u, const uint8_t *p, size_t n,
                                      enum unicode_class *c)
{
    uint32_t code;
    unsigned length = unicode_decode_code(p, n, &code);
    *c = code == UNICODE_BAD ? CLASS_OTHER : unicode_class_of(u, code);
    return length;
}

#endif
