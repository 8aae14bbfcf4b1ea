/* alphabet.c - the printable characters by which GPT-2's files write bytes: a byte that is a
 * visible Latin-1 character stands for itself, the others are U+0100, U+0101, ... in rising order.
 */
#include "bpe/bpe_private.h"

static bool stands_for_itself(uint8_t b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

/* How many bytes below b do not stand for themselves. */
static uint32_t hidden_below(uint8_t b)
{
    if (b < '!')
        return b;
    if (b < 0x7F)
        return '!';
    if (b < 0xA1)
        return '!' + (b - 0x7Fu);
    return '!' + (0xA1 - 0x7F) + (b > 0xAD);
}

#define HIDDEN_BYTES 68u /* 0-32, 127-160 and 173 */

uint32_t bpe_alphabet_code(uint8_t b)
{
    return stands_for_itself(b) ? b : 0x100 + hidden_below(b);
}

/* The id order lists the bytes that stand for themselves first. */
uint32_t bpe_alphabet_rank(uint8_t b)
{
    return stands_for_itself(b) ? b - hidden_below(b) : 256 - HIDDEN_BYTES + hidden_below(b);
}

static bool byte_of_code(uint32_t code, char *out)
{
    if (code < 0x100) {
        *out = (char)code;
        return stands_for_itself((uint8_t)code);
    }
    uint32_t k = code - 0x100;
    if (k >= HIDDEN_BYTES)
        return false;
    uint32_t b = k < 33 ? k : k < HIDDEN_BYTES - 1 ? 0x7F + (k - 33) : 0xAD;
    *out = (char)b;
    return true;
}

bool bpe_alphabet_decode(const char *symbol, size_t symbol_bytes, char *out, size_t *bytes)
{
    const uint8_t *p = (const uint8_t *)symbol;
    size_t n = 0;
    for (size_t i = 0; i < symbol_bytes; n++) {
        uint32_t code = p[i];
        if (code >= 0x80) { /* the alphabet has no code point that takes three bytes */
            if (code < 0xC2 || code > 0xDF || i + 1 >= symbol_bytes || (p[i + 1] & 0xC0) != 0x80)
                return false;
            code = (code & 0x1F) << 6 | (p[i + 1] & 0x3F);
        }
        if (!byte_of_code(code, &out[n]))
            return false;
        i += code >= 0x80 ? 2 : 1;
    }
    *bytes = n;
    return true;
}

bool bpe_alphabet_encode(struct strbuf *out, const char *bytes, size_t n)
{
    if (!strbuf_reserve(out, 2 * n))
        return false;
    char *to = out->data + out->length;
    for (size_t i = 0; i < n; i++) {
        uint32_t code = bpe_alphabet_code((uint8_t)bytes[i]);
        if (code < 0x80) {
            *to++ = (char)code;
        } else {
            *to++ = (char)(0xC0 | code >> 6);
            *to++ = (char)(0x80 | (code & 0x3F));
        }
    }
    *to = '\0';
    out->length = (size_t)(to - out->data);
    return true;
}
