/* test_format_tokens.c - container and token stream: round trips, every kind of damage, lying
 * lengths. */
#include "format_test.h"
#include "base/hash.h"
#include "base/le.h"
#include "format/token_stream.h"

#include <sys/resource.h>

static const struct vocab_info small = {.size = 512, .fingerprint = 0x0123456789abcdef, .eot = 511};
static const struct vocab_info wide = {.size = 100000, .fingerprint = 0, .eot = -1};

/* documents[] are lengths; ids are a function of their place. */
static uint32_t id_of(const struct vocab_info *v, uint64_t i)
{
    return (uint32_t)((i * 2654435761u + 17) % v->size);
}

static void write_stream(const char *path, const struct vocab_info *v, const uint32_t *lengths,
                         size_t documents, size_t piece)
{
    struct error e = {0};
    struct output out = {0};
    struct token_writer *w = NULL;
    uint64_t tokens, count, place = 0;
    uint32_t ids[1024];
    CHECK_OK(output_open(&out, path, OUTPUT_BINARY, &e));
    CHECK_OK(token_writer_open(&w, &out, v, false, "{\"tool\":\"test\"}", &e));
    for (size_t d = 0; d < documents; d++) {
        for (uint32_t left = lengths[d]; left > 0;) {
            uint32_t n = left < piece ? left : (uint32_t)piece;
            for (uint32_t i = 0; i < n; i++)
                ids[i] = id_of(v, place++);
            CHECK_OK(token_writer_put(w, ids, n, &e));
            left -= n;
        }
        CHECK_OK(token_writer_end_document(w, &e));
    }
    CHECK_OK(token_writer_finish(w, &tokens, &count, &e));
    CHECK_INT(tokens, place);
    CHECK_INT(count, documents);
    CHECK_OK(output_commit(&out, &e));
    token_writer_free(w);
    output_close(&out);
}

/* Reads it all; STATUS_OK only when ids and lengths are those written. */
static enum status read_stream(const char *path, const struct vocab_info *v,
                               const uint32_t *lengths, size_t documents, struct error *e)
{
    struct input in = {.fd = -1};
    struct token_reader *r = NULL;
    enum status st;
    uint64_t place = 0, seen = 0, length = 0;
    TRY_OUT(input_open(&in, path, e));
    TRY_OUT(token_reader_open(&r, &in, e));
    for (;;) {
        const uint32_t *ids;
        size_t n;
        bool end;
        TRY_OUT(token_reader_next(r, &ids, &n, &end, e));
        if (!ids)
            break;
        for (size_t i = 0; i < n; i++)
            if (ids[i] != id_of(v, place + i))
                TRY_OUT(error_set(e, STATUS_FAILED, "wrong id at %zu", (size_t)place + i));
        place += n;
        length += n;
        if (end && (seen >= documents || length != lengths[seen]))
            TRY_OUT(error_set(e, STATUS_FAILED, "wrong length of document %zu", (size_t)seen));
        if (end)
            seen++, length = 0;
    }
    if (seen != documents)
        TRY_OUT(error_set(e, STATUS_FAILED, "%zu documents", (size_t)seen));
    if (token_reader_vocab(r)->size != v->size || token_reader_vocab(r)->eot != v->eot ||
        token_reader_vocab(r)->fingerprint != v->fingerprint)
        TRY_OUT(error_set(e, STATUS_FAILED, "wrong vocabulary"));
    if (strcmp(token_reader_provenance(r), "{\"tool\":\"test\"}") != 0)
        TRY_OUT(error_set(e, STATUS_FAILED, "wrong provenance"));
out:
    token_reader_free(r);
    input_close(&in);
    return st;
}

