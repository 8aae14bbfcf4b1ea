/* split_mask.h - one bit per byte for the ASCII classes of 64 bytes; not for other folders. */
#ifndef BPE_SPLIT_MASK_H
#define BPE_SPLIT_MASK_H

#include <stdint.h>
#include <string.h>

struct split_mask {
    uint64_t letter, number, space; /* bytes with none of these are of the class "other" */
    uint64_t blank;                 /* U+0020 */
    uint64_t apostrophe;
    uint64_t high;           /* bytes from 0x80, whose classes split_read_unicode fills in */
    uint64_t space2, space3; /* first bytes of spaces of two and three bytes */
    uint64_t space_tail;     /* bytes of a space that began in the block before */
};

#if defined(__AVX512BW__)
#include <immintrin.h>

static inline void split_mask_read(struct split_mask *m, const uint8_t *p)
{
    __m512i v = _mm512_loadu_si512(p);
    __m512i letter =
        _mm512_sub_epi8(_mm512_or_si512(v, _mm512_set1_epi8(0x20)), _mm512_set1_epi8('a'));
    __m512i digit = _mm512_sub_epi8(v, _mm512_set1_epi8('0'));
    __m512i control = _mm512_sub_epi8(v, _mm512_set1_epi8('\t'));
    m->letter = _mm512_cmplt_epu8_mask(letter, _mm512_set1_epi8(26));
    m->number = _mm512_cmplt_epu8_mask(digit, _mm512_set1_epi8(10));
    m->blank = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8(' '));
    m->space = m->blank | _mm512_cmplt_epu8_mask(control, _mm512_set1_epi8(5));
    m->apostrophe = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\''));
    m->high = _mm512_movepi8_mask(v);
    m->space_tail = 0;
}

#elif defined(__AVX2__)
#include <immintrin.h>

static inline uint64_t split_bits(__m256i low, __m256i high)
{
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high)
                                                     << 32;
}

/* Bytes from `first` on, fewer than `count` of them, compared without a sign. */
static inline __m256i split_range(__m256i v, char first, char count)
{
    __m256i x = _mm256_sub_epi8(v, _mm256_set1_epi8(first));
    return _mm256_cmpeq_epi8(_mm256_min_epu8(x, _mm256_set1_epi8((char)(count - 1))), x);
}

static inline void split_mask_read(struct split_mask *m, const uint8_t *p)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)p);
    __m256i b = _mm256_loadu_si256((const __m256i *)(p + 32));
    __m256i fold = _mm256_set1_epi8(0x20), mark = _mm256_set1_epi8('\'');
    m->letter = split_bits(split_range(_mm256_or_si256(a, fold), 'a', 26),
                           split_range(_mm256_or_si256(b, fold), 'a', 26));
    m->number = split_bits(split_range(a, '0', 10), split_range(b, '0', 10));
    m->blank = split_bits(_mm256_cmpeq_epi8(a, fold), _mm256_cmpeq_epi8(b, fold));
    m->space = m->blank | split_bits(split_range(a, '\t', 5), split_range(b, '\t', 5));
    m->apostrophe = split_bits(_mm256_cmpeq_epi8(a, mark), _mm256_cmpeq_epi8(b, mark));
    m->high = split_bits(a, b);
    m->space_tail = 0;
}

#else

static inline void split_mask_read(struct split_mask *m, const uint8_t *p)
{
    memset(m, 0, sizeof *m);
    for (unsigned i = 0; i < 64; i++) {
        uint64_t c = p[i];
        m->letter |= (uint64_t)((c | 0x20) - 'a' < 26) << i;
        m->number |= (uint64_t)(c - '0' < 10) << i;
        m->blank |= (uint64_t)(c == ' ') << i;
        m->space |= (uint64_t)(c == ' ' || c - '\t' < 5) << i;
        m->apostrophe |= (uint64_t)(c == '\'') << i;
        m->high |= (uint64_t)(c >= 0x80) << i;
    }
}

#endif
#endif
