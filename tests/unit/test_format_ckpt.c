/* test_format_ckpt.c - checkpoints: any partition, any range, coverage proof, damage, pruning. */
#include "format_test.h"
#include "base/checked.h"
#include "format/ckpt.h"

#include <fcntl.h>
#include <inttypes.h>

static struct error e;
static const struct vocab_info vocab = {.size = 512, .fingerprint = 5, .eot = -1};

static const struct {
    const char *name;
    int64_t rows, columns;
} tensors[] = {{"wte", 50, 7}, {"h.0.b", 1, 13}, {"h.0.w", 11, 11}};
#define TENSORS 3

static float value(int t, int k, int64_t i)
{
    return (float)(t * 100 + k * 10) + (float)i * 0.001f;
}

static int64_t elems(int t)
{
    return tensors[t].rows * tensors[t].columns;
}

/* Rank r of n owns elements [r*len/n, (r+1)*len/n) of each tensor and kind. */
static size_t own(struct ckpt_segment *s, uint32_t r, uint32_t n)
{
    size_t count = 0;
    for (int t = 0; t < TENSORS; t++)
        for (int k = 0; k < CKPT_KINDS; k++) {
            int64_t a = elems(t) * r / n, b = elems(t) * (r + 1) / n;
            if (b > a)
                s[count++] = (struct ckpt_segment){tensors[t].name, (enum ckpt_kind)k, a, b - a, 0};
        }
    return count;
}

static int tensor_index(const char *name)
{
    for (int t = 0; t < TENSORS; t++)
        if (strcmp(tensors[t].name, name) == 0)
            return t;
    return -1;
}

static json_t *write_rank(const char *dir, uint32_t r, uint32_t n, uint64_t set_id,
                          const struct ckpt_segment *s, size_t count)
{
    struct ckpt_writer *w = NULL;
    json_t *entry = NULL;
    CHECK_OK(ckpt_writer_open(&w, dir, r, n, set_id, s, count, "{\"tool\":\"test\"}", &e));
    for (size_t i = 0; i < count; i++) {
        float x[400];
        for (int64_t j = 0; j < s[i].count; j++)
            x[j] = value(tensor_index(s[i].tensor), s[i].kind, s[i].first + j);
        int64_t half = s[i].count / 2;
        CHECK_OK(ckpt_writer_put(w, x, half, &e));
        CHECK_OK(ckpt_writer_put(w, x + half, s[i].count - half, &e));
    }
    CHECK_OK(ckpt_writer_finish(w, &entry, &e));
    ckpt_writer_free(w);
    return entry;
}

static json_t *make_manifest(int64_t step, uint64_t set_id, json_t *files)
{
    char hex[20];
    json_t *list = json_array();
    for (int t = 0; t < TENSORS; t++) {
        json_t *digest = json_object();
        for (int k = 0; k < CKPT_KINDS; k++) {
            uint64_t sum = 0;
            for (int64_t i = 0; i < elems(t); i++) {
                float x = value(t, k, i);
                sum = ckpt_digest_add(sum, i, &x, 1);
            }
            snprintf(hex, sizeof hex, "%016" PRIx64, sum);
            json_object_set_new(digest, ckpt_kind_names[k], json_string(hex));
        }
        json_array_append_new(list, json_pack("{s:s, s:[I,I], s:o}", "name", tensors[t].name,
                                              "shape", (json_int_t)tensors[t].rows,
                                              (json_int_t)tensors[t].columns, "digest", digest));
    }
    snprintf(hex, sizeof hex, "%016" PRIx64, set_id);
    return json_pack("{s:s, s:i, s:s, s:I, s:{}, s:o, s:o, s:{s:i,s:s,s:i}, s:{}}", "format",
                     "sdp-checkpoint", "version", 1, "set_id", hex, "step", (json_int_t)step,
                     "model", "tensors", list, "files", files, "vocabulary", "size", 512,
                     "fingerprint", "0000000000000005", "eot", -1, "state");
}

static void write_checkpoint(const char *parent, int64_t step, uint32_t ranks)
{
    struct ckpt_segment s[TENSORS * CKPT_KINDS];
    char *dir = ckpt_step_path(parent, step);
    json_t *files = json_array();
    uint64_t set_id = container_new_set_id();
    CHECK_OK(dir_create(dir, &e));
    for (uint32_t r = 0; r < ranks; r++)
        json_array_append_new(files, write_rank(dir, r, ranks, set_id, s, own(s, r, ranks)));
    json_t *manifest = make_manifest(step, set_id, files);
    CHECK_OK(ckpt_manifest_write(dir, manifest, &e));
    json_decref(manifest);
    free(dir);
}

