/* io_file.c - whole files, folders and positioned reads. */
#define _GNU_SOURCE
#include "base/io.h"
#include "base/io_private.h"
#include "base/checked.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Doubles *data up to limit + 1 content bytes: one byte over the limit is enough to refuse. */
static enum status grow(char **data, size_t *capacity, size_t limit_bytes, struct error *e)
{
    size_t next = *capacity ? *capacity * 2 : 4096;
    if (next < *capacity || next - 1 > limit_bytes)
        next = limit_bytes < SIZE_MAX - 2 ? limit_bytes + 2 : SIZE_MAX;
    char *larger = realloc(*data, next);
    if (!larger)
        return error_memory(e, next, "a whole file");
    *data = larger;
    *capacity = next;
    return STATUS_OK;
}

enum status file_read_all(const char *path, size_t limit_bytes, char **data, size_t *bytes,
                          struct error *e)
{
    struct input in = {.fd = -1};
    char *text = NULL;
    size_t length = 0, capacity = 0, got = 0;
    enum status st;
    *data = NULL;
    *bytes = 0;
    TRY_OUT(input_open(&in, path, e));
    do {
        if (capacity - length < 2)
            TRY_OUT(grow(&text, &capacity, limit_bytes, e));
        TRY_OUT(input_read(&in, text + length, capacity - length - 1, &got, e));
        length += got;
        if (length > limit_bytes)
            TRY_OUT(error_set(e, STATUS_DATA, "%s: larger than the limit of %zu bytes", in.name,
                              limit_bytes));
    } while (got > 0);
    text[length] = '\0';
    *data = text;
    *bytes = length;
    text = NULL;
out:
    free(text);
    input_close(&in);
    return st;
}

enum status file_write_atomic(const char *path, const void *data, size_t bytes, struct error *e)
{
    struct output out = {.fd = -1};
    enum status st;
    TRY_OUT(output_open(&out, path, OUTPUT_BINARY, e));
    TRY_OUT(output_write(&out, data, bytes, e));
    TRY_OUT(output_commit(&out, e));
out:
    output_close(&out);
    return st;
}

bool path_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

uint64_t files_total_bytes(char *const *paths, size_t count)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        struct stat st;
        if (strcmp(paths[i], "-") == 0 || stat(paths[i], &st) != 0 || !S_ISREG(st.st_mode))
            return 0;
        total += (uint64_t)st.st_size;
    }
    return total;
}

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir), m = strlen(name);
    bool slash = n > 0 && dir[n - 1] != '/';
    char *path = malloc(n + m + 2);
    if (!path)
        return NULL;
    memcpy(path, dir, n);
    if (slash)
        path[n++] = '/';
    memcpy(path + n, name, m + 1);
    return path;
}

char *io_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

enum status dir_sync(const char *path, struct error *e)
{
    int fd = io_open_high(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0 && errno == EACCES)
        return STATUS_OK; /* a folder we may write but not read cannot be opened to be synced */
    if (fd < 0)
        return error_errno(e, "cannot open folder %s", path);
    int rc;
    do
        rc = fsync(fd);
    while (rc != 0 && errno == EINTR);
    enum status st = STATUS_OK;
    if (rc != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS)
        st = error_errno(e, "writing folder %s to disk", path);
    close(fd);
    return st;
}

static enum status make_one(const char *path, struct error *e)
{
    if (mkdir(path, 0777) == 0) {
        char *parent = io_folder_of(path);
        if (!parent)
            return error_memory(e, strlen(path), "a folder name");
        enum status st = dir_sync(parent, e);
        free(parent);
        return st;
    }
    int saved = errno;
    if (path_is_dir(path)) /* there already, perhaps on a read-only or automounted parent */
        return STATUS_OK;
    errno = saved;
    return error_errno(e, "cannot create folder %s", path);
}

enum status dir_create(const char *path, struct error *e)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    char *part = strndup(path, n);
    if (!part)
        return error_memory(e, n + 1, "a folder name");
    enum status st = STATUS_OK;
    for (size_t i = 1; i < n && st == STATUS_OK; i++) {
        if (part[i] != '/' || part[i - 1] == '/')
            continue;
        part[i] = '\0';
        st = make_one(part, e);
        part[i] = '/';
    }
    if (st == STATUS_OK)
        st = make_one(part, e);
    free(part);
    return st;
}

static enum status remove_tree(int parent, const char *name, const char *shown, struct error *e);

static enum status remove_entries(DIR *dir, const char *shown, struct error *e)
{
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry)
            return errno ? error_errno(e, "reading folder %s", shown) : STATUS_OK;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) == 0 || errno == ENOENT)
            continue;
        int why = errno;
        struct stat st;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            !S_ISDIR(st.st_mode)) {
            errno = why;
            return error_errno(e, "removing %s/%s", shown, entry->d_name);
        }
        TRY(remove_tree(dirfd(dir), entry->d_name, shown, e));
    }
}

/* Never follows symbolic links: a link is removed, not what it points to. */
static enum status remove_tree(int parent, const char *name, const char *shown, struct error *e)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return STATUS_OK;
    if (fd < 0)
        return error_errno(e, "removing folder %s (%s)", shown, name);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        enum status st = error_errno(e, "removing folder %s (%s)", shown, name);
        close(fd);
        return st;
    }
    enum status st = remove_entries(dir, shown, e);
    closedir(dir);
    if (st == STATUS_OK && unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        st = error_errno(e, "removing folder %s (%s)", shown, name);
    return st;
}

enum status dir_remove(const char *path, struct error *e)
{
    return remove_tree(AT_FDCWD, path, path, e);
}

enum status fd_read_at(int fd, const char *name, uint64_t offset, void *buf, size_t n,
                       struct error *e)
{
    size_t done = 0;
    if (n > (uint64_t)INT64_MAX || offset > (uint64_t)INT64_MAX - n)
        return error_set(e, STATUS_DATA, "%s: byte range %llu + %zu is beyond any file", name,
                         (unsigned long long)offset, n);
    while (done < n) {
        ssize_t r = pread(fd, (uint8_t *)buf + done, n - done, (off_t)(offset + done));
        if (r < 0 && io_wait_ready(fd, POLLIN))
            continue;
        if (r < 0)
            return error_errno(e, "reading %s at byte %llu", name,
                               (unsigned long long)(offset + done));
        if (r == 0)
            return error_set(e, STATUS_DATA, "%s is cut: wanted %zu bytes at byte %llu, found %zu",
                             name, n, (unsigned long long)offset, done);
        done += (size_t)r;
    }
    return STATUS_OK;
}
