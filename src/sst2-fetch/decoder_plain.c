/* Plain and gzip files. gzip is inflated with zlib itself because libarchive's filter does not
 * verify the checksum at the end. */
#include "sst2-fetch/decoder.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

struct plain {
    int fd;
    const char *name;
    uint64_t offset;
    struct source_head head;
    size_t head_used;
};

static enum status plain_open(void **state, const struct source_file *f,
                              const struct source_head *head, const char *member, const char *name,
                              struct error *e)
{
    (void)member;
    struct plain *p = calloc(1, sizeof(*p));
    if (!p)
        return error_memory(e, sizeof(*p), "a reader");
    p->fd = f->fd;
    p->name = name;
    if (head)
        p->head = *head;
    if (p->head.length == 0 && lseek(f->fd, 0, SEEK_SET) < 0 && errno != ESPIPE) {
        free(p);
        return error_errno(e, "%s: seeking to the start", name);
    }
    *state = p;
    return STATUS_OK;
}

static enum status plain_read(void *state, void *buf, size_t want, size_t *got, struct error *e)
{
    struct plain *p = state;
    if (p->head_used < p->head.length) {
        size_t left = p->head.length - p->head_used;
        *got = left < want ? left : want;
        memcpy(buf, p->head.bytes + p->head_used, *got);
        p->head_used += *got;
        p->offset += *got;
        return STATUS_OK;
    }
    for (;;) {
        ssize_t n = read(p->fd, buf, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(e, "%s: reading at byte %llu", p->name,
                               (unsigned long long)p->offset);
        p->offset += (uint64_t)n;
        *got = (size_t)n;
        return STATUS_OK;
    }
}

static void plain_close(void *state)
{
    free(state);
}

const struct decoder decoder_plain = {plain_open, plain_read, plain_close};

enum { GZIP_BUFFER = 1 << 16 };

struct gzip {
    void *source; /* a struct plain */
    const char *name;
    z_stream z;
    bool member_open; /* inside a gzip member: an end of file here means a cut file */
    uint64_t members;
    uint8_t buffer[GZIP_BUFFER];
};

static enum status gzip_open(void **state, const struct source_file *f,
                             const struct source_head *head, const char *member, const char *name,
                             struct error *e)
{
    struct gzip *g = calloc(1, sizeof(*g));
    if (!g)
        return error_memory(e, sizeof(*g), "a gzip reader");
    enum status st = plain_open(&g->source, f, head, member, name, e);
    if (st == STATUS_OK && inflateInit2(&g->z, 16 + MAX_WBITS) != Z_OK)
        st = error_memory(e, sizeof(g->z), "the gzip decoder");
    if (st != STATUS_OK) {
        plain_close(g->source);
        free(g);
        return st;
    }
    g->name = name;
    g->member_open = true;
    *state = g;
    return STATUS_OK;
}

static enum status gzip_fill(struct gzip *g, size_t *got, struct error *e)
{
    TRY(plain_read(g->source, g->buffer, sizeof(g->buffer), got, e));
    g->z.next_in = g->buffer;
    g->z.avail_in = (uInt)*got;
    return STATUS_OK;
}

/* Between members: another member, zero padding (tapes, block devices), or the end. */
static enum status gzip_next_member(struct gzip *g, bool *end, struct error *e)
{
    for (;;) {
        while (g->z.avail_in > 0 && *g->z.next_in == 0)
            g->z.next_in++, g->z.avail_in--;
        if (g->z.avail_in > 0)
            break;
        size_t got;
        TRY(gzip_fill(g, &got, e));
        if (got == 0) {
            *end = true;
            return STATUS_OK;
        }
    }
    if (*g->z.next_in != 0x1f)
        return error_set(e, STATUS_DATA, "%s: garbage after the end of the gzip data at byte %llu",
                         g->name,
                         (unsigned long long)((struct plain *)g->source)->offset - g->z.avail_in);
    inflateReset(&g->z);
    g->member_open = true;
    return STATUS_OK;
}

static enum status gzip_read(void *state, void *buf, size_t want, size_t *got, struct error *e)
{
    struct gzip *g = state;
    *got = 0;
    g->z.next_out = buf;
    g->z.avail_out = (uInt)(want < (1u << 30) ? want : 1u << 30);
    uInt room = g->z.avail_out;
    while (g->z.avail_out == room) {
        bool end = false;
        if (!g->member_open) {
            TRY(gzip_next_member(g, &end, e));
            if (end)
                return STATUS_OK;
        }
        if (g->z.avail_in == 0) {
            size_t n;
            TRY(gzip_fill(g, &n, e));
            if (n == 0)
                return error_set(e, STATUS_DATA, "%s: the gzip data is cut off at byte %llu",
                                 g->name, (unsigned long long)((struct plain *)g->source)->offset);
        }
        int rc = inflate(&g->z, Z_NO_FLUSH);
        if (rc == Z_STREAM_END) {
            g->member_open = false;
            g->members++;
        } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
            return error_set(e, STATUS_DATA, "%s: corrupt gzip data near byte %llu: %s", g->name,
                             (unsigned long long)((struct plain *)g->source)->offset -
                                 g->z.avail_in,
                             g->z.msg ? g->z.msg : zError(rc));
        }
    }
    *got = room - g->z.avail_out;
    return STATUS_OK;
}

static void gzip_close(void *state)
{
    struct gzip *g = state;
    if (!g)
        return;
    inflateEnd(&g->z);
    plain_close(g->source);
    free(g);
}

const struct decoder decoder_gzip = {gzip_open, gzip_read, gzip_close};
