/* share.h - where the data files that come with the programs lie. */
#ifndef BASE_SHARE_H
#define BASE_SHARE_H

#include "base/error.h"
#include <limits.h>

/* path = the place of `name` ("gpt2/vocab.bpe"): under `share` when that is given (the value of
 * SDP_GPT2_SHARE, which main reads; not checked for existence), else under the first of share/
 * beside the executable's folder, where it is installed, and share/ one level up that has it.
 * Failure says what is missing ("GPT-2 vocabulary"), where it was looked for, and the hint. */
enum status share_find(const char *share, const char *name, const char *what, const char *hint,
                       char path[PATH_MAX], struct error *e) MUST_CHECK;

#endif
