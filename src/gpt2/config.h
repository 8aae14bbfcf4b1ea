/* config.h - the shape of a GPT-2, as Hugging Face's config.json names it. */
#ifndef GPT2_CONFIG_H
#define GPT2_CONFIG_H

#include "base/error.h"
#include <jansson.h>
#include <stdint.h>

struct gpt2_config {
    int64_t layers;   /* n_layer */
    int64_t heads;    /* n_head */
    int64_t channels; /* n_embd, a multiple of heads; channels/heads a multiple of 8, <= 128 */
    int64_t context;  /* n_positions */
    int64_t vocab;    /* vocab_size */
    float epsilon;    /* layer_norm_epsilon */
    float embd_pdrop, resid_pdrop, attn_pdrop;
    int64_t eot; /* eos_token_id, -1 = none */
};

/* Rounded up so that products run at full speed; padding never leaves the device. */
int64_t gpt2_vocab_padded(const struct gpt2_config *c);
/* Everything that must hold; the message names the values that clash and the nearest valid ones. */
enum status gpt2_config_check(const struct gpt2_config *c, struct error *e) MUST_CHECK;
/* From config.json's object; unknown keys are ignored, an activation other than gelu_new or another
 * model type is refused. Missing keys take Hugging Face's defaults. name is for messages. */
enum status gpt2_config_from_json(struct gpt2_config *c, const json_t *json, const char *name,
                                  struct error *e) MUST_CHECK;
enum status gpt2_config_load(struct gpt2_config *c, const char *path, struct error *e) MUST_CHECK;
/* A new reference, complete for from_pretrained; NULL when out of memory. */
json_t *gpt2_config_to_json(const struct gpt2_config *c, const char *torch_dtype);
int64_t gpt2_parameters(const struct gpt2_config *c); /* wte counted once */
/* FLOPs of one trained token at sequence length T: 6*N + 12*L*C*T, N without position embeddings.
 */
double gpt2_train_flops_per_token(const struct gpt2_config *c, int64_t time);

#endif
