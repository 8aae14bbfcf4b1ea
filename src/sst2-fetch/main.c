/* sst2-fetch - the SST-2 sentences, from wherever they are, as JSON lines. */
#define _GNU_SOURCE
#include "sst2-fetch/config.h"
#include "sst2-fetch/convert.h"
#include "sst2-fetch/remote.h"
#include "base/io.h"
#include "base/log.h"
#include "base/tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* One of the files to write. An s3:// target is written to an unnamed file first. */
struct target {
    enum split split;
    char *path;
    bool is_s3;
    struct output out;
};

struct run {
    const struct config *config;
    struct settings settings;
    struct remote remote;
    struct s3 s3;
    struct source source;
    struct target targets[SPLIT_COUNT];
    int target_count;
};

static const char *first_set(const char *a, const char *b)
{
    const char *value = getenv(a);
    return value && *value ? value : getenv(b);
}

static bool is_true(const char *value)
{
    return value && (strcasecmp(value, "true") == 0 || strcmp(value, "1") == 0);
}

static void read_environment(struct environment *env)
{
    *env = (struct environment){
        .home = getenv("HOME"),
        .tmpdir = getenv("TMPDIR"),
        .xdg_cache_home = getenv("XDG_CACHE_HOME"),
        .ca_file = first_set("CURL_CA_BUNDLE", "SSL_CERT_FILE"),
        .hub_token = getenv("HF_TOKEN"),
        .s3 =
            {
                .access_key_id = getenv("AWS_ACCESS_KEY_ID"),
                .secret_access_key = getenv("AWS_SECRET_ACCESS_KEY"),
                .session_token = getenv("AWS_SESSION_TOKEN"),
                .region = first_set("AWS_REGION", "AWS_DEFAULT_REGION"),
                .profile = getenv("AWS_PROFILE"),
                .endpoint_url = first_set("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
                .credentials_file = getenv("AWS_SHARED_CREDENTIALS_FILE"),
                .config_file = getenv("AWS_CONFIG_FILE"),
                .container_relative_uri = getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
                .container_full_uri = getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
                .container_token = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
                .container_token_file = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
                .metadata_endpoint = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT"),
                .metadata_disabled = is_true(getenv("AWS_EC2_METADATA_DISABLED")),
            },
    };
}

static bool is_s3(const char *name)
{
    return strncmp(name, "s3://", 5) == 0;
}

static const char *extension(const struct config *c)
{
    return strcmp(c->format, "text") == 0 ? "txt" : c->format;
}

/* FOLDER/train.jsonl and so on, or the one file of --output. */
static enum status name_targets(struct run *r, struct error *e)
{
    const struct config *c = r->config;
    size_t n = strlen(c->output);
    const char *slash = n > 0 && c->output[n - 1] == '/' ? "" : "/";
    r->target_count = c->all ? SPLIT_COUNT : 1;
    for (int i = 0; i < r->target_count; i++) {
        struct target *t = &r->targets[i];
        t->split = c->all ? (enum split)i : r->settings.split;
        t->is_s3 = is_s3(c->output);
        if (!c->all)
            t->path = strdup(c->output);
        else if (asprintf(&t->path, "%s%s%s.%s", c->output, slash, split_name(t->split),
                          extension(c)) < 0)
            t->path = NULL;
        if (!t->path)
            return error_memory(e, strlen(c->output), "a path");
    }
    return c->all && !is_s3(c->output) ? dir_create(c->output, e) : STATUS_OK;
}

static enum status open_target(struct run *r, struct target *t, struct error *e)
{
    if (!t->is_s3)
        return output_open(&t->out, t->path, OUTPUT_TEXT, e);
    /* Never committed, so it disappears when it is closed. */
    char *url = NULL, *path = path_join(r->settings.tmpdir, "sst2-fetch.upload");
    if (!path)
        return error_memory(e, 0, "a path");
    enum status st = s3_object_url(&r->s3, t->path, NULL, &url, e); /* before the work, not after */
    if (st == STATUS_OK)
        st = output_open(&t->out, path, OUTPUT_TEXT, e);
    free(url);
    free(path);
    return st;
}

static enum status finish_target(struct run *r, struct target *t, struct error *e)
{
    if (!t->is_s3)
        return output_commit(&t->out, e);
    TRY(output_flush(&t->out, e));
    return s3_upload(r->remote.http, &r->s3, t->path, t->out.fd, t->out.offset,
                     (uint64_t)r->config->part_size, r->config->quiet, e);
}

static void report(const struct target *t, const struct convert_result *result)
{
    if (result->skipped > 0)
        log_warn("%s: skipped %llu bad row%s; the first: %s", split_name(t->split),
                 (unsigned long long)result->skipped, result->skipped == 1 ? "" : "s",
                 result->first_skipped);
    if (result->made && result->rows == 0)
        log_warn("%s: no row of train fell into the held-out share", split_name(t->split));
    log_info("%s: %llu rows, %llu positive, %llu negative%s%s%s", split_name(t->split),
             (unsigned long long)result->rows, (unsigned long long)result->positive,
             (unsigned long long)result->negative, result->made ? ", held out from train" : "",
             strcmp(t->path, "-") == 0 ? "" : ", to ", strcmp(t->path, "-") == 0 ? "" : t->path);
}

/* All files are written before the first gets its name, so that a bad split leaves none. */
static enum status write_targets(struct run *r, struct error *e)
{
    const struct config *c = r->config;
    struct convert_result results[SPLIT_COUNT];
    struct convert_options options = {
        .format = strcmp(c->format, "jsonl") == 0 ? EMIT_JSONL
                  : strcmp(c->format, "tsv") == 0 ? EMIT_TSV
                                                  : EMIT_TEXT,
        .holdout = r->settings.holdout,
        .skip_bad = c->skip_bad,
        .quiet = c->quiet,
    };
    for (int i = 0; i < r->target_count; i++) {
        struct target *t = &r->targets[i];
        TRY(open_target(r, t, e));
        TRY(convert_split(&r->source, t->split, &options, &t->out, &results[i], e));
    }
    for (int i = 0; i < r->target_count; i++) {
        TRY(finish_target(r, &r->targets[i], e));
        report(&r->targets[i], &results[i]);
    }
    return STATUS_OK;
}

static enum status open_network(struct run *r, const struct environment *env, struct error *e)
{
    const struct config *c = r->config;
    const struct settings *s = &r->settings;
    struct http_config http = {
        .connect_timeout_s = c->connect_timeout,
        .stall_timeout_s = c->stall_timeout,
        .retries = (int)c->retries,
        .retry_delay_s = c->retry_delay,
        .ca_file = s->ca_file,
    };
    r->remote = (struct remote){
        .s3 = &r->s3,
        .cache_dir = s->cache_dir,
        .tmpdir = s->tmpdir,
        .offline = c->offline,
        .refresh = c->refresh,
        .quiet = c->quiet,
        .glue_url = c->glue_url,
        .hub_url = c->hub_url,
        .hub_dataset = c->hub_dataset,
        .hub_config = c->hub_config,
        .hub_token = env->hub_token && *env->hub_token ? env->hub_token : NULL,
        .hub_parallel = (int)c->parallel,
    };
    if (c->offline && is_s3(c->output))
        return error_set(e, STATUS_USAGE, "--offline does not go with -o %s", c->output);
    if (is_s3(c->source) || is_s3(c->output)) {
        TRY(s3_configure(&r->s3, &s->s3, e));
        if (!c->offline)
            TRY(s3_ask_machine(&r->s3, &s->s3, e));
    }
    return http_create(&r->remote.http, &http, e);
}

static enum status run(struct run *r, const struct environment *env, struct error *e)
{
    const struct config *c = r->config;
    TRY(settings_resolve(&r->settings, c, env, e));
    TRY(open_network(r, env, e));
    struct source_request request = {
        .source = c->source,
        /* With --holdout one file is the training split, of which the others are made. */
        .file_is = c->all || r->settings.holdout > 0 ? SPLIT_TRAIN : r->settings.split,
        .reread = c->all,
        .tmpdir = r->settings.tmpdir,
        .sha256 = r->settings.sha256[0] ? r->settings.sha256 : NULL,
        .remote = &r->remote,
    };
    TRY(source_open(&r->source, &request, e));
    TRY(name_targets(r, e));
    return write_targets(r, e);
}

static void release(struct run *r)
{
    for (int i = 0; i < r->target_count; i++) {
        output_close(&r->targets[i].out);
        free(r->targets[i].path);
    }
    source_close(&r->source);
    http_free(r->remote.http);
    s3_release(&r->s3);
    settings_release(&r->settings);
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct config config = {0};
    struct environment env;
    struct options options = {0};
    struct run r = {.config = &config, .source = {.file = {.fd = -1}}};
    enum option_action action;
    int exit_status;

    log_set_prefix("sst2-fetch");
    enum status st = options_parse(&options, &config_table, argc, argv, &config, &action, &e);
    if (tool_ready(&options, &config, config.quiet, st, action, &e, &exit_status)) {
        read_environment(&env);
        st = options.positional_count > 0
                 ? error_set(&e, STATUS_USAGE,
                             "unexpected argument '%s'; the source is named by --source",
                             options.positional[0])
                 : run(&r, &env, &e);
        exit_status = st == STATUS_OK ? 0 : log_error(&e);
    }
    release(&r);
    options_release(&options);
    return exit_status;
}
