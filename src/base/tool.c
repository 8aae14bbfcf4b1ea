/* tool.c - the common part of the tools' mains. */
#include "base/tool.h"

#include "base/log.h"

bool tool_ready(const struct options *o, const void *config, bool quiet, enum status parsed,
                enum option_action action, struct error *e, int *exit_status)
{
    bool work = parsed == STATUS_OK && action == OPTIONS_RUN && !o->print_config;
    if (parsed == STATUS_OK && action == OPTIONS_RUN && o->print_config)
        parsed = options_print_config(o, config, stdout, e);
    *exit_status = parsed == STATUS_OK ? 0 : log_error(e);
    if (work)
        log_set_quiet(quiet);
    return work;
}
