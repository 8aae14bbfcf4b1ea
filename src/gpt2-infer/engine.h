/* engine.h - what every task of gpt2-infer works with: a device, a model, its vocabulary. */
#ifndef GPT2_INFER_ENGINE_H
#define GPT2_INFER_ENGINE_H

#include "bpe/bpe.h"
#include "gpt2-infer/options.h"
#include "gpt2/decode.h"
#include "gpt2/score.h"

struct engine {
    const struct infer_options *o;
    struct device *dev;
    struct gpt2_weights *weights;
    struct bpe *bpe; /* NULL: the model has no tokenizer, only ids work */
    char *model_name;
    int64_t vocab, context, eot;
    double load_seconds;
    bool in_use; /* a thread that cannot be stopped still reads from this: do not close it */
};

enum status engine_open(struct engine *g, const struct infer_options *o,
                        struct error *e) MUST_CHECK;
void engine_close(struct engine *g);
/* The decoder that the options ask for, with the device's defaults. */
enum status engine_decoder(struct engine *g, struct gpt2_decoder **d, struct error *e) MUST_CHECK;
/* A pass for scoring. */
enum status engine_scorer(struct engine *g, struct gpt2_pass **p, struct error *e) MUST_CHECK;

#endif
