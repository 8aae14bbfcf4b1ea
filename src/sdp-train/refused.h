/* refused.h - hyperparameters of the SageMaker example that have no meaning here: each is refused
 * with what replaces it, unless its value asks for what we do anyway. */
#ifndef SDP_TRAIN_REFUSED_H
#define SDP_TRAIN_REFUSED_H

#include "base/error.h"

#include <stdbool.h>

/* Looks at every --NAME VALUE and --NAME=VALUE; those with a neutral value are removed from argv.
 */
enum status refuse_foreign_options(int *argc, char **argv, struct error *e) MUST_CHECK;
/* The same for a key of a configuration file, as option_table.foreign. */
enum status refuse_foreign_key(const char *key, const char *value, bool *known,
                               struct error *e) MUST_CHECK;

#endif
