/* The model layer alone, on the cpu device, against Hugging Face's numbers for a tiny GPT-2. */
#include "base/io.h"
#include "base/le.h"
#include "base/philox.h"
#include "format/safetensors.h"
#include "gpt2/model.h"

#include <stdlib.h>

#include "tap.h"

#define GOLDEN "../fixtures/golden-tiny/"
#define BATCH 4
#define TIME 64

struct fixture {
    struct device *dev;
    struct gpt2_config config;
    struct gpt2_tensors tensors;
    float **units, **grads;
    int32_t tokens[BATCH * TIME], targets[BATCH * TIME];
    struct gpt2_run run;
    struct gpt2_scratch scratch;
    struct gpt2_head head;
    struct gpt2_block_acts *acts;
};

static void *device_memory(struct fixture *f, int64_t bytes)
{
    struct error e = {0};
    void *p = NULL;
    if (f->dev->ops->alloc(f->dev, MEMORY_DEVICE, (size_t)bytes, &p, &e) != STATUS_OK) {
        printf("Bail out! %s\n", e.message);
        exit(1);
    }
    return p;
}

static void require(enum status st, const struct error *e)
{
    if (st != STATUS_OK) {
        printf("Bail out! %s\n", e->message);
        exit(1);
    }
}

static void load_weights(struct fixture *f)
{
    struct error e = {0};
    struct safetensors *s = NULL;
    require(safetensors_open(&s, GOLDEN "model.safetensors", &e), &e);
    for (int64_t u = 0; u < f->tensors.units; u++) {
        int64_t bytes = f->tensors.unit_elems[u] * (int64_t)sizeof(float);
        f->units[u] = device_memory(f, bytes);
        f->grads[u] = device_memory(f, bytes);
    }
    for (int64_t i = 0; i < f->tensors.count; i++) {
        const struct gpt2_tensor *t = &f->tensors.tensors[i];
        const struct safetensor *x = safetensors_find(s, t->name);
        CHECK(x != NULL);
        require(safetensors_read_f32(s, x, 0, t->elems, f->units[t->unit] + t->offset, &e), &e);
    }
    safetensors_close(s);
}

static void load_tokens(struct fixture *f)
{
    struct error e = {0};
    char *data = NULL;
    size_t bytes;
    require(file_read_all(GOLDEN "batches.u16", 1 << 20, &data, &bytes, &e), &e);
    for (int i = 0; i < BATCH * TIME; i++)
        f->tokens[i] = le16_get((const uint8_t *)data + 2 * i);
    for (int i = 0; i < BATCH * TIME; i++)
        f->targets[i] = i % TIME == TIME - 1 ? -1 : f->tokens[i + 1];
    free(data);
}

