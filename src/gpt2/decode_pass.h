/* decode_pass.h - one forward pass over rows of tokens, without gradients: what cached decoding
 * (decode.h) and scoring (score.h) share. A row is one token at one position of one sequence; the
 * caller says how rows attend to each other. All memory is allocated at creation. */
#ifndef GPT2_DECODE_PASS_H
#define GPT2_DECODE_PASS_H

#include "gpt2/load.h"

/* Inputs and results of a pass; the same layout in host and in device memory, so that each
 * direction is one copy. */
struct gpt2_pass_io {
    int32_t *tokens, *positions, *sequences; /* [max_rows] */
    int32_t *select, *targets;               /* [max_queries] rows that need logits */
    struct sampling *sampling;               /* [max_queries] */
    int32_t *ids;                            /* [max_queries] out: sampled */
    float *logprobs;                         /* [max_queries] out */
};

struct gpt2_pass {
    const struct gpt2_weights *w;
    struct device *dev;
    struct stream *stream;
    int64_t max_rows, max_queries;
    int64_t logit_rows; /* logits are computed at most this many rows at a time */
    struct gpt2_pass_io host, device;
    int side;      /* which of two host buffers `host` is; see gpt2_pass_turn */
    float *logits; /* [logit_rows, Vp] device, of the last chunk */
    /* private */
    void *x, *delta, *y; /* [max_rows, C] */
    void *qkv;           /* [max_rows, 3C] */
    void *att;           /* [max_rows, C] */
    void *gelu;          /* [max_rows, 4C] */
    float *lse;          /* [max_rows, H] */
    void *selected;      /* [logit_rows, C] */
    void *head_memory;   /* of gpt2_pass_keep_no_logits; NULL: none */
    bool skinny;         /* the body took the products of few rows: p->x is complete, p->y is not */
    struct decode_blocks resident; /* of passes of one row; blocks NULL: none */
    struct gpt2_pass_io other_host;
    struct event *done[2]; /* by side: results are on the host */
    void *other_memory;
    void *memory, *host_memory, *io_memory;
    int64_t input_bytes, output_offset, output_bytes;
};

enum status gpt2_pass_create(struct gpt2_pass **p, const struct gpt2_weights *w, int64_t max_rows,
                             int64_t max_queries, int64_t logit_rows, struct error *e) MUST_CHECK;
void gpt2_pass_free(struct gpt2_pass *p);

/* out [rows,C] = attention of qkv [rows,3C] in layer `layer`. */
typedef void gpt2_attend(void *arg, struct gpt2_pass *p, int64_t layer, void *out, const void *qkv);

/* `host` becomes the other of two buffers, so that the next pass can be prepared while this one's
 * results are awaited or read. */
void gpt2_pass_turn(struct gpt2_pass *p);
/* Host inputs to the device. */
void gpt2_pass_upload(struct gpt2_pass *p);
/* The tokens of the first `rows` rows are the ids that the pass before drew, which stay on the
 * device; after the upload. */
void gpt2_pass_chain(struct gpt2_pass *p, int64_t rows);
/* From now on a pass of one row is one call of the device's for all blocks, and does not attend by
 * the caller's function. d: but for x, sequences and positions. */
void gpt2_pass_set_resident(struct gpt2_pass *p, const struct decode_blocks *d);
/* The blocks over `rows` rows of the uploaded tokens and positions. Leaves p->y, after the final
 * norm, or, of few rows on a device with a product for them, p->x before it. */
void gpt2_pass_body(struct gpt2_pass *p, int64_t rows, gpt2_attend *attend, void *arg);
/* p->logits [n, Vp] of queries first .. first+n-1; n <= logit_rows. */
void gpt2_pass_logits(struct gpt2_pass *p, int64_t first, int64_t n);
/* p->device.logprobs of queries 0 .. n-1: log p of their targets. */
void gpt2_pass_logprobs(struct gpt2_pass *p, int64_t n);
/* Memory for gpt2_pass_logprobs to do so without logits, where the device can. */
enum status gpt2_pass_keep_no_logits(struct gpt2_pass *p, struct error *e) MUST_CHECK;
/* Results to the host. */
void gpt2_pass_download(struct gpt2_pass *p);
/* Behind the work of the pass: what gpt2_pass_wait waits for. */
void gpt2_pass_mark(struct gpt2_pass *p);
/* Until the results of that side's pass are there; reports the first failure. */
enum status gpt2_pass_wait(struct gpt2_pass *p, int side, struct error *e) MUST_CHECK;

#endif
