/* make_model - a model folder with initial values, for benchmarks: config.json and
 * model.safetensors in bf16, as ckpt-merge --dtype bf16 leaves them. usage: make_model DIR LAYERS
 * HEADS CHANNELS CONTEXT VOCABULARY */
#include "base/io.h"
#include "format/safetensors.h"
#include "gpt2/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 24 };

static enum status write_tensor(struct output *out, const struct gpt2_tensors *t,
                                const struct gpt2_config *c, int64_t index, float *values,
                                uint16_t *narrow, struct error *e)
{
    int64_t elems = t->tensors[index].elems;
    for (int64_t first = 0; first < elems; first += CHUNK) {
        int64_t n = elems - first < CHUNK ? elems - first : CHUNK;
        gpt2_init_values(t, c, index, 1, first, n, values);
        for (int64_t i = 0; i < n; i++)
            narrow[i] = f32_to_bf16(values[i]);
        TRY(output_write(out, narrow, (size_t)n * sizeof *narrow, e));
    }
    return STATUS_OK;
}

static enum status write_weights(const char *path, const struct gpt2_config *c, struct error *e)
{
    struct gpt2_tensors t;
    struct output out;
    TRY(gpt2_tensors_create(&t, c, e));
    struct safetensor *s = calloc((size_t)t.count, sizeof *s);
    float *values = malloc(CHUNK * sizeof *values);
    uint16_t *narrow = malloc(CHUNK * sizeof *narrow);
    if (!s || !values || !narrow)
        return error_memory(e, CHUNK, "a model"); /* the program ends */
    for (int64_t i = 0; i < t.count; i++) {
        s[i] = (struct safetensor){
            .name = t.tensors[i].name, .dtype = DTYPE_BF16, .dims = t.tensors[i].dims};
        memcpy(s[i].shape, t.tensors[i].shape, sizeof t.tensors[i].shape);
    }
    TRY(output_open(&out, path, OUTPUT_BINARY, e));
    TRY(safetensors_write_header(&out, s, (size_t)t.count, NULL, e));
    for (int64_t i = 0; i < t.count; i++)
        TRY(write_tensor(&out, &t, c, i, values, narrow, e));
    TRY(output_commit(&out, e));
    output_close(&out);
    free(narrow);
    free(values);
    free(s);
    gpt2_tensors_release(&t);
    return STATUS_OK;
}

static enum status make(char **argv, struct error *e)
{
    struct gpt2_config c = {.layers = atoll(argv[2]),
                            .heads = atoll(argv[3]),
                            .channels = atoll(argv[4]),
                            .context = atoll(argv[5]),
                            .vocab = atoll(argv[6]),
                            .epsilon = 1e-5f,
                            .eot = atoll(argv[6]) - 1};
    char path[4096];
    TRY(gpt2_config_check(&c, e));
    TRY(dir_create(argv[1], e));
    json_t *json = gpt2_config_to_json(&c, "bfloat16");
    snprintf(path, sizeof path, "%s/config.json", argv[1]);
    if (!json || json_dump_file(json, path, JSON_INDENT(2)) != 0)
        return error_set(e, STATUS_FAILED, "cannot write %s", path);
    json_decref(json);
    snprintf(path, sizeof path, "%s/model.safetensors", argv[1]);
    return write_weights(path, &c, e);
}

int main(int argc, char **argv)
{
    struct error e = {0};
    if (argc != 7) {
        fprintf(stderr, "usage: make_model DIR LAYERS HEADS CHANNELS CONTEXT VOCABULARY\n");
        return 2;
    }
    if (make(argv, &e) != STATUS_OK) {
        fprintf(stderr, "make_model: %s\n", e.message);
        return 1;
    }
    return 0;
}
