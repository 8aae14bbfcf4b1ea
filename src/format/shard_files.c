/* shard_files.c - which files of a folder are ours to remove. */
#include "format/shard_private.h"
#include "base/io.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "shard-" digits ".shd", or a hidden temporary ".shard-...tmp" of one. */
static bool is_shard_name(const char *name)
{
    bool hidden = *name == '.';
    name += hidden;
    if (strncmp(name, "shard-", 6) != 0)
        return false;
    size_t digits = strspn(name + 6, "0123456789");
    const char *rest = name + 6 + digits;
    if (digits == 0 || strncmp(rest, ".shd", 4) != 0)
        return false;
    size_t n = strlen(rest);
    return hidden ? n > 4 && strcmp(rest + n - 4, ".tmp") == 0 : n == 4;
}

enum status shard_remove_files(const char *dir, struct error *e)
{
    DIR *d = opendir(dir);
    const struct dirent *entry;
    enum status st = STATUS_OK;
    if (!d)
        return error_errno(e, "cannot open folder %s", dir);
    for (errno = 0; (entry = readdir(d)) != NULL; errno = 0)
        if (is_shard_name(entry->d_name) && unlinkat(dirfd(d), entry->d_name, 0) != 0 &&
            errno != ENOENT)
            TRY_OUT(error_errno(e, "removing %s/%s", dir, entry->d_name));
    if (errno)
        st = error_errno(e, "reading folder %s", dir);
out:
    closedir(d);
    return st;
}