static void fixture_open(struct fixture *f, enum gpt2_keep keep, bool dropout)
{
    struct error e = {0};
    memset(f, 0, sizeof *f);
    require(device_open(&f->dev, "cpu", 0, &e), &e);
    require(gpt2_config_load(&f->config, GOLDEN "config.json", &e), &e);
    f->config.embd_pdrop = f->config.resid_pdrop = f->config.attn_pdrop = dropout ? 0.1f : 0.0f;
    require(gpt2_tensors_create(&f->tensors, &f->config, &e), &e);
    f->units = calloc((size_t)f->tensors.units, sizeof *f->units);
    f->grads = calloc((size_t)f->tensors.units, sizeof *f->grads);
    f->acts = calloc((size_t)f->config.layers, sizeof *f->acts);
    load_weights(f);
    load_tokens(f);
    int64_t *samples = device_memory(f, BATCH * (int64_t)sizeof *samples);
    for (int i = 0; i < BATCH; i++)
        samples[i] = 100 + i;
    f->run = (struct gpt2_run){.dev = f->dev,
                               .stream = f->dev->compute,
                               .config = &f->config,
                               .batch = BATCH,
                               .time = TIME,
                               .dt = DTYPE_F32,
                               .training = dropout,
                               .deterministic = true,
                               .seed = 7,
                               .samples = samples};
    int64_t kept, temporary;
    gpt2_block_acts_bytes(&f->config, BATCH, TIME, DTYPE_F32, keep, &kept, &temporary);
    void *shared = device_memory(f, temporary + 64);
    for (int64_t l = 0; l < f->config.layers; l++)
        gpt2_bind_block_acts(&f->config, BATCH, TIME, DTYPE_F32, keep, device_memory(f, kept + 64),
                             shared, &f->acts[l]);
    int64_t bytes = gpt2_scratch_bytes(f->dev, &f->config, BATCH, TIME, DTYPE_F32, false, dropout);
    gpt2_bind_scratch(f->dev, &f->config, BATCH, TIME, DTYPE_F32, false, dropout,
                      device_memory(f, bytes), &f->scratch);
    int64_t chunk = 48; /* does not divide 256: the last chunk is short */
    bytes = gpt2_head_bytes(&f->config, BATCH, TIME, DTYPE_F32, chunk);
    gpt2_bind_head(&f->config, BATCH, TIME, DTYPE_F32, chunk, device_memory(f, bytes), &f->head);
    int64_t last = f->tensors.units - 1;
    f->head.lnf_w = f->units[last] + f->tensors.tensors[f->tensors.count - 2].offset;
    f->head.lnf_b = f->units[last] + f->tensors.tensors[f->tensors.count - 1].offset;
    f->head.d_lnf_w = f->grads[last] + f->tensors.tensors[f->tensors.count - 2].offset;
    f->head.d_lnf_b = f->grads[last] + f->tensors.tensors[f->tensors.count - 1].offset;
    f->head.wte = gpt2_wte(&f->tensors, f->units[0], DTYPE_F32);
    f->head.d_wte = (float *)gpt2_wte(&f->tensors, f->grads[0], DTYPE_F32);
    f->head.targets = f->targets;
}

struct memory {
    const struct gpt2_tensors *tensors;
    float **units;
};

static void *in_units(const void *context, int64_t tensor)
{
    const struct memory *m = context;
    const struct gpt2_tensor *t = &m->tensors->tensors[tensor];
    return m->units[t->unit] + t->offset;
}

/* Forward and backward of batch 0; returns the mean loss. */
static double run_model(struct fixture *f, enum gpt2_keep keep)
{
    struct memory weights = {&f->tensors, f->units}, grads = {&f->tensors, f->grads};
    struct gpt2_block_params p;
    struct gpt2_block_grads g;
    struct error e = {0};
    gpt2_embed_forward(&f->run, &f->tensors, f->units[0], f->tokens, f->acts[0].x);
    for (int64_t l = 0; l < f->config.layers; l++) {
        gpt2_bind_block(&f->tensors, l, in_units, &weights, &p);
        gpt2_block_forward(&f->run, l, &p, &f->acts[l], &f->scratch,
                           l ? f->acts[l - 1].x_mid : f->acts[0].x, l ? f->scratch.delta : NULL);
    }
    int64_t top = f->config.layers - 1;
    gpt2_head_run(&f->run, &f->head, &f->scratch, f->acts[top].x_mid, f->scratch.delta, 1.0f);
    for (int64_t l = top; l >= 0; l--) {
        gpt2_bind_block(&f->tensors, l, in_units, &weights, &p);
        gpt2_bind_block_grads(&f->tensors, l, in_units, &grads, &g);
        gpt2_block_recompute(&f->run, l, &p, &f->acts[l], &f->scratch, keep);
        gpt2_block_backward(&f->run, l, &p, &g, &f->acts[l], &f->scratch);
    }
    gpt2_embed_backward(&f->run, &f->tensors, f->grads[0], f->tokens, &f->scratch);
    require(f->dev->ops->stream_sync(f->dev, f->dev->compute, &e), &e);
    double sum = 0;
    for (int i = 0; i < BATCH * TIME; i++)
        sum += f->head.losses[i];
    return sum / (BATCH * (TIME - 1));
}

