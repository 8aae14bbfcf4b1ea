/* Any bytes as a token stream. Promises: nothing crashes; a refusal names the file; what is
 * accepted has ids below the vocabulary's size and documents that end, by both ways of reading; and
 * what a writer is given comes back. Since checksums would stop almost every mutation at once, each
 * input is also read after they were put right. */
// clang-format off
// sources: src/format/token_reader.c src/format/token_writer.c src/format/container_*.c
// sources: src/format/vocab_info.c src/base/*.c
// libs: -ljansson -lxxhash
#define _GNU_SOURCE
#include "fuzz.h"
#include "base/hash.h"
#include "base/le.h"
#include "format/token_stream.h"
#include <sys/mman.h>

/* tests/fixtures/format/small.tok */
static const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED(
        "\211\124\117\113\015\012\032\012\001\000\000\000\100\000\004\000\000\000\000\000"
        "\100\000\000\000\377\377\377\377\377\377\377\377\000\000\000\000\000\000\000\000"
        "\000\000\000\000\001\000\000\000\000\000\000\000\000\000\000\000\216\375\012\267"
        "\176\216\210\017\166\157\143\142\000\000\000\000\067\000\000\000\000\000\000\000"
        "\151\275\050\211\306\335\116\247\140\315\361\232\166\006\154\023\000\000\000\000"
        "\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000"
        "\000\000\000\000\000\000\000\000\173\042\163\151\172\145\042\072\065\061\062\054"
        "\042\146\151\156\147\145\162\160\162\151\156\164\042\072\042\060\061\062\063\064"
        "\065\066\067\070\071\141\142\143\144\145\146\042\054\042\145\157\164\042\072\065"
        "\061\061\175\000\000\000\000\000\000\000\000\000\160\162\157\166\001\000\000\000"
        "\040\000\000\000\000\000\000\000\216\062\340\334\236\110\204\141\152\133\036\027"
        "\371\173\062\157\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000"
        "\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\173\042\164\157"
        "\157\154\042\072\042\145\170\141\155\160\154\145\042\054\042\166\145\162\163\151"
        "\157\156\042\072\042\061\042\175\000\000\000\000\000\000\000\000\000\000\000\000"
        "\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000"
        "\104\117\103\123\002\000\000\000\014\000\000\000\000\000\000\000\140\151\052\110"
        "\201\167\017\257\364\064\113\171\156\061\272\025\000\000\000\000\000\000\000\000"
        "\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000"
        "\000\000\000\000\003\000\000\000\000\000\000\000\002\000\000\000\000\000\000\000"
        "\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000"
        "\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000"
        "\000\000\000\000\000\000\000\000\104\101\124\101\003\000\000\000\012\000\000\000"
        "\000\000\000\000\345\055\126\372\350\226\331\326\361\214\172\164\066\210\123\111"
        "\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000"
        "\000\000\000\000\000\000\000\000\000\000\000\000\012\000\013\000\014\000\054\001"
        "\377\001\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000"
        "\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000"
        "\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\124\105\116\104"
        "\004\000\000\000\005\000\000\000\000\000\000\000\200\002\000\000\000\000\000\000"
        "\345\055\126\372\350\226\331\326\000\000\000\000\000\000\000\000\000\000\000\000"
        "\000\000\000\000\112\321\265\076\360\224\052\110\211\124\117\113\105\116\104\012"
),
    FUZZ_SEED("\1\2\3\377\4\5\377\377\6"),
};
// clang-format on
static const size_t fuzz_seed_count = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

/* The reader's large buffers would otherwise be kept and refilled at every input. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "quarantine_size_mb=4:max_malloc_fill_size=0";
}

static int memory_file(const void *data, size_t bytes, char path[64])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

/* A digest of all ids and bounds of documents, read one way or the other. */
static enum status digest_runs(const char *path, uint64_t *digest, struct error *e)
{
    struct input in = {.fd = -1};
    struct token_reader *r = NULL;
    const uint32_t *ids;
    size_t n;
    bool end;
    enum status st;
    *digest = 1;
    TRY_OUT(input_open(&in, path, e));
    TRY_OUT(token_reader_open(&r, &in, e));
    for (;;) {
        TRY_OUT(token_reader_next(r, &ids, &n, &end, e));
        if (!ids)
            break;
        for (size_t i = 0; i < n; i++) {
            FUZZ_CHECK(ids[i] < token_reader_vocab(r)->size);
            *digest = (*digest + ids[i] + 1) * 0x9E3779B97F4A7C15ull;
        }
        if (end)
            *digest = (*digest ^ 77) * 0xBF58476D1CE4E5B9ull;
    }
out:
    token_reader_free(r);
    input_close(&in);
    return st;
}

