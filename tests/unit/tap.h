/* tap.h - the few lines a unit test needs to print TAP (Test Anything Protocol).
 * A program counts its checks by named cases: CASE("name") { CHECK(...); } and ends with
 * `return tap_done();`. A case fails when any CHECK in it fails; the reasons are printed. */
#ifndef TESTS_TAP_H
#define TESTS_TAP_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static struct {
    int cases, failed_cases, failed_checks;
    const char *name, *skip;
} tap_;

static inline void tap_end_(void)
{
    if (!tap_.name)
        return;
    if (tap_.skip)
        printf("ok %d - %s # SKIP %s\n", tap_.cases, tap_.name, tap_.skip);
    else
        printf("%s %d - %s\n", tap_.failed_checks ? "not ok" : "ok", tap_.cases, tap_.name);
    tap_.failed_cases += tap_.failed_checks != 0;
    tap_.failed_checks = 0;
    tap_.name = tap_.skip = NULL;
    fflush(stdout);
}

static inline bool tap_begin_(const char *name)
{
    tap_end_();
    tap_.name = name;
    tap_.cases++;
    return true;
}

static inline void tap_fail_(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static inline void tap_fail_(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    tap_.failed_checks++;
    printf("# %s:%d: ", file, line);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
}

static inline int tap_done(void)
{
    tap_end_();
    printf("1..%d\n", tap_.cases);
    return tap_.failed_cases ? 1 : 0;
}

#define CASE(name) if (tap_begin_(name))
#define SKIP(reason) (tap_.skip = (reason))
#define CHECK(cond)                                     \
    do {                                                \
        if (!(cond))                                    \
            tap_fail_(__FILE__, __LINE__, "%s", #cond); \
    } while (0)
#define CHECK_INT(got, want)                                                             \
    do {                                                                                 \
        long long got_ = (long long)(got), want_ = (long long)(want);                    \
        if (got_ != want_)                                                               \
            tap_fail_(__FILE__, __LINE__, "%s: got %lld, want %lld", #got, got_, want_); \
    } while (0)
#define CHECK_NEAR(got, want, tolerance)                                                          \
    do {                                                                                          \
        double got_ = (got), want_ = (want), tol_ = (tolerance);                                  \
        if (!(fabs(got_ - want_) <= tol_))                                                        \
            tap_fail_(__FILE__, __LINE__, "%s: got %.9g, want %.9g within %g", #got, got_, want_, \
                      tol_);                                                                      \
    } while (0)
#define CHECK_STR(got, want)                                                   \
    do {                                                                       \
        const char *got_ = (got), *want_ = (want);                             \
        if (!got_ || strcmp(got_, want_) != 0)                                 \
            tap_fail_(__FILE__, __LINE__, "%s: got \"%s\", want \"%s\"", #got, \
                      got_ ? got_ : "(null)", want_);                          \
    } while (0)
#define CHECK_CONTAINS(text, part)                                                              \
    do {                                                                                        \
        const char *text_ = (text), *part_ = (part);                                            \
        if (!text_ || !strstr(text_, part_))                                                    \
            tap_fail_(__FILE__, __LINE__, "\"%s\" does not contain \"%s\"", text_ ? text_ : "", \
                      part_);                                                                   \
    } while (0)

#endif
