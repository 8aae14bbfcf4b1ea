/* io_output.c - output that is complete or absent.
 *
 * A path is written into an unnamed temporary (O_TMPFILE), which the kernel removes when the
 * process dies however it dies. Committing gives it a hidden name and renames that over the final
 * name. Where the filesystem has no unnamed files, the hidden name exists from the start. A path
 * that names something other than a regular file (/dev/null, a FIFO) is written in place: replacing
 * it by a regular file would be wrong. */
#define _GNU_SOURCE
#include "base/io.h"
#include "base/io_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define OUTPUT_BUFFER_BYTES ((size_t)256 << 10)
#define NAME_ATTEMPTS 64

enum status fd_write_all(int fd, const char *name, const void *buf, size_t n, struct error *e)
{
    const uint8_t *p = buf;
    size_t done = 0;
    while (done < n) {
        ssize_t w = write(fd, p + done, n - done);
        if (w < 0 && io_wait_ready(fd, POLLOUT))
            continue;
        if (w < 0)
            return error_errno(e, "writing %s", name);
        done += (size_t)w;
    }
    return STATUS_OK;
}

/* FOLDER/.NAME.RANDOM.tmp; NULL when out of memory. The name part is cut to stay under NAME_MAX. */
static char *hidden_name(const char *path)
{
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) != (ssize_t)sizeof bits)
        bits = (uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)&bits;
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    int folder = (int)(base - path);
    char *name = NULL;
    if (asprintf(&name, "%.*s.%.200s.%016" PRIx64 ".tmp", folder, path, base, bits) < 0)
        return NULL;
    return name;
}

/* Creates a named hidden temporary; returns the descriptor or -1 with errno. */
static int open_hidden(const char *path, char **temporary)
{
    for (int i = 0; i < NAME_ATTEMPTS; i++) {
        char *name = hidden_name(path);
        if (!name) {
            errno = ENOMEM;
            return -1;
        }
        int fd = io_open_high(name, O_RDWR | O_CREAT | O_EXCL, 0666);
        if (fd >= 0) {
            *temporary = name;
            return fd;
        }
        int saved = errno;
        free(name);
        errno = saved;
        if (saved != EEXIST)
            return -1;
    }
    return -1;
}

static enum status open_temporary(struct output *out, struct error *e)
{
    char *folder = io_folder_of(out->path);
    if (!folder)
        return error_memory(e, strlen(out->path), "a folder name");
    out->fd = io_open_high(folder, O_TMPFILE | O_RDWR, 0666);
    free(folder);
    /* Not every filesystem has O_TMPFILE; and linking it later needs /proc. */
    if (out->fd >= 0 && access("/proc/self/fd", X_OK) != 0) {
        close(out->fd);
        out->fd = -1;
    }
    if (out->fd < 0)
        out->fd = open_hidden(out->path, &out->temporary);
    if (out->fd < 0)
        return error_errno(e, "cannot create %s", out->name);
    return STATUS_OK;
}

/* Decides between a temporary and writing in place; out->name is set. */
static enum status open_path(struct output *out, const char *path, struct error *e)
{
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return error_set(e, STATUS_FAILED, "cannot write %s: it is a folder, expected a file",
                         path);
    if (exists && !S_ISREG(st.st_mode)) {
        out->fd = io_open_high(path, O_WRONLY, 0);
        if (out->fd < 0)
            return error_errno(e, "cannot open %s for writing", path);
        return STATUS_OK;
    }
    /* Through a symbolic link the file it points to is replaced, not the link. */
    out->path = exists ? realpath(path, NULL) : strdup(path);
    if (!out->path)
        return error_errno(e, "cannot resolve %s", path);
    TRY(open_temporary(out, e));
    if (exists)
        (void)fchmod(out->fd, st.st_mode & 07777); /* keep the mode; fails only for others' files */
    return STATUS_OK;
}

enum status output_open(struct output *out, const char *path, enum output_kind kind,
                        struct error *e)
{
    *out = (struct output){.fd = -1};
    bool is_stdout = !path || strcmp(path, "-") == 0;
    const char *name = is_stdout ? "<stdout>" : path;
    enum status st = STATUS_OK;
    out->name = strdup(name);
    out->buffer = malloc(OUTPUT_BUFFER_BYTES);
    out->capacity = OUTPUT_BUFFER_BYTES;
    if (!out->name || !out->buffer)
        TRY_OUT(error_memory(e, OUTPUT_BUFFER_BYTES, "an output buffer"));
    if (is_stdout) {
        if (fcntl(STDOUT_FILENO, F_GETFD) < 0)
            TRY_OUT(error_errno(e, "cannot write standard output"));
        out->is_stdout = true;
        out->fd = STDOUT_FILENO;
    } else {
        TRY_OUT(open_path(out, path, e));
    }
    if (kind == OUTPUT_BINARY && isatty(out->fd))
        TRY_OUT(
            error_set(e, STATUS_USAGE,
                      "refusing to write binary data to a terminal (%s); redirect it to a file or "
                      "a pipe",
                      name));
out:
    if (st != STATUS_OK)
        output_close(out);
    return st;
}