static void test_round_trips(void)
{
    struct error e = {0};
    static uint32_t tiny[70000];
    for (size_t i = 0; i < 70000; i++)
        tiny[i] = i % 3 == 0 ? 0 : (uint32_t)(i % 29);
    const uint32_t few[] = {3, 0, 5, 1, 0}, spanning[] = {10, 1300000, 0, 7, 600000};
    const uint32_t exact[] = {524288, 524288, 0, 1};
    CASE("no documents")
    {
        write_stream(work_path("a"), &small, NULL, 0, 1024);
        CHECK_OK(read_stream(work_path("a"), &small, NULL, 0, &e));
    }
    CASE("few documents, empty ones among them")
    {
        write_stream(work_path("a"), &small, few, 5, 2);
        CHECK_OK(read_stream(work_path("a"), &small, few, 5, &e));
    }
    CASE("documents longer than a block")
    {
        write_stream(work_path("a"), &small, spanning, 5, 1000);
        CHECK_OK(read_stream(work_path("a"), &small, spanning, 5, &e));
    }
    CASE("documents that end where a block ends")
    {
        write_stream(work_path("a"), &small, exact, 4, 1024);
        CHECK_OK(read_stream(work_path("a"), &small, exact, 4, &e));
    }
    CASE("32-bit ids")
    {
        write_stream(work_path("a"), &wide, spanning, 5, 999);
        CHECK_OK(read_stream(work_path("a"), &wide, spanning, 5, &e));
    }
    CASE("many small documents")
    {
        write_stream(work_path("a"), &small, tiny, 70000, 64);
        CHECK_OK(read_stream(work_path("a"), &small, tiny, 70000, &e));
    }
    CASE("more empty documents than a block of ends holds")
    {
        static uint32_t none[600000];
        write_stream(work_path("a"), &small, none, 600000, 64);
        CHECK_OK(read_stream(work_path("a"), &small, none, 600000, &e));
    }
}

static void test_damage(void)
{
    struct error e = {0};
    const uint32_t lengths[] = {3, 0, 500, 41};
    size_t bytes;
    write_stream(work_path("good"), &small, lengths, 4, 100);
    uint8_t *good = read_file(work_path("good"), &bytes);
    const char *bad = work_path("bad");
    CASE("every shorter file is refused, naming it")
    {
        for (size_t n = 0; n < bytes; n++) {
            write_file(bad, good, n);
            CHECK_ERROR(read_stream(bad, &small, lengths, 4, &e), STATUS_DATA, bad);
        }
    }
    CASE("every flipped bit is found")
    {
        for (size_t i = 0; i < bytes; i++) {
            good[i] ^= (uint8_t)(1u << (i % 8));
            write_file(bad, good, bytes);
            CHECK_ERROR(read_stream(bad, &small, lengths, 4, &e), STATUS_DATA, bad);
            good[i] ^= (uint8_t)(1u << (i % 8));
        }
    }
    CASE("bytes after the end")
    {
        uint8_t *more = malloc(bytes * 2);
        memcpy(more, good, bytes);
        memcpy(more + bytes, good, bytes);
        write_file(bad, more, bytes + 1);
        CHECK_ERROR(read_stream(bad, &small, lengths, 4, &e), STATUS_DATA, "follow the trailer");
        write_file(bad, more, bytes * 2);
        CHECK_ERROR(read_stream(bad, &small, lengths, 4, &e), STATUS_DATA, "concatenated");
        free(more);
    }
    CASE("a block left out is found")
    {
        /* vocb: 64 + payload padded to 64. Removing it whole leaves checksums right. */
        size_t cut = 64 + ((size_t)le64_get(good + 64 + 8) + 63) / 64 * 64;
        uint8_t *less = malloc(bytes);
        memcpy(less, good, 64);
        memcpy(less + 64, good + 64 + cut, bytes - 64 - cut);
        write_file(bad, less, bytes - cut);
        CHECK_ERROR(read_stream(bad, &small, lengths, 4, &e), STATUS_DATA, "missing");
        free(less);
    }
    free(good);
}

/* Rewrites the head checksum of the block at p after a change. */
static void reseal(uint8_t *p)
{
    le64_put(p + 24, hash64(p, 24));
}