static enum status digest_blocks(const char *path, uint64_t *digest, struct error *e)
{
    struct input in = {.fd = -1};
    struct token_reader *r = NULL;
    struct token_block b;
    enum status st;
    *digest = 1;
    TRY_OUT(input_open(&in, path, e));
    TRY_OUT(token_reader_open(&r, &in, e));
    for (;;) {
        TRY_OUT(token_reader_block(r, &b, e));
        if (!b.ids)
            break;
        uint32_t left = b.n, at = 0;
        for (uint32_t d = 0; d <= b.documents; d++) {
            uint32_t n = d < b.documents ? b.ends[d] : left;
            FUZZ_CHECK(n <= left);
            left -= n;
            for (; n > 0; n--, at++) {
                uint32_t id =
                    b.id_bytes == 2 ? ((const uint16_t *)b.ids)[at] : ((const uint32_t *)b.ids)[at];
                *digest = (*digest + id + 1) * 0x9E3779B97F4A7C15ull;
            }
            if (d < b.documents)
                *digest = (*digest ^ 77) * 0xBF58476D1CE4E5B9ull;
        }
    }
out:
    token_reader_free(r);
    input_close(&in);
    return st;
}

static enum status read_both(const uint8_t *data, size_t bytes, uint64_t *digest)
{
    char path[64];
    struct error e = {0}, e2 = {0};
    uint64_t other;
    int fd = memory_file(data, bytes, path);
    enum status st = digest_runs(path, digest, &e), st2 = digest_blocks(path, &other, &e2);
    FUZZ_CHECK(st == st2);
    if (st == STATUS_OK)
        FUZZ_CHECK(*digest == other);
    else
        FUZZ_CHECK(st == STATUS_DATA && strstr(e.message, path));
    close(fd);
    return st;
}

/* Makes checksums, numbers and the trailer agree with what is there, as far as there are blocks. */
static void put_right(uint8_t *p, size_t bytes)
{
    struct hash_state *digest = hash_new();
    uint64_t data = 0, elements = 0;
    uint32_t sequence = 0;
    FUZZ_CHECK(digest);
    if (bytes >= 64) {
        memcpy(p, "\x89TOK\r\n\x1a\n", 8);
        le64_put(p + 56, hash64(p, 56));
    }
    for (size_t at = 64; at + 64 <= bytes; sequence++) {
        uint8_t *b = p + at;
        if (memcmp(b, "TEND", 4) == 0) {
            elements = data / (p[14] == 5 ? 4 : 2);
            le32_put(b + 4, sequence);
            le64_put(b + 8, elements);
            le64_put(b + 16, at + 64);
            le64_put(b + 24, hash_digest(digest));
            le64_put(b + 48, hash64(b, 48));
            break;
        }
        uint64_t n = le64_get(b + 8);
        if (n > bytes - at - 64)
            le64_put(b + 8, n = (bytes - at - 64) & 127);
        le32_put(b + 4, sequence);
        le64_put(b + 16, hash64(b + 64, n));
        le64_put(b + 24, hash64(b, 24));
        if (memcmp(b, "DATA", 4) == 0) {
            hash_update(digest, b + 64, n);
            data += n;
        }
        size_t padded = (size_t)(n + 63) / 64 * 64;
        if (padded <= bytes - at - 64)
            memset(b + 64 + n, 0, padded - n);
        at += 64 + padded;
    }
    hash_free(digest);
}

/* The bytes as documents: 0xff ends one, other bytes are ids. */
static void round_trip(const uint8_t *data, size_t bytes)
{
    struct vocab_info v = {bytes % 2 ? 255 : 70000, 0, -1};
    struct error e = {0};
    struct output out = {0};
    struct token_writer *w = NULL;
    char path[64];
    uint64_t want = 1, got;
    bool open = false;
    int fd = memory_file("", 0, path);
    FUZZ_CHECK(output_open(&out, "/dev/null", OUTPUT_BINARY, &e) == STATUS_OK);
    FUZZ_CHECK(dup2(fd, out.fd) == out.fd);
    FUZZ_CHECK(token_writer_open(&w, &out, &v, false, NULL, &e) == STATUS_OK);
    for (size_t i = 0; i < bytes; i++) {
        uint32_t id = data[i] == 254 && v.size > 255 ? 69999 : data[i];
        open = data[i] != 255;
        if (open) {
            FUZZ_CHECK(token_writer_put(w, &id, 1, &e) == STATUS_OK);
            want = (want + id + 1) * 0x9E3779B97F4A7C15ull;
        } else {
            FUZZ_CHECK(token_writer_end_document(w, &e) == STATUS_OK);
            want = (want ^ 77) * 0xBF58476D1CE4E5B9ull;
        }
    }
    if (open)
        want = (want ^ 77) * 0xBF58476D1CE4E5B9ull;
    FUZZ_CHECK(token_writer_finish(w, NULL, NULL, &e) == STATUS_OK);
    FUZZ_CHECK(output_flush(&out, &e) == STATUS_OK);
    FUZZ_CHECK(digest_runs(path, &got, &e) == STATUS_OK && got == want);
    FUZZ_CHECK(digest_blocks(path, &got, &e) == STATUS_OK && got == want);
    token_writer_free(w);
    output_close(&out);
    close(fd);
}

static void fuzz_one(const uint8_t *data, size_t bytes)
{
    uint64_t digest;
    uint8_t *copy = malloc(bytes + 1);
    FUZZ_CHECK(copy);
    (void)read_both(data, bytes, &digest);
    memcpy(copy, data, bytes);
    put_right(copy, bytes);
    (void)read_both(copy, bytes, &digest);
    free(copy);
    round_trip(data, bytes);
}
