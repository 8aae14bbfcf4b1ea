/* ckpt_private.h - what the ckpt_*.c files share; not for other folders. */
#ifndef FORMAT_CKPT_PRIVATE_H
#define FORMAT_CKPT_PRIVATE_H

#include "format/ckpt.h"
#include <stdatomic.h>

#define CKPT_MANIFEST_NAME "manifest.json"
#define CKPT_JSON_LIMIT ((size_t)1 << 30)

struct ckpt_file {
    char *name, *path;
    uint64_t bytes, digest;       /* as the manifest says; proved when the file is opened */
    int64_t elems;                /* sum of its segments */
    size_t first_piece, segments; /* of the pieces */
    struct container_block *data; /* the DATA blocks */
    uint32_t data_count;
    atomic_uchar *verified; /* [data_count] the payload's checksum was right */
};

/* A segment with its tensor as an index. */
struct ckpt_piece {
    uint32_t tensor, file;
    enum ckpt_kind kind;
    int64_t first, count;
    uint64_t offset; /* in elements of the file */
};

struct ckpt {
    char *path, *skipped;
    json_t *manifest; /* once read from a file: with "files" left empty */
    int64_t step;
    uint64_t set_id;
    struct vocab_info vocab;
    struct ckpt_tensor *tensors; /* in the manifest's order */
    size_t tensor_count;
    const struct ckpt_tensor **by_name; /* sorted */
    struct ckpt_file *files;
    size_t file_count, file_capacity;
    struct ckpt_piece *pieces; /* in the order of the files and of their segments */
    size_t piece_count, piece_capacity;
    const struct ckpt_piece **places; /* sorted by tensor, kind, first */
    size_t *place_of; /* [tensors * CKPT_KINDS + 1] where each tensor and kind begins in places */
};

/* A manifest's text, of which the list of files is taken one entry at a time: as one JSON value it
 * would need a kilobyte a segment. */
struct ckpt_text {
    const char *name; /* for messages */
    const char *data;
    size_t bytes;
    size_t begin, end; /* between the brackets of the outermost "files"; 0 and 0: not found */
    size_t at;         /* the next entry */
};
/* *rest: the whole without what is in the list of files. Fails on what is not JSON outside of it.
 */
enum status ckpt_text_open(struct ckpt_text *t, const char *name, const char *data, size_t bytes,
                           json_t **rest, struct error *e) MUST_CHECK;
/* *entry: a new reference, NULL at the end. */
enum status ckpt_text_next(struct ckpt_text *t, json_t **entry, struct error *e) MUST_CHECK;

/* Parses c->manifest (path is set), with the files of `text` or, when NULL, its own, and proves
 * that it is complete; files are not touched. */
enum status ckpt_manifest_parse(struct ckpt *c, struct ckpt_text *text, struct error *e) MUST_CHECK;
/* Reads and parses PATH/manifest.json into a new object. */
enum status ckpt_manifest_load(struct ckpt **c, const char *path, struct error *e) MUST_CHECK;
/* Fills places and place_of, and proves exact coverage. */
enum status ckpt_cover(struct ckpt *c, struct error *e) MUST_CHECK;
/* A SEGM payload against the manifest's segments of the same file. */
enum status ckpt_check_segm(const struct ckpt *c, size_t file, const char *text, size_t bytes,
                            struct error *e) MUST_CHECK;
/* A header and trailer against the manifest. */
enum status ckpt_check_ends(const struct ckpt *c, size_t file, const struct container_header *h,
                            const struct container_trailer *t, struct error *e) MUST_CHECK;
/* Steps of the folders PARENT/step-N, ascending, malloc'ed: with a manifest, or without. */
enum status ckpt_scan_steps(const char *parent, bool with_manifest, int64_t **steps, size_t *n,
                            struct error *e) MUST_CHECK;
bool ckpt_kind_parse(const char *text, enum ckpt_kind *kind);

#endif