static size_t find_block(const uint8_t *file, size_t bytes, const char *tag)
{
    for (size_t i = 64; i < bytes;) {
        if (memcmp(file + i, tag, 4) == 0)
            return i;
        i += 64 + ((size_t)le64_get(file + i + 8) + 63) / 64 * 64;
    }
    return 0;
}

static void test_lies(void)
{
    struct error e = {0};
    const uint32_t lengths[] = {3, 0, 500, 41};
    size_t bytes;
    write_stream(work_path("good"), &small, lengths, 4, 100);
    uint8_t *good = read_file(work_path("good"), &bytes);
    const char *bad = work_path("bad");
    CASE("lengths that lie do not allocate")
    {
        const char *const tags[] = {"vocb", "prov", "DOCS", "DATA"};
        const uint64_t claims[] = {1ull << 21, 1ull << 34, 1ull << 45, UINT64_MAX - 63, UINT64_MAX};
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        for (size_t t = 0; t < 4; t++) {
            for (size_t c = 0; c < 5; c++) {
                size_t at = find_block(good, bytes, tags[t]);
                uint64_t old = le64_get(good + at + 8);
                le64_put(good + at + 8, claims[c]);
                reseal(good + at);
                write_file(bad, good, bytes);
                CHECK_ERROR(read_stream(bad, &small, lengths, 4, &e), STATUS_DATA, bad);
                le64_put(good + at + 8, old);
                reseal(good + at);
            }
        }
        getrusage(RUSAGE_SELF, &after);
        CHECK(after.ru_maxrss - before.ru_maxrss < 32 << 10);
    }
    CASE("an id outside the vocabulary is named, though the checksums are right")
    {
        size_t at = find_block(good, bytes, "DATA"), n = (size_t)le64_get(good + at + 8);
        uint16_t old = le16_get(good + at + 64 + 20);
        le16_put(good + at + 64 + 20, 512);
        le64_put(good + at + 16, hash64(good + at + 64, n));
        reseal(good + at);
        write_file(bad, good, bytes);
        CHECK_ERROR(read_stream(bad, &small, lengths, 4, &e), STATUS_DATA, "token 10 at byte");
        CHECK_CONTAINS(e.message, "id 512");
        le16_put(good + at + 64 + 20, old);
        le64_put(good + at + 16, hash64(good + at + 64, n));
        reseal(good + at);
    }
    CASE("ends of documents beyond their block")
    {
        size_t at = find_block(good, bytes, "DOCS"), n = (size_t)le64_get(good + at + 8);
        le32_put(good + at + 64, UINT32_MAX);
        le64_put(good + at + 16, hash64(good + at + 64, n));
        reseal(good + at);
        write_file(bad, good, bytes);
        CHECK_ERROR(read_stream(bad, &small, lengths, 4, &e), STATUS_DATA, "documents that end");
        le32_put(good + at + 64, 2); /* then the last document is left open */
        le64_put(good + at + 16, hash64(good + at + 64, n));
        reseal(good + at);
        write_file(bad, good, bytes);
        CHECK(read_stream(bad, &small, lengths, 4, &e) != STATUS_OK);
    }
    CASE("another major version")
    {
        good[8] = 2;
        le64_put(good + 56, hash64(good, 56));
        write_file(bad, good, bytes);
        CHECK_ERROR(read_stream(bad, &small, lengths, 4, &e), STATUS_DATA, "format version 2.0");
        good[8] = 1;
    }
    CASE("a flag that must be understood; one that may be ignored")
    {
        good[16] = 1;
        le64_put(good + 56, hash64(good, 56));
        write_file(bad, good, bytes);
        CHECK_ERROR(read_stream(bad, &small, lengths, 4, &e), STATUS_DATA, "features");
        good[16] = 0;
        good[19] = 0x80;
        le64_put(good + 56, hash64(good, 56));
        write_file(bad, good, bytes);
        CHECK(read_stream(bad, &small, lengths, 4, &e) != STATUS_OK); /* DOCS was changed above */
        CHECK(!strstr(e.message, "features"));
    }
    free(good);
}

