/* convert.h - rows of a split from a source to an output. */
#ifndef SST2_FETCH_CONVERT_H
#define SST2_FETCH_CONVERT_H

#include "sst2-fetch/emit.h"
#include "sst2-fetch/source.h"

struct convert_options {
    enum emit_format format;
    double holdout;   /* fraction of train that a missing split is made of; 0: none is made */
    int64_t skip_bad; /* bad rows to tolerate in one split */
    bool quiet;
};

struct convert_result {
    uint64_t rows, positive, negative, skipped;
    bool made;               /* out of the training split */
    char first_skipped[512]; /* the message about the first bad row */
};

/* A split that the source lacks is made from train when holdout > 0: a row belongs to it when a
 * hash of its sentence falls into the split's range, so the choice depends on nothing but the
 * sentence and equal sentences stay on the same side. Train then goes without those rows. idx stays
 * train's. */
enum status convert_split(struct source *s, enum split split, const struct convert_options *o,
                          struct output *out, struct convert_result *result,
                          struct error *e) MUST_CHECK;

#endif
