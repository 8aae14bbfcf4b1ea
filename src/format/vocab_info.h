/* vocab_info.h - which vocabulary token ids belong to; travels in every data file and checkpoint.
 */
#ifndef FORMAT_VOCAB_INFO_H
#define FORMAT_VOCAB_INFO_H

#include "base/error.h"
#include "base/strbuf.h"
#include <stdint.h>

struct vocab_info {
    uint32_t size;        /* ids are below this; 1 to INT32_MAX */
    uint64_t fingerprint; /* XXH3-64 of the merge list as bpe/ defines it; 0 = ids without a text */
    int64_t eot;          /* id of <|endoftext|>, -1 = none */
};

enum status vocab_info_to_json(const struct vocab_info *v, struct strbuf *out,
                               struct error *e) MUST_CHECK;
enum status vocab_info_from_json(const char *json, size_t bytes, const char *name,
                                 struct vocab_info *v, struct error *e) MUST_CHECK;
/* STATUS_DATA naming both sides when they differ in size or in a non-zero fingerprint. */
enum status vocab_info_match(const struct vocab_info *a, const char *name_a,
                             const struct vocab_info *b, const char *name_b,
                             struct error *e) MUST_CHECK;

#endif
