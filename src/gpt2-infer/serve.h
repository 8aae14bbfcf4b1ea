/* serve.h - the persistent endpoint. */
#ifndef GPT2_INFER_SERVE_H
#define GPT2_INFER_SERVE_H

#include "gpt2-infer/engine.h"

/* Listens, answers until SIGTERM or SIGINT, drains; the tool's exit status. */
int serve_run(struct engine *g);

#endif
