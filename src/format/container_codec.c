/* container_codec.c - the three fixed 64-byte records, field by field, and what is wrong with them.
 */
#include "format/container_private.h"
#include "base/hash.h"
#include "base/le.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const kinds[] = {"TOK", "SHD", "CKP"};
static const char *const kind_words[] = {"a token stream", "a shard of samples",
                                         "a checkpoint rank file"};
#define KIND_COUNT (sizeof kinds / sizeof *kinds)

static int kind_index(const void *letters)
{
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (memcmp(letters, kinds[i], 3) == 0)
            return (int)i;
    return -1;
}

/* --- encoding --------------------------------------------------------------------------------- */

void container_encode_header(uint8_t p[CONTAINER_HEADER_BYTES], const struct container_header *h)
{
    memset(p, 0, CONTAINER_HEADER_BYTES);
    p[0] = 0x89;
    memcpy(p + 1, h->kind, 3);
    memcpy(p + 4, "\r\n\x1a\n", 4);
    le16_put(p + 8, h->major);
    le16_put(p + 10, h->minor);
    le16_put(p + 12, CONTAINER_HEADER_BYTES);
    le16_put(p + 14, (uint16_t)h->dtype);
    le32_put(p + 16, h->flags);
    le32_put(p + 20, CONTAINER_ALIGN);
    le64_put(p + 24, h->count);
    le64_put(p + 32, h->set_id);
    le32_put(p + 40, h->part);
    le32_put(p + 44, h->parts);
    le64_put(p + 56, hash64(p, 56));
}

void container_encode_block(uint8_t p[CONTAINER_BLOCK_BYTES], const struct container_block *b)
{
    memset(p, 0, CONTAINER_BLOCK_BYTES);
    memcpy(p, b->tag, 4);
    le32_put(p + 4, b->sequence);
    le64_put(p + 8, b->payload_bytes);
    le64_put(p + 16, b->checksum);
    le64_put(p + 24, hash64(p, 24));
}

void container_encode_trailer(uint8_t p[CONTAINER_TRAILER_BYTES], const char kind[4],
                              const struct container_trailer *t)
{
    memset(p, 0, CONTAINER_TRAILER_BYTES);
    memcpy(p, "TEND", 4);
    le32_put(p + 4, t->blocks);
    le64_put(p + 8, t->count);
    le64_put(p + 16, t->file_bytes);
    le64_put(p + 24, t->digest);
    le64_put(p + 48, hash64(p, 48));
    p[56] = 0x89;
    memcpy(p + 57, kind, 3);
    memcpy(p + 60, "END\n", 4);
}

/* --- the header ------------------------------------------------------------------------------- */

static bool begins(const uint8_t *p, size_t got, const char *magic, size_t n)
{
    return got >= n && memcmp(p, magic, n) == 0;
}

static bool looks_like_text(const uint8_t *p, size_t got)
{
    for (size_t i = 0; i < got; i++)
        if (p[i] < 0x20 && !strchr("\t\n\r\f", p[i]))
            return false;
    return got > 0;
}

