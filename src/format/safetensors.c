/* safetensors.c - opens a file or a folder of files, finds tensors, converts ranges to fp32. */
#include "format/safetensors_private.h"
#include "base/checked.h"
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_LIMIT ((size_t)64 << 20)
#define PREFIX "transformer."

/* --- opening ---------------------------------------------------------------------------------- */

static enum status map_file(struct safetensors_file *f, struct error *e)
{
    struct stat info;
    enum status st = STATUS_OK;
    int fd = open(f->name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(e, "cannot open %s", f->name);
    if (fstat(fd, &info) != 0)
        TRY_OUT(error_errno(e, "cannot examine %s", f->name));
    if (!S_ISREG(info.st_mode))
        TRY_OUT(error_set(e, STATUS_DATA, "%s is not a regular file", f->name));
    f->bytes = (uint64_t)info.st_size;
    if (f->bytes == 0)
        TRY_OUT(error_set(e, STATUS_DATA, "%s is empty, expected a safetensors file", f->name));
    void *map = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        TRY_OUT(error_errno(e, "cannot map %s", f->name));
    f->map = map;
out:
    close(fd);
    return st;
}

/* Takes ownership of path. */
static enum status add_file(struct safetensors *s, char *path, struct error *e)
{
    if (!path)
        return error_memory(e, 256, "a file name");
    struct safetensors_file *more = realloc(s->files, (s->file_count + 1) * sizeof *more);
    if (!more) {
        free(path);
        return error_memory(e, (s->file_count + 1) * sizeof *more, "a list of files");
    }
    s->files = more;
    s->files[s->file_count] = (struct safetensors_file){.name = path};
    s->file_count++;
    TRY(map_file(&s->files[s->file_count - 1], e));
    return safetensors_parse_header(s, s->file_count - 1, e);
}

/* The file of s that is called `name` inside its folder; file_count when there is none. */
static uint32_t find_file(const struct safetensors *s, const char *name)
{
    for (uint32_t i = 0; i < s->file_count; i++) {
        const char *slash = strrchr(s->files[i].name, '/');
        if (strcmp(slash ? slash + 1 : s->files[i].name, name) == 0)
            return i;
    }
    return s->file_count;
}

static enum status add_files_of_index(struct safetensors *s, const char *dir, const char *index,
                                      const json_t *map, struct error *e)
{
    const char *tensor;
    json_t *v;
    if (!json_is_object(map) || json_object_size(map) == 0)
        return error_set(e, STATUS_DATA, "%s has no \"weight_map\"", index);
    json_object_foreach((json_t *)map, tensor, v)
    {
        const char *file = json_string_value(v);
        if (!file || !*file || strchr(file, '/'))
            return error_set(e, STATUS_DATA,
                             "%s: tensor \"%s\" is not mapped to a file of the same folder", index,
                             tensor);
        if (find_file(s, file) == s->file_count)
            TRY(add_file(s, path_join(dir, file), e));
    }
    return STATUS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct safetensor *const *)a)->name,
                  (*(const struct safetensor *const *)b)->name);
}

static enum status sort_names(struct safetensors *s, struct error *e)
{
    s->by_name = malloc((s->count + 1) * sizeof *s->by_name);
    if (!s->by_name)
        return error_memory(e, s->count * sizeof *s->by_name, "a list of tensors");
    for (size_t i = 0; i < s->count; i++)
        s->by_name[i] = &s->tensors[i];
    qsort(s->by_name, s->count, sizeof *s->by_name, by_name);
    for (size_t i = 1; i < s->count; i++)
        if (strcmp(s->by_name[i - 1]->name, s->by_name[i]->name) == 0)
            return error_set(e, STATUS_DATA, "tensor \"%s\" is in both %s and %s",
                             s->by_name[i]->name, s->files[s->by_name[i - 1]->file].name,
                             s->files[s->by_name[i]->file].name);
    return STATUS_OK;
}

static const struct safetensor *find_exact(const struct safetensors *s, const char *name)
{
    struct safetensor key = {.name = (char *)name};
    const struct safetensor *want = &key, **found;
    found = bsearch(&want, s->by_name, s->count, sizeof *s->by_name, by_name);
    return found ? *found : NULL;
}

/* Every tensor of the index is in the file that the index says. */
static enum status check_index(const struct safetensors *s, const char *index, const json_t *map,
                               struct error *e)
{
    const char *tensor;
    json_t *v;
    json_object_foreach((json_t *)map, tensor, v)
    {
        const struct safetensor *t = find_exact(s, tensor);
        if (!t || t->file != find_file(s, json_string_value(v)))
            return error_set(e, STATUS_DATA, "%s: tensor \"%s\" is not in %s", index, tensor,
                             json_string_value(v));
    }
    return STATUS_OK;
}

static enum status open_index(struct safetensors *s, const char *dir, const char *index,
                              struct error *e)
{
    char *text = NULL;
    size_t bytes;
    json_error_t why;
    json_t *root = NULL;
    enum status st;
    TRY_OUT(file_read_all(index, INDEX_LIMIT, &text, &bytes, e));
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        TRY_OUT(error_set(e, STATUS_DATA, "%s line %d column %d: not JSON: %s", index, why.line,
                          why.column, why.text));
    const json_t *map = json_object_get(root, "weight_map");
    TRY_OUT(add_files_of_index(s, dir, index, map, e));
    TRY_OUT(sort_names(s, e));
    TRY_OUT(check_index(s, index, map, e));
out:
    json_decref(root);
    free(text);
    return st;
}

