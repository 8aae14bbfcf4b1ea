/* test_format_shards.c - shard sets: round trips over awkward sizes, damage, replacement. */
#include "format_test.h"
#include "base/le.h"
#include "format/shard_set.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

static struct error e;
static const struct vocab_info small = {.size = 512, .fingerprint = 0x0123456789abcdef, .eot = 511};
static const struct vocab_info wide = {.size = 100000, .fingerprint = 7, .eot = -1};

static uint32_t id_of(const struct vocab_info *v, uint64_t i)
{
    return (uint32_t)((i * 2654435761u + 3) % v->size);
}

static void write_set(const char *dir, bool overwrite, const struct vocab_info *v,
                      uint32_t block_size, uint64_t shard_bytes, uint64_t samples, uint32_t want)
{
    struct shard_options o = {.block_size = block_size,
                              .shard_bytes = shard_bytes,
                              .group_documents = "all",
                              .separator = "none",
                              .provenance = "{\"tool\":\"test\"}"};
    struct shard_writer *w = NULL;
    uint64_t count = 0;
    uint32_t shards = 0;
    uint32_t *ids = malloc(block_size * sizeof *ids);
    CHECK_OK(shard_writer_open(&w, dir, overwrite, v, &o, &e));
    for (uint64_t s = 0; s < samples; s++) {
        for (uint32_t i = 0; i < block_size; i++)
            ids[i] = id_of(v, s * block_size + i);
        CHECK_OK(shard_writer_put(w, ids, &e));
    }
    CHECK_OK(shard_writer_finish(w, &count, &shards, &e));
    CHECK_INT(count, samples);
    if (want)
        CHECK_INT(shards, want);
    shard_writer_free(w);
    free(ids);
}

/* Every sample, backwards, so that order does not help. */
static enum status read_set(const char *dir, const struct vocab_info *v, uint32_t block_size,
                            uint64_t samples)
{
    struct shard_set *s = NULL;
    int32_t *ids = malloc(block_size * sizeof *ids);
    enum status st;
    TRY_OUT(shard_set_open(&s, dir, &e));
    if (shard_set_samples(s) != samples || shard_set_block_size(s) != block_size ||
        shard_set_vocab(s)->size != v->size || shard_set_vocab(s)->eot != v->eot)
        TRY_OUT(error_set(&e, STATUS_FAILED, "wrong description"));
    for (uint64_t k = samples; k-- > 0;) {
        TRY_OUT(shard_set_get(s, k, ids, &e));
        for (uint32_t i = 0; i < block_size; i++)
            if ((uint32_t)ids[i] != id_of(v, k * block_size + i))
                TRY_OUT(error_set(&e, STATUS_FAILED, "wrong id in sample %d", (int)k));
    }
    if (shard_set_get(s, samples, ids, &e) != STATUS_USAGE)
        TRY_OUT(error_set(&e, STATUS_FAILED, "a sample past the end was given"));
    TRY_OUT(shard_set_verify(s, NULL, NULL, &e));
out:
    shard_set_close(s);
    free(ids);
    return st;
}

static uint64_t digest_of(const char *dir)
{
    struct shard_set *s = NULL;
    CHECK_OK(shard_set_open(&s, dir, &e));
    uint64_t digest = s ? shard_set_digest(s) : 0;
    shard_set_close(s);
    return digest;
}

