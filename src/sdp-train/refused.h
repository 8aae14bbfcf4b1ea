/* refused.h - hyperparameters of the SageMaker example that have no meaning here: each is refused
 * with what replaces it, unless its value asks for what we do anyway. */
#ifndef SDP_TRAIN_REFUSED_H
#define SDP_TRAIN_REFUSED_H

#include "base/error.h"

/* Looks at every --NAME VALUE and --NAME=VALUE; those with a neutral value are removed from argv.
 */
enum status refuse_foreign_options(int *argc, char **argv, struct error *e) MUST_CHECK;

#endif