/* Words for a file that is not ours; NULL when it looks like nothing known. */
static const char *foreign_words(const uint8_t *p, size_t got)
{
    static const struct {
        const char *magic;
        size_t bytes;
        const char *words;
    } known[] = {
        {"\x1f\x8b", 2, "gzip data; decompress it first"},
        {"PK\x03\x04", 4, "a zip archive"},
        {"\x28\xb5\x2f\xfd", 4, "zstd data; decompress it first"},
        {"\xfd\x37zXZ", 5, "xz data; decompress it first"},
        {"BZh", 3, "bzip2 data; decompress it first"},
        {"\x93NUMPY", 6, "a NumPy array"},
        {"\x88\xd7\x34\x01", 4, "an llm.c token file (.bin)"},
        {"\x86\xd7\x34\x01", 4, "an llm.c model file"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (begins(p, got, known[i].magic, known[i].bytes))
            return known[i].words;
    if (got >= 9 && p[8] == '{' && le64_get(p) < (1ull << 40))
        return "a safetensors file";
    if (looks_like_text(p, got))
        return p[0] == '{' || p[0] == '[' ? "JSON text" : "text";
    return NULL;
}

static enum status wrong_magic(const uint8_t *p, size_t got, const char *name, const char *kind,
                               struct error *e)
{
    int want = kind ? kind_index(kind) : -1;
    const char *wanted = want >= 0 ? kind_words[want] : "a token stream, shard or checkpoint file";
    if (got == 0)
        return error_set(e, STATUS_DATA, "%s is empty, expected %s", name, wanted);
    int found = got >= 4 ? kind_index(p + 1) : -1;
    if (found >= 0 && p[0] == 0x89 && got >= 8 && memcmp(p + 4, "\r\n\x1a\n", 4) == 0)
        return error_set(e, STATUS_DATA, "%s is %s, expected %s", name, kind_words[found], wanted);
    if (found >= 0 && p[0] == 0x89 && got < 8)
        return error_set(e, STATUS_DATA, "%s is cut after %zu bytes, inside the magic of %s", name,
                         got, kind_words[found]);
    if (found >= 0 && (p[0] == 0x89 || p[0] == 0x09))
        return error_set(
            e, STATUS_DATA,
            "%s: the magic of %s is damaged (bytes 0-7), as by a transfer that changes "
            "line ends or strips bits; copy the file in binary mode",
            name, kind_words[found]);
    const char *words = foreign_words(p, got);
    if (words)
        return error_set(e, STATUS_DATA, "%s looks like %s, expected %s", name, words, wanted);
    return error_set(e, STATUS_DATA,
                     "%s is not %s: it begins with bytes %02x %02x %02x %02x, expected 89 %s", name,
                     wanted, p[0], got > 1 ? p[1] : 0, got > 2 ? p[2] : 0, got > 3 ? p[3] : 0,
                     want == 0   ? "54 4f 4b"
                     : want == 1 ? "53 48 44"
                     : want == 2 ? "43 4b 50"
                                 : "");
}

enum status container_decode_header(const uint8_t *p, size_t got, const char *name,
                                    const char *kind, uint16_t major, struct container_header *h,
                                    struct error *e)
{
    if (got < 8 || p[0] != 0x89 || memcmp(p + 4, "\r\n\x1a\n", 4) != 0 || kind_index(p + 1) < 0 ||
        (kind && memcmp(p + 1, kind, 3) != 0))
        return wrong_magic(p, got, name, kind, e);
    if (got < CONTAINER_HEADER_BYTES)
        return error_set(e, STATUS_DATA, "%s is cut inside its header: %zu bytes of %d", name, got,
                         CONTAINER_HEADER_BYTES);
    if (le64_get(p + 56) != hash64(p, 56))
        return error_set(e, STATUS_DATA,
                         "%s: header checksum is %016" PRIx64 ", expected %016" PRIx64
                         " (bytes 0-63 are damaged)",
                         name, le64_get(p + 56), hash64(p, 56));
    *h = (struct container_header){.major = le16_get(p + 8),
                                   .minor = le16_get(p + 10),
                                   .dtype = (enum dtype)le16_get(p + 14),
                                   .flags = le32_get(p + 16),
                                   .count = le64_get(p + 24),
                                   .set_id = le64_get(p + 32),
                                   .part = le32_get(p + 40),
                                   .parts = le32_get(p + 44)};
    memcpy(h->kind, p + 1, 3);
    if (h->major != major)
        return error_set(e, STATUS_DATA, "%s has format version %u.%u, this program reads %u.x",
                         name, h->major, h->minor, major);
    if (le16_get(p + 12) != CONTAINER_HEADER_BYTES || le32_get(p + 20) != CONTAINER_ALIGN)
        return error_set(
            e, STATUS_DATA,
            "%s: header size %u and alignment %u at bytes 12 and 20, expected 64 and 64", name,
            le16_get(p + 12), le32_get(p + 20));
    if (h->flags & 0xffffu & ~CONTAINER_FLAGS_UNDERSTOOD)
        return error_set(e, STATUS_DATA,
                         "%s needs features this program does not know (flags %08x at byte 16)",
                         name, h->flags);
    if (dtype_bytes(h->dtype) == 0)
        return error_set(e, STATUS_DATA, "%s: unknown element type %d at byte 14", name,
                         (int)h->dtype);
    if (h->parts == 0 || h->part >= h->parts)
        return error_set(e, STATUS_DATA, "%s: file number %u of %u at byte 40 is impossible", name,
                         h->part, h->parts);
    if (le64_get(p + 48) != 0)
        return error_set(e, STATUS_DATA, "%s: reserved bytes 48-55 of the header are not zero",
                         name);
    return STATUS_OK;
}

/* --- blocks and trailer ----------------------------------------------------------------------- */

bool container_tag_optional(const char tag[4])
{
    return tag[0] >= 'a' && tag[0] <= 'z';
}

bool container_is_data(const char tag[4])
{
    return memcmp(tag, "DATA", 4) == 0;
}

bool container_is_trailer(const uint8_t p[CONTAINER_BLOCK_BYTES])
{
    return memcmp(p, "TEND", 4) == 0;
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

enum status container_decode_block(const uint8_t p[CONTAINER_BLOCK_BYTES], const char *name,
                                   uint64_t offset, uint32_t sequence, struct container_block *b,
                                   struct error *e)
{
    if (le64_get(p + 24) != hash64(p, 24))
        return error_set(e, STATUS_DATA,
                         "%s: head of block %u at byte %" PRIu64
                         " is damaged: its checksum is %016" PRIx64 ", expected %016" PRIx64,
                         name, sequence, offset, le64_get(p + 24), hash64(p, 24));
    if (!all_zero(p + 32, 32))
        return error_set(e, STATUS_DATA,
                         "%s: reserved bytes of the head of block %u at byte %" PRIu64
                         " are not zero",
                         name, sequence, offset + 32);
    for (int i = 0; i < 4; i++)
        if (p[i] >= 128 || !isalpha(p[i]))
            return error_set(e, STATUS_DATA,
                             "%s: tag of block %u at byte %" PRIu64 " is not four letters", name,
                             sequence, offset);
    *b = (struct container_block){.sequence = le32_get(p + 4),
                                  .payload_bytes = le64_get(p + 8),
                                  .payload_offset = offset + CONTAINER_BLOCK_BYTES,
                                  .checksum = le64_get(p + 16)};
    memcpy(b->tag, p, 4);
    if (b->sequence != sequence)
        return error_set(e, STATUS_DATA,
                         "%s: block at byte %" PRIu64
                         " has number %u, expected %u: blocks are missing, doubled or out of order",
                         name, offset, b->sequence, sequence);
    if (b->payload_bytes > (uint64_t)INT64_MAX - offset - 2 * CONTAINER_ALIGN)
        return error_set(e, STATUS_DATA,
                         "%s: block \"%s\" at byte %" PRIu64 " claims %" PRIu64
                         " bytes, more than any file holds",
                         name, b->tag, offset, b->payload_bytes);
    return STATUS_OK;
}

enum status container_decode_trailer(const uint8_t p[CONTAINER_TRAILER_BYTES], const char *name,
                                     uint64_t offset, const char kind[4],
                                     struct container_trailer *t, struct error *e)
{
    if (!container_is_trailer(p) || p[56] != 0x89 || memcmp(p + 57, kind, 3) != 0 ||
        memcmp(p + 60, "END\n", 4) != 0)
        return error_set(e, STATUS_DATA,
                         "%s: no closing trailer at byte %" PRIu64
                         ": the file is cut, damaged, or has bytes after its end",
                         name, offset);
    if (le64_get(p + 48) != hash64(p, 48))
        return error_set(e, STATUS_DATA,
                         "%s: trailer at byte %" PRIu64 " is damaged: its checksum is %016" PRIx64
                         ", expected %016" PRIx64,
                         name, offset, le64_get(p + 48), hash64(p, 48));
    if (!all_zero(p + 32, 16))
        return error_set(e, STATUS_DATA,
                         "%s: reserved bytes of the trailer at byte %" PRIu64 " are not zero", name,
                         offset + 32);
    *t = (struct container_trailer){.blocks = le32_get(p + 4),
                                    .count = le64_get(p + 8),
                                    .file_bytes = le64_get(p + 16),
                                    .digest = le64_get(p + 24)};
    return STATUS_OK;
}

enum status container_check_trailer(const struct container_trailer *t,
                                    const struct container_header *h, const char *name,
                                    uint32_t blocks, uint64_t data_bytes, uint64_t trailer_end,
                                    struct error *e)
{
    if (t->blocks != blocks)
        return error_set(e, STATUS_DATA, "%s: the trailer counts %u blocks, found %u", name,
                         t->blocks, blocks);
    if (t->file_bytes != trailer_end)
        return error_set(e, STATUS_DATA, "%s: the trailer counts %" PRIu64 " bytes, found %" PRIu64,
                         name, t->file_bytes, trailer_end);
    if (h->count != CONTAINER_COUNT_UNKNOWN && h->count != t->count)
        return error_set(e, STATUS_DATA,
                         "%s: the header counts %" PRIu64 " elements, the trailer %" PRIu64, name,
                         h->count, t->count);
    size_t width = dtype_bytes(h->dtype);
    if (t->count != data_bytes / width || data_bytes % width != 0)
        return error_set(e, STATUS_DATA,
                         "%s: the trailer counts %" PRIu64 " elements of %zu bytes, found %" PRIu64
                         " bytes of them",
                         name, t->count, width, data_bytes);
    return STATUS_OK;
}

enum status container_check_padding(const uint8_t *p, size_t n, const char *name, uint64_t offset,
                                    struct error *e)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return error_set(e, STATUS_DATA,
                             "%s: padding at byte %" PRIu64 " is 0x%02x, expected 0", name,
                             offset + i, p[i]);
    return STATUS_OK;
}

uint64_t container_new_set_id(void)
{
    struct {
        struct timespec now;
        long pid;
        uintptr_t where; /* differs between threads that ask in the same nanosecond */
        char host[64];
    } seed;
    memset(&seed, 0, sizeof seed);
    clock_gettime(CLOCK_REALTIME, &seed.now);
    seed.pid = (long)getpid();
    seed.where = (uintptr_t)&seed;
    gethostname(seed.host, sizeof seed.host - 1);
    uint64_t id = hash64(&seed, sizeof seed);
    return id ? id : 1;
}
