#define _GNU_SOURCE
#include "sdp-train/model.h"

#include "base/io.h"
#include "base/share.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MODEL "gpt2-small"

/* Short names people use for the presets of the original example. */
static const char *const aliases[][2] = {{"gpt2-30b", "smp-gpt2-30b"}, {"gpt2", "gpt2-small"}};

/* The folder that holds the default model's preset holds them all. */
static enum status preset_dir(const char *share, char dir[PATH_MAX], struct error *e)
{
    TRY(share_find(share, "models/" DEFAULT_MODEL ".json", "model preset",
                   "name a config.json with --model, or the presets' parent folder with "
                   "SDP_GPT2_SHARE",
                   dir, e));
    *strrchr(dir, '/') = '\0';
    return STATUS_OK;
}

/* "gpt2-large, gpt2-nano, ..." */
static void list_presets(const char *dir, char *out, size_t room)
{
    struct dirent **names;
    int n = scandir(dir, &names, NULL, alphasort);
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < n; i++) {
        char *dot = strrchr(names[i]->d_name, '.');
        if (dot && strcmp(dot, ".json") == 0 && used < room)
            used += (size_t)snprintf(out + used, room - used, "%s%.*s", used ? ", " : "",
                                     (int)(dot - names[i]->d_name), names[i]->d_name);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
}

static enum status load_preset(struct gpt2_config *c, const char *name, const char *share,
                               struct error *e)
{
    char dir[PATH_MAX], path[PATH_MAX + 300], known[1024];
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(name, aliases[i][0]) == 0)
            name = aliases[i][1];
    TRY(preset_dir(share, dir, e));
    snprintf(path, sizeof path, "%s/%.255s.json", dir, name);
    if (path_exists(path))
        return gpt2_config_load(c, path, e);
    list_presets(dir, known, sizeof known);
    return error_set(e, STATUS_USAGE,
                     "no model is called \"%s\"; there are %s, or a path of a .json", name, known);
}

static enum status load_beside(struct gpt2_config *c, const char *weights, struct error *e)
{
    char path[PATH_MAX];
    if (path_is_dir(weights)) {
        snprintf(path, sizeof path, "%s/config.json", weights);
    } else {
        const char *slash = strrchr(weights, '/');
        snprintf(path, sizeof path, "%.*sconfig.json", slash ? (int)(slash - weights + 1) : 0,
                 weights);
    }
    return gpt2_config_load(c, path, e);
}

static void override(const struct train_options *o, struct gpt2_config *c)
{
    struct {
        int64_t value, *field;
    } integers[] = {{o->context, &c->context},
                    {o->width, &c->channels},
                    {o->layers, &c->layers},
                    {o->heads, &c->heads},
                    {o->vocab, &c->vocab}};
    struct {
        double value;
        float *field;
    } rates[] = {{o->resid_pdrop, &c->resid_pdrop},
                 {o->embd_pdrop, &c->embd_pdrop},
                 {o->attn_pdrop, &c->attn_pdrop}};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        if (integers[i].value > 0)
            *integers[i].field = integers[i].value;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (rates[i].value >= 0)
            *rates[i].field = (float)rates[i].value;
    if (c->eot >= c->vocab)
        c->eot = -1;
}

enum status train_model_config(const struct train_options *o, const char *share,
                               struct gpt2_config *c, struct error *e)
{
    const char *weights = o->fine_tune ? o->model_dir : o->init_from;
    if (!o->model && weights)
        TRY(load_beside(c, weights, e));
    else if (o->model && (strchr(o->model, '/') || strstr(o->model, ".json")))
        TRY(gpt2_config_load(c, o->model, e));
    else
        TRY(load_preset(c, o->model ? o->model : DEFAULT_MODEL, share, e));
    override(o, c);
    return gpt2_config_check(c, e);
}
