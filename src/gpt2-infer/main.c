/* gpt2-infer - a GPT-2 at work: generate, score and classify in batches, or as an HTTP endpoint. */
#include "base/log.h"
#include "gpt2-infer/batch.h"
#include "gpt2-infer/serve.h"

#include <signal.h>
#include <stdio.h>

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
    enum option_action action;
    int exit_status = 0;

    log_set_prefix("gpt2-infer");
    if (infer_options_parse(&parsed, &o, argc, argv, &action, &e) != STATUS_OK) {
        exit_status = log_error(&e);
    } else if (action == OPTIONS_RUN && parsed.print_config) {
        if (options_print_config(&parsed, &o, stdout, &e) != STATUS_OK)
            exit_status = log_error(&e);
    } else if (action == OPTIONS_RUN) {
        log_set_quiet(o.quiet);
        exit_status = run(&o);
    }
    options_release(&parsed);
    return exit_status;
}
