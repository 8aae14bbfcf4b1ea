/* decode.c - ids to bytes. Tokens of at most 15 bytes are copied as 16 bytes whatever their length,
 * into room that is known to suffice; that is two loads, a store and an addition a token. Four at a
 * time, so that the additions do not wait for one another. */
#include "bpe/bpe_private.h"

#define BATCH 4096

unsigned bpe_utf8_length(const char *text, size_t bytes, uint32_t *code)
{
    unsigned n = unicode_decode_code((const uint8_t *)text, bytes, code);
    return *code == UNICODE_BAD ? 0 : n;
}

static enum status id_error(const struct bpe *b, uint32_t id, size_t index, struct error *e)
{
    return error_set(e, STATUS_DATA, "token %zu has id %u, expected an id below %u", index, id,
                     b->size);
}

static enum status append_long(const struct bpe *b, uint32_t id, struct strbuf *out,
                               struct error *e)
{
    size_t n;
    const char *text = bpe_token(b, id, &n);
    /* and room for the short ones that still come in this batch */
    if (!strbuf_reserve(out, n + 16 * (BATCH + 1)))
        return error_memory(e, n, "decoded text");
    memcpy(out->data + out->length, text, n);
    out->length += n;
    return STATUS_OK;
}

/* One id, at out->length; there is room for a short token. */
static inline enum status append_one(const struct bpe *b, uint32_t id, struct strbuf *out,
                                     struct error *e)
{
    const uint8_t *token = b->short_token[id];
    if (token[15] > 15)
        return append_long(b, id, out, e);
    memcpy(out->data + out->length, token, 16);
    out->length += token[15];
    return STATUS_OK;
}

/* NAME_short: short tokens four by four, up to a long one or the last three; returns how many.
 * NAME_batch: at most BATCH ids, checked. */
#define DEFINE_DECODE(name, type)                                                         \
    static size_t name##_short(const struct bpe *b, const type *ids, size_t n, char **to) \
    {                                                                                     \
        uint8_t(*const tokens)[16] = b->short_token;                                      \
        char *at = *to;                                                                   \
        size_t i = 0;                                                                     \
        for (; i + 4 <= n; i += 4) {                                                      \
            const uint8_t *t0 = tokens[ids[i]], *t1 = tokens[ids[i + 1]];                 \
            const uint8_t *t2 = tokens[ids[i + 2]], *t3 = tokens[ids[i + 3]];             \
            size_t n0 = t0[15], n01 = n0 + t1[15], n2 = t2[15], n23 = n2 + t3[15];        \
            if (__builtin_expect(n01 + n23 > 4 * 15, 0)) /* a length of 255 among them */ \
                break;                                                                    \
            memcpy(at, t0, 16);                                                           \
            memcpy(at + n0, t1, 16);                                                      \
            memcpy(at + n01, t2, 16);                                                     \
            memcpy(at + n01 + n2, t3, 16);                                                \
            at += n01 + n23;                                                              \
        }                                                                                 \
        *to = at;                                                                         \
        return i;                                                                         \
    }                                                                                     \
    static enum status name##_batch(const struct bpe *b, const type *ids, size_t n,       \
                                    struct strbuf *out, struct error *e)                  \
    {                                                                                     \
        if (!strbuf_reserve(out, 16 * (BATCH + 1)))                                       \
            return error_memory(e, 16 * BATCH, "decoded text");                           \
        for (size_t i = 0; i < n;) {                                                      \
            char *to = out->data + out->length;                                           \
            i += name##_short(b, ids + i, n - i, &to);                                    \
            out->length = (size_t)(to - out->data);                                       \
            if (i < n)                                                                    \
                TRY(append_one(b, ids[i++], out, e));                                     \
        }                                                                                 \
        return STATUS_OK;                                                                 \
    }                                                                                     \
    enum status name(const struct bpe *b, const type *ids, size_t n, struct strbuf *out,  \
                     struct error *e)                                                     \
    {                                                                                     \
        for (size_t i = 0; i < n;) {                                                      \
            size_t take = n - i < BATCH ? n - i : BATCH, bad = 0;                         \
            type most = 0;                                                                \
            for (size_t k = 0; k < take; k++)                                             \
                most = ids[i + k] > most ? ids[i + k] : most;                             \
            while (most >= b->size && ids[i + bad] < b->size)                             \
                bad++;                                                                    \
            TRY(name##_batch(b, ids + i, most < b->size ? take : bad, out, e));           \
            if (most >= b->size)                                                          \
                return id_error(b, ids[i + bad], i + bad, e);                             \
            i += take;                                                                    \
        }                                                                                 \
        if (out->data)                                                                    \
            out->data[out->length] = '\0';                                                \
        return STATUS_OK;                                                                 \
    }

DEFINE_DECODE(bpe_decode, uint32_t)
DEFINE_DECODE(bpe_decode_u16, uint16_t)
