/* tool.h - what every tool's main does between parsing its command line and its own work. */
#ifndef BASE_TOOL_H
#define BASE_TOOL_H

#include "base/options.h"

/* parsed: what parsing returned, with e and action. True when there is work; --quiet is then in
 * force. Otherwise *exit_status is main's: the error has been reported, or --help, --version or
 * --print-config has been answered. */
bool tool_ready(const struct options *o, const void *config, bool quiet, enum status parsed,
                enum option_action action, struct error *e, int *exit_status);

#endif