static void test_foreign(void)
{
    static const struct {
        const char *data;
        size_t bytes;
        const char *words;
    } files[] = {
        {"", 0, "is empty"},
        {"\x1f\x8b\x08\0", 4, "gzip"},
        {"PK\x03\x04zip", 7, "zip archive"},
        {"{\"idx\":0}\n", 10, "JSON text"},
        {"hello\tworld\n", 12, "text"},
        {"\x20\0\0\0\0\0\0\0{\"a\":1}", 15, "safetensors"},
        {"\x88\xd7\x34\x01\x01\0\0\0", 8, "llm.c token file"},
        {"\x89TOK\n\x1a\n\x01\0\0\0", 11, "line ends"},
        {"\x89TOK\r\r\n\x1a\n\x01\0\0\0", 13, "line ends"},
        {"\x09TOK\r\n\x1a\n\x01\0\0\0", 12, "strips bits"},
        {"\x89SHD\r\n\x1a\n\x01\0\0\0", 12, "a shard of samples, expected a token stream"},
        {"\x89TOK\r\n", 6, "cut after 6 bytes"},
        {"\x01\x02\x03\x04\x05\x06\x07\x08", 8, "begins with bytes 01 02 03 04"},
    };
    struct error e = {0};
    CASE("files of other kinds are named")
    {
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            write_file(work_path("f"), files[i].data, files[i].bytes);
            CHECK_ERROR(read_stream(work_path("f"), &small, NULL, 0, &e), STATUS_DATA,
                        files[i].words);
        }
    }
}

static void test_writer(void)
{
    struct error e = {0};
    struct output out = {0};
    struct token_writer *w = NULL;
    CASE("an id outside the vocabulary is refused when written")
    {
        CHECK_OK(output_open(&out, work_path("w"), OUTPUT_BINARY, &e));
        CHECK_OK(token_writer_open(&w, &out, &small, true, NULL, &e));
        CHECK_ERROR(token_writer_put(w, (const uint32_t[]){1, 2, 512}, 3, &e), STATUS_DATA,
                    "token id 512");
        token_writer_free(w);
        output_close(&out);
        CHECK(!path_exists(work_path("w")));
    }
    CASE("vocabularies that differ are told apart")
    {
        struct vocab_info other = small, none = small;
        other.fingerprint ^= 1;
        none.fingerprint = 0;
        CHECK_OK(vocab_info_match(&small, "a", &none, "b", &e));
        CHECK_ERROR(vocab_info_match(&small, "a", &other, "b", &e), STATUS_DATA, "fingerprints");
        CHECK_ERROR(vocab_info_match(&small, "a", &wide, "b", &e), STATUS_DATA, "100000");
    }
    CASE("vocabulary descriptions are read strictly")
    {
        static const char *const bad[] = {
            "",
            "{}",
            "[]",
            "{\"size\":0,\"fingerprint\":\"0123456789abcdef\",\"eot\":-1}",
            "{\"size\":5,\"fingerprint\":\"0123456789abcdef\",\"eot\":5}",
            "{\"size\":5,\"fingerprint\":\"0123456789abcdeg\",\"eot\":1}",
            "{\"size\":5,\"fingerprint\":\"123\",\"eot\":1}",
            "{\"size\":9999999999,\"fingerprint\":\"0123456789abcdef\",\"eot\":1}"};
        struct vocab_info v;
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
            CHECK_ERROR(vocab_info_from_json(bad[i], strlen(bad[i]), "f", &v, &e), STATUS_DATA,
                        "vocabulary description");
    }
    CASE("set ids are never 0 and differ")
    {
        uint64_t a = container_new_set_id(), b = container_new_set_id();
        CHECK(a && b && a != b);
    }
}

int main(void)
{
    work_begin("tokens");
    test_round_trips();
    test_damage();
    test_lies();
    test_foreign();
    test_writer();
    work_end();
    return tap_done();
}
