#include "ckpt-merge/inspect.h"

#include "base/checked.h"
#include "base/io.h"
#include "base/log.h"
#include "base/progress.h"
#include "ckpt-merge/tensors.h"
#include "gpt2/tensors.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 1 MiB: each thread holds two, and a checkpoint's whole block when it checks one. */
#define CHUNK_ELEMS ((int64_t)1 << 18)

/* What one chunk, and then one tensor, comes to. Sums are added in chunk order, so the digits do
 * not depend on threads. */
struct summary {
    double squares; /* of finite elements */
    double largest; /* magnitude */
    int64_t nans, infinities;
    double difference; /* of the other set; NaN against a number is infinite */
    int64_t where;
};

struct chunk {
    uint32_t tensor, other; /* indices in the sets */
    int64_t first, count;
    struct summary s;
};

struct scan {
    const struct tensor_set *set, *other; /* other: NULL unless comparing */
    struct chunk *chunks;
    size_t count;
    float **buffers; /* [2 * threads] */
    int threads;
    pthread_mutex_t lock;
    bool failed;
    struct error error;
    struct progress progress;
    uint64_t done;
};

static void summarize(struct chunk *c, const float *x)
{
    struct summary *s = &c->s;
    for (int64_t i = 0; i < c->count; i++) {
        double a = fabs((double)x[i]);
        if (isfinite(x[i])) {
            s->squares += a * a;
            s->largest = a > s->largest ? a : s->largest;
        } else if (isnan(x[i])) {
            s->nans++;
        } else {
            s->infinities++;
        }
    }
}

static void compare(struct chunk *c, const float *x, const float *y)
{
    struct summary *s = &c->s;
    s->where = c->first;
    for (int64_t i = 0; i < c->count; i++) {
        uint32_t a, b;
        memcpy(&a, &x[i], 4);
        memcpy(&b, &y[i], 4);
        if (a == b)
            continue;
        double d = fabs((double)x[i] - (double)y[i]);
        if (isnan(d)) /* one is not a number, or both are the same infinity's opposite */
            d = isnan(x[i]) && isnan(y[i]) ? 0.0 : INFINITY;
        if (d > s->difference) {
            s->difference = d;
            s->where = c->first + i;
        }
    }
}

static void run_chunk(void *arg, size_t i, int worker)
{
    struct scan *scan = arg;
    struct chunk *c = &scan->chunks[i];
    struct error e = {0};
    float *x = scan->buffers[2 * worker], *y = scan->buffers[2 * worker + 1];
    enum status st = tensor_set_read(scan->set, c->tensor, c->first, c->count, x, &e);
    if (st == STATUS_OK && scan->other)
        st = tensor_set_read(scan->other, c->other, c->first, c->count, y, &e);
    if (st == STATUS_OK && scan->other)
        compare(c, x, y);
    else if (st == STATUS_OK)
        summarize(c, x);
    pthread_mutex_lock(&scan->lock);
    if (st != STATUS_OK && !scan->failed) {
        scan->failed = true;
        scan->error = e;
    }
    scan->done += (uint64_t)c->count * 4;
    progress_update(&scan->progress, scan->done);
    pthread_mutex_unlock(&scan->lock);
}

/* --- one tensor's chunks ---------------------------------------------------------------------- */

static enum status add_chunks(struct scan *scan, size_t tensor, size_t other, struct error *e)
{
    int64_t elems = tensor_set_at(scan->set, tensor).elems;
    size_t more = (size_t)ceil_div_i64(elems, CHUNK_ELEMS);
    struct chunk *all = realloc(scan->chunks, (scan->count + more + 1) * sizeof *all);
    if (!all)
        return error_memory(e, (scan->count + more) * sizeof *all, "a list of pieces");
    scan->chunks = all;
    for (int64_t first = 0; first < elems; first += CHUNK_ELEMS)
        scan->chunks[scan->count++] = (struct chunk){.tensor = (uint32_t)tensor,
                                                     .other = (uint32_t)other,
                                                     .first = first,
                                                     .count = min_i64(CHUNK_ELEMS, elems - first)};
    return STATUS_OK;
}