static void test_round_trips(void)
{
    const char *dir = work_path("sets/a");
    CASE("one sample")
    {
        write_set(dir, true, &small, 2, 1 << 20, 1, 1);
        CHECK_OK(read_set(dir, &small, 2, 1));
        CHECK(!path_exists(work_path("sets/a/.partial")));
    }
    CASE("many shards of odd samples")
    {
        write_set(dir, true, &small, 37, 4096, 1000, 0);
        CHECK_OK(read_set(dir, &small, 37, 1000));
    }
    CASE("32-bit ids, blocks of one MiB and several")
    {
        write_set(dir, true, &wide, 1024, 3 << 20, 1300, 2);
        CHECK_OK(read_set(dir, &wide, 1024, 1300));
    }
    CASE("a sample larger than a block")
    {
        write_set(dir, true, &wide, 300000, 1 << 20, 3, 3);
        CHECK_OK(read_set(dir, &wide, 300000, 3));
    }
    CASE("the digest does not depend on where shards begin; a shorter set leaves no old shards")
    {
        write_set(dir, true, &small, 64, 2048, 300, 0);
        uint64_t many = digest_of(dir);
        write_set(dir, true, &small, 64, 1 << 20, 300, 1);
        CHECK(many == digest_of(dir));
        CHECK(!path_exists(work_path("sets/a/shard-00001.shd")));
    }
    CASE("the same work gives the same bytes, other work another set id")
    {
        size_t bytes[2];
        write_set(dir, true, &small, 64, 2048, 300, 0);
        uint8_t *first = read_file(work_path("sets/a/shard-00001.shd"), &bytes[0]);
        uint8_t *index = read_file(work_path("sets/a/index.json"), &bytes[1]);
        write_set(work_path("sets/b"), true, &small, 64, 2048, 300, 0);
        size_t again_bytes[2];
        uint8_t *again = read_file(work_path("sets/b/shard-00001.shd"), &again_bytes[0]);
        uint8_t *again_index = read_file(work_path("sets/b/index.json"), &again_bytes[1]);
        CHECK(bytes[0] == again_bytes[0] && memcmp(first, again, bytes[0]) == 0);
        CHECK(bytes[1] == again_bytes[1] && memcmp(index, again_index, bytes[1]) == 0);
        write_set(work_path("sets/b"), true, &small, 32, 2048, 300, 0);
        free(again);
        again = read_file(work_path("sets/b/shard-00001.shd"), &again_bytes[0]);
        CHECK(le64_get(first + 32) != le64_get(again + 32));
        free(first);
        free(index);
        free(again);
        free(again_index);
    }
    CASE("shards stay within their size")
    {
        struct shard_set *s = NULL;
        write_set(dir, true, &small, 64, 10000, 300, 0);
        CHECK_OK(shard_set_open(&s, dir, &e));
        CHECK(shard_set_shards(s) >= 4 && shard_set_shards(s) <= 6);
        for (uint32_t i = 0; i < shard_set_shards(s); i++)
            CHECK(shard_set_info(s, i).bytes <= 10000);
        CHECK_STR(shard_set_provenance(s), "{\"tool\":\"test\"}");
        CHECK_STR(shard_set_separator(s), "none");
        shard_set_close(s);
    }
}

static void test_damage(void)
{
    char dir[300], path[400];
    size_t bytes;
    snprintf(dir, sizeof dir, "%s/damage", work_dir);
    write_set(dir, true, &small, 16, 2048, 80, 0);
    const char *const names[] = {"shard-00001.shd", "shard-00000.shd"};
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[k]);
        uint8_t *good = read_file(path, &bytes);
        CASE("every flipped byte of a shard is found by verify or before")
        {
            for (size_t i = 0; i < bytes; i++) {
                good[i] ^= (uint8_t)(1u << (i % 8));
                write_file(path, good, bytes);
                CHECK_ERROR(read_set(dir, &small, 16, 80), STATUS_DATA, names[k]);
                good[i] ^= (uint8_t)(1u << (i % 8));
            }
        }
        CASE("every cut of a shard, and bytes after its end")
        {
            for (size_t n = 0; n < bytes; n++) {
                write_file(path, good, n);
                CHECK_ERROR(read_set(dir, &small, 16, 80), STATUS_DATA, names[k]);
            }
            uint8_t *more = calloc(1, bytes + 64);
            memcpy(more, good, bytes);
            write_file(path, more, bytes + 64);
            CHECK_ERROR(read_set(dir, &small, 16, 80), STATUS_DATA, "after its end");
            free(more);
        }
        write_file(path, good, bytes);
        free(good);
    }
    CASE("a missing shard, shards in each other's place, a shard of another set")
    {
        char zero[400], one[400], away[400];
        snprintf(zero, sizeof zero, "%s/shard-00000.shd", dir);
        snprintf(one, sizeof one, "%s/shard-00001.shd", dir);
        snprintf(away, sizeof away, "%s/away", dir);
        rename(one, away);
        CHECK_ERROR(read_set(dir, &small, 16, 80), STATUS_DATA, "shard-00001.shd is missing");
        rename(zero, one);
        rename(away, zero);
        CHECK_ERROR(read_set(dir, &small, 16, 80), STATUS_DATA, "is shard 1 of its set");
        struct vocab_info kin = small;
        kin.fingerprint = 0;
        write_set(work_path("other"), true, &kin, 16, 2048, 80, 0);
        rename(work_path("other/shard-00000.shd"), zero);
        CHECK_ERROR(read_set(dir, &small, 16, 80), STATUS_DATA, "belongs to set");
    }
}

