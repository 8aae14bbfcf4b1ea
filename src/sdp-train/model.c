#define _GNU_SOURCE
#include "sdp-train/model.h"

#include "base/io.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_MODEL "gpt2-small"

/* Short names people use for the presets of the original example. */
static const char *const aliases[][2] = {{"gpt2-30b", "smp-gpt2-30b"}, {"gpt2", "gpt2-small"}};

static bool is_dir_of_presets(const char *path)
{
    char probe[PATH_MAX + 32];
    snprintf(probe, sizeof probe, "%s/%s.json", path, DEFAULT_MODEL);
    return path_exists(probe);
}

/* Presets lie in $SDP_GPT2_SHARE, beside bin/ in a checkout, or where they are installed. */
static enum status preset_dir(const char *share, char dir[PATH_MAX], struct error *e)
{
    static const char *const places[] = {"../share/models", "../share/sdp-gpt2/models",
                                         "../../share/models"};
    char exe[PATH_MAX];
    if (share && *share) {
        snprintf(dir, PATH_MAX, "%s/models", share);
        return STATUS_OK;
    }
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n < 0)
        return error_errno(e, "looking for model presets: reading /proc/self/exe");
    exe[n] = '\0';
    *strrchr(exe, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(dir, PATH_MAX, "%s/%s", exe, places[i]) < PATH_MAX && is_dir_of_presets(dir))
            return STATUS_OK;
    return error_set(e, STATUS_FAILED,
                     "no model presets at %s/%s or %s/%s; name a config.json with --model, or the "
                     "presets' parent folder with SDP_GPT2_SHARE",
                     exe, places[0], exe, places[1]);
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
