/* error.h - what every fallible call in this project returns.
 *
 * A fallible function returns enum status and, when it fails, leaves a sentence in a caller-owned
 * struct error: what was being done, to which file, what was found, what was expected. Callers add
 * context on the way up; only main prints it, once. Status values are the tools' exit statuses.
 *
 * Thread rule: a struct error belongs to one thread at a time. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <stdarg.h>

enum status {
    STATUS_OK = 0,
    STATUS_FAILED = 1, /* I/O or run-time failure */
    STATUS_USAGE = 2,  /* the command line or configuration cannot work */
    STATUS_DATA = 3,   /* input data is malformed, cut, corrupt or of the wrong kind */
    STATUS_DEVICE = 4, /* a device or a collective failed */
};

struct error {
    enum status status;
    char message[2048]; /* NUL-terminated, no trailing newline; cut with "..." when longer */
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* Each returns the status it stores, so that `return error_set(...)` reads well. e is not NULL. */
enum status error_set(struct error *e, enum status status, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* STATUS_FAILED with ": strerror(errno)" appended; errno is read on entry. */
enum status error_errno(struct error *e, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Puts "context: " before the message. Keeps and returns the stored status. */
enum status error_context(struct error *e, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* STATUS_FAILED "out of memory allocating N bytes for WHAT". */
enum status error_memory(struct error *e, unsigned long long bytes, const char *what);
void error_clear(struct error *e);

/* Forward a failure to the caller. */
#define TRY(call)                         \
    do {                                  \
        enum status try_status_ = (call); \
        if (try_status_ != STATUS_OK)     \
            return try_status_;           \
    } while (0)

/* Forward a failure through the function's `out:` label; needs a local `enum status st`. */
#define TRY_OUT(call)        \
    do {                     \
        st = (call);         \
        if (st != STATUS_OK) \
            goto out;        \
    } while (0)

#endif
