/* model.h - GPT-2 forward and backward, one unit at a time, so that the caller decides when each
 * unit's weights are in memory. Formulas as Hugging Face's GPT2LMHeadModel: pre-LayerNorm, tanh
 * GELU, biases, tied lm_head, mean cross-entropy of tokens 1..T-1.
 *
 * The residual stream between blocks is a pair (residual, delta): the block that consumes it adds
 * them in the same pass that normalises (x = residual + dropout(delta); y = LN(x)), so no block
 * needs another block's weights and no pass over memory is spent on the addition alone. Backward
 * mirrors it: a unit receives dx, the gradient of its output sum, and ddelta, the same with the
 * dropout mask of the delta applied (ddelta == dx when there is no dropout), and leaves dx and
 * ddelta of its input.
 *
 * Shapes: N = B*T rows. Everything is put on run->stream; nothing synchronises or allocates. */
#ifndef GPT2_MODEL_H
#define GPT2_MODEL_H

#include "device/device.h"
#include "gpt2/config.h"
#include "gpt2/tensors.h"

/* What one operation wrote, [rows, columns] of dt on the device. */
struct gpt2_written {
    const char *pass;      /* "forward", "recompute" or "backward" */
    int64_t layer;         /* the block; -1 the embeddings, `layers` the head */
    const char *operation; /* named like its parameters: "attn.c_attn", "ln_1", "attention" */
    const char *what;      /* "output", "input gradient", "weight gradient", ... */
    const void *data;
    int64_t rows, columns;
    enum dtype dt;
};
/* Someone who looks at every result, in order, right after the operation was put on the stream. */
struct gpt2_probe {
    void (*look)(void *context, const struct gpt2_written *w);
    void *context;
};

/* One micro-batch's circumstances. */
struct gpt2_run {
    struct device *dev;
    struct stream *stream;
    const struct gpt2_config *config;
    int64_t batch, time;
    enum dtype dt; /* of activations and working weights */
    bool training; /* dropout applies */
    bool deterministic;
    uint64_t seed;          /* of dropout */
    const int64_t *samples; /* [B] device: global sample numbers; may be NULL when not training */
    const struct gpt2_probe *probe; /* NULL: nobody looks */
};

/* Dropout sites: embedding 0, then three a block. */
enum { GPT2_SITE_EMBEDDING = 0, GPT2_SITES_PER_BLOCK = 3 };
enum gpt2_block_site { GPT2_SITE_ATTENTION, GPT2_SITE_ATTENTION_OUT, GPT2_SITE_MLP_OUT };
struct dropout gpt2_dropout(const struct gpt2_run *run, int64_t layer, enum gpt2_block_site site);

/* Pointers into a gathered unit (dt) or into a gradient buffer of the same layout (float). */
struct gpt2_block_params {
    const void *ln1_w, *ln1_b, *qkv_w, *qkv_b, *proj_w, *proj_b;
    const void *ln2_w, *ln2_b, *fc_w, *fc_b, *fcproj_w, *fcproj_b;
};
struct gpt2_block_grads {
    float *ln1_w, *ln1_b, *qkv_w, *qkv_b, *proj_w, *proj_b;
    float *ln2_w, *ln2_b, *fc_w, *fc_b, *fcproj_w, *fcproj_b;
};
/* The field of p that is the tensor called `name` ("transformer.h.0.ln_1.weight") of its block. */
const void **gpt2_block_param(struct gpt2_block_params *p, const char *name);
/* Where tensor number `tensor` of the table lies; context is the caller's. */
typedef void *gpt2_place(const void *context, int64_t tensor);
void gpt2_bind_block(const struct gpt2_tensors *t, int64_t layer, gpt2_place *place,
                     const void *context, struct gpt2_block_params *p);
void gpt2_bind_block_grads(const struct gpt2_tensors *t, int64_t layer, gpt2_place *place,
                           const void *context, struct gpt2_block_grads *g);
/* Embedding unit: wte at offset 0, wpe after it. */
const void *gpt2_wte(const struct gpt2_tensors *t, const void *unit0, enum dtype dt);
const void *gpt2_wpe(const struct gpt2_tensors *t, const void *unit0, enum dtype dt);

/* What forward leaves for backward, per block. Sizes from gpt2_block_acts_layout. */
struct gpt2_block_acts {
    void *x; /* [N,C] block input (sum); all that checkpointing per block keeps */
    float *ln1_mean, *ln1_rstd; /* [N] */
    void *ln1;                  /* [N,C] */
    void *qkv;                  /* [N,3C] */
    float *lse;                 /* [B,H,T] */
    void *att;                  /* [N,C] */
    void *x_mid;                /* [N,C] */
    float *ln2_mean, *ln2_rstd;
    void *ln2;  /* [N,C] */
    void *fc;   /* [N,4C] before GELU */
    void *gelu; /* [N,4C] */
};
/* What a saver keeps of a block between forward and backward; the rest is recomputed. */
enum gpt2_keep {
    GPT2_KEEP_ALL,      /* nothing is recomputed */
    GPT2_KEEP_SUBLAYER, /* x, x_mid and statistics: each sub-layer is recomputed from its input */
    GPT2_KEEP_INPUT,    /* x only: the block is recomputed */
};
/* Bytes of the kept part and of the part that is scratch (shared by all blocks) under `keep`. */
void gpt2_block_acts_bytes(const struct gpt2_config *c, int64_t batch, int64_t time, enum dtype dt,
                           enum gpt2_keep keep, int64_t *kept, int64_t *scratch);