static enum status write_through(struct output *out, const void *data, size_t bytes,
                                 struct error *e)
{
    if (fd_write_all(out->fd, out->name, data, bytes, e) == STATUS_OK)
        return STATUS_OK;
    return error_context(e, "after %llu bytes", (unsigned long long)(out->offset - out->used));
}

enum status output_flush(struct output *out, struct error *e)
{
    if (out->used == 0)
        return STATUS_OK;
    TRY(write_through(out, out->buffer, out->used, e));
    out->used = 0;
    return STATUS_OK;
}

enum status output_write(struct output *out, const void *data, size_t bytes, struct error *e)
{
    if (bytes > out->capacity - out->used)
        TRY(output_flush(out, e));
    if (bytes >= out->capacity) {
        TRY(write_through(out, data, bytes, e));
    } else if (bytes) {
        memcpy(out->buffer + out->used, data, bytes);
        out->used += bytes;
    }
    out->offset += bytes;
    return STATUS_OK;
}

enum status output_puts(struct output *out, const char *text, struct error *e)
{
    return output_write(out, text, strlen(text), e);
}

/* Pipes, terminals and some network filesystems have no fsync; that is not a failure to write. */
static enum status sync_fd(int fd, const char *name, struct error *e)
{
    int rc;
    do
        rc = fsync(fd);
    while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS)
        return error_errno(e, "writing %s to disk", name);
    return STATUS_OK;
}

/* Gives the unnamed temporary a hidden name. */
static enum status link_temporary(struct output *out, struct error *e)
{
    char source[64];
    snprintf(source, sizeof source, "/proc/self/fd/%d", out->fd);
    for (int i = 0; i < NAME_ATTEMPTS; i++) {
        char *name = hidden_name(out->path);
        if (!name)
            return error_memory(e, strlen(out->path) + 32, "a file name");
        if (linkat(AT_FDCWD, source, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0) {
            out->temporary = name;
            return STATUS_OK;
        }
        int saved = errno;
        free(name);
        errno = saved;
        if (saved != EEXIST)
            break;
    }
    return error_errno(e, "naming the finished %s", out->name);
}

static enum status close_checked(struct output *out, struct error *e)
{
    int fd = out->fd;
    out->fd = -1;
    /* On Linux the descriptor is gone even after EINTR; a repeat could close someone else's. */
    if (close(fd) != 0 && errno != EINTR)
        return error_errno(e, "closing %s", out->name);
    return STATUS_OK;
}

static enum status publish(struct output *out, struct error *e)
{
    TRY(sync_fd(out->fd, out->name, e));
    if (!out->temporary)
        TRY(link_temporary(out, e));
    TRY(close_checked(out, e));
    if (rename(out->temporary, out->path) != 0)
        return error_errno(e, "renaming the finished %s into place", out->name);
    free(out->temporary);
    out->temporary = NULL;
    char *folder = io_folder_of(out->path);
    if (!folder)
        return error_memory(e, strlen(out->path), "a folder name");
    enum status st = dir_sync(folder, e);
    free(folder);
    return st;
}

enum status output_commit(struct output *out, struct error *e)
{
    TRY(output_flush(out, e));
    if (out->path)
        return publish(out, e);
    if (!out->is_stdout) {
        TRY(sync_fd(out->fd, out->name, e));
        return close_checked(out, e);
    }
    /* Closing a duplicate makes the kernel report delayed write errors, yet leaves stdout open. */
    int copy = fcntl(out->fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (copy < 0)
        return error_errno(e, "closing %s", out->name);
    out->fd = copy;
    return close_checked(out, e);
}

void output_close(struct output *out)
{
    if (out->fd >= 0 && !out->is_stdout && out->name)
        close(out->fd);
    if (out->temporary)
        unlink(out->temporary);
    free(out->temporary);
    free(out->path);
    free(out->buffer);
    free((char *)out->name);
    *out = (struct output){.fd = -1};
}
