/* split.c - the rarer parts of the block splitter, and the plain form of GPT-2's pattern. */
#include "bpe/split.h"

/* Classes of the characters outside ASCII in the block at `at`; `high` are their bytes. */
void split_read_unicode(struct split_state *s, size_t at, uint64_t high)
{
    struct split_mask *m = &s->ahead;
    uint64_t by_class[4] = {0};
    if (s->spill) { /* the rest of a character that began in the block before */
        uint64_t bytes = (1ull << s->spill) - 1;
        by_class[s->spill_class] |= bytes;
        if (s->spill_class == CLASS_SPACE)
            m->space_tail = bytes;
        high &= ~bytes;
        s->spill = 0;
    }
    while (high) {
        unsigned i = (unsigned)__builtin_ctzll(high);
        enum unicode_class c;
        unsigned n = unicode_decode(s->classes, s->text + at + i, s->bytes - at - i, &c);
        uint64_t bytes = ((1ull << n) - 1) << i;
        by_class[c] |= bytes;
        high &= ~bytes;
        if (c == CLASS_SPACE) {
            m->space2 |= (uint64_t)(n == 2) << i;
            m->space3 |= (uint64_t)(n == 3) << i;
        }
        if (i + n > 64) {
            s->spill = i + n - 64;
            s->spill_class = c;
        }
    }
    m->letter |= by_class[CLASS_LETTER];
    m->number |= by_class[CLASS_NUMBER];
    m->space |= by_class[CLASS_SPACE];
}

/* Length of a contraction at p[0..n), where p[0] is the apostrophe; 0 when there is none. */
static unsigned contraction(const uint8_t *p, size_t n)
{
    if (n >= 2 && (p[1] == 's' || p[1] == 't' || p[1] == 'm' || p[1] == 'd'))
        return 2;
    if (n >= 3 && (((p[1] == 'r' || p[1] == 'v') && p[2] == 'e') || (p[1] == 'l' && p[2] == 'l')))
        return 3;
    return 0;
}

uint64_t split_contractions(struct split_state *s, size_t at, uint64_t marks, uint64_t begins)
{
    for (; marks; marks &= marks - 1) {
        unsigned i = (unsigned)__builtin_ctzll(marks);
        unsigned n = contraction(s->text + at + i, s->bytes - at - i);
        if (n == 0)
            continue;
        unsigned __int128 one = 1;
        unsigned __int128 clear = (n == 2 ? one : one * 3) << (i + 1), set = one << (i + n);
        begins = (begins & ~(uint64_t)clear) | (uint64_t)set;
        s->clear |= (uint64_t)(clear >> 64);
        s->set |= (uint64_t)(set >> 64);
    }
    return begins;
}

/* --- the plain form --------------------------------------------------------------------------- */

/* Bytes of the run of class c at p[0..n); *last is where its last character begins. */
static size_t run_of(const struct unicode_classes *classes, const uint8_t *p, size_t n,
                     enum unicode_class c, size_t *last)
{
    size_t at = 0;
    while (at < n) {
        enum unicode_class here;
        unsigned length = unicode_decode(classes, p + at, n - at, &here);
        if (here != c)
            break;
        *last = at;
        at += length;
    }
    return at;
}

size_t split_piece(const struct unicode_classes *classes, const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t last = 0, blank = 0;
    enum unicode_class c;
    if (p[0] == '\'') {
        unsigned length = contraction(p, n);
        if (length)
            return length;
    }
    unicode_decode(classes, p, n, &c);
    if (p[0] == ' ' && n > 1) {
        enum unicode_class behind;
        unicode_decode(classes, p + 1, n - 1, &behind);
        if (behind != CLASS_SPACE) {
            c = behind;
            blank = 1;
        }
    }
    size_t length = blank + run_of(classes, p + blank, n - blank, c, &last);
    /* \s+(?!\S) leaves the last space to what follows; \s+ takes it when it is the only one. */
    if (c == CLASS_SPACE && length < n && last > 0)
        return last;
    return length;
}