static void test_index(void)
{
    static const struct {
        const char *from, *to, *words;
    } edits[] = {
        {"shard-set", "shard-sex", "expected \"shard-set\""},
        {"\"version\": 1", "\"version\": 9", "version 9"},
        {"\"samples\": 80", "\"samples\": 81", "do not agree"},
        {"\"block_size\": 16", "\"block_size\": 17", "agree"},
        {"\"block_size\": 16", "\"block_size\": 1 ", "block_size"},
        {"\"dtype\": \"u16\"", "\"dtype\": \"u32\"", "bytes"},
        {"\"dtype\": \"u16\"", "\"dtype\": \"f16\"", "neither"},
        {"\"size\": 512", "\"size\": 513", "vocabulary of 512"},
        {"\"fingerprint\": \"0", "\"fingerprint\": \"1", "different vocabularies"},
        {"shard-00000", "../d-00000", "name of a file"},
        {"\"shards\":", "\"shardz\":", "shards"},
        {"\"set_id\": \"", "\"set_id\": \"x", "set_id"},
        {"{", "[", "not JSON"},
    };
    char dir[300], path[400];
    size_t bytes;
    snprintf(dir, sizeof dir, "%s/index", work_dir);
    write_set(dir, true, &small, 16, 1 << 20, 80, 1);
    snprintf(path, sizeof path, "%s/index.json", dir);
    char *good = (char *)read_file(path, &bytes);
    CASE("an index that lies")
    {
        for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
            char *at = strstr(good, edits[i].from), *text = malloc(bytes + 32);
            CHECK(at != NULL);
            if (at) {
                int n = sprintf(text, "%.*s%s%s", (int)(at - good), good, edits[i].to,
                                at + strlen(edits[i].from));
                write_file(path, text, (size_t)n);
                CHECK_ERROR(read_set(dir, &small, 16, 80), STATUS_DATA, edits[i].words);
            }
            free(text);
        }
    }
    CASE("every cut of the index")
    {
        for (size_t n = 0; n < bytes - 1; n++) {
            write_file(path, good, n);
            CHECK_ERROR(read_set(dir, &small, 16, 80), STATUS_DATA, "index.json");
        }
    }
    CASE("no index, no folder")
    {
        unlink(path);
        CHECK_ERROR(read_set(dir, &small, 16, 80), STATUS_DATA, "is not a shard set");
        CHECK_ERROR(read_set(path, &small, 16, 80), STATUS_FAILED, "is not a folder");
    }
    free(good);
}

