/* acts.c - memory of activations and transient buffers: sizes and cutting. */
#include "gpt2/model.h"

#include "gpt2/carve.h"

/* Puts every buffer of a block into the kept or the scratch piece. */
static void carve_block(const struct gpt2_config *c, int64_t batch, int64_t time, enum dtype dt,
                        enum gpt2_keep keep, struct carver *kept, struct carver *scratch,
                        struct gpt2_block_acts *a)
{
    int64_t rows = batch * time;
    int64_t wide = rows * c->channels * (int64_t)dtype_bytes(dt);
    int64_t stat = rows * (int64_t)sizeof(float);
    struct carver *mid = keep == GPT2_KEEP_INPUT ? scratch : kept; /* sub-layer inputs */
    struct carver *rest = keep == GPT2_KEEP_ALL ? kept : scratch;

    a->x = carve(kept, wide);
    a->ln1_mean = carve(mid, stat);
    a->ln1_rstd = carve(mid, stat);
    a->x_mid = carve(mid, wide);
    a->ln2_mean = carve(mid, stat);
    a->ln2_rstd = carve(mid, stat);
    a->ln1 = carve(rest, wide);
    a->qkv = carve(rest, 3 * wide);
    a->lse = carve(rest, batch * c->heads * time * (int64_t)sizeof(float));
    a->att = carve(rest, wide);
    a->ln2 = carve(rest, wide);
    a->fc = carve(rest, 4 * wide);
    a->gelu = carve(rest, 4 * wide);
}

void gpt2_block_acts_bytes(const struct gpt2_config *c, int64_t batch, int64_t time, enum dtype dt,
                           enum gpt2_keep keep, int64_t *kept, int64_t *scratch)
{
    struct carver k = {0}, s = {0};
    struct gpt2_block_acts unused;
    carve_block(c, batch, time, dt, keep, &k, &s, &unused);
    *kept = k.used;
    *scratch = s.used;
}

void gpt2_bind_block_acts(const struct gpt2_config *c, int64_t batch, int64_t time, enum dtype dt,
                          enum gpt2_keep keep, void *kept, void *scratch, struct gpt2_block_acts *a)
{
    struct carver k = {kept, 0}, s = {scratch, 0};
    carve_block(c, batch, time, dt, keep, &k, &s, a);
}

static size_t workspace_bytes(struct device *dev, const struct gpt2_config *c, int64_t batch,
                              int64_t time, enum dtype dt)
{
    int64_t rows = batch * time;
    struct attention a = {.batch = batch,
                          .time = time,
                          .heads = c->heads,
                          .head_dim = c->channels / c->heads,
                          .dt = dt};
    size_t need[] = {
        dev->ops->embed_backward_workspace(batch, time, c->channels, gpt2_vocab_padded(c)),
        dev->ops->layernorm_backward_workspace(rows, c->channels),
        dev->ops->attention_backward_workspace(&a),
        dev->ops->bias_backward_workspace(rows, 4 * c->channels),
    };
    size_t most = 0;
    for (size_t i = 0; i < sizeof need / sizeof need[0]; i++)
        most = need[i] > most ? need[i] : most;
    return most;
}

static void carve_scratch(struct device *dev, const struct gpt2_config *c, int64_t batch,
                          int64_t time, enum dtype dt, bool forward_only, bool residual_dropout,
                          struct carver *v, struct gpt2_scratch *s)
{
    int64_t wide = batch * time * c->channels * (int64_t)dtype_bytes(dt);
    *s = (struct gpt2_scratch){0};
    s->delta = carve(v, wide);
    if (forward_only)
        return;
    s->dx = carve(v, wide);
    s->ddelta = residual_dropout ? carve(v, wide) : s->dx;
    s->dc = carve(v, wide);
    s->dwide = carve(v, 4 * wide);
    s->workspace_bytes = workspace_bytes(dev, c, batch, time, dt);
    s->workspace = carve(v, (int64_t)s->workspace_bytes);
}

int64_t gpt2_scratch_bytes(struct device *dev, const struct gpt2_config *c, int64_t batch,
                           int64_t time, enum dtype dt, bool forward_only, bool residual_dropout)
{
    struct carver v = {0};
    struct gpt2_scratch unused;
    carve_scratch(dev, c, batch, time, dt, forward_only, residual_dropout, &v, &unused);
    return v.used;
}

void gpt2_bind_scratch(struct device *dev, const struct gpt2_config *c, int64_t batch, int64_t time,
                       enum dtype dt, bool forward_only, bool residual_dropout, void *memory,
                       struct gpt2_scratch *s)
{
    struct carver v = {memory, 0};
    carve_scratch(dev, c, batch, time, dt, forward_only, residual_dropout, &v, s);
}

static void carve_head(const struct gpt2_config *c, int64_t batch, int64_t time, enum dtype dt,
                       int64_t chunk_rows, struct carver *v, struct gpt2_head *h)
{
    int64_t rows = batch * time;
    int64_t wide = rows * c->channels * (int64_t)dtype_bytes(dt);
    int64_t stat = rows * (int64_t)sizeof(float);
    h->x = carve(v, wide);
    h->y = carve(v, wide);
    h->mean = carve(v, stat);
    h->rstd = carve(v, stat);
    h->losses = carve(v, stat);
    h->chunk_rows = min_i64(chunk_rows, rows);
    h->logits = carve(v, h->chunk_rows * gpt2_vocab_padded(c) * (int64_t)dtype_bytes(dt));
}

int64_t gpt2_head_bytes(const struct gpt2_config *c, int64_t batch, int64_t time, enum dtype dt,
                        int64_t chunk_rows)
{
    struct carver v = {0};
    struct gpt2_head unused = {0};
    carve_head(c, batch, time, dt, chunk_rows, &v, &unused);
    return v.used;
}

void gpt2_bind_head(const struct gpt2_config *c, int64_t batch, int64_t time, enum dtype dt,
                    int64_t chunk_rows, void *memory, struct gpt2_head *h)
{
    struct carver v = {memory, 0};
    carve_head(c, batch, time, dt, chunk_rows, &v, h);
}
