#define _GNU_SOURCE
#include "sst2-fetch/cache.h"
#include "sst2-fetch/digest.h"
#include "base/io.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* A cache that cannot be written is still read, and otherwise done without. */
static void without_writing(struct cache_entry *c, struct error *e)
{
    log_warn("%s; downloads are not kept", e->message);
    error_clear(e);
    free(c->part);
    free(c->part_meta);
    c->part = c->part_meta = NULL;
}

static enum status take_lock(struct cache_entry *c, const char *path, struct error *e)
{
    c->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (c->lock_fd < 0) {
        error_errno(e, "cache: opening %s", path);
        without_writing(c, e);
        return STATUS_OK;
    }
    if (flock(c->lock_fd, LOCK_EX | LOCK_NB) == 0)
        return STATUS_OK;
    log_info("waiting for another process that is fetching %s", c->name);
    while (flock(c->lock_fd, LOCK_EX) != 0)
        if (errno != EINTR)
            return error_errno(e, "cache: locking %s", path);
    return STATUS_OK;
}

enum status cache_entry_open(struct cache_entry *c, const char *dir, const char *identity,
                             const char *name, struct error *e)
{
    char key[65], *lock = NULL;
    memset(c, 0, sizeof(*c));
    c->lock_fd = -1;
    c->name = strdup(name);
    if (!c->name)
        return error_memory(e, strlen(name), "a name");
    if (!dir)
        return STATUS_OK;
    if (dir_create(dir, e) != STATUS_OK) {
        without_writing(c, e);
        return STATUS_OK;
    }
    sha256_of_bytes(identity, strlen(identity), key);
    key[32] = '\0';
    if (asprintf(&c->data, "%s/%s.data", dir, key) < 0)
        c->data = NULL;
    if (asprintf(&c->meta, "%s/%s.json", dir, key) < 0)
        c->meta = NULL;
    if (asprintf(&c->part, "%s/%s.part", dir, key) < 0)
        c->part = NULL;
    if (asprintf(&c->part_meta, "%s/%s.part.json", dir, key) < 0)
        c->part_meta = NULL;
    if (asprintf(&lock, "%s/%s.lock", dir, key) < 0)
        lock = NULL;
    enum status st = STATUS_OK;
    if (!c->data || !c->meta || !c->part || !c->part_meta || !lock)
        st = error_memory(e, strlen(dir), "cache paths");
    if (st == STATUS_OK)
        st = take_lock(c, lock, e);
    free(lock);
    return st;
}

void cache_entry_close(struct cache_entry *c)
{
    if (c->lock_fd >= 0)
        close(c->lock_fd);
    free(c->data);
    free(c->meta);
    free(c->part);
    free(c->part_meta);
    free(c->name);
    memset(c, 0, sizeof(*c));
    c->lock_fd = -1;
}

static enum status write_meta(const char *path, const char *name, const struct version *v,
                              const char *sha256, struct error *e)
{
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:I, s:s}", "source", name, "etag", v->etag, "last_modified",
                  v->last_modified, "bytes", (json_int_t)v->bytes, "sha256", sha256);
    char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    enum status st = text ? file_write_atomic(path, text, strlen(text), e)
                          : error_memory(e, 0, "cache metadata");
    free(text);
    json_decref(o);
    return st;
}

/* False when there is no readable metadata: then there is no entry. */
static bool read_meta(const char *path, struct version *v, char sha256[65])
{
    json_t *o = json_load_file(path, 0, NULL);
    const char *etag = json_string_value(json_object_get(o, "etag"));
    const char *modified = json_string_value(json_object_get(o, "last_modified"));
    const char *digest = json_string_value(json_object_get(o, "sha256"));
    const json_t *bytes = json_object_get(o, "bytes");
    bool good = etag && modified && digest && json_is_integer(bytes) &&
                strlen(etag) < sizeof(v->etag) && strlen(modified) < sizeof(v->last_modified) &&
                strlen(digest) < 65;
    if (good) {
        strcpy(v->etag, etag);
        strcpy(v->last_modified, modified);
        v->bytes = json_integer_value(bytes);
        strcpy(sha256, digest);
    }
    json_decref(o);
    return good;
}

