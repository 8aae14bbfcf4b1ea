#include "sst2-fetch/convert.h"
#include "base/hash.h"
#include "base/progress.h"
#include <stdio.h>
#include <string.h>

/* The splits that are made from train, as ranges of the unit interval that sentences hash into:
 * validation is [0, f), test is [f, 2f). */
struct holdout {
    bool made[SPLIT_COUNT];
    double fraction;
};

static void holdout_plan(struct holdout *h, const struct source *s, double fraction)
{
    memset(h, 0, sizeof(*h));
    h->fraction = fraction;
    for (int i = 0; i < SPLIT_COUNT; i++)
        h->made[i] = fraction > 0 && i != SPLIT_TRAIN && !source_has(s, (enum split)i);
}

static enum split holdout_split(const struct holdout *h, const struct row *row)
{
    double u = (double)(hash64(row->sentence, row->sentence_bytes) >> 11) * 0x1p-53;
    if (u < h->fraction)
        return h->made[SPLIT_VALIDATION] ? SPLIT_VALIDATION : SPLIT_TRAIN;
    if (u < 2 * h->fraction)
        return h->made[SPLIT_TEST] ? SPLIT_TEST : SPLIT_TRAIN;
    return SPLIT_TRAIN;
}

/* One more bad row: STATUS_OK while it is tolerated. e holds the reason. */
static enum status tolerate(const struct convert_options *o, struct convert_result *result,
                            struct error *e)
{
    if ((int64_t)result->skipped >= o->skip_bad) {
        if (o->skip_bad > 0)
            error_context(e, "more than %lld bad rows", (long long)o->skip_bad);
        return STATUS_DATA;
    }
    if (result->skipped++ == 0)
        snprintf(result->first_skipped, sizeof(result->first_skipped), "%.500s", e->message);
    error_clear(e);
    return STATUS_OK;
}

static enum status convert_rows(struct row_reader *r, enum split split, bool from_train,
                                const struct holdout *h, struct emitter *m,
                                const struct convert_options *o, struct convert_result *result,
                                struct error *e)
{
    struct progress progress;
    enum status st;
    progress_start(&progress, split_name(split), "rows", 0, o->quiet);
    for (;;) {
        struct row row;
        bool end;
        st = row_reader_next(r, &row, &end, e);
        bool bad = st == STATUS_DATA && r->bad_row;
        if (st == STATUS_OK && end)
            break;
        if (st == STATUS_OK && from_train && holdout_split(h, &row) != split)
            continue;
        if (st == STATUS_OK) {
            st = emitter_write(m, &row, r->in->name, e);
            bad = st == STATUS_DATA;
        }
        if (bad)
            st = tolerate(o, result, e);
        if (st != STATUS_OK)
            break;
        if (m->rows % 1024 == 0)
            progress_update(&progress, m->rows);
    }
    if (progress.drawn) /* the next message begins on a line of its own */
        progress_finish(&progress);
    return st;
}

enum status convert_split(struct source *s, enum split split, const struct convert_options *o,
                          struct output *out, struct convert_result *result, struct error *e)
{
    struct holdout h;
    struct stream in = {0};
    struct row_reader reader = {0};
    struct emitter emitter = {.out = out, .format = o->format, .is_test = split == SPLIT_TEST};
    enum status st;

    memset(result, 0, sizeof(*result));
    holdout_plan(&h, s, o->holdout);
    result->made = h.made[split];
    enum split from = h.made[split] ? SPLIT_TRAIN : split;
    if (!source_has(s, from)) {
        char there[64];
        source_describe(s, there, sizeof(there));
        return error_set(e, STATUS_DATA, "%s has no %s split (found: %s)%s", s->request.source,
                         split_name(from), there,
                         from == SPLIT_TRAIN ? "" : "; --holdout 5% makes one from train");
    }
    TRY_OUT(source_stream(s, from, &in, e));
    TRY_OUT(row_reader_open(&reader, &in, from == SPLIT_TEST, e));
    TRY_OUT(convert_rows(&reader, split, from == SPLIT_TRAIN, &h, &emitter, o, result, e));
    if (emitter.rows == 0 && !result->made) {
        st = error_set(e, STATUS_DATA, "%s: found no row", in.name);
        goto out;
    }
    TRY_OUT(emitter_finish(&emitter, e));
    result->rows = emitter.rows;
    result->positive = emitter.positive;
    result->negative = emitter.negative;
out:
    emitter_release(&emitter);
    row_reader_close(&reader);
    stream_close(&in);
    return st;
}
