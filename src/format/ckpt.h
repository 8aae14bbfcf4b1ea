/* ckpt.h - a sharded training checkpoint on disk: what sdp-train writes and resumes from, and what
 * ckpt-merge reads.
 *
 * DIR/step-00000200/rank-00000-of-00008.ckp ... and manifest.json, renamed in last after all files
 * are durable; a folder without a manifest does not exist for any reader.
 *
 * A rank file is a container of kind "CKP", version 1.0, dtype f32: "prov", then one "SEGM" block
 * (JSON) that lists the file's segments in order, then "DATA" blocks of at most 4 MiB: the
 * segments' elements one after another. A segment is a contiguous element range of one tensor of
 * one kind:
 *   {"tensor":"transformer.h.0.attn.c_attn.weight","kind":"master|m|v","first":N,"count":N}
 * DATA blocks are all full but the last, so element e of the file is at a computable place.
 *
 * manifest.json: {"format":"sdp-checkpoint","version":1,"set_id":"16 hex digits","step":N,
 *   "model":{config},"tensors":[{"name","shape":[...],"digest":{"master":"hex","m":...,"v":...}}...],
 *   "files":[{"file","bytes","digest":"hex","segments":[...as SEGM, with "offset" = first element
 * in file]}],"vocabulary":{...},"state":{everything the trainer needs to
 * continue},"provenance":{...}}. Every tensor has "master"; "m" and "v" are there when the
 * optimizer's state is.
 *
 * A tensor's digest is the sum modulo 2^64 over its elements of mix(i, bits), i the element's index
 * in the tensor and bits its 32 bits: z = (i << 32 | bits) + (i >> 32) * 0x9E3779B97F4A7C15 z = (z
 * ^ z >> 30) * 0xBF58476D1CE4E5B9;  z = (z ^ z >> 27) * 0x94D049BB133111EB;  z ^ z >> 31 (the
 * finaliser of splitmix64). A sum has no order, so every rank digests what it owns and the total
 * does not depend on the partition; the index in the mix makes moved elements visible. */
#ifndef FORMAT_CKPT_H
#define FORMAT_CKPT_H

#include "format/container.h"
#include "format/vocab_info.h"
#include <jansson.h>

#define CKPT_MAJOR 1
#define CKPT_DATA_BYTES (4u << 20)

enum ckpt_kind { CKPT_MASTER, CKPT_M, CKPT_V, CKPT_KINDS };
extern const char *const ckpt_kind_names[CKPT_KINDS];

struct ckpt_segment {
    const char *tensor;
    enum ckpt_kind kind;
    int64_t first, count; /* elements of the tensor, flattened row-major */
    uint64_t offset;      /* first element's index in the rank file; filled by the writer */
};

/* --- writing one rank's file (any thread; one writer, one thread) ----------------------------- */
struct ckpt_writer;
/* The segments are fixed first; then their elements are put in the same order, in pieces of any
 * size. The file is durable and under its final name in dir after finish. dir exists. */
enum status ckpt_writer_open(struct ckpt_writer **w, const char *dir, uint32_t rank, uint32_t ranks,
                             uint64_t set_id, const struct ckpt_segment *segments, size_t n,
                             const char *provenance, struct error *e) MUST_CHECK;
enum status ckpt_writer_put(struct ckpt_writer *w, const float *elements, int64_t n,
                            struct error *e) MUST_CHECK;
/* *entry: the file's entry for the manifest, a new reference. */
enum status ckpt_writer_finish(struct ckpt_writer *w, json_t **entry, struct error *e) MUST_CHECK;
void ckpt_writer_free(struct ckpt_writer *w); /* an unfinished file disappears */

/* Elements x[0..n) that are elements first.. of their tensor; wrapping sum, order-free. */
uint64_t ckpt_digest_add(uint64_t sum, int64_t first, const float *x, int64_t n);

/* Write manifest.json atomically; then the checkpoint exists. The manifest is checked first as a
 * reader would check it, coverage of every tensor included. */