static void test_replacing(void)
{
    struct shard_options o = {.block_size = 8, .shard_bytes = 1 << 20};
    struct shard_writer *w = NULL, *second = NULL;
    uint32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    char dir[300], path[400];
    snprintf(dir, sizeof dir, "%s/r", work_dir);
    CASE("an existing set is kept unless overwriting, and until the new one is finished")
    {
        write_set(dir, false, &small, 16, 2048, 80, 0);
        CHECK_ERROR(shard_writer_open(&w, dir, false, &small, &o, &e), STATUS_FAILED, "already");
        CHECK_OK(read_set(dir, &small, 16, 80));
        CHECK_OK(shard_writer_open(&w, dir, true, &small, &o, &e));
        CHECK_OK(shard_writer_put(w, ids, &e));
        CHECK_OK(read_set(dir, &small, 16, 80));
        CHECK_ERROR(shard_writer_open(&second, dir, true, &small, &o, &e), STATUS_FAILED,
                    "another");
        shard_writer_free(w); /* not finished */
        CHECK_OK(read_set(dir, &small, 16, 80));
        snprintf(path, sizeof path, "%s/.partial", dir);
        CHECK(!path_exists(path));
    }
    CASE("an unfinished new set leaves no folder")
    {
        CHECK_OK(shard_writer_open(&w, work_path("fresh"), false, &small, &o, &e));
        CHECK_OK(shard_writer_put(w, ids, &e));
        shard_writer_free(w);
        CHECK(!path_exists(work_path("fresh")));
    }
    CASE("an empty set and an id outside the vocabulary are refused")
    {
        CHECK_OK(shard_writer_open(&w, work_path("fresh"), false, &small, &o, &e));
        CHECK_ERROR(shard_writer_finish(w, NULL, NULL, &e), STATUS_DATA, "no sample");
        ids[5] = 512;
        CHECK_ERROR(shard_writer_put(w, ids, &e), STATUS_DATA, "id 512");
        shard_writer_free(w);
        CHECK(!path_exists(work_path("fresh")));
    }
    CASE("what a killed writer left is cleared")
    {
        snprintf(path, sizeof path, "%s/killed/.partial", work_dir);
        CHECK_OK(dir_create(path, &e));
        snprintf(path, sizeof path, "%s/killed/.partial/shard-00007.shd", work_dir);
        write_file(path, "half", 4);
        CHECK_ERROR(read_set(work_path("killed"), &small, 16, 80), STATUS_DATA, "not a shard set");
        write_set(work_path("killed"), false, &small, 16, 2048, 80, 0);
        CHECK_OK(read_set(work_path("killed"), &small, 16, 80));
        CHECK(!path_exists(path));
    }
    CASE("a write that fails behind the caller's back stops a later put, and nothing stays")
    {
        struct rlimit before, small_files = {.rlim_cur = 1 << 16};
        enum status st = STATUS_OK;
        void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &before);
        small_files.rlim_max = before.rlim_max;
        CHECK_OK(shard_writer_open(&w, work_path("fresh"), false, &small, &o, &e));
        CHECK(setrlimit(RLIMIT_FSIZE, &small_files) == 0);
        ids[5] = 6;
        for (int i = 0; i < 1 << 20 && st == STATUS_OK; i++)
            st = shard_writer_put(w, ids, &e);
        CHECK_INT(st, STATUS_FAILED);
        CHECK_ERROR(shard_writer_finish(w, NULL, NULL, &e), STATUS_FAILED, "shard-00000.shd");
        shard_writer_free(w);
        CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
        signal(SIGXFSZ, handler);
        CHECK(!path_exists(work_path("fresh")));
    }
    CASE("block sizes that cannot be")
    {
        o.block_size = 1;
        CHECK_ERROR(shard_writer_open(&w, dir, true, &small, &o, &e), STATUS_USAGE, "block size 1");
        o.block_size = UINT32_MAX;
        CHECK_ERROR(shard_writer_open(&w, dir, true, &small, &o, &e), STATUS_USAGE, "block size");
    }
}

int main(void)
{
    work_begin("shards");
    test_round_trips();
    test_damage();
    test_index();
    test_replacing();
    work_end();
    return tap_done();
}
