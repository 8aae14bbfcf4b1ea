/* gpt2-infer - a GPT-2 at work: generate, score and classify in batches, or as an HTTP endpoint. */
#include "base/log.h"
#include "base/tool.h"
#include "gpt2-infer/batch.h"
#include "gpt2-infer/serve.h"

#include <signal.h>

static int run(const struct infer_options *o)
{
    struct error e = {0};
    struct engine g = {0};
    int exit_status;
    if (engine_open(&g, o, &e) != STATUS_OK)
        exit_status = log_error(&e);
    else
        exit_status = o->serve ? serve_run(&g) : batch_run(&g);
    if (!g.in_use)
        engine_close(&g);
    return exit_status;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct options parsed = {0};
    struct infer_options o = {0};
    enum option_action action = OPTIONS_EXIT;
    int exit_status;

    log_set_prefix("gpt2-infer");
    enum status st = infer_options_parse(&parsed, &o, argc, argv, &action, &e);
    if (tool_ready(&parsed, &o, o.quiet, st, action, &e, &exit_status))
        exit_status = run(&o);
    options_release(&parsed);
    return exit_status;
}
