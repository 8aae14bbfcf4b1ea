/* options_number.c - strict numbers: the whole text must be one finite decimal number that fits. */
#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* strtod alone would take leading blanks, hexadecimal, "inf" and "nan". */
static bool scan_decimal(const char *text, double *value, const char **rest)
{
    const char *p = text;
    if (*p == '+' || *p == '-')
        p++;
    if (!(isdigit((unsigned char)*p) || (*p == '.' && isdigit((unsigned char)p[1]))))
        return false;
    if (*p == '0' && (p[1] == 'x' || p[1] == 'X'))
        return false;
    char *end;
    *value =
        strtod(text, &end); /* overflow gives infinity; underflow is taken as the nearest value */
    *rest = end;
    return isfinite(*value);
}

enum status parse_f64(const char *text, const char *what, double *out, struct error *e)
{
    const char *rest;
    double value;
    if (!scan_decimal(text, &value, &rest) || *rest)
        return error_set(e, STATUS_USAGE, "%s: expected a finite number, found \"%s\"", what, text);
    *out = value;
    return STATUS_OK;
}

enum status parse_i64(const char *text, const char *what, int64_t *out, struct error *e)
{
    const char *digits = text + (*text == '-' || *text == '+');
    if (!isdigit((unsigned char)*digits))
        return error_set(e, STATUS_USAGE, "%s: expected an integer, found \"%s\"", what, text);
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (!*end) {
        if (errno == ERANGE)
            return error_set(e, STATUS_USAGE, "%s: %s does not fit in 64 bits", what, text);
        *out = value;
        return STATUS_OK;
    }
    /* 1e6 and 100.0 are integers too; past 2^53 a double no longer holds every integer. */
    const char *rest;
    double real;
    if (!scan_decimal(text, &real, &rest) || *rest || real != floor(real) || fabs(real) > 0x1p53)
        return error_set(e, STATUS_USAGE, "%s: expected an integer, found \"%s\"", what, text);
    *out = (int64_t)real;
    return STATUS_OK;
}

static double unit_bytes(const char *unit)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {
        {"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
        {"TiB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
    };
    while (*unit == ' ')
        unit++;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcasecmp(unit, units[i].name) == 0)
            return units[i].bytes;
    return 0;
}

enum status parse_size(const char *text, const char *what, int64_t *bytes, struct error *e)
{
    const char *rest;
    double number;
    if (!scan_decimal(text, &number, &rest) || unit_bytes(rest) == 0)
        return error_set(e, STATUS_USAGE,
                         "%s: expected a size such as 4096, 256MiB or 1.5GB, found \"%s\"", what,
                         text);
    if (!*rest)
        return parse_i64(text, what, bytes, e);
    double value = number * unit_bytes(rest);
    if (value != floor(value))
        return error_set(e, STATUS_USAGE, "%s: \"%s\" is not a whole number of bytes", what, text);
    if (fabs(value) >= 0x1p63)
        return error_set(e, STATUS_USAGE, "%s: %s does not fit in 64 bits", what, text);
    *bytes = (int64_t)value;
    return STATUS_OK;
}
