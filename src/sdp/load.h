/* load.h - parameters into the engine: each rank reads or makes only the elements it owns. */
#ifndef SDP_LOAD_H
#define SDP_LOAD_H

#include "format/ckpt.h"
#include "format/safetensors.h"
#include "sdp/engine.h"

/* Initial values as a function of (seed, tensor, element). */
enum status sdp_load_init(struct sdp_engine *x, uint64_t seed, struct error *e) MUST_CHECK;
/* A Hugging Face GPT-2. Missing tensors and other shapes are STATUS_DATA, by name. */
enum status sdp_load_safetensors(struct sdp_engine *x, const struct safetensors *s,
                                 struct error *e) MUST_CHECK;
/* A checkpoint written by any number of ranks; with moments also Adam's m and v. */
enum status sdp_load_checkpoint(struct sdp_engine *x, struct ckpt *c, bool moments,
                                struct error *e) MUST_CHECK;
/* Collective: replicas hold the same bits, or STATUS_FAILED naming the first two ranks that differ
 *. */
enum status sdp_load_compare_replicas(struct sdp_engine *x, struct error *e) MUST_CHECK;

#endif
