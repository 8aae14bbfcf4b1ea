/* token_ids.h - arrays of token ids of 2 or 4 bytes: conversion, range, order of bytes. */
#ifndef FORMAT_TOKEN_IDS_H
#define FORMAT_TOKEN_IDS_H

#include "base/le.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HOST_IS_LITTLE_ENDIAN (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)

/* Little-endian ids of a file, in place, to or from host order. */
static inline void token_swap(void *ids, size_t n, uint32_t id_bytes)
{
    if (HOST_IS_LITTLE_ENDIAN)
        return;
    for (size_t i = 0; i < n; i++) {
        if (id_bytes == 2)
            ((uint16_t *)ids)[i] = __builtin_bswap16(((uint16_t *)ids)[i]);
        else
            ((uint32_t *)ids)[i] = __builtin_bswap32(((uint32_t *)ids)[i]);
    }
}

/* Largest id, 0 for none. Plain loops that the compiler vectorises. */
static inline uint32_t token_max_u16(const uint16_t *ids, size_t n)
{
    uint16_t m = 0;
    for (size_t i = 0; i < n; i++)
        m = ids[i] > m ? ids[i] : m;
    return m;
}
static inline uint32_t token_max_u32(const uint32_t *ids, size_t n)
{
    uint32_t m = 0;
    for (size_t i = 0; i < n; i++)
        m = ids[i] > m ? ids[i] : m;
    return m;
}
static inline uint32_t token_max(const void *ids, size_t n, uint32_t id_bytes)
{
    return id_bytes == 2 ? token_max_u16(ids, n) : token_max_u32(ids, n);
}
static inline uint32_t token_at(const void *ids, size_t i, uint32_t id_bytes)
{
    return id_bytes == 2 ? ((const uint16_t *)ids)[i] : ((const uint32_t *)ids)[i];
}
/* Index of the first id not below size; n when there is none. */
static inline size_t token_first_over(const void *ids, size_t n, uint32_t id_bytes, uint32_t size)
{
    size_t i = 0;
    while (i < n && token_at(ids, i, id_bytes) < size)
        i++;
    return i;
}
/* Width conversion of n ids; from and to are 2 or 4 bytes wide. The caller checked the range. */
static inline void token_convert(void *to, uint32_t to_bytes, const void *from, uint32_t from_bytes,
                                 size_t n)
{
    if (to_bytes == from_bytes) {
        memcpy(to, from, n * to_bytes);
    } else if (to_bytes == 2) {
        uint16_t *out = to;
        const uint32_t *in = from;
        for (size_t i = 0; i < n; i++)
            out[i] = (uint16_t)in[i];
    } else {
        uint32_t *out = to;
        const uint16_t *in = from;
        for (size_t i = 0; i < n; i++)
            out[i] = in[i];
    }
}

#endif
