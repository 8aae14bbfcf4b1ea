/* test_format_fixtures.c - the formats do not change unseen: what is written today equals the
 * committed files byte for byte, and the hex dumps in the section 5 pages are those files.
 * `test_format_fixtures --write DIR` makes the files anew. */
#include "format_test.h"
#include "format/ckpt.h"
#include "format/shard_set.h"
#include "format/token_stream.h"

#include <inttypes.h>

#define FIXTURES "../fixtures/format"
#define PAGES "../../share/man/man5"

static struct error e;
static const struct vocab_info vocab = {.size = 512, .fingerprint = 0x0123456789abcdef, .eot = 511};
static const char provenance[] = "{\"tool\":\"example\",\"version\":\"1\"}";

/* Documents (10, 11, 12), () and (300, 511). */
static void write_tokens(const char *path)
{
    const uint32_t a[] = {10, 11, 12}, b[] = {300, 511};
    struct output out = {0};
    struct token_writer *w = NULL;
    CHECK_OK(output_open(&out, path, OUTPUT_BINARY, &e));
    CHECK_OK(token_writer_open(&w, &out, &vocab, false, provenance, &e));
    CHECK_OK(token_writer_put(w, a, 3, &e));
    CHECK_OK(token_writer_end_document(w, &e));
    CHECK_OK(token_writer_end_document(w, &e));
    CHECK_OK(token_writer_put(w, b, 2, &e));
    CHECK_OK(token_writer_end_document(w, &e));
    CHECK_OK(token_writer_finish(w, NULL, NULL, &e));
    CHECK_OK(output_commit(&out, &e));
    token_writer_free(w);
    output_close(&out);
}

/* Samples (1, 2, 3, 4) and (5, 6, 7, 300). */
static void write_shards(const char *dir)
{
    const uint32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 300};
    struct shard_options o = {.block_size = 4,
                              .shard_bytes = 1 << 20,
                              .group_documents = "all",
                              .separator = "none",
                              .provenance = provenance};
    struct shard_writer *w = NULL;
    CHECK_OK(shard_writer_open(&w, dir, true, &vocab, &o, &e));
    CHECK_OK(shard_writer_put(w, ids, &e));
    CHECK_OK(shard_writer_put(w, ids + 4, &e));
    CHECK_OK(shard_writer_finish(w, NULL, NULL, &e));
    shard_writer_free(w);
}

/* One tensor "b" of 3 elements (1, -2, 0.5), master weights only, rank 0 of 1. */
static void write_checkpoint(const char *dir)
{
    const float x[] = {1.0f, -2.0f, 0.5f};
    const struct ckpt_segment s = {"b", CKPT_MASTER, 0, 3, 0};
    struct ckpt_writer *w = NULL;
    json_t *entry = NULL;
    char digest[20];
    CHECK_OK(dir_create(dir, &e));
    CHECK_OK(ckpt_writer_open(&w, dir, 0, 1, 0x1122334455667788, &s, 1, provenance, &e));
    CHECK_OK(ckpt_writer_put(w, x, 3, &e));
    CHECK_OK(ckpt_writer_finish(w, &entry, &e));
    ckpt_writer_free(w);
    snprintf(digest, sizeof digest, "%016" PRIx64, ckpt_digest_add(0, 0, x, 3));
    json_t *manifest = json_pack(
        "{s:s, s:i, s:s, s:i, s:{}, s:[{s:s, s:[i], s:{s:s}}], s:[o], s:{s:i, s:s, s:i}, s:{}}",
        "format", "sdp-checkpoint", "version", 1, "set_id", "1122334455667788", "step", 200,
        "model", "tensors", "name", "b", "shape", 3, "digest", "master", digest, "files", entry,
        "vocabulary", "size", 512, "fingerprint", "0123456789abcdef", "eot", 511, "state");
    CHECK_OK(ckpt_manifest_write(dir, manifest, &e));
    json_decref(manifest);
}

static void write_all(const char *dir)
{
    char path[400];
    CHECK_OK(dir_create(dir, &e));
    snprintf(path, sizeof path, "%s/small.tok", dir);
    write_tokens(path);
    snprintf(path, sizeof path, "%s/shards", dir);
    write_shards(path);
    snprintf(path, sizeof path, "%s/step-00000200", dir);
    write_checkpoint(path);
}