static void check_logits(struct fixture *f)
{
    struct error e = {0};
    char *data = NULL;
    size_t bytes;
    int64_t vocab = f->config.vocab, padded = gpt2_vocab_padded(&f->config);
    float *logits = device_memory(f, BATCH * TIME * padded * (int64_t)sizeof(float));
    gpt2_logits(&f->run, f->head.wte, f->head.y, BATCH * TIME, logits);
    require(file_read_all(GOLDEN "logits_batch0.f32", 1 << 22, &data, &bytes, &e), &e);
    CHECK_INT(bytes, BATCH * TIME * vocab * 4);
    double worst = 0;
    for (int64_t r = 0; r < BATCH * TIME; r++)
        for (int64_t v = 0; v < vocab; v++) {
            uint32_t bits = le32_get((const uint8_t *)data + 4 * (r * vocab + v));
            float want;
            memcpy(&want, &bits, sizeof want);
            worst = fmax(worst, fabs(want - logits[r * padded + v]));
        }
    CHECK_NEAR(worst, 0, 1e-5);
    free(data);
}

/* Largest difference over the tensor's largest gradient. */
static double relative_error(const float *got, const float *want, int64_t n)
{
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i]));
        scale = fmax(scale, fabs(want[i]));
    }
    return worst / scale;
}

static void check_gradients(struct fixture *f)
{
    struct error e = {0};
    struct safetensors *s = NULL;
    require(safetensors_open(&s, GOLDEN "grads_batch0.safetensors", &e), &e);
    for (int64_t i = 0; i < f->tensors.count; i++) {
        const struct gpt2_tensor *t = &f->tensors.tensors[i];
        const struct safetensor *x = safetensors_find(s, t->name);
        float *want = malloc((size_t)t->elems * sizeof *want),
              *got = malloc((size_t)t->elems * sizeof *got);
        CHECK(x != NULL);
        require(safetensors_read_f32(s, x, 0, t->elems, want, &e), &e);
        for (int64_t j = 0; j < t->elems; j++) /* the model leaves sums; Hugging Face gives means */
            got[j] = f->grads[t->unit][t->offset + j] / (BATCH * (TIME - 1));
        double error = relative_error(got, want, t->elems);
        if (!(error <= 1e-4))
            printf("# %s: relative error %g\n", t->name, error);
        CHECK(error <= 1e-4);
        free(want);
        free(got);
    }
    safetensors_close(s);
}

static void same_gradients(struct fixture *a, struct fixture *b)
{
    for (int64_t u = 0; u < a->tensors.units; u++)
        CHECK(memcmp(a->grads[u], b->grads[u], (size_t)a->tensors.unit_elems[u] * sizeof(float)) ==
              0);
}

static void fixture_close(struct fixture *f)
{
    gpt2_tensors_release(&f->tensors);
    free(f->units);
    free(f->grads);
    free(f->acts);
    device_close(f->dev);
}

#define INIT_VALUES (1 << 22) /* a few dozen of which the polynomials cannot decide */

/* How many of n initial values from `first` on differ from Box-Muller on Philox through libm. */
static int64_t init_differs(enum gpt2_init init, double std, uint64_t seed, int64_t first,
                            int64_t n)
{
    struct gpt2_tensor x = {.init = init};
    struct gpt2_tensors t = {.tensors = &x, .count = 1};
    struct gpt2_config c = {.layers = 48};
    float *got = malloc((size_t)n * sizeof *got);
    uint64_t key = philox_key(seed, 0x496e6974ull << 32);
    int64_t differ = 0;
    CHECK(got != NULL);
    gpt2_init_values(&t, &c, 0, seed, first, n, got);
    for (int64_t i = 0; i < n; i++) {
        int64_t element = first + i;
        struct philox4 r = philox4x32(key, (uint64_t)(element / 2), 0);
        double radius = std * sqrt(-2.0 * log(((double)r.v[0] + 1.0) * 0x1p-32));
        double angle = 2.0 * M_PI * ((double)r.v[1] * 0x1p-32);
        float want = (float)(radius * (element % 2 ? sin(angle) : cos(angle)));
        differ += memcmp(&want, &got[i], sizeof want) != 0;
    }
    free(got);
    return differ;
}

