/* ckpt_dir.c - the folder of checkpoints: which are there, which are valid, which may go. */
#define _GNU_SOURCE
#include "format/ckpt_private.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *ckpt_step_path(const char *parent, int64_t step)
{
    char name[32];
    snprintf(name, sizeof name, "step-%08" PRId64, step);
    return path_join(parent, name);
}

/* The step of a folder name exactly as ckpt_step_path writes it; -1 for other names. */
static int64_t step_of(const char *name)
{
    char again[32];
    if (strncmp(name, "step-", 5) != 0 || strspn(name + 5, "0123456789") != strlen(name + 5) ||
        strlen(name) > 5 + 18)
        return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%08" PRId64, step);
    return strcmp(name, again) == 0 ? step : -1;
}

static int by_step(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static enum status append_step(int64_t **steps, size_t *n, int64_t step, struct error *e)
{
    if ((*n & (*n - 1)) == 0) { /* 0 or a power of two: full */
        int64_t *more = realloc(*steps, (*n ? *n * 2 : 1) * sizeof *more);
        if (!more)
            return error_memory(e, *n * 2 * sizeof *more, "a list of checkpoints");
        *steps = more;
    }
    (*steps)[(*n)++] = step;
    return STATUS_OK;
}

/* 1 when PARENT/NAME is a folder with a manifest, 0 when without, -1 when it is no folder. */
static int has_manifest(DIR *d, const char *name)
{
    char file[300];
    struct stat info;
    if (fstatat(dirfd(d), name, &info, 0) != 0 || !S_ISDIR(info.st_mode))
        return -1;
    snprintf(file, sizeof file, "%s/" CKPT_MANIFEST_NAME, name);
    return fstatat(dirfd(d), file, &info, 0) == 0;
}

enum status ckpt_scan_steps(const char *parent, bool with_manifest, int64_t **steps, size_t *n,
                            struct error *e)
{
    enum status st = STATUS_OK;
    const struct dirent *entry;
    *steps = NULL;
    *n = 0;
    DIR *d = opendir(parent);
    if (!d && errno == ENOENT)
        return STATUS_OK;
    if (!d)
        return error_errno(e, "cannot open folder %s", parent);
    for (errno = 0; (entry = readdir(d)) != NULL; errno = 0) {
        int64_t step = step_of(entry->d_name);
        if (step >= 0 && has_manifest(d, entry->d_name) == with_manifest)
            TRY_OUT(append_step(steps, n, step, e));
    }
    if (errno)
        TRY_OUT(error_errno(e, "reading folder %s", parent));
    if (*n)
        qsort(*steps, *n, sizeof **steps, by_step);
out:
    closedir(d);
    if (st != STATUS_OK) {
        free(*steps);
        *steps = NULL;
        *n = 0;
    }
    return st;
}

/* The manifest is right and every file is there with its size. */
static bool looks_valid(const char *parent, int64_t step)
{
    struct error ignored;
    struct ckpt *c = NULL;
    char *path = ckpt_step_path(parent, step);
    bool valid = path && ckpt_manifest_load(&c, path, &ignored) == STATUS_OK;
    for (size_t i = 0; valid && i < c->file_count; i++) {
        struct stat info;
        valid = stat(c->files[i].path, &info) == 0 && (uint64_t)info.st_size == c->files[i].bytes;
    }
    ckpt_close(c);
    free(path);
    return valid;
}

enum status ckpt_list_steps(const char *parent, int64_t **steps, size_t *n, struct error *e)
{
    size_t valid = 0;
    TRY(ckpt_scan_steps(parent, true, steps, n, e));
    for (size_t i = 0; i < *n; i++)
        if (looks_valid(parent, (*steps)[i]))
            (*steps)[valid++] = (*steps)[i];
    *n = valid;
    return STATUS_OK;
}

enum status ckpt_list_all_steps(const char *parent, int64_t **steps, size_t *n, struct error *e)
{
    return ckpt_scan_steps(parent, true, steps, n, e);
}

/* The manifest goes first, durably: what an interruption leaves is no checkpoint. */
static enum status remove_step(const char *parent, int64_t step, struct error *e)
{
    enum status st = STATUS_OK;
    char *path = ckpt_step_path(parent, step);
    char *manifest = path ? path_join(path, CKPT_MANIFEST_NAME) : NULL;
    if (!manifest)
        TRY_OUT(error_memory(e, strlen(parent) + 64, "a file name"));
    if (unlink(manifest) == 0)
        TRY_OUT(dir_sync(path, e));
    else if (errno != ENOENT)
        TRY_OUT(error_errno(e, "removing %s", manifest));
    TRY_OUT(dir_remove(path, e));
out:
    free(manifest);
    free(path);
    return st;
}

enum status ckpt_prune(const char *parent, int64_t keep, int64_t newest, struct error *e)
{
    int64_t *valid = NULL, *left = NULL;
    size_t n = 0, leftovers = 0;
    enum status st;
    TRY_OUT(ckpt_list_steps(parent, &valid, &n, e));
    while (n > 0 && valid[n - 1] > newest)
        n--;
    TRY_OUT(ckpt_scan_steps(parent, false, &left, &leftovers, e));
    for (size_t i = 0; keep > 0 && i + (size_t)keep < n; i++)
        TRY_OUT(remove_step(parent, valid[i], e));
    for (size_t i = 0; n > 0 && i < leftovers; i++)
        if (left[i] < valid[n - 1])
            TRY_OUT(remove_step(parent, left[i], e));
out:
    free(valid);
    free(left);
    return st;
}