/* Cut the two memory pieces into pointers. */
void gpt2_bind_block_acts(const struct gpt2_config *c, int64_t batch, int64_t time, enum dtype dt,
                          enum gpt2_keep keep, void *kept, void *scratch,
                          struct gpt2_block_acts *a);

/* Transient buffers of a run, one set for all units. */
struct gpt2_scratch {
    void *delta;     /* [N,C] output of a sub-layer on its way to the next sum */
    void *dx;        /* [N,C] gradient of the residual stream */
    void *ddelta;    /* [N,C]; the same buffer as dx when no residual dropout */
    void *dc;        /* [N,C] gradient of a normalised input */
    void *dwide;     /* [N,4C] gradient of fc or qkv */
    void *workspace; /* kernels' own needs */
    size_t workspace_bytes;
};
/* Bytes of all transient buffers; forward_only leaves out the gradients. */
int64_t gpt2_scratch_bytes(struct device *dev, const struct gpt2_config *c, int64_t batch,
                           int64_t time, enum dtype dt, bool forward_only, bool residual_dropout);
void gpt2_bind_scratch(struct device *dev, const struct gpt2_config *c, int64_t batch, int64_t time,
                       enum dtype dt, bool forward_only, bool residual_dropout, void *memory,
                       struct gpt2_scratch *s);

/* x [N,C] = embeddings with dropout. tokens [N] device. */
void gpt2_embed_forward(const struct gpt2_run *run, const struct gpt2_tensors *t, const void *unit0,
                        const int32_t *tokens, void *x);
/* Block `layer`: reads the pair (residual, delta); the output pair is (a->x_mid, s->delta). For the
 * first block delta is NULL and the embeddings stand in a->x already (residual == a->x). delta may
 * be s->delta. */
void gpt2_block_forward(const struct gpt2_run *run, int64_t layer,
                        const struct gpt2_block_params *p, struct gpt2_block_acts *a,
                        struct gpt2_scratch *s, const void *residual, const void *delta);
/* Recompute what `keep` did not keep, from a->x (and a->x_mid), before gpt2_block_backward. */
void gpt2_block_recompute(const struct gpt2_run *run, int64_t layer,
                          const struct gpt2_block_params *p, struct gpt2_block_acts *a,
                          struct gpt2_scratch *s, enum gpt2_keep keep);
/* In: s->dx, s->ddelta of the block's output pair. Out: the same of its input pair; g +=. */
void gpt2_block_backward(const struct gpt2_run *run, int64_t layer,
                         const struct gpt2_block_params *p, const struct gpt2_block_grads *g,
                         struct gpt2_block_acts *a, struct gpt2_scratch *s);

/* Final norm, logits in row chunks, loss and gradient. */
struct gpt2_head {
    const void *lnf_w, *lnf_b, *wte;
    float *d_lnf_w, *d_lnf_b, *d_wte; /* NULL: loss only */
    void *x;                          /* [N,C] final residual stream */
    void *y;                          /* [N,C] normalised */
    float *mean, *rstd;               /* [N] */
    void *logits;                     /* [chunk_rows, Vp] */
    int64_t chunk_rows;
    float *losses;          /* [N] */
    const int32_t *targets; /* [N] device, -1 = not counted */
};
int64_t gpt2_head_bytes(const struct gpt2_config *c, int64_t batch, int64_t time, enum dtype dt,
                        int64_t chunk_rows);
void gpt2_bind_head(const struct gpt2_config *c, int64_t batch, int64_t time, enum dtype dt,
                    int64_t chunk_rows, void *memory, struct gpt2_head *h);
/* Forward of the last pair; leaves h->losses and, when gradients are bound, s->dx and s->ddelta of
 * the last block's output pair. grad_scale multiplies every d(logit): loss scale; normalisation by
 * the global token count is the optimizer's (so that micro-batches of any size add up). */
void gpt2_head_run(const struct gpt2_run *run, const struct gpt2_head *h, struct gpt2_scratch *s,
                   const void *residual, const void *delta, float grad_scale);
/* In: s->dx. d_wte, d_wpe +=. */
void gpt2_embed_backward(const struct gpt2_run *run, const struct gpt2_tensors *t,
                         float *unit0_grad, const int32_t *tokens, struct gpt2_scratch *s);
/* logits [rows,Vp] dt of normalised rows y [rows,C]: y wte^T. */
void gpt2_logits(const struct gpt2_run *run, const void *wte, const void *y, int64_t rows,
                 void *logits);

#endif
