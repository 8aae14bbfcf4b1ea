#define _GNU_SOURCE
#include "ckpt-merge/merge.h"

#include "base/io.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Where the folder is made: beside its final place, hidden, locked while a process works on it. */
struct target {
    char *final, *parent, *temporary, *old;
    int lock;
};

static enum status name_target(struct target *t, const char *path, struct error *e)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    t->final = strndup(path, n);
    if (!t->final)
        return error_memory(e, n, "a file name");
    const char *slash = strrchr(t->final, '/'), *name = slash ? slash + 1 : t->final;
    if (strcmp(name, "") == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return error_set(e, STATUS_USAGE, "--output %s: name the new folder itself", path);
    t->parent =
        !slash ? strdup(".") : strndup(path, slash == t->final ? 1 : (size_t)(slash - t->final));
    if (!t->parent || asprintf(&t->temporary, "%s/.%s.partial", t->parent, name) < 0 ||
        asprintf(&t->old, "%s/.%s.replaced", t->parent, name) < 0)
        return error_memory(e, n, "a file name");
    return STATUS_OK;
}

static bool is_empty_folder(const char *path)
{
    DIR *d = opendir(path);
    bool empty = d != NULL;
    for (struct dirent *x; empty && (x = readdir(d));)
        empty = strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0;
    if (d)
        closedir(d);
    return empty;
}

static bool is_model_folder(const char *path)
{
    char *config = path_join(path, "config.json");
    bool yes = config && path_exists(config);
    free(config);
    return yes;
}

/* Fails before any work when the folder may not appear in the end. */
static enum status check_final(const struct target *t, bool overwrite, struct error *e)
{
    if (!path_exists(t->final) || is_empty_folder(t->final))
        return STATUS_OK;
    if (!overwrite)
        return error_set(e, STATUS_USAGE, "%s exists; --overwrite replaces it", t->final);
    if (!path_is_dir(t->final) || !is_model_folder(t->final))
        return error_set(e, STATUS_USAGE,
                         "%s is not a model folder (no config.json); it is not replaced", t->final);
    return STATUS_OK;
}

static enum status open_target(struct target *t, const struct merge_options *o, struct error *e)
{
    TRY(name_target(t, o->output, e));
    TRY(check_final(t, o->overwrite, e));
    TRY(dir_create(t->parent, e));
    TRY(dir_create(t->temporary, e));
    t->lock = open(t->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->lock < 0)
        return error_errno(e, "cannot open %s", t->temporary);
    if (flock(t->lock, LOCK_EX | LOCK_NB) != 0) {
        enum status st = error_set(e, STATUS_FAILED, "another process is making %s", t->final);
        close(t->lock);
        t->lock = -1;
        return st;
    }
    return STATUS_OK;
}

/* What an interrupted run left. The folder itself stays: it carries the lock. */
static enum status clear_temporary(const struct target *t, struct error *e)
{
    DIR *d = opendir(t->temporary);
    enum status st = STATUS_OK;
    if (!d)
        return error_errno(e, "cannot read %s", t->temporary);
    for (struct dirent *x; st == STATUS_OK && (x = readdir(d));)
        if (strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0 &&
            unlinkat(dirfd(d), x->d_name, 0) != 0)
            st = error_errno(e, "cannot remove %s/%s", t->temporary, x->d_name);
    closedir(d);
    return st;
}

static enum status put_in_place(const struct target *t, struct error *e)
{
    bool replace = path_exists(t->final) && !is_empty_folder(t->final);
    TRY(dir_sync(t->temporary, e));
    if (replace) {
        if (path_exists(t->old))
            TRY(dir_remove(t->old, e));
        if (rename(t->final, t->old) != 0)
            return error_errno(e, "cannot rename %s to %s", t->final, t->old);
    }
    if (rename(t->temporary, t->final) != 0) {
        enum status st = error_errno(e, "cannot rename %s to %s", t->temporary, t->final);
        if (replace && rename(t->old, t->final) != 0)
            error_context(e, "the former folder is in %s", t->old);
        return st;
    }
    TRY(dir_sync(t->parent, e));
    return replace ? dir_remove(t->old, e) : STATUS_OK;
}

static void close_target(struct target *t, bool keep)
{
    struct error ignored;
    if (t->lock >= 0) {
        if (!keep && dir_remove(t->temporary, &ignored) != STATUS_OK)
            log_warn("%s", ignored.message);
        close(t->lock);
    }
    free(t->final);
    free(t->parent);
    free(t->temporary);
    free(t->old);
}

static enum status write_all(const struct merge_options *o, struct tensor_set *set,
                             const struct target *t, struct pool *pool, const volatile int *stop,
                             struct error *e)
{
    enum status st;
    struct merge_plan plan = {0};
    struct gpt2_config config;
    bool found;
    TRY_OUT(tensor_set_config(set, &config, &found, e));
    TRY_OUT(tensor_set_check_model(set, &config, e));
    TRY_OUT(merge_plan_create(&plan, set, &config, o->dtype, o->max_shard_bytes, e));
    TRY_OUT(merge_write_tokenizer(set, o, t->temporary, e)); /* fails early on a wrong --vocab */
    TRY_OUT(merge_write_weights(&plan, o, t->temporary, pool, stop, e));
    TRY_OUT(merge_write_index(&plan, t->temporary, e));
    TRY_OUT(merge_write_config(&plan, &config, t->temporary, e));
    TRY_OUT(put_in_place(t, e));
    log_info("%s: step %lld, %lld parameters, %zu tensors in %zu files, %.1f MB", t->final,
             (long long)ckpt_step(set->ckpt), (long long)gpt2_parameters(&config), plan.count,
             plan.shard_count, (double)plan.total_bytes / 1e6);
out:
    merge_plan_release(&plan);
    return st;
}

enum status merge_run(const struct merge_options *o, struct pool *pool, const volatile int *stop,
                      struct error *e)
{
    enum status st;
    struct tensor_set set = {0};
    struct target target = {.lock = -1};
    TRY_OUT(tensor_set_open(&set, o->input, CKPT_MASTER, e));
    if (!set.ckpt)
        TRY_OUT(
            error_set(e, STATUS_DATA, "%s is a model already, expected a checkpoint", o->input));
    if (ckpt_skipped(set.ckpt))
        log_warn("a newer checkpoint is damaged, taking %s: %s", ckpt_path(set.ckpt),
                 ckpt_skipped(set.ckpt));
    TRY_OUT(open_target(&target, o, e));
    TRY_OUT(clear_temporary(&target, e));
    TRY_OUT(write_all(o, &set, &target, pool, stop, e));
out:
    close_target(&target, st == STATUS_OK);
    tensor_set_close(&set);
    return st;
}
