#include "gpt2-infer/serve.h"

#include "base/log.h"

int serve_run(struct engine *g)
{
    struct error e;
    error_set(&e, STATUS_USAGE, "--serve %s: this build has no endpoint", g->o->serve);
    return log_error(&e);
}