static enum status scan_run(struct scan *scan, struct pool *pool, const char *label, bool quiet,
                            struct error *e)
{
    uint64_t total = 0;
    scan->threads = pool_threads(pool);
    scan->buffers = calloc(2 * (size_t)scan->threads, sizeof *scan->buffers);
    for (int i = 0; scan->buffers && i < 2 * scan->threads; i++)
        if (!(scan->buffers[i] = malloc((size_t)CHUNK_ELEMS * 4)))
            return error_memory(e, (size_t)CHUNK_ELEMS * 4, "a buffer");
    if (!scan->buffers)
        return error_memory(e, 64, "buffers");
    for (size_t i = 0; i < scan->count; i++)
        total += (uint64_t)scan->chunks[i].count * 4;
    progress_start(&scan->progress, label, "B", total, quiet);
    pool_run(pool, scan->count, run_chunk, scan);
    progress_finish(&scan->progress);
    if (!scan->failed)
        return STATUS_OK;
    *e = scan->error;
    return e->status;
}

static void scan_release(struct scan *scan)
{
    for (int i = 0; scan->buffers && i < 2 * scan->threads; i++)
        free(scan->buffers[i]);
    free(scan->buffers);
    free(scan->chunks);
    pthread_mutex_destroy(&scan->lock);
}

/* The chunks of one tensor, from *at on, as one summary; *at moves behind them. */
static struct summary take_summary(const struct scan *scan, uint32_t tensor, size_t *at)
{
    struct summary s = {0};
    for (; *at < scan->count && scan->chunks[*at].tensor == tensor; (*at)++) {
        const struct summary *c = &scan->chunks[*at].s;
        s.squares += c->squares;
        s.largest = c->largest > s.largest ? c->largest : s.largest;
        s.nans += c->nans;
        s.infinities += c->infinities;
        if (c->difference > s.difference) {
            s.difference = c->difference;
            s.where = c->where;
        }
    }
    return s;
}

static bool put_shape(struct strbuf *out, const struct tensor_view *t)
{
    bool ok = strbuf_putc(out, '[');
    for (int d = 0; ok && d < t->dims; d++)
        ok = strbuf_printf(out, d ? ",%lld" : "%lld", (long long)t->shape[d]);
    return ok && strbuf_putc(out, ']');
}

static enum status print(struct strbuf *text, struct error *e)
{
    struct output out = {0};
    TRY(output_open(&out, NULL, OUTPUT_TEXT, e));
    enum status st = output_write(&out, text->data, text->length, e);
    if (st == STATUS_OK)
        st = output_commit(&out, e);
    output_close(&out);
    return st;
}

/* --- list ------------------------------------------------------------------------------------- */

static bool put_list(struct strbuf *out, const struct scan *scan)
{
    size_t at = 0;
    bool ok = strbuf_puts(out, "tensor\tdtype\tshape\telements\tnorm\tlargest\tnan\tinf\n");
    for (size_t i = 0; ok && i < tensor_set_count(scan->set); i++) {
        struct tensor_view t = tensor_set_at(scan->set, i);
        ok = strbuf_printf(out, "%s\t%s\t", t.name, dtype_name(t.dtype)) && put_shape(out, &t) &&
             strbuf_printf(out, "\t%lld", (long long)t.elems);
        if (!tensor_set_is_real(scan->set, i)) {
            ok = ok && strbuf_puts(out, "\t-\t-\t-\t-\n");
            continue;
        }
        struct summary s = take_summary(scan, (uint32_t)i, &at);
        ok = ok && strbuf_printf(out, "\t%.9g\t%.9g\t%lld\t%lld\n", sqrt(s.squares), s.largest,
                                 (long long)s.nans, (long long)s.infinities);
    }
    return ok;
}

static enum status scan_set(struct scan *scan, struct pool *pool, const char *label, bool quiet,
                            struct error *e)
{
    for (size_t i = 0; i < tensor_set_count(scan->set); i++)
        if (tensor_set_is_real(scan->set, i))
            TRY(add_chunks(scan, i, 0, e));
    return scan_run(scan, pool, label, quiet, e);
}

