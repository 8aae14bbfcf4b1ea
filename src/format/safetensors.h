/* safetensors.h - the exported model's format: u64 header length, JSON header, raw tensors.
 * Source: the safetensors specification (dtype names F32, BF16, F16; offsets relative to the data).
 * Readers take a file, a folder with model.safetensors, or a folder with
 * model.safetensors.index.json. */
#ifndef FORMAT_SAFETENSORS_H
#define FORMAT_SAFETENSORS_H

#include "base/dtype.h"
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_MAX_DIMS 4

struct safetensor {
    char *name;
    enum dtype dtype;
    int dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    int64_t elems;
    uint64_t bytes;
    uint64_t offset; /* in its file */
    uint32_t file;   /* index of the file in the set */
};

struct safetensors;
/* Verifies lengths, overlaps, gaps, dtype and shape against offsets, and file sizes. Maps the
 * files. BOOL, I8, I16 and U64 are taken as U8, U8, U16 and I64: same width, never read as numbers.
 */
enum status safetensors_open(struct safetensors **s, const char *path, struct error *e) MUST_CHECK;
void safetensors_close(struct safetensors *s);
size_t safetensors_count(const struct safetensors *s);
const struct safetensor *safetensors_at(const struct safetensors *s, size_t i);
/* NULL when absent. Tries name, then "transformer." + name, then without that prefix. */
const struct safetensor *safetensors_find(const struct safetensors *s, const char *name);
/* Mapped; not aligned when the file's writer did not align its data. */
const void *safetensors_data(const struct safetensors *s, const struct safetensor *t);
/* out[n] = elements first .. first+n-1 of a float tensor as fp32. */
enum status safetensors_read_f32(const struct safetensors *s, const struct safetensor *t,
                                 int64_t first, int64_t n, float *out, struct error *e) MUST_CHECK;
/* The same by reading the file: mapped pages count as this process's memory, and a fault may map
 * any number of them. For one pass over files of any size in bounded memory. Thread-safe. */
enum status safetensors_pread_f32(const struct safetensors *s, const struct safetensor *t,
                                  int64_t first, int64_t n, float *out, struct error *e) MUST_CHECK;
const char *safetensors_file_name(const struct safetensors *s, uint32_t file);
const char *safetensors_metadata(const struct safetensors *s, const char *key); /* NULL if absent */

/* Writing is two-step so that memory stays bounded: the header from the descriptions, then the data
 * of each tensor in the same order. name, dtype, dims and shape are read; elems, bytes and offset
 * are filled in. metadata: pairs key,value,...,NULL, or NULL. */
struct output;
enum status safetensors_write_header(struct output *out, struct safetensor *tensors, size_t n,
                                     const char *const *metadata, struct error *e) MUST_CHECK;

#endif