enum status ckpt_manifest_write(const char *dir, const json_t *manifest,
                                struct error *e) MUST_CHECK;

/* --- reading ---------------------------------------------------------------------------------- */
struct ckpt_tensor {
    char *name;
    int dims;
    int64_t shape[4];
    int64_t elems;
    uint64_t digest[CKPT_KINDS];
    bool present[CKPT_KINDS];
};

struct ckpt;
/* dir is one checkpoint ("…/step-00000200"), or a parent folder: then its newest valid one. Checks
 * the manifest, sizes, headers and trailers of all files, and that segments cover every element of
 * every tensor and kind exactly once (a missing or doubled element range is named). */
enum status ckpt_open(struct ckpt **c, const char *dir, struct error *e) MUST_CHECK;
/* When a parent folder was opened and newer checkpoints than the one taken are damaged: what is
 * wrong with the newest of them, for a warning. NULL otherwise. */
const char *ckpt_skipped(const struct ckpt *c);
void ckpt_close(struct ckpt *c);
const char *ckpt_path(const struct ckpt *c);
/* Without its files' entries, which ckpt_file_at and ckpt_segment_at give: "files" is empty. */
const json_t *ckpt_manifest(const struct ckpt *c);
int64_t ckpt_step(const struct ckpt *c);
const struct vocab_info *ckpt_vocab(const struct ckpt *c);
size_t ckpt_tensor_count(const struct ckpt *c);
const struct ckpt_tensor *ckpt_tensor_at(const struct ckpt *c, size_t i);
const struct ckpt_tensor *ckpt_tensor_find(const struct ckpt *c, const char *name);
/* out[n] = elements first.. of one tensor; every DATA block touched is verified. Thread-safe. */
enum status ckpt_read(struct ckpt *c, const struct ckpt_tensor *t, enum ckpt_kind kind,
                      int64_t first, int64_t n, float *out, struct error *e) MUST_CHECK;

/* Read every file from start to end through a buffer; check every checksum and every tensor's
 * digest. progress may be NULL; bytes: of all files so far. */
enum status ckpt_verify(struct ckpt *c, void (*progress)(void *, uint64_t bytes), void *arg,
                        struct error *e) MUST_CHECK;
/* The same for one file, but its own checksums only: a tensor's digest takes all files. What is
 * right is not checked again when it is read. Thread-safe for different files. */
enum status ckpt_verify_file(struct ckpt *c, size_t file, struct error *e) MUST_CHECK;
/* For --list. */
struct ckpt_file_info {
    const char *file;
    uint64_t bytes;
    int64_t elems;
    size_t segments;
};
size_t ckpt_file_count(const struct ckpt *c);
struct ckpt_file_info ckpt_file_at(const struct ckpt *c, size_t i);
/* Segment i of a file, in file order. */
struct ckpt_segment ckpt_segment_at(const struct ckpt *c, size_t file, size_t i);

/* Steps of the valid checkpoints under parent, ascending, malloc'ed; *n may be 0. Valid here: the
 * manifest is right and every file is there with its size; parent need not exist. */
enum status ckpt_list_steps(const char *parent, int64_t **steps, size_t *n,
                            struct error *e) MUST_CHECK;
/* The same with those that have a manifest, right or not. */
enum status ckpt_list_all_steps(const char *parent, int64_t **steps, size_t *n,
                                struct error *e) MUST_CHECK;
/* "PARENT/step-%08d", malloc'ed. */
char *ckpt_step_path(const char *parent, int64_t step);
/* After the checkpoint of step `newest` is complete: remove the oldest beyond `keep` valid ones up
 * to that step (0 = keep all), and leftovers without a manifest older than the newest of them.
 * Later steps are another run's, or what a resumed run passed over: they count for nothing and
 * stay. manifest.json goes first, so an interrupted removal leaves no valid-looking half. */
enum status ckpt_prune(const char *parent, int64_t keep, int64_t newest,
                       struct error *e) MUST_CHECK;

#endif
