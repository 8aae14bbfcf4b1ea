/* cut.c - where a long text may be cut without changing its encoding. */
#include "bpe/bpe_private.h"

static int class_without_table(const uint8_t *p, size_t n, unsigned *length)
{
    uint8_t c = p[0];
    *length = 1;
    if (c < 0x80) {
        if (c == ' ' || (c >= 9 && c <= 13))
            return CLASS_SPACE;
        if (c >= '0' && c <= '9')
            return CLASS_NUMBER;
        return (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? CLASS_LETTER : CLASS_OTHER;
    }
    uint32_t code;
    *length = unicode_decode_code(p, n, &code);
    return code == UNICODE_BAD ? CLASS_OTHER : (int)unicode_class_search(code);
}

static bool is_continuation(uint8_t c)
{
    return (c & 0xC0) == 0x80;
}

/* The class of the character that ends at i. A byte that is no part of a well-formed sequence is a
 * character by itself, forwards and backwards alike. */
static int class_before(const uint8_t *p, size_t i)
{
    unsigned length;
    for (size_t k = 2; k <= 4 && k <= i; k++) {
        if (!is_continuation(p[i - k + 1]))
            break;
        int c = class_without_table(p + i - k, k, &length);
        if (length == k)
            return c;
    }
    return p[i - 1] < 0x80 ? class_without_table(p + i - 1, 1, &length) : (int)CLASS_OTHER;
}

/* A piece begins at i whatever stands further left and right: a space behind a non-space, or two
 * non-spaces of different classes, unless the left one may be the apostrophe of a contraction.
 * Characters that the end of the text cuts off are not judged. */
static bool is_cut(const uint8_t *p, size_t bytes, size_t i)
{
    if (is_continuation(p[i]) || (p[i] >= 0x80 && bytes - i < 4))
        return false;
    int left = class_before(p, i);
    if (left == CLASS_SPACE || p[i - 1] == '\'')
        return left == CLASS_OTHER && (p[i] == ' ' || (p[i] >= 9 && p[i] <= 13));
    unsigned length;
    return class_without_table(p + i, bytes - i, &length) != left;
}

/* True when a "<|endoftext|>" that begins before i, seen whole or cut off by the end of the text,
 * reaches past i. */
static bool inside_special(const char *text, size_t bytes, size_t i)
{
    size_t from = i >= BPE_EOT_BYTES ? i - BPE_EOT_BYTES + 1 : 0;
    for (size_t k = from; k < i; k++) {
        size_t n = bytes - k < BPE_EOT_BYTES ? bytes - k : BPE_EOT_BYTES;
        if (text[k] == '<' && memcmp(text + k, BPE_EOT_TEXT, n) == 0)
            return true;
    }
    return false;
}

size_t bpe_safe_cut(const char *text, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    for (size_t i = bytes; i-- > 1;)
        if (is_cut(p, bytes, i) && !inside_special(text, bytes, i))
            return i;
    return 0;
}
