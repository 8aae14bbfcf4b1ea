/* Any bytes as an SST-2 file. Promises: nothing crashes; reading always ends; a row that is read
 * and written as a JSON line reads back with the same index, bytes and label; what does not fit TSV
 * is refused, and what fits reads back too. */
// clang-format off
// sources: src/sst2-fetch/row.c src/sst2-fetch/row_tsv.c src/sst2-fetch/row_json.c src/sst2-fetch/emit.c
// sources: src/sst2-fetch/stream.c src/sst2-fetch/decoder_plain.c src/sst2-fetch/decoder_zip.c
// sources: src/format/jsonl.c src/base/*.c
// libs: -larchive -lz -ljansson -lxxhash
// clang-format on
#define _GNU_SOURCE
#include "fuzz.h"
#include "sst2-fetch/emit.h"
#include <sys/mman.h>

static const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("sentence\tlabel\ngood fun \t1\nno fun \t0\n"),
    FUZZ_SEED("index\tsentence\n0\tgood fun \n1\tno fun \n"),
    FUZZ_SEED("1\tgood fun \n0\tno fun \n-1\tso so\r\n"),
    FUZZ_SEED("0\tgood \t1\n1\tno \t0\n2\tx\t-1\n"),
    FUZZ_SEED("\xef\xbb\xbf\"good\" fun\n\n"),
    FUZZ_SEED("{\"idx\":0,\"sentence\":\"good \\u00e9\\ud83d\\ude00\\udcff \",\"label\":1}\n"),
    FUZZ_SEED("{\"text\":\"\\\\u0000\\\"\\u0000\",\"label\":null,\"x\":[1,{\"a\":[]}]}\n"),
    FUZZ_SEED("{\"label\":\"positive\",\"sentence\":\"caf\xc3\xa9 \xff\"}\r\n"),
    FUZZ_SEED("\x1f\x8b\x08\0\0\0\0\0\0\3\x4b\xcf\xcf\x4f\xe1\x32\xe4\x02\0"),
};
static const size_t fuzz_seed_count = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

struct reading {
    struct source_file file;
    struct source_head head;
    struct stream in;
    struct row_reader rows;
};

static enum status reading_open(struct reading *r, const void *data, size_t bytes, bool is_test,
                                struct error *e)
{
    memset(r, 0, sizeof(*r));
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    TRY(source_file_adopt(&r->file, &r->head, fd, "input", e));
    if (r->file.kind == SOURCE_ZIP) /* libarchive's own fuzzers are better at it */
        return STATUS_DATA;
    TRY(stream_open(&r->in, &r->file, &r->head, NULL, e));
    return row_reader_open(&r->rows, &r->in, is_test, e);
}

static void reading_close(struct reading *r)
{
    row_reader_close(&r->rows);
    stream_close(&r->in);
    source_file_close(&r->file);
}

/* Writes one row and reads it back. */
static void round_trip(const struct row *row, enum emit_format format)
{
    struct error e = {0};
    struct output out = {0};
    struct emitter m = {.out = &out, .format = format};
    struct reading back;
    struct row again;
    bool end;
    static uint8_t buffer[1 << 17]; /* an output that never reaches a file */
    out.buffer = buffer;
    out.capacity = sizeof(buffer);
    out.fd = -1;
    enum status st = emitter_write(&m, row, "input", &e);
    if (st == STATUS_OK) {
        FUZZ_CHECK(reading_open(&back, out.buffer, out.used, false, &e) == STATUS_OK);
        FUZZ_CHECK(row_reader_next(&back.rows, &again, &end, &e) == STATUS_OK && !end);
        FUZZ_CHECK(again.sentence_bytes == row->sentence_bytes);
        FUZZ_CHECK(memcmp(again.sentence, row->sentence, row->sentence_bytes) == 0);
        FUZZ_CHECK(again.label == row->label);
        FUZZ_CHECK(format == EMIT_TSV || again.idx == row->idx);
        FUZZ_CHECK(row_reader_next(&back.rows, &again, &end, &e) == STATUS_OK && end);
        reading_close(&back);
    } else {
        FUZZ_CHECK(st == STATUS_DATA && format == EMIT_TSV && out.used == 0);
    }
    emitter_release(&m);
}

static void fuzz_one(const uint8_t *data, size_t bytes)
{
    struct error e = {0};
    struct reading r;
    uint64_t rows = 0;
    enum status st = reading_open(&r, data, bytes, bytes % 2, &e);
    while (st == STATUS_OK) {
        struct row row;
        bool end;
        st = row_reader_next(&r.rows, &row, &end, &e);
        FUZZ_CHECK(rows++ <= r.in.offset + 1); /* of decoded bytes */
        if (st == STATUS_DATA && r.rows.bad_row) {
            FUZZ_CHECK(e.message[0]);
            st = STATUS_OK;
            continue;
        }
        if (st != STATUS_OK || end)
            break;
        round_trip(&row, EMIT_JSONL);
        round_trip(&row, EMIT_TSV);
    }
    FUZZ_CHECK(st == STATUS_OK || st == STATUS_DATA);
    reading_close(&r);
}