enum status cache_entry_read(struct cache_entry *c, int *out, struct version *v, struct error *e)
{
    char expected[65], found[65];
    struct stat info;
    *out = -1;
    if (!c->data || !read_meta(c->meta, v, expected))
        return STATUS_OK;
    int fd = open(c->data, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return STATUS_OK;
    if (fd < 0)
        return error_errno(e, "cache: opening %s", c->data);
    if (fstat(fd, &info) != 0) {
        close(fd);
        return error_errno(e, "cache: %s", c->data);
    }
    enum status st = sha256_of_file(fd, c->data, found, e);
    if (st == STATUS_OK && info.st_size == v->bytes && strcmp(expected, found) == 0) {
        *out = fd;
        return STATUS_OK;
    }
    close(fd);
    if (st == STATUS_OK) {
        log_warn("the cached copy of %s is damaged and is dropped (%s)", c->name, c->data);
        cache_entry_drop(c, true);
    }
    return st;
}

static enum status unnamed_file(const char *tmpdir, int *out, struct error *e)
{
    char *path = path_join(tmpdir, "sst2-fetch-XXXXXX");
    if (!path)
        return error_memory(e, strlen(tmpdir), "a path");
    *out = mkostemp(path, O_CLOEXEC);
    if (*out >= 0)
        unlink(path);
    else
        error_errno(e, "creating a temporary file in %s", tmpdir);
    free(path);
    return *out >= 0 ? STATUS_OK : e->status;
}

enum status cache_entry_part(struct cache_entry *c, const char *tmpdir, int *out, uint64_t *have,
                             struct version *v, struct error *e)
{
    char unused[65];
    struct stat info;
    *have = 0;
    *v = (struct version){.bytes = -1};
    if (!c->part)
        return unnamed_file(tmpdir, out, e);
    *out = open(c->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*out < 0)
        return error_errno(e, "cache: opening %s", c->part);
    if (fstat(*out, &info) == 0 && read_meta(c->part_meta, v, unused) &&
        (v->bytes < 0 || info.st_size <= v->bytes)) {
        *have = (uint64_t)info.st_size;
        return STATUS_OK;
    }
    *v = (struct version){.bytes = -1};
    if (ftruncate(*out, 0) == 0)
        return STATUS_OK;
    error_errno(e, "cache: emptying %s", c->part);
    close(*out);
    return e->status;
}

enum status cache_entry_mark(struct cache_entry *c, const struct version *v, struct error *e)
{
    return c->part ? write_meta(c->part_meta, c->name, v, "", e) : STATUS_OK;
}

enum status cache_entry_commit(struct cache_entry *c, int fd, const struct version *v,
                               struct error *e)
{
    char hex[65];
    struct stat info;
    struct version complete = *v;
    if (!c->part)
        return STATUS_OK;
    if (fstat(fd, &info) != 0 || fsync(fd) != 0)
        return error_errno(e, "cache: completing %s", c->part);
    TRY(sha256_of_file(fd, c->part, hex, e));
    complete.bytes = info.st_size;
    /* The new description first: until the rename its digest does not fit, which reads as damaged.
     */
    TRY(write_meta(c->meta, c->name, &complete, hex, e));
    if (rename(c->part, c->data) != 0)
        return error_errno(e, "cache: renaming %s", c->part);
    unlink(c->part_meta);
    return STATUS_OK;
}

void cache_entry_drop(struct cache_entry *c, bool all)
{
    if (!c->part) /* no cache, or one that is only read */
        return;
    unlink(c->part);
    unlink(c->part_meta);
    if (all) {
        unlink(c->meta);
        unlink(c->data);
    }
}
