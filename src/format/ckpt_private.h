/* ckpt_private.h - what the ckpt_*.c files share; not for other folders. */
#ifndef FORMAT_CKPT_PRIVATE_H
#define FORMAT_CKPT_PRIVATE_H

#include "format/ckpt.h"
#include <stdatomic.h>

#define CKPT_MANIFEST_NAME "manifest.json"
#define CKPT_JSON_LIMIT ((size_t)1 << 30)

struct ckpt_file {
    char *name, *path;
    uint64_t bytes, digest; /* as the manifest says; proved when the file is opened */
    int64_t elems;          /* sum of its segments */
    size_t segments;
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
    json_t *manifest;
    int64_t step;
    uint64_t set_id;
    struct vocab_info vocab;
    struct ckpt_tensor *tensors; /* in the manifest's order */
    size_t tensor_count;
    const struct ckpt_tensor **by_name; /* sorted */
    struct ckpt_file *files;
    size_t file_count;
    struct ckpt_piece *pieces; /* sorted by tensor, kind, first */
    size_t piece_count;
    size_t *piece_of; /* [tensors * CKPT_KINDS + 1] where each tensor and kind begins in pieces */
};

/* Parses c->manifest (path is set) and proves that it is complete; files are not touched. */
enum status ckpt_manifest_parse(struct ckpt *c, struct error *e) MUST_CHECK;
/* Reads and parses PATH/manifest.json into a new object. */
enum status ckpt_manifest_load(struct ckpt **c, const char *path, struct error *e) MUST_CHECK;
/* Sorts the pieces, fills piece_of, and proves exact coverage. */
enum status ckpt_cover(struct ckpt *c, struct error *e) MUST_CHECK;
/* The manifest's segments of one file, to compare its SEGM block with. */
const json_t *ckpt_manifest_segments(const struct ckpt *c, size_t file);
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