static enum status read_checkpoint(const char *dir)
{
    struct ckpt *c = NULL;
    enum status st;
    float x[400];
    TRY_OUT(ckpt_open(&c, dir, &e));
    for (int t = 0; t < TENSORS; t++) {
        const struct ckpt_tensor *tensor = ckpt_tensor_find(c, tensors[t].name);
        for (int k = 0; k < CKPT_KINDS; k++)
            for (int64_t first = 0; first < elems(t); first += 3) {
                int64_t n = min_i64(elems(t) - first, 1 + first % 97);
                TRY_OUT(ckpt_read(c, tensor, (enum ckpt_kind)k, first, n, x, &e));
                for (int64_t i = 0; i < n; i++)
                    if (x[i] != value(t, k, first + i))
                        TRY_OUT(error_set(&e, STATUS_FAILED, "wrong value"));
            }
    }
    TRY_OUT(ckpt_verify(c, NULL, NULL, &e));
out:
    ckpt_close(c);
    return st;
}

static void test_round_trips(void)
{
    CASE("any number of ranks, more than elements too")
    {
        const uint32_t ranks[] = {1, 2, 3, 7, 64};
        for (int i = 0; i < 5; i++) {
            write_checkpoint(work_path("rt"), i + 1, ranks[i]);
            char *dir = ckpt_step_path(work_path("rt"), i + 1);
            CHECK_OK(read_checkpoint(dir));
            free(dir);
        }
    }
    CASE("a parent folder means its newest")
    {
        struct ckpt *c = NULL;
        CHECK_OK(ckpt_open(&c, work_path("rt"), &e));
        CHECK_INT(ckpt_step(c), 5);
        CHECK_CONTAINS(ckpt_path(c), "rt/step-00000005");
        CHECK(!ckpt_skipped(c));
        CHECK_INT(ckpt_vocab(c)->size, vocab.size);
        CHECK_INT(ckpt_tensor_count(c), 3);
        CHECK_STR(ckpt_tensor_at(c, 1)->name, "h.0.b");
        CHECK_INT(ckpt_file_count(c), 64);
        float x[2];
        CHECK_ERROR(ckpt_read(c, ckpt_tensor_at(c, 0), CKPT_M, 349, 2, x, &e), STATUS_USAGE, "350");
        ckpt_close(c);
    }
    CASE("more elements than one block, put in pieces of all sizes")
    {
        int64_t n = 3 * (CKPT_DATA_BYTES / 4) + 12345, done = 0;
        float *x = malloc((size_t)n * 4), *back = malloc((size_t)n * 4);
        for (int64_t i = 0; i < n; i++)
            x[i] = (float)(i % 65537) * 0.5f;
        struct ckpt_segment s = {"big", CKPT_MASTER, 0, n, 0};
        struct ckpt_writer *w = NULL;
        json_t *entry = NULL, *manifest;
        char hex[20];
        struct ckpt *c = NULL;
        CHECK_OK(dir_create(work_path("big"), &e));
        CHECK_OK(ckpt_writer_open(&w, work_path("big"), 0, 1, 9, &s, 1, NULL, &e));
        for (int64_t piece = 1; done < n; piece = piece * 7 + 1) {
            int64_t take = min_i64(n - done, piece);
            CHECK_OK(ckpt_writer_put(w, x + done, take, &e));
            done += take;
        }
        CHECK_ERROR(ckpt_writer_put(w, x, 1, &e), STATUS_USAGE, "elements put");
        CHECK_OK(ckpt_writer_finish(w, &entry, &e));
        ckpt_writer_free(w);
        snprintf(hex, sizeof hex, "%016" PRIx64, ckpt_digest_add(0, 0, x, n));
        manifest = json_pack("{s:s,s:i,s:s,s:i,s:[{s:s,s:[I],s:{s:s}}],s:[o],s:{s:i,s:s,s:i}}",
                             "format", "sdp-checkpoint", "version", 1, "set_id", "0000000000000009",
                             "step", 0, "tensors", "name", "big", "shape", (json_int_t)n, "digest",
                             "master", hex, "files", entry, "vocabulary", "size", 512,
                             "fingerprint", "0000000000000000", "eot", -1);
        CHECK_OK(ckpt_manifest_write(work_path("big"), manifest, &e));
        CHECK_OK(ckpt_open(&c, work_path("big"), &e));
        const struct ckpt_tensor *t = ckpt_tensor_at(c, 0);
        CHECK_OK(ckpt_read(c, t, CKPT_MASTER, 1048570, 20, back, &e));
        CHECK(memcmp(back, x + 1048570, 80) == 0);
        CHECK_OK(ckpt_read(c, t, CKPT_MASTER, 0, n, back, &e));
        CHECK(memcmp(back, x, (size_t)n * 4) == 0);
        CHECK_ERROR(ckpt_read(c, t, CKPT_V, 0, 1, back, &e), STATUS_DATA, "no v");
        CHECK_OK(ckpt_verify(c, NULL, NULL, &e));
        ckpt_close(c);
        json_decref(manifest);
        free(x);
        free(back);
    }
}

