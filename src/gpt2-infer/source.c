#define _GNU_SOURCE
#include "gpt2-infer/source.h"

#include "base/io.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE_JOBS 512
#define QUEUE_BYTES ((size_t)16 << 20)
#define TEXT_READ_BYTES ((size_t)1 << 16)
#define STOP_SECONDS 1

struct source {
    const struct engine *g;
    struct input in; /* of the thread, once it runs */
    uint64_t input_bytes;
    struct job_reader reader; /* of the thread */
    uint64_t skip, number;
    enum status (*check)(void *, const struct job *, struct error *);
    void *check_arg;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    struct job *head, **tail;
    size_t jobs, bytes;
    bool ended, closing;
    enum status status; /* of the reading, valid once ended */
    struct error error;
};

/* Hands a job over, waiting for room. False when the source is being closed. */
static bool push(struct source *s, struct job *job)
{
    pthread_mutex_lock(&s->lock);
    while (!s->closing && (s->jobs >= QUEUE_JOBS || (s->jobs > 0 && s->bytes >= QUEUE_BYTES)))
        pthread_cond_wait(&s->changed, &s->lock);
    bool open = !s->closing;
    if (open) {
        job->next = NULL;
        *s->tail = job;
        s->tail = &job->next;
        s->jobs++;
        s->bytes += job->bytes;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    if (!open)
        job_free(job);
    return open;
}

static enum status add_record(struct source *s, const char *bytes, size_t length, bool raw,
                              bool *open, struct error *e)
{
    struct job *job;
    TRY(job_parse(&s->reader, bytes, length, raw, s->number, s->in.line, &job, e));
    job->end = s->in.offset;
    if (s->number++ >= s->skip) {
        *open = push(s, job);
        return STATUS_OK;
    }
    enum status st = s->check ? s->check(s->check_arg, job, e) : STATUS_OK;
    job_free(job);
    return st;
}

static bool is_blank(const char *p, size_t n)
{
    while (n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\t' || p[n - 1] == '\r'))
        n--;
    return n == 0;
}

static enum status read_lines(struct source *s, bool raw, struct error *e)
{
    for (bool open = true; open;) {
        const char *line;
        size_t length;
        TRY(input_line(&s->in, &line, &length, (size_t)s->g->o->max_record_bytes, e));
        if (!line)
            return STATUS_OK;
        if (raw || !is_blank(line, length))
            TRY(add_record(s, line, length, raw, &open, e));
    }
    return STATUS_OK;
}

static enum status read_whole(struct source *s, struct error *e)
{
    struct strbuf text = {0};
    enum status st = STATUS_OK;
    size_t got = 1, limit = (size_t)s->g->o->max_record_bytes;
    bool open;
    while (got > 0) {
        if (!strbuf_reserve(&text, TEXT_READ_BYTES))
            TRY_OUT(error_memory(e, text.length + TEXT_READ_BYTES, "the input"));
        TRY_OUT(input_read(&s->in, text.data + text.length, TEXT_READ_BYTES, &got, e));
        text.length += got;
        if (text.length > limit)
            TRY_OUT(error_set(e, STATUS_DATA, "%s is longer than --max-record-bytes %zu",
                              s->in.name, limit));
    }
    s->in.line = 1;
    st = add_record(s, text.data, text.length, true, &open, e);
out:
    strbuf_release(&text);
    return st;
}

static void *reader_main(void *arg)
{
    struct source *s = arg;
    struct error e = {0};
    enum status st;
    if (strcmp(s->g->o->input_format, "text") == 0)
        st = read_whole(s, &e);
    else
        st = read_lines(s, strcmp(s->g->o->input_format, "lines") == 0, &e);
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    s->status = st;
    s->error = e;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

enum status source_open(struct source **out, const struct engine *g, const char *path,
                        uint64_t skip,
                        enum status (*check)(void *, const struct job *, struct error *),
                        void *check_arg, struct error *e)
{
    enum status st;
    struct source *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return error_memory(e, sizeof *s, "the input");
    s->g = g;
    s->skip = skip;
    s->check = check;
    s->check_arg = check_arg;
    s->tail = &s->head;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    TRY_OUT(input_open(&s->in, path, e));
    s->input_bytes = input_size(&s->in);
    TRY_OUT(job_reader_init(&s->reader, g, s->in.name, e));
    if (pthread_create(&s->thread, NULL, reader_main, s) != 0)
        TRY_OUT(error_set(e, STATUS_FAILED, "cannot start a thread for reading"));
    s->started = true;
    *out = s;
    s = NULL;
out:
    source_close(s);
    return st;
}

uint64_t source_input_bytes(const struct source *s)
{
    return s->input_bytes;
}

enum status source_take(struct source *s, bool wait, struct job **job, bool *ended, struct error *e)
{
    enum status st = STATUS_OK;
    pthread_mutex_lock(&s->lock);
    while (wait && !s->head && !s->ended)
        pthread_cond_wait(&s->changed, &s->lock);
    *job = s->head;
    *ended = !s->head && s->ended;
    if (*job) {
        s->head = (*job)->next;
        if (!s->head)
            s->tail = &s->head;
        s->jobs--;
        s->bytes -= (*job)->bytes;
        pthread_cond_broadcast(&s->changed);
    } else if (s->ended && s->status != STATUS_OK) {
        *e = s->error;
        st = s->status;
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* Asks the thread to end and waits a little; false when it is still reading. */
static bool stop_thread(struct source *s)
{
    struct timespec until;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    bool ended = s->ended;
    pthread_mutex_unlock(&s->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_SECONDS;
    if (ended)
        return pthread_join(s->thread, NULL) == 0;
    return pthread_timedjoin_np(s->thread, NULL, &until) == 0;
}

bool source_close(struct source *s)
{
    if (!s)
        return true;
    if (s->started && !stop_thread(s))
        return false;
    while (s->head) {
        struct job *job = s->head;
        s->head = job->next;
        job_free(job);
    }
    job_reader_release(&s->reader);
    input_close(&s->in);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
    return true;
}
