#include "sst2-fetch/locate.h"
#include "base/io.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *split_name(enum split split)
{
    static const char *const names[] = {"train", "validation", "test"};
    return names[split];
}

static bool is_split_file(const char *path, enum split *split)
{
    static const struct {
        const char *stem;
        enum split split;
    } stems[] = {
        {"train", SPLIT_TRAIN},      {"dev", SPLIT_VALIDATION}, {"validation", SPLIT_VALIDATION},
        {"valid", SPLIT_VALIDATION}, {"val", SPLIT_VALIDATION}, {"test", SPLIT_TEST},
    };
    static const char *const extensions[] = {".tsv", ".jsonl", ".json", ".ndjson", ".txt"};
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    size_t n = strlen(base);
    if (n > 3 && strcasecmp(base + n - 3, ".gz") == 0)
        n -= 3;
    for (size_t i = 0; i < sizeof(stems) / sizeof(stems[0]); i++) {
        size_t k = strlen(stems[i].stem);
        if (n <= k || strncasecmp(base, stems[i].stem, k) != 0)
            continue;
        for (size_t j = 0; j < sizeof(extensions) / sizeof(extensions[0]); j++) {
            size_t m = strlen(extensions[j]);
            if (n == k + m && strncasecmp(base + k, extensions[j], m) == 0) {
                *split = stems[i].split;
                return true;
            }
        }
    }
    return false;
}

static int depth_of(const char *path)
{
    int depth = 0;
    for (; *path; path++)
        depth += *path == '/';
    return depth;
}

/* Collects candidates; the first failure is kept. */
struct collector {
    struct located *found;
    const char *where;
    struct error *e;
    enum status st;
    char *rival[SPLIT_COUNT]; /* as near the top as found->path */
};

static void consider(void *arg, const char *path)
{
    struct collector *c = arg;
    enum split split;
    if (c->st != STATUS_OK || !is_split_file(path, &split))
        return;
    char *old = c->found->path[split];
    int difference = old ? depth_of(path) - depth_of(old) : -1;
    if (difference > 0)
        return;
    char *copy = strdup(path);
    if (!copy) {
        c->st = error_memory(c->e, strlen(path), "a name");
        return;
    }
    if (difference < 0) {
        free(old);
        free(c->rival[split]);
        c->rival[split] = NULL;
        c->found->path[split] = copy;
    } else {
        free(c->rival[split]);
        c->rival[split] = copy;
    }
}

static enum status finish(struct collector *c, struct error *e)
{
    enum status st = c->st;
    for (int i = 0; i < SPLIT_COUNT; i++) {
        if (st == STATUS_OK && c->rival[i])
            st = error_set(e, STATUS_DATA, "%s holds both %s and %s: which is the %s split?",
                           c->where, c->found->path[i], c->rival[i], split_name((enum split)i));
        free(c->rival[i]);
    }
    return st;
}

/* name: the part of the path below the folder; NULL for the folder itself. */
static enum status scan_folder(struct collector *c, const char *folder, const char *name,
                               struct error *e)
{
    enum status st = STATUS_OK;
    char *path = name ? path_join(folder, name) : strdup(folder);
    if (!path)
        return error_memory(e, strlen(folder), "a path");
    DIR *dir = opendir(path);
    if (!dir) {
        st = error_errno(e, "opening folder %s", path);
        free(path);
        return st;
    }
    struct dirent *entry;
    while (errno = 0, (entry = readdir(dir)) != NULL) {
        char *full = path_join(path, entry->d_name);
        char *below = name ? path_join(name, entry->d_name) : strdup(entry->d_name);
        if (!full || !below)
            c->st = error_memory(e, strlen(entry->d_name), "a path");
        else if (!path_is_dir(full))
            consider(c, below);
        free(full);
        free(below);
    }
    if (errno != 0)
        st = error_errno(e, "reading folder %s", path);
    closedir(dir);
    free(path);
    return st;
}

enum status locate_in_folder(struct located *l, const char *folder, struct error *e)
{
    struct collector c = {.found = l, .where = folder, .e = e};
    enum status st = scan_folder(&c, folder, NULL, e);
    char *inner = path_join(folder, "SST-2"); /* where GLUE's zip unpacks to */
    if (!inner)
        c.st = error_memory(e, strlen(folder), "a path");
    if (st == STATUS_OK && inner && path_is_dir(inner))
        st = scan_folder(&c, folder, "SST-2", e);
    free(inner);
    enum status end = finish(&c, e);
    if (st == STATUS_OK)
        st = end;
    for (int i = 0; i < SPLIT_COUNT && st == STATUS_OK; i++) {
        if (!l->path[i])
            continue;
        char *full = path_join(folder, l->path[i]);
        if (!full)
            return error_memory(e, strlen(folder), "a path");
        free(l->path[i]);
        l->path[i] = full;
    }
    return st;
}

enum status locate_in_list(struct located *l, const char *where,
                           enum status (*list)(void *arg,
                                               void (*visit)(void *visit_arg, const char *name),
                                               void *visit_arg, struct error *e),
                           void *arg, struct error *e)
{
    struct collector c = {.found = l, .where = where, .e = e};
    enum status st = list(arg, consider, &c, e);
    if (st != STATUS_OK)
        c.st = st;
    return finish(&c, e);
}

static enum status list_zip(void *arg, void (*visit)(void *visit_arg, const char *name),
                            void *visit_arg, struct error *e)
{
    return zip_list(arg, visit, visit_arg, e);
}

enum status locate_in_zip(struct located *l, struct source_file *f, struct error *e)
{
    return locate_in_list(l, f->name, list_zip, f, e);
}

void locate_release(struct located *l)
{
    for (int i = 0; i < SPLIT_COUNT; i++)
        free(l->path[i]);
    memset(l, 0, sizeof(*l));
}
