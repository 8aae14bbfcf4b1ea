/* inspect.h - looking at checkpoints and models: what is in them, whether it is whole, how two
 * differ. Results go to stdout. */
#ifndef CKPT_MERGE_INSPECT_H
#define CKPT_MERGE_INSPECT_H

#include "base/pool.h"
#include "ckpt-merge/options.h"

enum status inspect_list(const struct merge_options *o, struct pool *pool,
                         struct error *e) MUST_CHECK;
enum status inspect_verify(const struct merge_options *o, struct pool *pool,
                           struct error *e) MUST_CHECK;
enum status inspect_diff(const struct merge_options *o, struct pool *pool,
                         struct error *e) MUST_CHECK;

#endif
