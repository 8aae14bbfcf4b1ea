/* safetensors_private.h - what the safetensors_*.c files share; not for other folders. */
#ifndef FORMAT_SAFETENSORS_PRIVATE_H
#define FORMAT_SAFETENSORS_PRIVATE_H

#include "format/safetensors.h"
#include <jansson.h>

struct safetensors_file {
    char *name; /* path, for messages */
    const uint8_t *map;
    uint64_t bytes;
    json_t *metadata; /* "__metadata__", NULL when absent */
};

struct safetensors {
    struct safetensors_file *files;
    uint32_t file_count;
    struct safetensor *tensors; /* in the order of their data, file after file */
    size_t count, capacity;
    const struct safetensor **by_name; /* sorted */
};

/* Appends the tensors of s->files[file], whose map and size are set, after checking all of them. */
enum status safetensors_parse_header(struct safetensors *s, uint32_t file,
                                     struct error *e) MUST_CHECK;
/* What a dtype is called in a header; NULL for one the format lacks. */
const char *safetensors_dtype_name(enum dtype t);

#endif