enum status inspect_list(const struct merge_options *o, struct pool *pool, struct error *e)
{
    enum status st;
    struct tensor_set set = {0};
    struct scan scan = {.set = &set, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct strbuf text = {0};
    TRY_OUT(tensor_set_open(&set, o->input, o->kind, e));
    TRY_OUT(scan_set(&scan, pool, "list", o->quiet, e));
    if (!put_list(&text, &scan))
        TRY_OUT(error_memory(e, text.length, "the list"));
    TRY_OUT(print(&text, e));
out:
    strbuf_release(&text);
    scan_release(&scan);
    tensor_set_close(&set);
    return st;
}

/* --- verify ----------------------------------------------------------------------------------- */

static void on_bytes(void *arg, uint64_t bytes)
{
    progress_update(arg, bytes);
}

static enum status verify_digests(struct ckpt *c, bool quiet, struct error *e)
{
    struct progress progress;
    uint64_t total = 0;
    for (size_t i = 0; i < ckpt_file_count(c); i++)
        total += ckpt_file_at(c, i).bytes;
    progress_start(&progress, "verify", "B", total, quiet);
    enum status st = ckpt_verify(c, on_bytes, &progress, e);
    progress_finish(&progress);
    return st;
}

/* Values that no training should leave behind. */
static enum status check_finite(const struct scan *scan, struct error *e)
{
    size_t at = 0;
    for (size_t i = 0; i < tensor_set_count(scan->set); i++) {
        if (!tensor_set_is_real(scan->set, i))
            continue;
        struct summary s = take_summary(scan, (uint32_t)i, &at);
        if (s.nans + s.infinities > 0)
            return error_set(e, STATUS_DATA,
                             "%s: tensor \"%s\" has %lld NaN and %lld infinite elements",
                             scan->set->path, tensor_set_at(scan->set, i).name, (long long)s.nans,
                             (long long)s.infinities);
    }
    return STATUS_OK;
}

static bool put_verdict(struct strbuf *out, const struct tensor_set *s, bool model)
{
    int64_t elems = 0;
    for (size_t i = 0; i < tensor_set_count(s); i++)
        elems += tensor_set_at(s, i).elems;
    bool ok = strbuf_printf(out, "%s: ok", s->ckpt ? ckpt_path(s->ckpt) : s->path);
    if (s->ckpt)
        ok = ok && strbuf_printf(out, ", step %lld, %zu files", (long long)ckpt_step(s->ckpt),
                                 ckpt_file_count(s->ckpt));
    return ok &&
           strbuf_printf(out, ", %zu tensors, %lld elements%s\n", tensor_set_count(s),
                         (long long)elems, model ? "" : ", no config.json to compare shapes with");
}

enum status inspect_verify(const struct merge_options *o, struct pool *pool, struct error *e)
{
    enum status st;
    struct tensor_set set = {0};
    struct scan scan = {.set = &set, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct gpt2_config config;
    struct strbuf text = {0};
    bool found;
    TRY_OUT(tensor_set_open(&set, o->input, CKPT_MASTER, e));
    TRY_OUT(tensor_set_config(&set, &config, &found, e));
    if (found)
        TRY_OUT(tensor_set_check_model(&set, &config, e));
    if (set.ckpt && ckpt_skipped(set.ckpt)) /* asked about the folder, not for what can be used */
        TRY_OUT(error_set(e, STATUS_DATA, "%s", ckpt_skipped(set.ckpt)));
    if (set.ckpt)
        TRY_OUT(verify_digests(set.ckpt, o->quiet, e));
    TRY_OUT(scan_set(&scan, pool, "verify", o->quiet, e));
    TRY_OUT(check_finite(&scan, e));
    if (!put_verdict(&text, &set, found))
        TRY_OUT(error_memory(e, 256, "the verdict"));
    TRY_OUT(print(&text, e));
out:
    strbuf_release(&text);
    scan_release(&scan);
    tensor_set_close(&set);
    return st;
}

/* --- diff ------------------------------------------------------------------------------------- */

/* Pairs of the same name; what is on one side only, or of another shape, is said in the output. */
static enum status pair_tensors(struct scan *scan, struct strbuf *out, bool *unequal,
                                struct error *e)
{
    const struct tensor_set *a = scan->set, *b = scan->other;
    for (size_t i = 0; i < tensor_set_count(a); i++) {
        struct tensor_view x = tensor_set_at(a, i);
        int64_t j = tensor_set_find(b, x.name);
        struct tensor_view y = j >= 0 ? tensor_set_at(b, (size_t)j) : x;
        bool same = j >= 0 && x.dims == y.dims &&
                    memcmp(x.shape, y.shape, (size_t)x.dims * sizeof *x.shape) == 0;
        bool real = tensor_set_is_real(a, i) && j >= 0 && tensor_set_is_real(b, (size_t)j);
        if (same && real) {
            TRY(add_chunks(scan, i, (size_t)j, e));
            continue;
        }
        *unequal = true;
        if (!strbuf_printf(out, "%s\t%s\n", x.name,
                           j < 0   ? "only in the first"
                           : !same ? "shapes differ"
                                   : "not numbers"))
            return error_memory(e, 256, "the comparison");
    }
    for (size_t j = 0; j < tensor_set_count(b); j++) {
        const char *name = tensor_set_at(b, j).name;
        if (tensor_set_find(a, name) >= 0)
            continue;
        *unequal = true;
        if (!strbuf_printf(out, "%s\tonly in the second\n", name))
            return error_memory(e, 256, "the comparison");
    }
    return STATUS_OK;
}

static enum status put_diff(struct strbuf *out, const struct scan *scan, double *largest,
                            struct error *e)
{
    for (size_t at = 0; at < scan->count;) {
        uint32_t tensor = scan->chunks[at].tensor, other = scan->chunks[at].other;
        struct summary s = take_summary(scan, tensor, &at);
        float x = 0, y = 0;
        *largest = s.difference > *largest ? s.difference : *largest;
        if (s.difference > 0) {
            TRY(tensor_set_read(scan->set, tensor, s.where, 1, &x, e));
            TRY(tensor_set_read(scan->other, other, s.where, 1, &y, e));
        }
        bool ok =
            strbuf_printf(out, "%s\t%.9g", tensor_set_at(scan->set, tensor).name, s.difference);
        if (s.difference > 0)
            ok = ok &&
                 strbuf_printf(out, "\t%lld\t%.9g\t%.9g", (long long)s.where, (double)x, (double)y);
        if (!ok || !strbuf_putc(out, '\n'))
            return error_memory(e, out->length, "the comparison");
    }
    return STATUS_OK;
}

enum status inspect_diff(const struct merge_options *o, struct pool *pool, struct error *e)
{
    enum status st;
    struct tensor_set a = {0}, b = {0};
    struct scan scan = {.set = &a, .other = &b, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct strbuf text = {0};
    double largest = 0.0;
    bool unequal = false;
    TRY_OUT(tensor_set_open(&a, o->input, o->kind, e));
    TRY_OUT(tensor_set_open(&b, o->other, o->kind, e));
    if (!strbuf_puts(&text, "tensor\tlargest difference\telement\tfirst\tsecond\n"))
        TRY_OUT(error_memory(e, 64, "the comparison"));
    TRY_OUT(pair_tensors(&scan, &text, &unequal, e));
    TRY_OUT(scan_run(&scan, pool, "diff", o->quiet, e));
    TRY_OUT(put_diff(&text, &scan, &largest, e));
    TRY_OUT(print(&text, e));
    if (o->tolerance >= 0.0 && (unequal || largest > o->tolerance))
        TRY_OUT(error_set(e, STATUS_DATA, "%s and %s differ by %g%s, more than --tolerance %g",
                          o->input, o->other, largest,
                          unequal ? " and in which tensors they have" : "", o->tolerance));
out:
    strbuf_release(&text);
    scan_release(&scan);
    tensor_set_close(&a);
    tensor_set_close(&b);
    return st;
}
