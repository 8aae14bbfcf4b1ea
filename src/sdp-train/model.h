/* model.h - which model to train: a preset, a file, a checkpoint's or a folder's own, and
 * overrides. */
#ifndef SDP_TRAIN_MODEL_H
#define SDP_TRAIN_MODEL_H

#include "sdp-train/options.h"

/* share: the value of SDP_GPT2_SHARE, or NULL. */
enum status train_model_config(const struct train_options *o, const char *share,
                               struct gpt2_config *c, struct error *e) MUST_CHECK;

#endif
