/* unicode.c - expands the ranges of unicode_ranges.h into the flat table. */
#include "bpe/unicode.h"
#include "bpe/unicode_ranges.h"

#include <assert.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void mark(uint8_t *page, uint32_t page_begin, const uint32_t (*ranges)[2], size_t count,
                 size_t *at, enum unicode_class c)
{
    uint32_t page_end = page_begin + 256;
    while (*at < count && ranges[*at][1] < page_begin)
        (*at)++;
    for (size_t i = *at; i < count && ranges[i][0] < page_end; i++) {
        uint32_t from = ranges[i][0] > page_begin ? ranges[i][0] : page_begin;
        uint32_t to = ranges[i][1] < page_end - 1 ? ranges[i][1] : page_end - 1;
        memset(page + (from - page_begin), c, to - from + 1);
    }
}

/* Pages that are all of one class are shared; any other page is its own. */
void unicode_classes_init(struct unicode_classes *u)
{
    size_t pages = 0, at[3] = {0, 0, 0};
    int uniform[4] = {-1, -1, -1, -1};
    uint8_t page[256];
    for (uint32_t i = 0; i < 0x1100; i++) {
        memset(page, CLASS_OTHER, sizeof page);
        mark(page, i << 8, unicode_letters, COUNT(unicode_letters), &at[0], CLASS_LETTER);
        mark(page, i << 8, unicode_numbers, COUNT(unicode_numbers), &at[1], CLASS_NUMBER);
        mark(page, i << 8, unicode_spaces, COUNT(unicode_spaces), &at[2], CLASS_SPACE);
        int *shared = memcmp(page, page + 1, 255) == 0 ? &uniform[page[0]] : NULL;
        if (shared && *shared >= 0) {
            u->first[i] = (uint8_t)*shared;
            continue;
        }
        assert(pages < UNICODE_MAX_PAGES);
        memcpy(u->second[pages], page, sizeof page);
        u->first[i] = (uint8_t)pages;
        if (shared)
            *shared = (int)pages;
        pages++;
    }
}

static int is_in(uint32_t c, const uint32_t (*ranges)[2], size_t count)
{
    size_t low = 0, high = count; /* the first range that ends at or behind c */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle][1] < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ranges[low][0] <= c;
}

enum unicode_class unicode_class_search(uint32_t c)
{
    if (is_in(c, unicode_letters, COUNT(unicode_letters)))
        return CLASS_LETTER;
    if (is_in(c, unicode_numbers, COUNT(unicode_numbers)))
        return CLASS_NUMBER;
    return is_in(c, unicode_spaces, COUNT(unicode_spaces)) ? CLASS_SPACE : CLASS_OTHER;
}
