/* bpe_test.h - what the tests and fuzz targets of bpe/ share: the reference encoder, written as
 * plainly as OpenAI's encoder.py (every round scans all pairs, and merges all occurrences of the
 * best one), a generator of awkward text, and loading of GPT-2's vocabulary. */
#ifndef TESTS_BPE_TEST_H
#define TESTS_BPE_TEST_H

#include "base/philox.h"
#include "bpe/bpe_private.h"
#include "bpe/split.h"
#include <stdio.h>
#include <stdlib.h>

#define GPT2_VOCAB "../../share/gpt2/vocab.bpe"

static inline struct bpe *load_vocab(const char *path)
{
    struct bpe *b = NULL;
    struct error e = {0};
    if (bpe_load(&b, path, &e) != STATUS_OK) {
        printf("Bail out! %s\n", e.message);
        exit(1);
    }
    return b;
}

/* Merges n bytes into internal numbers; returns how many. */
static inline size_t reference_merge(const struct bpe *b, const uint8_t *text, size_t n,
                                     uint32_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = text[i];
    for (;;) {
        uint32_t best = BPE_NONE;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t m = bpe_pair_find(b, out[i], out[i + 1]);
            best = m < best ? m : best;
        }
        if (best == BPE_NONE)
            return n;
        size_t kept = 0;
        for (size_t i = 0; i < n; kept++) {
            bool joins = i + 1 < n && bpe_pair_find(b, out[i], out[i + 1]) == best;
            out[kept] = joins ? best : out[i];
            i += joins ? 2 : 1;
        }
        n = kept;
    }
}

/* External ids of a text without special tokens, malloc'ed. */
static inline uint32_t *reference_encode(const struct bpe *b, const char *text, size_t n,
                                         size_t *count)
{
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    *count = 0;
    for (size_t at = 0; at < n;) {
        size_t piece = split_piece(&b->classes, text + at, n - at);
        size_t got = reference_merge(b, (const uint8_t *)text + at, piece, ids + *count);
        for (size_t i = 0; i < got; i++)
            ids[*count + i] = b->external[ids[*count + i]];
        *count += got;
        at += piece;
    }
    return ids;
}

struct random {
    uint64_t counter;
};
static inline uint32_t random_below(struct random *r, uint32_t n)
{
    return philox4x32(42, r->counter++, 0).v[0] % n;
}

/* Fragments that meet every arc of the pattern: classes of one to four bytes, contractions whole
 * and broken, bytes that are not UTF-8, the special token whole and in parts. */
static const char *const awkward[] = {" ",
                                      " ",
                                      " ",
                                      "\n",
                                      "\t",
                                      "\r\n",
                                      "  ",
                                      "   ",
                                      "'",
                                      "'s",
                                      "'S",
                                      "'t",
                                      "'re",
                                      "'r",
                                      "'ve",
                                      "'v",
                                      "'l",
                                      "'ll",
                                      "'m",
                                      "'d",
                                      "''",
                                      "a",
                                      "e",
                                      "s",
                                      "l",
                                      "the",
                                      "The",
                                      "ing",
                                      "1",
                                      "23",
                                      "4567",
                                      "!",
                                      "?!",
                                      "<",
                                      "|",
                                      "_",
                                      "\xC3\xA9",
                                      "\xC3\x9F",
                                      "\xC2\xA0",
                                      "\xC2\x85",
                                      "\xC2\xB2",
                                      "\xE2\x80\x80",
                                      "\xE3\x80\x80",
                                      "\xE2\x80\xA8",
                                      "\xE4\xB8\xAD",
                                      "\xE3\x80\x82",
                                      "\xE2\x85\xA7",
                                      "\xF0\x9F\x98\x80",
                                      "\xF0\xA0\x80\x80",
                                      "\xF0\x9D\x9F\x99",
                                      "\xCC\x81",
                                      "\xE2\x80\x8B",
                                      "\xEF\xBB\xBF",
                                      "\x80",
                                      "\xC3",
                                      "\xE2",
                                      "\xE2\x80",
                                      "\xF0\x9F",
                                      "\xFF",
                                      "\xED\xA0\x80",
                                      "<|endoftext|>",
                                      "<|endof",
                                      "text|>",
                                      "\x1C",
                                      "\x7F"};

/* About n bytes; every 50th is a NUL. The caller frees the text. */
static inline char *random_text(struct random *r, size_t n, size_t *bytes)
{
    char *text = malloc(n + 16);
    size_t at = 0;
    while (at < n) {
        if (random_below(r, 50) == 0) {
            text[at++] = '\0';
            continue;
        }
        const char *part = awkward[random_below(r, sizeof awkward / sizeof *awkward)];
        size_t length = strlen(part), times = random_below(r, 12) ? 1 : 1 + random_below(r, 40);
        for (; times && at < n; times--) {
            memcpy(text + at, part, length);
            at += length;
        }
    }
    *bytes = at;
    return text;
}

#endif
