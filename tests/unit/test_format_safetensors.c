/* test_format_safetensors.c - reading, writing and refusing; a reference file when there is one. */
#include "format_test.h"
#include "base/le.h"
#include "format/safetensors.h"

static struct error e;

/* A file from a header text and data bytes. */
static const char *make(const char *name, const char *header, size_t data_bytes)
{
    size_t n = strlen(header);
    uint8_t *file = calloc(1, 8 + n + data_bytes + 1);
    le64_put(file, n);
    memcpy(file + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++)
        file[8 + n + i] = (uint8_t)i;
    const char *path = work_path(name);
    write_file(path, file, 8 + n + data_bytes);
    free(file);
    return path;
}

static enum status open_close(const char *path)
{
    struct safetensors *s;
    enum status st = safetensors_open(&s, path, &e);
    safetensors_close(s);
    return st;
}

static enum status (*const readers[])(const struct safetensors *, const struct safetensor *,
                                      int64_t, int64_t, float *, struct error *) = {
    safetensors_read_f32, safetensors_pread_f32};

static void test_round_trip(void)
{
    static const char *const metadata[] = {"format", "pt", "note", "a \"quoted\" word", NULL};
    float values[24], back[24];
    uint16_t halves[2][24];
    struct safetensor t[] = {
        {.name = "transformer.h.0.w", .dtype = DTYPE_F32, .dims = 3, .shape = {2, 3, 4}},
        {.name = "transformer.bias", .dtype = DTYPE_BF16, .dims = 1, .shape = {24}},
        {.name = "empty", .dtype = DTYPE_F32, .dims = 2, .shape = {0, 7}},
        {.name = "half", .dtype = DTYPE_F16, .dims = 2, .shape = {12, 2}},
        {.name = "scalar", .dtype = DTYPE_F32, .dims = 0},
    };
    struct output out = {0};
    struct safetensors *s = NULL;
    for (int i = 0; i < 24; i++) {
        values[i] = (float)i * 0.75f - 8;
        halves[0][i] = f32_to_bf16(values[i]);
        halves[1][i] = f32_to_f16(values[i]);
    }
    CASE("what is written is read")
    {
        CHECK_OK(output_open(&out, work_path("m.safetensors"), OUTPUT_BINARY, &e));
        CHECK_OK(safetensors_write_header(&out, t, 5, metadata, &e));
        CHECK_INT(out.offset % 64, 0);
        CHECK_INT(t[0].offset, out.offset);
        CHECK_INT(t[3].bytes, 48);
        CHECK_OK(output_write(&out, values, sizeof values, &e));
        CHECK_OK(output_write(&out, halves, sizeof halves, &e));
        CHECK_OK(output_write(&out, values, 4, &e));
        CHECK_OK(output_commit(&out, &e));
        output_close(&out);
        CHECK_OK(safetensors_open(&s, work_path("m.safetensors"), &e));
        CHECK_INT(safetensors_count(s), 5);
        CHECK_STR(safetensors_metadata(s, "note"), "a \"quoted\" word");
        CHECK(!safetensors_metadata(s, "none"));
        const char *const names[] = {"h.0.w", "bias", "transformer.half"};
        for (int k = 0; k < 3; k++) {
            const struct safetensor *found = safetensors_find(s, names[k]);
            CHECK(found != NULL);
            if (!found)
                continue;
            CHECK_INT(found->elems, 24);
            for (int r = 0; r < 2; r++) {
                memset(back, 0xff, sizeof back);
                CHECK_OK(readers[r](s, found, 5, 19, back, &e));
                for (int i = 0; i < 19; i++)
                    CHECK_NEAR(back[i], values[5 + i], 0);
                CHECK_ERROR(readers[r](s, found, 5, 20, back, &e), STATUS_USAGE, "24 elements");
            }
        }
        CHECK_INT(safetensors_find(s, "scalar")->elems, 1);
        CHECK_INT(safetensors_find(s, "empty")->elems, 0);
        CHECK_INT(safetensors_find(s, "transformer.h.0.w")->shape[2], 4);
        CHECK(!safetensors_find(s, "h.0"));
        safetensors_close(s);
    }
    CASE("every cut is refused")
    {
        size_t bytes;
        uint8_t *good = read_file(work_path("m.safetensors"), &bytes);
        for (size_t n = 0; n < bytes; n++) {
            write_file(work_path("cut"), good, n);
            CHECK_ERROR(open_close(work_path("cut")), STATUS_DATA, "cut");
        }
        free(good);
    }
}

static void test_wide(void)
{
    struct safetensor t[] = {{.name = "wide", .dtype = DTYPE_F64, .dims = 1, .shape = {1500}},
                             {.name = "whole", .dtype = DTYPE_I64, .dims = 1, .shape = {2}}};
    double values[1502];
    float back[1500];
    struct output out = {0};
    struct safetensors *s = NULL;
    for (int i = 0; i < 1502; i++)
        values[i] = i * 0.1 - 70;
    CASE("fp64 is rounded, integers are refused, mapped or not")
    {
        CHECK_OK(output_open(&out, work_path("wide"), OUTPUT_BINARY, &e));
        CHECK_OK(safetensors_write_header(&out, t, 2, NULL, &e));
        CHECK_OK(output_write(&out, values, sizeof values, &e));
        CHECK_OK(output_commit(&out, &e));
        output_close(&out);
        CHECK_OK(safetensors_open(&s, work_path("wide"), &e));
        for (int r = 0; r < 2; r++) {
            CHECK_OK(readers[r](s, safetensors_find(s, "wide"), 3, 1497, back, &e));
            for (int i = 0; i < 1497; i++)
                CHECK_NEAR(back[i], (float)values[3 + i], 0);
            CHECK_ERROR(readers[r](s, safetensors_find(s, "whole"), 0, 1, back, &e), STATUS_DATA,
                        "expected a float type");
        }
    }
    CASE("a file that is cut while it is open")
    {
        CHECK_INT(truncate(work_path("wide"), 1000), 0);
        CHECK_ERROR(safetensors_pread_f32(s, safetensors_find(s, "wide"), 3, 1497, back, &e),
                    STATUS_DATA, "wide");
        safetensors_close(s);
    }
}