static void test_digest(void)
{
    CASE("the digest is order-free, and sees bits, swaps and places")
    {
        float x[1000];
        for (int i = 0; i < 1000; i++)
            x[i] = (float)i * 0.25f;
        int64_t base = (1ll << 40) + 5;
        for (int round = 0; round < 2; round++, base = 3) {
            uint64_t whole = ckpt_digest_add(0, base, x, 1000), parts = 0;
            parts = ckpt_digest_add(parts, base + 333, x + 333, 667);
            parts = ckpt_digest_add(parts, base, x, 333);
            CHECK(whole == parts);
            CHECK(whole != ckpt_digest_add(0, base + 1, x, 1000));
            float swap = x[3];
            x[3] = x[700], x[700] = swap;
            CHECK(whole != ckpt_digest_add(0, base, x, 1000));
            x[700] = x[3], x[3] = swap;
            CHECK(whole == ckpt_digest_add(0, base, x, 1000));
            for (int bit = 0; bit < 32; bit++) {
                uint32_t bits;
                memcpy(&bits, &x[500], 4);
                bits ^= 1u << bit;
                memcpy(&x[500], &bits, 4);
                CHECK(whole != ckpt_digest_add(0, base, x, 1000));
                bits ^= 1u << bit;
                memcpy(&x[500], &bits, 4);
            }
        }
        /* Values computed from the formula by another program. */
        const float two[] = {2.0f, 1.0f};
        CHECK(ckpt_digest_add(0, 1, two + 1, 1) == 0xc5b96149f04312baull);
        CHECK(ckpt_digest_add(0, (5ll << 32) + 7, two, 2) == 0x6df16d425f3ef6abull);
    }
}

/* Edits one number of the manifest's segment and expects words. */
static void edit(const char *dir, json_t *manifest, size_t file, size_t segment, const char *key,
                 json_int_t by, const char *words)
{
    json_t *files = json_object_get(manifest, "files");
    json_t *s = json_array_get(json_object_get(json_array_get(files, file), "segments"), segment);
    json_t *v = json_object_get(s, key);
    json_integer_set(v, json_integer_value(v) + by);
    CHECK_ERROR(ckpt_manifest_write(dir, manifest, &e), STATUS_DATA, words);
    json_integer_set(v, json_integer_value(v) - by);
}

static json_t *load_manifest(const char *dir)
{
    char path[400];
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    json_t *m = json_load_file(path, 0, NULL);
    CHECK(m != NULL);
    return m;
}