static void compare(const char *name)
{
    char old[400], fresh[400];
    size_t n, m;
    snprintf(old, sizeof old, FIXTURES "/%s", name);
    snprintf(fresh, sizeof fresh, "%s/now/%s", work_dir, name);
    uint8_t *a = read_file(old, &n), *b = read_file(fresh, &m);
    CHECK_INT(m, n);
    for (size_t i = 0; i < n && i < m; i++)
        if (a[i] != b[i]) {
            tap_fail_(__FILE__, __LINE__, "%s differs from byte %zu", name, i);
            break;
        }
    free(a);
    free(b);
}

/* Rows "OFFSET  8 bytes  8 bytes  words" of a page; bytes in no row must be zero. */
static void compare_dump(const char *page, const char *name)
{
    char path[400];
    size_t bytes, text_bytes, rows = 0;
    snprintf(path, sizeof path, PAGES "/%s", page);
    char *text = (char *)read_file(path, &text_bytes);
    snprintf(path, sizeof path, FIXTURES "/%s", name);
    uint8_t *file = read_file(path, &bytes), *seen = calloc(1, bytes + 16);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned at, v;
        int used, n = 0;
        if (sscanf(line, "%8x  %n", &at, &n) != 1 || n != 10 ||
            strspn(line, "0123456789abcdef") != 8)
            continue;
        rows++;
        for (unsigned i = 0; i < 16 && sscanf(line + n, "%2x%n", &v, &used) == 1; i++, n += used) {
            CHECK(at + i < bytes && v == file[at + i]);
            if (at + i < bytes)
                seen[at + i] = 1;
        }
    }
    CHECK(rows > 16);
    for (size_t i = 0; i < bytes; i++)
        if (!seen[i] && file[i]) {
            tap_fail_(__FILE__, __LINE__, "%s does not show byte %zu of %s", page, i, name);
            break;
        }
    free(text);
    free(file);
    free(seen);
}

static void test_read(void)
{
    struct input in = {0};
    struct token_reader *r = NULL;
    struct shard_set *s = NULL;
    struct ckpt *c = NULL;
    const uint32_t *ids;
    size_t n;
    bool end;
    CASE("the committed files are read")
    {
        const size_t want[] = {3, 0, 2};
        CHECK_OK(input_open(&in, FIXTURES "/small.tok", &e));
        CHECK_OK(token_reader_open(&r, &in, &e));
        for (int d = 0; d < 3; d++) {
            CHECK_OK(token_reader_next(r, &ids, &n, &end, &e));
            CHECK(ids && end && n == want[d]);
        }
        CHECK(ids && ids[1] == 511);
        CHECK_OK(token_reader_next(r, &ids, &n, &end, &e));
        CHECK(!ids);
        token_reader_free(r);
        input_close(&in);

        int32_t sample[4];
        CHECK_OK(shard_set_open(&s, FIXTURES "/shards", &e));
        CHECK_OK(shard_set_get(s, 1, sample, &e));
        CHECK_INT(sample[3], 300);
        CHECK_OK(shard_set_verify(s, NULL, NULL, &e));
        shard_set_close(s);

        float x[3] = {0};
        CHECK_OK(ckpt_open(&c, FIXTURES "/step-00000200", &e));
        CHECK_OK(ckpt_read(c, ckpt_tensor_find(c, "b"), CKPT_MASTER, 0, 3, x, &e));
        CHECK_NEAR(x[1], -2, 0);
        CHECK_OK(ckpt_verify(c, NULL, NULL, &e));
        ckpt_close(c);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        write_all(argv[2]);
        return 0;
    }
    work_begin("fixtures");
    CASE("what is written today equals the committed files")
    {
        char now[300];
        snprintf(now, sizeof now, "%s/now", work_dir);
        write_all(now);
        compare("small.tok");
        compare("shards/shard-00000.shd");
        compare("shards/index.json");
        compare("step-00000200/rank-00000-of-00001.ckp");
        compare("step-00000200/manifest.json");
    }
    test_read();
    CASE("the manual pages dump these files")
    {
        compare_dump("sdp-tokens.5", "small.tok");
        compare_dump("sdp-shards.5", "shards/shard-00000.shd");
        compare_dump("sdp-checkpoint.5", "step-00000200/rank-00000-of-00001.ckp");
    }
    work_end();
    return tap_done();
}
