#define _GNU_SOURCE
#include "gpt2-infer/sink.h"

#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_LIMIT ((size_t)1 << 32)

struct sink {
    char *path, *partial; /* NULL for stdout */
    struct output standard;
    int fd; /* of partial */
    struct strbuf buffer;
    uint64_t answered, written, failed;
    uint64_t earlier_failed;
    uint64_t input_begin, input_end; /* of what this run wrote */
    struct error first_failure;
    struct input earlier; /* the answers of an earlier run, re-read beside the input */
    bool checking;
    struct job *head, **tail;
    size_t pending;
};

/* Counts complete lines; *good is the length of the file up to the last of them. */
static enum status count_answers(const char *path, uint64_t *lines, uint64_t *failed,
                                 uint64_t *good, struct error *e)
{
    struct input in = {0};
    enum status st;
    const char *line;
    size_t length;
    *lines = *failed = *good = 0;
    TRY(input_open(&in, path, e));
    for (;;) {
        uint64_t before = in.offset;
        TRY_OUT(input_line(&in, &line, &length, LINE_LIMIT, e));
        if (!line || in.offset - before == length) /* the end, or no LF: cut while writing */
            break;
        static const char mark[] = ",\"error\":{";
        (*lines)++;
        *failed += memmem(line, length < 4096 ? length : 4096, mark, sizeof mark - 1) != NULL;
        *good = in.offset;
    }
    st = STATUS_OK;
out:
    input_close(&in);
    return st;
}

static enum status open_partial(struct sink *s, bool resume, struct error *e)
{
    uint64_t good = 0;
    if (resume) {
        if (!path_exists(s->partial) && path_exists(s->path) && rename(s->path, s->partial) != 0)
            return error_errno(e, "cannot rename %s to %s", s->path, s->partial);
        if (path_exists(s->partial))
            TRY(count_answers(s->partial, &s->answered, &s->earlier_failed, &good, e));
    }
    s->fd = open(s->partial, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (s->fd < 0)
        return error_errno(e, "cannot write %s", s->partial);
    if (ftruncate(s->fd, (off_t)good) != 0 || lseek(s->fd, (off_t)good, SEEK_SET) < 0)
        return error_errno(e, "cannot continue %s at byte %llu", s->partial,
                           (unsigned long long)good);
    if (s->answered > 0) {
        TRY(input_open(&s->earlier, s->partial, e));
        s->checking = true;
    }
    return STATUS_OK;
}

enum status sink_open(struct sink **out, const char *path, bool resume, struct error *e)
{
    enum status st;
    struct sink *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return error_memory(e, sizeof *s, "the output");
    s->fd = -1;
    s->tail = &s->head;
    if (!path || strcmp(path, "-") == 0) {
        TRY_OUT(output_open(&s->standard, NULL, OUTPUT_TEXT, e));
    } else {
        s->path = strdup(path);
        if (!s->path || asprintf(&s->partial, "%s.partial", path) < 0) {
            s->partial = NULL;
            TRY_OUT(error_memory(e, strlen(path), "a file name"));
        }
        TRY_OUT(open_partial(s, resume, e));
    }
    *out = s;
    s = NULL;
out:
    sink_close(s);
    return st;
}

uint64_t sink_answered(const struct sink *s)
{
    return s->answered;
}

enum status sink_check_answered(void *arg, const struct job *job, struct error *e)
{
    struct sink *s = arg;
    const char *line;
    char want[64];
    size_t length;
    static const char start[] = "{\"id\":";
    const char *id = job->id;
    if (!id) {
        snprintf(want, sizeof want, "%llu", (unsigned long long)job->number);
        id = want;
    }
    TRY(input_line(&s->earlier, &line, &length, LINE_LIMIT, e));
    size_t n = strlen(id), skip = sizeof start - 1;
    if (line && length > skip + n && memcmp(line, start, skip) == 0 &&
        memcmp(line + skip, id, n) == 0 && (line[skip + n] == ',' || line[skip + n] == '}'))
        return STATUS_OK;
    return error_set(e, STATUS_DATA,
                     "%s line %llu does not answer the record with id %.100s on line %llu of the "
                     "input: --resume needs the same input",
                     s->partial, (unsigned long long)job->number + 1, id,
                     (unsigned long long)job->line);
}

void sink_put(struct sink *s, struct job *job)
{
    job->next = NULL;
    *s->tail = job;
    s->tail = &job->next;
    s->pending++;
}

static enum status write_buffer(struct sink *s, struct error *e)
{
    if (s->buffer.length == 0)
        return STATUS_OK;
    if (s->partial) {
        TRY(fd_write_all(s->fd, s->partial, s->buffer.data, s->buffer.length, e));
    } else {
        TRY(output_write(&s->standard, s->buffer.data, s->buffer.length, e));
        TRY(output_flush(&s->standard, e));
    }
    strbuf_clear(&s->buffer);
    return STATUS_OK;
}

enum status sink_write_ready(struct sink *s, struct error *e)
{
    while (s->head && s->head->done) {
        struct job *job = s->head;
        if (!strbuf_append(&s->buffer, job->answer.data, job->answer.length) ||
            !strbuf_putc(&s->buffer, '\n'))
            return error_memory(e, job->answer.length, "answers");
        if (job->failed && s->failed++ == 0)
            s->first_failure = job->error;
        if (s->written++ == 0)
            s->input_begin = job->end - job->bytes;
        s->input_end = job->end;
        s->head = job->next;
        if (!s->head)
            s->tail = &s->head;
        s->pending--;
        job_free(job);
    }
    return write_buffer(s, e);
}

size_t sink_pending(const struct sink *s)
{
    return s->pending;
}

uint64_t sink_written(const struct sink *s)
{
    return s->written;
}

uint64_t sink_failed(const struct sink *s)
{
    return s->failed + s->earlier_failed;
}

void sink_input_span(const struct sink *s, uint64_t *begin, uint64_t *end)
{
    *begin = s->input_begin;
    *end = s->input_end;
}

const struct error *sink_first_failure(const struct sink *s)
{
    return s->failed ? &s->first_failure : NULL;
}

static enum status sync_folder(const char *path, struct error *e)
{
    const char *slash = strrchr(path, '/');
    char *dir = !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!dir)
        return error_memory(e, strlen(path), "a folder's name");
    enum status st = dir_sync(dir, e);
    free(dir);
    return st;
}

enum status sink_commit(struct sink *s, struct error *e)
{
    if (!s->partial)
        return output_commit(&s->standard, e);
    if (fsync(s->fd) != 0)
        return error_errno(e, "cannot make %s durable", s->partial);
    if (rename(s->partial, s->path) != 0)
        return error_errno(e, "cannot rename %s to %s", s->partial, s->path);
    return sync_folder(s->path, e);
}

void sink_close(struct sink *s)
{
    if (!s)
        return;
    if (!s->path)
        output_close(&s->standard);
    if (s->fd >= 0)
        close(s->fd);
    if (s->checking)
        input_close(&s->earlier);
    while (s->head) {
        struct job *job = s->head;
        s->head = job->next;
        job_free(job);
    }
    strbuf_release(&s->buffer);
    free(s->path);
    free(s->partial);
    free(s);
}