static void test_refusals(void)
{
#define T(name, dtype, shape, begin, end)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end \
    "]}"
    static const struct {
        const char *header, *words;
        size_t bytes;
    } bad[] = {
        {"{" T("a", "F32", "[2]", "0", "8") "}", "hold", 9},
        {"{" T("a", "F32", "[2]", "0", "8") "}", "cut", 7},
        {"{" T("a", "F32", "[2]", "0", "4") "}", "need 8", 8},
        {"{" T("a", "F32", "[2]", "4", "12") "}", "gap", 12},
        {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[2]", "4", "12") "}", "overlap", 12},
        {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[2]", "12", "20") "}", "gap", 20},
        {"{" T("a", "F32", "[2]", "0", "8") "," T("a", "F32", "[2]", "0", "8") "}", "not JSON", 8},
        {"{" T("a", "F7", "[2]", "0", "8") "}", "dtype \"F7\"", 8},
        {"{" T("a", "F32", "[-2]", "0", "8") "}", "not a size", 8},
        {"{" T("a", "F32", "[1.5]", "0", "8") "}", "not a size", 8},
        {"{" T("a", "F32", "[1,1,1,1,2]", "0", "8") "}", "dimensions", 8},
        {"{" T("a", "F32", "[4294967296,4294967296,4]", "0", "8") "}", "overflows", 8},
        {"{" T("a", "F32", "[4611686018427387904]", "0", "8") "}", "overflows", 8},
        {"{" T("a", "F32", "[2]", "8", "0") "}", "data_offsets", 8},
        {"{" T("a", "F32", "[2]", "-8", "0") "}", "data_offsets", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "data_offsets", 8},
        {"{\"a\":3}", "dtype", 8},
        {"{\"a\":", "not JSON", 8},
        {"[1, 2]", "expected '{'", 8},
    };
#undef T
    CASE("headers that lie are refused")
    {
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
            CHECK_ERROR(open_close(make("bad", bad[i].header, bad[i].bytes)), STATUS_DATA,
                        bad[i].words);
    }
    CASE("a header length beyond the file or all reason")
    {
        uint8_t file[64] = {0};
        file[8] = '{';
        const uint64_t claims[] = {0, 1, 57, 1u << 20, 100000001, 1ull << 40, UINT64_MAX};
        for (int i = 0; i < 7; i++) {
            le64_put(file, claims[i]);
            write_file(work_path("bad"), file, sizeof file);
            CHECK_ERROR(open_close(work_path("bad")), STATUS_DATA, "bad");
        }
    }
    CASE("missing and empty files")
    {
        CHECK_ERROR(open_close(work_path("none")), STATUS_FAILED, "cannot open");
        write_file(work_path("bad"), "", 0);
        CHECK_ERROR(open_close(work_path("bad")), STATUS_DATA, "is empty");
        CHECK_ERROR(open_close(work_dir), STATUS_DATA, "neither");
    }
}

static void test_index(void)
{
    struct safetensors *s = NULL;
    const char *index = work_path("model.safetensors.index.json");
    CASE("a folder with an index")
    {
        make("one.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
             8);
        make("two.safetensors", "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
             4);
        const char *good = "{\"metadata\":{},\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one."
                           "safetensors\"}}";
        write_file(index, good, strlen(good));
        CHECK_OK(safetensors_open(&s, work_dir, &e));
        CHECK_INT(safetensors_count(s), 2);
        const struct safetensor *a = safetensors_find(s, "a");
        CHECK(a && strstr(safetensors_file_name(s, a->file), "one.safetensors"));
        safetensors_close(s);
    }
    CASE("an index that lies")
    {
        static const struct {
            const char *text, *words;
        } bad[] = {
            {"{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"two.safetensors\"}}",
             "\"a\" is not in two"},
            {"{\"weight_map\":{\"a\":\"three.safetensors\"}}", "three.safetensors"},
            {"{\"weight_map\":{\"a\":\"../one.safetensors\"}}", "same folder"},
            {"{\"weight_map\":{}}", "weight_map"},
            {"{\"weight_map\":", "not JSON"},
            {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"again.safetensors\"}}", "in both"},
        };
        make("again.safetensors",
             "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            write_file(index, bad[i].text, strlen(bad[i].text));
            error_clear(&e);
            CHECK(open_close(work_dir) != STATUS_OK);
            CHECK_CONTAINS(e.message, bad[i].words);
        }
    }
}

int main(void)
{
    work_begin("safetensors");
    test_round_trip();
    test_wide();
    test_refusals();
    test_index();
    work_end();
    return tap_done();
}
