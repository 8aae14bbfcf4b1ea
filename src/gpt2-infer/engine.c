#include "gpt2-infer/engine.h"

#include "base/checked.h"
#include "base/io.h"
#include "base/log.h"
#include "base/progress.h"

#include <stdlib.h>
#include <string.h>

static bool on_cpu(const struct engine *g)
{
    return strcmp(g->dev->ops->name, "cpu") == 0;
}

static enum dtype working_dtype(const struct engine *g)
{
    const char *w = g->o->weights;
    if (strcmp(w, "auto") == 0)
        return on_cpu(g) ? DTYPE_F32 : DTYPE_BF16;
    return strcmp(w, "fp32") == 0 ? DTYPE_F32 : strcmp(w, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F16;
}

static bool folder_has_vocabulary(const char *dir)
{
    static const char *const names[] = {"merges.txt", "vocab.bpe", "tokenizer.json"};
    bool found = false;
    for (int i = 0; i < 3 && !found; i++) {
        char *path = path_join(dir, names[i]);
        found = path && path_exists(path);
        free(path);
    }
    return found;
}

static enum status load_vocabulary(struct engine *g, struct error *e)
{
    const char *path = g->o->vocab;
    if (!path && folder_has_vocabulary(g->o->model))
        path = g->o->model;
    if (!path)
        return STATUS_OK;
    TRY(bpe_load(&g->bpe, path, e));
    if (bpe_vocab_size(g->bpe) != g->vocab)
        return error_set(e, STATUS_DATA, "%s has a vocabulary of %u tokens, the model %s of %lld",
                         path, bpe_vocab_size(g->bpe), g->o->model, (long long)g->vocab);
    return STATUS_OK;
}

static char *last_part(const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    return strndup(path + begin, end - begin);
}

enum status engine_open(struct engine *g, const struct infer_options *o, struct error *e)
{
    double began = monotonic_seconds();
    g->o = o;
    TRY(device_open(&g->dev, o->device, -1, e));
    TRY(gpt2_weights_load(&g->weights, g->dev, o->model, working_dtype(g), e));
    g->vocab = g->weights->config.vocab;
    g->context = g->weights->config.context;
    g->eot = g->weights->config.eot;
    TRY(load_vocabulary(g, e));
    g->model_name = o->model_name ? strdup(o->model_name) : last_part(o->model);
    if (!g->model_name)
        return error_memory(e, strlen(o->model), "the model's name");
    g->load_seconds = monotonic_seconds() - began;
    log_info("%s: %lld parameters, %s on %s, loaded in %.2f s%s", g->model_name,
             (long long)gpt2_parameters(&g->weights->config), dtype_name(g->weights->dt),
             g->dev->ops->name, g->load_seconds, g->weights->mapped_bytes ? " (mapped)" : "");
    return STATUS_OK;
}

void engine_close(struct engine *g)
{
    bpe_free(g->bpe);
    gpt2_weights_free(g->weights);
    if (g->dev)
        device_close(g->dev);
    free(g->model_name);
}

static int64_t pass_rows(const struct engine *g)
{
    return g->o->pass_rows > 0 ? g->o->pass_rows : on_cpu(g) ? 256 : 2048;
}

/* Bytes of the cache when all `sequences` fill the context, but no more than half of what is free.
 */
static int64_t default_cache_bytes(struct engine *g, int64_t sequences)
{
    const struct gpt2_config *c = &g->weights->config;
    int64_t token = 2 * c->layers * c->channels * (int64_t)dtype_bytes(g->weights->dt);
    int64_t pages = ceil_div_i64(c->context, min_i64(g->o->page_tokens, c->context));
    int64_t wanted = sequences * pages * min_i64(g->o->page_tokens, c->context) * token;
    struct device_info info = {0};
    g->dev->ops->info(g->dev, &info);
    return info.free_bytes > 0 ? min_i64(wanted, info.free_bytes / 2) : wanted;
}

enum status engine_decoder(struct engine *g, struct gpt2_decoder **d, struct error *e)
{
    int64_t sequences = g->o->sequences > 0 ? g->o->sequences : on_cpu(g) ? 8 : 256;
    struct gpt2_decoder_options options = {
        .sequences = sequences,
        .pass_rows = pass_rows(g),
        .page_tokens = g->o->page_tokens,
        .cache_bytes =
            g->o->cache_bytes > 0 ? g->o->cache_bytes : default_cache_bytes(g, sequences),
        .run_ahead = !on_cpu(g), /* here a row in vain would cost what it takes */
        .separate_prompts = on_cpu(g),
    };
    return gpt2_decoder_create(d, g->weights, &options, e);
}

enum status engine_scorer(struct engine *g, struct gpt2_pass **p, struct error *e)
{
    int64_t rows = pass_rows(g);
    return gpt2_scorer_create(p, g->weights, on_cpu(g) ? rows : 8 * rows, on_cpu(g) ? 128 : 1024,
                              e);
}
