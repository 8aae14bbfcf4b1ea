#include "base/share.h"

#include "base/io.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const places[] = {"../share", "../share/sdp-gpt2", "../../share"};

enum status share_find(const char *share, const char *name, const char *what, const char *hint,
                       char path[PATH_MAX], struct error *e)
{
    char folder[PATH_MAX];
    if (share && *share) {
        if (snprintf(path, PATH_MAX, "%s/%s", share, name) >= PATH_MAX)
            return error_set(e, STATUS_FAILED, "looking for the %s: %s/%s is too long a path", what,
                             share, name);
        return STATUS_OK;
    }
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (n < 0)
        return error_errno(e, "looking for the %s: reading /proc/self/exe", what);
    folder[n] = '\0';
    *strrchr(folder, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int length = snprintf(path, PATH_MAX, "%s/%s/%s", folder, places[i], name);
        if (length < PATH_MAX && path_exists(path))
            return STATUS_OK;
    }
    return error_set(e, STATUS_FAILED, "no %s at %s/%s/%s or %s/%s/%s; %s", what, folder, places[0],
                     name, folder, places[1], name, hint);
}