int main(void)
{
    static struct fixture plain, saver, dropped;

    CASE("logits, loss and every gradient equal Hugging Face's")
    {
        fixture_open(&plain, GPT2_KEEP_ALL, false);
        CHECK_NEAR(run_model(&plain, GPT2_KEEP_ALL), 6.486938953399658, 2e-6);
        check_logits(&plain);
        check_gradients(&plain);
    }
    CASE("recomputing a sub-layer or a block gives the same bits")
    {
        enum gpt2_keep modes[] = {GPT2_KEEP_SUBLAYER, GPT2_KEEP_INPUT};
        for (int i = 0; i < 2; i++) {
            fixture_open(&saver, modes[i], false);
            run_model(&saver, modes[i]);
            same_gradients(&plain, &saver);
            fixture_close(&saver);
        }
    }
    CASE("recomputation repeats the dropout masks")
    {
        fixture_open(&dropped, GPT2_KEEP_ALL, true);
        double loss = run_model(&dropped, GPT2_KEEP_ALL);
        CHECK(fabs(loss - 6.4869) > 1e-4); /* dropout did something */
        fixture_open(&saver, GPT2_KEEP_INPUT, true);
        CHECK(run_model(&saver, GPT2_KEEP_INPUT) == loss);
        same_gradients(&dropped, &saver);
        fixture_close(&saver);
        fixture_close(&dropped);
    }
    CASE("padded vocabulary rows get no gradient")
    {
        int64_t c = plain.config.channels;
        for (int64_t i = plain.config.vocab * c; i < gpt2_vocab_padded(&plain.config) * c; i++)
            CHECK(plain.grads[0][i] == 0.0f);
        fixture_close(&plain);
    }
    CASE("initial values depend on seed, tensor and element only")
    {
        struct gpt2_config c = {
            .layers = 2, .heads = 2, .channels = 32, .context = 16, .vocab = 50, .epsilon = 1e-5f};
        struct gpt2_tensors t;
        struct error e = {0};
        float whole[50 * 32], part[7];
        double square = 0;
        require(gpt2_tensors_create(&t, &c, &e), &e);
        gpt2_init_values(&t, &c, 0, 1, 0, 50 * 32, whole);
        gpt2_init_values(&t, &c, 0, 1, 101, 7, part);
        CHECK(memcmp(part, whole + 101, sizeof part) == 0);
        for (int i = 0; i < 50 * 32; i++)
            square += whole[i] * whole[i];
        CHECK_NEAR(sqrt(square / (50 * 32)), 0.02, 0.002);
        gpt2_init_values(&t, &c, 0, 2, 101, 7, part);
        CHECK(memcmp(part, whole + 101, sizeof part) != 0);
        gpt2_tensors_release(&t);
    }
    CASE("initial values are those of the formula through libm, bit for bit")
    {
        double std = 0.02, residual = std / sqrt(96.0); /* of 48 layers */
        CHECK(init_differs(GPT2_INIT_NORMAL, std, 7, 0, INIT_VALUES) == 0);
        /* counters past 2^32, an odd first element, a count that ends within a block */
        CHECK(init_differs(GPT2_INIT_RESIDUAL, residual, 7, (1ll << 33) + 1, 100001) == 0);
        /* angles so close to a multiple of pi/2 that their own rounding decides */
        CHECK(init_differs(GPT2_INIT_RESIDUAL, residual, 5, 133617799, 1) == 0);
        CHECK(init_differs(GPT2_INIT_RESIDUAL, residual, 6, 341215149, 1) == 0);
        CHECK(init_differs(GPT2_INIT_RESIDUAL, residual, 6, 421865272, 1) == 0);
        CHECK(init_differs(GPT2_INIT_NORMAL, std, 4, 305866299, 1) == 0);
        CHECK(init_differs(GPT2_INIT_NORMAL, std, 6, 607306760, 1) == 0);
    }
    return tap_done();
}
