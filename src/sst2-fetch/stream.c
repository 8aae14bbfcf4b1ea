#define _GNU_SOURCE
#include "sst2-fetch/stream.h"
#include "sst2-fetch/decoder.h"
#include "base/io.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum source_kind kind_of(const uint8_t *head, size_t n)
{
    /* "PK\5\6" is a zip without members. */
    if (n >= 4 && head[0] == 'P' && head[1] == 'K' &&
        ((head[2] == 3 && head[3] == 4) || (head[2] == 5 && head[3] == 6)))
        return SOURCE_ZIP;
    if (n >= 2 && head[0] == 0x1f && head[1] == 0x8b)
        return SOURCE_GZIP;
    return SOURCE_PLAIN;
}

static enum status read_head(int fd, const char *name, struct source_head *head, struct error *e)
{
    head->length = 0;
    while (head->length < sizeof(head->bytes)) {
        ssize_t n = read(fd, head->bytes + head->length, sizeof(head->bytes) - head->length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(e, "%s: reading", name);
        if (n == 0)
            break;
        head->length += (size_t)n;
    }
    return STATUS_OK;
}

/* Copies the rest of a pipe, packed as it is, to an unnamed file, which takes its place. */
static enum status spool(struct source_file *f, struct source_head *head, const char *tmpdir,
                         struct error *e)
{
    enum { CHUNK = 1 << 16 };
    char *buffer = malloc(CHUNK), *path = path_join(tmpdir, "sst2-fetch-XXXXXX");
    enum status st = STATUS_OK;
    int fd = -1;
    if (!buffer || !path) {
        st = error_memory(e, CHUNK, "a copy buffer");
        goto out;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        st = error_errno(e, "creating a temporary file in %s", tmpdir);
        goto out;
    }
    unlink(path);
    TRY_OUT(fd_write_all(fd, path, head->bytes, head->length, e));
    for (;;) {
        ssize_t n = read(f->fd, buffer, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            st = error_errno(e, "%s: reading", f->name);
            goto out;
        }
        if (n == 0)
            break;
        TRY_OUT(fd_write_all(fd, path, buffer, (size_t)n, e));
    }
    if (f->own_fd)
        close(f->fd);
    f->fd = fd;
    f->own_fd = true;
    fd = -1;
    head->length = 0;
out:
    if (fd >= 0)
        close(fd);
    free(path);
    free(buffer);
    return st;
}

enum status source_file_open(struct source_file *f, struct source_head *head, const char *path,
                             bool reread, const char *tmpdir, struct error *e)
{
    bool is_stdin = strcmp(path, "-") == 0;
    const char *name = is_stdin ? "<stdin>" : path;
    f->name = strdup(name);
    if (!f->name)
        return error_memory(e, strlen(name), "a name");
    f->own_fd = !is_stdin;
    f->fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) {
        f->own_fd = false;
        return error_errno(e, "opening %s", name);
    }
    TRY(read_head(f->fd, f->name, head, e));
    f->kind = kind_of(head->bytes, head->length);
    /* Stdin may be a file of which somebody has already read a part: only its rest is ours. */
    bool rewinds = lseek(f->fd, 0, SEEK_CUR) == (off_t)head->length;
    if (rewinds)
        head->length = 0;
    else if (reread || f->kind == SOURCE_ZIP)
        TRY(spool(f, head, tmpdir, e));
    return STATUS_OK;
}

enum status source_file_adopt(struct source_file *f, struct source_head *head, int fd,
                              const char *name, struct error *e)
{
    f->fd = fd;
    f->own_fd = true;
    f->name = strdup(name);
    if (!f->name)
        return error_memory(e, strlen(name), "a name");
    if (lseek(fd, 0, SEEK_SET) != 0)
        return error_errno(e, "%s: seeking to the start", name);
    TRY(read_head(fd, f->name, head, e));
    f->kind = kind_of(head->bytes, head->length);
    head->length = 0;
    return STATUS_OK;
}

void source_file_close(struct source_file *f)
{
    if (f->own_fd)
        close(f->fd);
    free(f->name);
    memset(f, 0, sizeof(*f));
}

enum status stream_open(struct stream *s, const struct source_file *f,
                        const struct source_head *head, const char *member, struct error *e)
{
    static const struct decoder *const decoders[] = {
        [SOURCE_PLAIN] = &decoder_plain,
        [SOURCE_GZIP] = &decoder_gzip,
        [SOURCE_ZIP] = &decoder_zip,
    };
    memset(s, 0, sizeof(*s));
    s->capacity = 1 << 16;
    s->buffer = malloc(s->capacity);
    if (asprintf(&s->name, member ? "%s: %s" : "%s", f->name, member) < 0)
        s->name = NULL;
    if (!s->buffer || !s->name)
        return error_memory(e, s->capacity, "a line buffer");
    s->decoder = decoders[f->kind];
    return s->decoder->open(&s->state, f, head, member, s->name, e);
}

/* Makes room and reads more; s->at_end when there is none. */
static enum status stream_fill(struct stream *s, struct error *e)
{
    if (s->begin > 0) {
        memmove(s->buffer, s->buffer + s->begin, s->end - s->begin);
        s->end -= s->begin;
        s->begin = 0;
    }
    if (s->end == s->capacity) {
        char *bigger = realloc(s->buffer, s->capacity * 2);
        if (!bigger)
            return error_memory(e, s->capacity * 2, "a line buffer");
        s->buffer = bigger;
        s->capacity *= 2;
    }
    size_t got = 0;
    TRY(s->decoder->read(s->state, s->buffer + s->end, s->capacity - s->end, &got, e));
    s->end += got;
    s->at_end = got == 0;
    return STATUS_OK;
}

enum status stream_line(struct stream *s, const char **line, size_t *length, size_t limit_bytes,
                        struct error *e)
{
    size_t scanned = 0;
    char *lf = NULL;
    for (;;) {
        if (s->end > s->begin + scanned)
            lf = memchr(s->buffer + s->begin + scanned, '\n', s->end - s->begin - scanned);
        if (lf || s->at_end)
            break;
        scanned = s->end - s->begin;
        if (scanned > limit_bytes)
            return error_set(e, STATUS_DATA,
                             "%s:%llu: the line at byte %llu is longer than the limit of %zu bytes",
                             s->name, (unsigned long long)s->line + 1,
                             (unsigned long long)s->offset, limit_bytes);
        TRY(stream_fill(s, e));
    }
    size_t n = lf ? (size_t)(lf - s->buffer) - s->begin : s->end - s->begin;
    if (!lf && n == 0) {
        *line = NULL;
        *length = 0;
        return STATUS_OK;
    }
    *line = s->buffer + s->begin;
    *length = n > 0 && (*line)[n - 1] == '\r' ? n - 1 : n;
    size_t used = n + (lf ? 1 : 0);
    s->begin += used;
    s->offset += used;
    s->line++;
    return STATUS_OK;
}

void stream_close(struct stream *s)
{
    if (s->decoder && s->state)
        s->decoder->close(s->state);
    free(s->buffer);
    free(s->name);
    memset(s, 0, sizeof(*s));
}