static void test_coverage(void)
{
    const char *parent = work_path("cover");
    write_checkpoint(parent, 1, 3);
    char *dir = ckpt_step_path(parent, 1);
    json_t *m = load_manifest(dir), *files = json_object_get(m, "files");
    CASE("missing and doubled ranges are named")
    {
        /* File 1 holds wte master 116..232 first, then m, v, then h.0.b ... */
        edit(dir, m, 1, 0, "first", 1,
             "elements 116 to 116 of tensor \"wte\" (master, 350 elements)");
        edit(dir, m, 1, 0, "first", -2,
             "elements 114 to 115 of tensor \"wte\" (master, 350 elements) are stored twice, in "
             "rank-00000-of-00003.ckp and rank-00001-of-00003.ckp");
        edit(dir, m, 2, 1, "first", 5, "claims 117 elements from 238");
        edit(dir, m, 0, 1, "offset", 1, "offset");
        edit(dir, m, 0, 1, "count", -200, "claims");
        edit(dir, m, 2, 8, "count", -1, "elements 120 to 120 of tensor \"h.0.w\" (v");
        CHECK_OK(ckpt_manifest_write(dir, m, &e));
    }
    CASE("a file left out of the manifest; a kind without segments")
    {
        json_t *kept = json_deep_copy(json_array_get(files, 1));
        json_array_remove(files, 1);
        CHECK_ERROR(ckpt_manifest_write(dir, m, &e), STATUS_DATA,
                    "elements 116 to 232 of tensor \"wte\" (master, 350 elements) are in no file");
        json_array_insert_new(files, 1, kept);
        json_t *digest =
            json_object_get(json_array_get(json_object_get(m, "tensors"), 0), "digest");
        json_object_del(digest, "m");
        CHECK_ERROR(ckpt_manifest_write(dir, m, &e), STATUS_DATA, "does not have");
    }
    CASE("a wrong tensor digest is found by verify")
    {
        json_decref(m);
        m = load_manifest(dir);
        json_t *digest =
            json_object_get(json_array_get(json_object_get(m, "tensors"), 2), "digest");
        json_object_set_new(digest, "m", json_string("0123456789abcdef"));
        CHECK_OK(ckpt_manifest_write(dir, m, &e));
        CHECK_ERROR(read_checkpoint(dir), STATUS_DATA, "digest of tensor \"h.0.w\" (m)");
    }
    json_decref(m);
    free(dir);
}

static void test_damage(void)
{
    char path[400];
    size_t bytes;
    write_checkpoint(work_path("damage"), 7, 2);
    char *dir = ckpt_step_path(work_path("damage"), 7);
    CASE("every flipped byte and every cut of a rank file is found")
    {
        snprintf(path, sizeof path, "%s/rank-00001-of-00002.ckp", dir);
        uint8_t *good = read_file(path, &bytes);
        for (size_t i = 0; i < bytes; i++) {
            good[i] ^= (uint8_t)(1u << (i % 8));
            write_file(path, good, bytes);
            CHECK_ERROR(read_checkpoint(dir), STATUS_DATA, "rank-00001-of-00002.ckp");
            good[i] ^= (uint8_t)(1u << (i % 8));
            write_file(path, good, i);
            CHECK_ERROR(read_checkpoint(dir), STATUS_DATA, "rank-00001-of-00002.ckp");
        }
        write_file(path, good, bytes);
        CHECK_OK(read_checkpoint(dir));
        unlink(path);
        CHECK_ERROR(read_checkpoint(dir), STATUS_DATA, "rank-00001-of-00002.ckp is missing");
        write_file(path, good, bytes);
        free(good);
    }
    CASE("every cut of the manifest")
    {
        snprintf(path, sizeof path, "%s/manifest.json", dir);
        uint8_t *good = read_file(path, &bytes);
        for (size_t n = 0; n < bytes - 1; n += 1 + n / 40) {
            write_file(path, good, n);
            CHECK_ERROR(read_checkpoint(dir), STATUS_DATA, "manifest.json");
        }
        write_file(path, good, bytes);
        free(good);
    }
    CASE("files of another checkpoint")
    {
        write_checkpoint(work_path("damage"), 8, 2);
        char *other = ckpt_step_path(work_path("damage"), 8), from[400], to[400];
        snprintf(from, sizeof from, "%s/rank-00000-of-00002.ckp", other);
        snprintf(to, sizeof to, "%s/rank-00000-of-00002.ckp", dir);
        CHECK_INT(rename(from, to), 0);
        CHECK_ERROR(read_checkpoint(dir), STATUS_DATA, "belongs to set");
        free(other);
    }
    free(dir);
}

