/* ckpt-merge - one Hugging Face model folder of a sharded training checkpoint. */
#include "base/log.h"
#include "base/tool.h"
#include "ckpt-merge/inspect.h"
#include "ckpt-merge/merge.h"

#include <signal.h>

static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

static int run(const struct merge_options *o)
{
    struct error e = {0};
    struct pool *pool = NULL;
    enum status st = pool_create(&pool, (int)o->threads, &e);
    if (st == STATUS_OK && o->action == ACTION_MERGE) {
        struct sigaction action = {.sa_handler = on_signal};
        sigaction(SIGINT, &action, NULL); /* what was begun is removed */
        sigaction(SIGTERM, &action, NULL);
        st = merge_run(o, pool, &stop_signal, &e);
    } else if (st == STATUS_OK && o->action == ACTION_LIST) {
        st = inspect_list(o, pool, &e);
    } else if (st == STATUS_OK && o->action == ACTION_VERIFY) {
        st = inspect_verify(o, pool, &e);
    } else if (st == STATUS_OK) {
        st = inspect_diff(o, pool, &e);
    }
    pool_free(pool);
    return st == STATUS_OK ? 0 : log_error(&e);
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct options parsed = {0};
    struct merge_options o = {0};
    enum option_action action = OPTIONS_EXIT;
    int exit_status;

    log_set_prefix("ckpt-merge");
    enum status st = merge_options_parse(&parsed, &o, argc, argv, &action, &e);
    if (tool_ready(&parsed, &o, o.quiet, st, action, &e, &exit_status))
        exit_status = run(&o);
    options_release(&parsed);
    return exit_status;
}
