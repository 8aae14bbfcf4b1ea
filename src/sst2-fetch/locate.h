/* locate.h - which file of a folder or zip holds which split, by name. */
#ifndef SST2_FETCH_LOCATE_H
#define SST2_FETCH_LOCATE_H

#include "sst2-fetch/stream.h"

enum split { SPLIT_TRAIN, SPLIT_VALIDATION, SPLIT_TEST, SPLIT_COUNT };

const char *split_name(enum split split); /* "train", "validation", "test" */

/* The names of the three splits' files; NULL where there is none. Owned, locate_release. */
struct located {
    char *path[SPLIT_COUNT];
};

/* A file is taken by its base name: train, dev (or validation, valid, val) and test, with .tsv,
 * .jsonl, .json, .ndjson or .txt behind it and .gz behind that. The one nearest the top wins; two
 * equally near are an error. Other files are ignored. */
enum status locate_in_folder(struct located *l, const char *folder, struct error *e) MUST_CHECK;
enum status locate_in_zip(struct located *l, struct source_file *f, struct error *e) MUST_CHECK;
/* Names that `list` hands to its visitor, one by one; where names their place in messages. */
enum status locate_in_list(struct located *l, const char *where,
                           enum status (*list)(void *arg,
                                               void (*visit)(void *visit_arg, const char *name),
                                               void *visit_arg, struct error *e),
                           void *arg, struct error *e) MUST_CHECK;
void locate_release(struct located *l);

#endif