/* The text with its last `from` replaced by `to`, malloc'ed. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = NULL;
    char *out = malloc(strlen(text) + strlen(to) + 1);
    for (const char *p = text; (p = strstr(p, from)); p++)
        at = p;
    CHECK(at != NULL);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static void test_manifest_text(void)
{
    static const struct {
        const char *from, *to, *words;
    } faults[] = {
        {"]},{\"file\":", "]};{\"file\":", "line 1: not JSON: expected ','"},
        {"]},{\"file\":", "]},,{\"file\":", "line 1: not JSON"},
        {"]}],", "]},],", "line 1: not JSON"},
        {"\"files\":[", "\"files\":[,", "line 1: not JSON"},
        {"\"files\":[", "\"files\":[7,", "not JSON"},
        {"\"files\":[", "\"files\":[],\"files\":[", "duplicate"},
        {"\"files\":[", "\"files\":[{},", "file 0 is \"\""},
        {"\"files\":[", "\"filed\":[", "\"files\" is missing"},
        {"]},{\"file\":", "]},\n\n{\"file\" ", "line 3: not JSON"},
        {"]},{\"file\":", "],{\"file\":", "not JSON"},
    };
    char path[400];
    write_checkpoint(work_path("text"), 1, 2);
    char *dir = ckpt_step_path(work_path("text"), 1);
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    json_t *m = load_manifest(dir), *files = json_incref(json_object_get(m, "files"));
    json_object_del(m, "files");
    CASE("the list of files is the outermost object's, wherever it stands")
    {
        json_t *state = json_pack("{s:[s,s,{s:[]}],s:s,s:s}", "files", "]", "}]", "files", "]}\"",
                                  "\\", "\"files\":[", "[[{\"files\":[");
        json_object_set_new(m, "state", state);
        char *rest = json_dumps(m, JSON_COMPACT), *list = json_dumps(files, JSON_INDENT(2));
        char *text = malloc(strlen(rest) + strlen(list) + 32);
        sprintf(text, "\n{ \"files\" :\t%s ,%s", list, rest + 1);
        write_file(path, text, strlen(text));
        CHECK_OK(read_checkpoint(dir));
        sprintf(text, "%.*s,\"files\":%s}", (int)strlen(rest) - 1, rest, list);
        write_file(path, text, strlen(text));
        CHECK_OK(read_checkpoint(dir));
        free(text);
        free(list);
        free(rest);
    }
    CASE("what is wrong in the list or beside it is said with its line")
    {
        json_object_del(m, "state");
        json_object_set(m, "files", files);
        json_object_set_new(m, "state", json_object());
        char *good = json_dumps(m, JSON_COMPACT);
        write_file(path, good, strlen(good));
        CHECK_OK(read_checkpoint(dir));
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
            char *bad = replaced(good, faults[i].from, faults[i].to);
            write_file(path, bad, strlen(bad));
            CHECK_ERROR(read_checkpoint(dir), STATUS_DATA, faults[i].words);
            free(bad);
        }
        free(good);
    }
    json_decref(files);
    json_decref(m);
    free(dir);
}

/* The first byte of the last block of elements. */
static void flip_data_byte(const char *path)
{
    char *text = NULL;
    size_t bytes, at = 0;
    CHECK_OK(file_read_all(path, 1 << 24, &text, &bytes, &e));
    for (size_t i = 0; i + 4 <= bytes; i++)
        if (memcmp(text + i, "DATA", 4) == 0)
            at = i + CONTAINER_BLOCK_BYTES;
    CHECK(at > 0 && at < bytes);
    int fd = open(path, O_WRONLY);
    uint8_t flipped = (uint8_t)~text[at];
    CHECK_INT(pwrite(fd, &flipped, 1, (off_t)at), 1);
    close(fd);
    free(text);
}

