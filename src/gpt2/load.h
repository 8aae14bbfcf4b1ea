/* load.h - a Hugging Face GPT-2 folder's weights on a device, for inference.
 *
 * A tensor that has the working dtype already, on a device that reads host memory, is used straight
 * from the mapped file: nothing is copied at start-up and several processes share one page cache.
 * Every other tensor is copied once, piece by piece, and converted on the device. */
#ifndef GPT2_LOAD_H
#define GPT2_LOAD_H

#include "device/device.h"
#include "gpt2/config.h"
#include "gpt2/model.h"

struct gpt2_weights {
    struct device *dev; /* borrowed; outlives this */
    struct gpt2_config config;
    enum dtype dt;
    struct gpt2_block_params *blocks; /* [layers] */
    const void *wte;                  /* [wte_rows, C] */
    const void *wpe;                  /* [context, C] */
    const void *lnf_w, *lnf_b;        /* [C] */
    int64_t wte_rows;     /* V where the file is used as it lies, else V padded (zero rows) */
    int64_t mapped_bytes; /* used from the file */
    int64_t copied_bytes; /* in device memory */
    /* private */
    void *memory, *staging, *device_staging;
    struct safetensors *file;
};

/* path: a folder with config.json and safetensors. dt: DTYPE_F32, DTYPE_BF16 or DTYPE_F16. A tensor
 * that is missing, has another shape or is no float is STATUS_DATA; so is an lm_head.weight that
 * differs from wte. */
enum status gpt2_weights_load(struct gpt2_weights **w, struct device *dev, const char *path,
                              enum dtype dt, struct error *e) MUST_CHECK;
void gpt2_weights_free(struct gpt2_weights *w);

#endif
