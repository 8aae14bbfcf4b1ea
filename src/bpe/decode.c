/* decode.c - ids to bytes. Tokens of at most 15 bytes are copied as 16 bytes whatever their length,
 * into room that is known to suffice; that is a load, a store and an addition a token. */
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

#define DEFINE_DECODE(name, type)                                                        \
    enum status name(const struct bpe *b, const type *ids, size_t n, struct strbuf *out, \
                     struct error *e)                                                    \
    {                                                                                    \
        for (size_t begin = 0; begin < n; begin += BATCH) {                              \
            size_t end = n - begin < BATCH ? n : begin + BATCH;                          \
            if (!strbuf_reserve(out, 16 * (BATCH + 1)))                                  \
                return error_memory(e, 16 * BATCH, "decoded text");                      \
            char *to = out->data + out->length;                                          \
            for (size_t i = begin; i < end; i++) {                                       \
                uint32_t id = ids[i];                                                    \
                if (__builtin_expect(id >= b->size, 0)) {                                \
                    out->length = (size_t)(to - out->data);                              \
                    return id_error(b, id, i, e);                                        \
                }                                                                        \
                const uint8_t *token = b->short_token[id];                               \
                memcpy(to, token, 16);                                                   \
                if (__builtin_expect(token[15] <= 15, 1)) {                              \
                    to += token[15];                                                     \
                    continue;                                                            \
                }                                                                        \
                out->length = (size_t)(to - out->data);                                  \
                TRY(append_long(b, id, out, e));                                         \
                to = out->data + out->length;                                            \
            }                                                                            \
            out->length = (size_t)(to - out->data);                                      \
        }                                                                                \
        if (out->data)                                                                   \
            out->data[out->length] = '\0';                                               \
        return STATUS_OK;                                                                \
    }

DEFINE_DECODE(bpe_decode, uint32_t)
DEFINE_DECODE(bpe_decode_u16, uint16_t)