static void test_folder(void)
{
    int64_t *steps = NULL;
    size_t n;
    char path[400];
    const char *parent = work_path("folder");
    struct ckpt *c = NULL;
    CASE("no checkpoints")
    {
        CHECK_OK(ckpt_list_steps(parent, &steps, &n, &e));
        CHECK_INT(n, 0);
        CHECK_ERROR(ckpt_open(&c, parent, &e), STATUS_FAILED, "not a folder");
        CHECK_OK(dir_create(parent, &e));
        CHECK_ERROR(ckpt_open(&c, parent, &e), STATUS_DATA, "holds no checkpoint");
    }
    CASE("steps are listed ascending, and those that are damaged or unfinished left out")
    {
        for (int64_t s = 100; s <= 500; s += 100)
            write_checkpoint(parent, s, 2);
        snprintf(path, sizeof path, "%s/step-00000300/manifest.json", parent);
        unlink(path);
        snprintf(path, sizeof path, "%s/step-00000600", parent);
        CHECK_OK(dir_create(path, &e));
        snprintf(path, sizeof path, "%s/step-00000500/rank-00001-of-00002.ckp", parent);
        CHECK_INT(truncate(path, 1000), 0);
        snprintf(path, sizeof path, "%s/step-7", parent);
        CHECK_OK(dir_create(path, &e));
        CHECK_OK(ckpt_list_steps(parent, &steps, &n, &e));
        CHECK_INT(n, 3);
        CHECK(n == 3 && steps[0] == 100 && steps[1] == 200 && steps[2] == 400);
        free(steps);
    }
    CASE("opening the parent takes the newest valid one and says what it skipped")
    {
        CHECK_OK(ckpt_open(&c, parent, &e));
        CHECK_INT(c ? ckpt_step(c) : -1, 400);
        CHECK_CONTAINS(c ? ckpt_skipped(c) : "", "step-00000500/rank-00001-of-00002.ckp");
        ckpt_close(c);
    }
    CASE("pruning keeps the newest, clears leftovers older than it, touches nothing else")
    {
        CHECK_OK(ckpt_prune(parent, 0, 400, &e));
        CHECK_OK(ckpt_prune(parent, 1, 99, &e)); /* nothing is that old */
        const struct {
            const char *name;
            bool there[2];
        } after[] = {{"step-00000100", {true, false}},  {"step-00000200", {true, true}},
                     {"step-00000300", {false, false}}, {"step-00000400", {true, true}},
                     {"step-00000500", {true, true}},   {"step-00000600", {true, true}},
                     {"step-7", {true, true}}};
        for (int round = 0; round < 2; round++) {
            for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
                snprintf(path, sizeof path, "%s/%s", parent, after[i].name);
                CHECK(path_exists(path) == after[i].there[round]);
            }
            CHECK_OK(ckpt_prune(parent, 2, 400, &e));
        }
    }
    CASE("pruning lets later steps be: they are not what this run wrote")
    {
        CHECK_OK(ckpt_prune(parent, 1, 200, &e));
        snprintf(path, sizeof path, "%s/step-00000200", parent);
        CHECK(path_exists(path));
        snprintf(path, sizeof path, "%s/step-00000400", parent);
        CHECK(path_exists(path));
    }
    CASE("all steps with a manifest are listed, damaged or not")
    {
        CHECK_OK(ckpt_list_all_steps(parent, &steps, &n, &e));
        CHECK_INT(n, 3);
        CHECK(n == 3 && steps[0] == 200 && steps[1] == 400 && steps[2] == 500);
        free(steps);
    }
    CASE("one file is verified by itself")
    {
        snprintf(path, sizeof path, "%s/step-00000400", parent);
        CHECK_OK(ckpt_open(&c, path, &e));
        CHECK_OK(ckpt_verify_file(c, 0, &e));
        CHECK_OK(ckpt_verify_file(c, 1, &e));
        ckpt_close(c);
        snprintf(path, sizeof path, "%s/step-00000400/rank-00001-of-00002.ckp", parent);
        flip_data_byte(path);
        snprintf(path, sizeof path, "%s/step-00000400", parent);
        CHECK_OK(ckpt_open(&c, path, &e)); /* opening reads no data */
        CHECK_OK(ckpt_verify_file(c, 0, &e));
        CHECK_ERROR(ckpt_verify_file(c, 1, &e), STATUS_DATA, "rank-00001-of-00002.ckp");
        ckpt_close(c);
    }
}

static void test_writer(void)
{
    struct ckpt_segment s = {"t", CKPT_MASTER, 0, 10, 0};
    struct ckpt_writer *w = NULL;
    json_t *entry;
    float x[10] = {0};
    CASE("an unfinished file disappears")
    {
        CHECK_OK(dir_create(work_path("u"), &e));
        CHECK_OK(ckpt_writer_open(&w, work_path("u"), 0, 1, 1, &s, 1, NULL, &e));
        CHECK_OK(ckpt_writer_put(w, x, 9, &e));
        CHECK_ERROR(ckpt_writer_finish(w, &entry, &e), STATUS_USAGE, "9 elements put");
        ckpt_writer_free(w);
        CHECK(!path_exists(work_path("u/rank-00000-of-00001.ckp")));
        CHECK_INT(rmdir(work_path("u")), 0);
        CHECK_ERROR(ckpt_writer_open(&w, work_path("u"), 0, 1, 1, &s, 1, NULL, &e), STATUS_FAILED,
                    "cannot create");
    }
}

int main(void)
{
    work_begin("ckpt");
    test_round_trips();
    test_digest();
    test_coverage();
    test_damage();
    test_manifest_text();
    test_folder();
    test_writer();
    work_end();
    return tap_done();
}
