/* checked.h - arithmetic on sizes that cannot wrap silently. */
#ifndef BASE_CHECKED_H
#define BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each returns false and leaves *out alone on overflow. */
static inline bool checked_add_size(size_t a, size_t b, size_t *out)
{
    size_t result; /* the builtin stores the wrapped value too */
    if (__builtin_add_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}
static inline bool checked_mul_size(size_t a, size_t b, size_t *out)
{
    size_t result; /* the builtin stores the wrapped value too */
    if (__builtin_mul_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}
static inline bool checked_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t result; /* the builtin stores the wrapped value too */
    if (__builtin_mul_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}
static inline bool checked_add_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t result; /* the builtin stores the wrapped value too */
    if (__builtin_add_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}
/* n rounded up to a multiple of m > 0. The caller knows n + m does not wrap. */
static inline int64_t round_up_i64(int64_t n, int64_t m)
{
    return (n + m - 1) / m * m;
}
static inline int64_t ceil_div_i64(int64_t n, int64_t m)
{
    return (n + m - 1) / m;
}
static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