static enum status open_folder(struct safetensors *s, const char *dir, struct error *e)
{
    char *one = path_join(dir, "model.safetensors");
    char *index = path_join(dir, "model.safetensors.index.json");
    enum status st = STATUS_OK;
    if (!one || !index)
        TRY_OUT(error_memory(e, 256, "a file name"));
    if (path_exists(one)) {
        char *path = one;
        one = NULL;
        TRY_OUT(add_file(s, path, e));
        TRY_OUT(sort_names(s, e));
    } else if (path_exists(index)) {
        TRY_OUT(open_index(s, dir, index, e));
    } else {
        TRY_OUT(error_set(e, STATUS_DATA,
                          "%s has neither model.safetensors nor model.safetensors.index.json",
                          dir));
    }
out:
    free(one);
    free(index);
    return st;
}

enum status safetensors_open(struct safetensors **out_s, const char *path, struct error *e)
{
    enum status st;
    struct safetensors *s = calloc(1, sizeof *s);
    *out_s = NULL;
    if (!s)
        return error_memory(e, sizeof *s, "a set of tensors");
    if (path_is_dir(path)) {
        TRY_OUT(open_folder(s, path, e));
    } else {
        TRY_OUT(add_file(s, strdup(path), e));
        TRY_OUT(sort_names(s, e));
    }
    *out_s = s;
    s = NULL;
out:
    safetensors_close(s);
    return st;
}

void safetensors_close(struct safetensors *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->file_count; i++) {
        if (s->files[i].map)
            munmap((void *)s->files[i].map, s->files[i].bytes);
        json_decref(s->files[i].metadata);
        free(s->files[i].name);
    }
    for (size_t i = 0; i < s->count; i++)
        free(s->tensors[i].name);
    free(s->files);
    free(s->tensors);
    free(s->by_name);
    free(s);
}

/* --- looking ---------------------------------------------------------------------------------- */

size_t safetensors_count(const struct safetensors *s)
{
    return s->count;
}

const struct safetensor *safetensors_at(const struct safetensors *s, size_t i)
{
    return &s->tensors[i];
}

const struct safetensor *safetensors_find(const struct safetensors *s, const char *name)
{
    const struct safetensor *t = find_exact(s, name);
    char longer[512];
    size_t prefix = strlen(PREFIX);
    if (t)
        return t;
    if (strncmp(name, PREFIX, prefix) == 0)
        return find_exact(s, name + prefix);
    if (strlen(name) + prefix >= sizeof longer)
        return NULL;
    memcpy(longer, PREFIX, prefix);
    strcpy(longer + prefix, name);
    return find_exact(s, longer);
}

const void *safetensors_data(const struct safetensors *s, const struct safetensor *t)
{
    return s->files[t->file].map + t->offset;
}

static enum status check_range(const struct safetensors *s, const struct safetensor *t,
                               int64_t first, int64_t n, struct error *e)
{
    const char *file = s->files[t->file].name;
    if (first < 0 || n < 0 || first > t->elems || n > t->elems - first)
        return error_set(e, STATUS_USAGE,
                         "%s: tensor \"%s\" has %lld elements, wanted %lld from %lld", file,
                         t->name, (long long)t->elems, (long long)n, (long long)first);
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16 &&
        t->dtype != DTYPE_F64)
        return error_set(e, STATUS_DATA, "%s: tensor \"%s\" has dtype %s, expected a float type",
                         file, t->name, dtype_name(t->dtype));
    return STATUS_OK;
}

/* n elements at p, which need not be aligned (old files' are not) and, when narrower than fp32, may
 * be the end of out itself: element i is read before place i is written. */
static void convert(enum dtype type, const uint8_t *p, int64_t n, float *out)
{
    uint16_t half;
    double wide;
    if (type == DTYPE_F32 && (const uint8_t *)out != p) {
        memcpy(out, p, (size_t)n * sizeof *out);
    } else if (type == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(&half, p + 2 * i, 2);
            out[i] = bf16_to_f32(half);
        }
    } else if (type == DTYPE_F16) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(&half, p + 2 * i, 2);
            out[i] = f16_to_f32(half);
        }
    } else if (type == DTYPE_F64) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(&wide, p + 8 * i, 8);
            out[i] = (float)wide;
        }
    }
}

enum status safetensors_read_f32(const struct safetensors *s, const struct safetensor *t,
                                 int64_t first, int64_t n, float *out, struct error *e)
{
    TRY(check_range(s, t, first, n, e));
    const uint8_t *data = safetensors_data(s, t);
    convert(t->dtype, data + (size_t)first * dtype_bytes(t->dtype), n, out);
    return STATUS_OK;
}

enum status safetensors_pread_f32(const struct safetensors *s, const struct safetensor *t,
                                  int64_t first, int64_t n, float *out, struct error *e)
{
    const char *file = s->files[t->file].name;
    const size_t elem = dtype_bytes(t->dtype);
    enum status st = STATUS_OK;
    double wide[512];
    TRY(check_range(s, t, first, n, e));
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(e, "cannot open %s", file);
    while (n > 0) {
        bool fits = elem <= sizeof *out;
        int64_t take = fits ? n : min_i64(n, sizeof wide / sizeof *wide);
        uint8_t *raw = fits ? (uint8_t *)(out + take) - (size_t)take * elem : (uint8_t *)wide;
        TRY_OUT(
            fd_read_at(fd, file, t->offset + (uint64_t)first * elem, raw, (size_t)take * elem, e));
        convert(t->dtype, raw, take, out);
        first += take;
        out += take;
        n -= take;
    }
out:
    close(fd);
    return st;
}

const char *safetensors_file_name(const struct safetensors *s, uint32_t file)
{
    return s->files[file].name;
}

const char *safetensors_metadata(const struct safetensors *s, const char *key)
{
    for (uint32_t i = 0; i < s->file_count; i++) {
        const char *v = json_string_value(json_object_get(s->files[i].metadata, key));
        if (v)
            return v;
    }
    return NULL;
}
