#include "sdp/metrics.h"

#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_LIMIT_BYTES ((size_t)4 << 30)

/* Length of the leading part of text whose lines are whole and not later than step. */
static size_t kept_bytes(const char *text, size_t bytes, int64_t step)
{
    size_t kept = 0;
    while (kept < bytes) {
        const char *line = text + kept;
        const char *end = memchr(line, '\n', bytes - kept);
        json_t *json = end ? json_loadb(line, (size_t)(end - line), 0, NULL) : NULL;
        json_t *number = json_object_get(json, "step");
        bool keep = json_is_integer(number) && json_integer_value(number) <= step;
        json_decref(json);
        if (!keep)
            break;
        kept += (size_t)(end - line) + 1;
    }
    return kept;
}

static enum status continue_file(struct sdp_metrics *m, int64_t step, struct error *e)
{
    char *text = NULL;
    size_t bytes;
    TRY(file_read_all(m->name, FILE_LIMIT_BYTES, &text, &bytes, e));
    size_t kept = kept_bytes(text, bytes, step);
    free(text);
    if (kept < bytes && ftruncate(m->fd, (off_t)kept) != 0)
        return error_errno(e, "dropping the lines after step %lld of %s", (long long)step, m->name);
    return STATUS_OK;
}

enum status sdp_metrics_open(struct sdp_metrics *m, const char *path, int64_t step, struct error *e)
{
    *m = (struct sdp_metrics){.fd = -1};
    if (!path)
        return STATUS_OK;
    bool standard = strcmp(path, "-") == 0;
    m->name = strdup(standard ? "<stdout>" : path);
    if (!m->name)
        return error_memory(e, strlen(path), "a path");
    m->fd = standard
                ? dup(STDOUT_FILENO)
                : open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (step ? 0 : O_TRUNC), 0666);
    if (m->fd < 0)
        return error_errno(e, "opening the metrics file %s", m->name);
    return step > 0 && !standard ? continue_file(m, step, e) : STATUS_OK;
}

enum status sdp_metrics_put(struct sdp_metrics *m, json_t *object, struct error *e)
{
    if (m->fd < 0) {
        json_decref(object);
        return STATUS_OK;
    }
    char *text = json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10));
    json_decref(object);
    size_t n = text ? strlen(text) : 0;
    if (!text)
        return error_set(e, STATUS_FAILED, "%s: a metrics line cannot be written as JSON", m->name);
    text[n] = '\n'; /* in place of the NUL: the line goes out in one write */
    enum status st = fd_write_all(m->fd, m->name, text, n + 1, e);
    free(text);
    return st;
}

void sdp_metrics_close(struct sdp_metrics *m)
{
    if (m->fd >= 0)
        close(m->fd);
    free(m->name);
    *m = (struct sdp_metrics){.fd = -1};
}
