/* format_test.h - what the test_format_*.c programs share: a folder for files, damaged copies. */
#ifndef TESTS_FORMAT_TEST_H
#define TESTS_FORMAT_TEST_H

#include "tap.h"
#include "base/io.h"

#include <stdlib.h>
#include <unistd.h>

static char work_dir[256];

static inline void work_begin(const char *name)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(work_dir, sizeof work_dir, "%s/%s-XXXXXX", tmp ? tmp : "/tmp", name);
    if (!mkdtemp(work_dir)) {
        printf("Bail out! cannot create %s\n", work_dir);
        exit(1);
    }
}

static inline void work_end(void)
{
    struct error e;
    if (dir_remove(work_dir, &e) != STATUS_OK)
        printf("# %s\n", e.message);
}

/* A path in the folder; four results stay valid at a time. */
static inline const char *work_path(const char *name)
{
    static char paths[4][512];
    static int turn;
    char *path = paths[turn++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", work_dir, name);
    return path;
}

/* Checks that a call succeeds, printing its message when not. Needs a `struct error e`. */
#define CHECK_OK(call)                                                 \
    do {                                                               \
        if ((call) != STATUS_OK)                                       \
            tap_fail_(__FILE__, __LINE__, "%s: %s", #call, e.message); \
    } while (0)
/* Checks that a call fails with a status and words in its message. */
#define CHECK_ERROR(call, want_status, words)                                                     \
    do {                                                                                          \
        error_clear(&e);                                                                          \
        enum status got_status_ = (call);                                                         \
        if (got_status_ != (want_status))                                                         \
            tap_fail_(__FILE__, __LINE__, "%s: status %d, want %d (%s)", #call, got_status_,      \
                      want_status, e.message);                                                    \
        else if (!strstr(e.message, words))                                                       \
            tap_fail_(__FILE__, __LINE__, "%s: \"%s\" does not contain \"%s\"", #call, e.message, \
                      words);                                                                     \
    } while (0)

static inline void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) {
        printf("Bail out! cannot write %s\n", path);
        exit(1);
    }
}

static inline uint8_t *read_file(const char *path, size_t *bytes)
{
    struct error e;
    char *data;
    if (file_read_all(path, 1u << 30, &data, bytes, &e) != STATUS_OK) {
        printf("Bail out! %s\n", e.message);
        exit(1);
    }
    return (uint8_t *)data;
}

#endif
