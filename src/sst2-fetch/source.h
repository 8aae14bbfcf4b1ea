/* source.h - from what --source names to the text of a split. */
#ifndef SST2_FETCH_SOURCE_H
#define SST2_FETCH_SOURCE_H

#include "sst2-fetch/locate.h"
#include "sst2-fetch/remote.h"

struct source_request {
    const char *source;          /* glue, hub, a URL, s3://, a path, "-" */
    enum split file_is;          /* what a source of one plain or gzip file is taken for */
    bool reread;                 /* more than one pass over the source will be made */
    const char *tmpdir;          /* for pipes that have to be read twice */
    const char *sha256;          /* expected, lower-case hex; NULL when not given */
    const struct remote *remote; /* outlives the source */
};

struct source {
    struct source_request request;
    enum { FORM_FOLDER, FORM_FILE, FORM_HUB, FORM_PREFIX } form;
    struct located located;  /* folder: paths; zip: members; prefix: URLs */
    struct source_file file; /* the file, or the last one opened of a folder or the hub */
    struct source_head head;
};

/* Downloads what has to be downloaded, except that the hub and an s3:// prefix are asked split by
 * split. */
enum status source_open(struct source *s, const struct source_request *request,
                        struct error *e) MUST_CHECK;
bool source_has(const struct source *s, enum split split);
/* One stream at a time; the split must be there. */
enum status source_stream(struct source *s, enum split split, struct stream *out,
                          struct error *e) MUST_CHECK;
/* "train and validation": what is there, for messages. */
void source_describe(const struct source *s, char *text, size_t size);
void source_close(struct source *s);

#endif
