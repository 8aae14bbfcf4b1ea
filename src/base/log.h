/* log.h - lines for people on stderr. Only the tools' folders and sdp/ progress hooks call it;
 * libraries report through struct error instead. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/error.h"
#include <stdbool.h>

/* The one mutable global of the project: "sdp-train" or "sdp-train[3]" before every line.
 * Set once by main, before threads start. */
void log_set_prefix(const char *prefix);
/* Suppress log_info (errors and warnings stay). */
void log_set_quiet(bool quiet);
void log_info(const char *fmt, ...) PRINTF_LIKE(1, 2);
void log_warn(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* Print e once as "PREFIX: error: MESSAGE" and return its status, for `return log_error(&e)`. */
int log_error(const struct error *e);

#endif
