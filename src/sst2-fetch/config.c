#include "sst2-fetch/config.h"
#include "sst2-fetch/remote.h"
#include "base/io.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const split_choices[] = {"train", "validation", "test", NULL};
static const char *const format_choices[] = {"jsonl", "tsv", "text", NULL};

#define FIELD(name) offsetof(struct config, name)

static const struct option_spec specs[] = {
    {.help = "Data"},
    {.name = "source",
     .type = OPTION_STRING,
     .offset = FIELD(source),
     .fallback = "glue",
     .help = "glue (the official zip), hub (the Hugging Face rows API), an http, https, s3 or file "
             "URL,\na file, a folder, or - for standard input"},
    {.name = "split",
     .type = OPTION_CHOICE,
     .offset = FIELD(split),
     .fallback = "train",
     .choices = split_choices,
     .help = "the split to write"},
    {.name = "all",
     .type = OPTION_BOOL,
     .offset = FIELD(all),
     .help = "write all three splits into the folder or s3:// prefix that --output names"},
    {.name = "output",
     .short_name = 'o',
     .type = OPTION_STRING,
     .offset = FIELD(output),
     .fallback = "-",
     .metavar = "FILE",
     .help = "a file, s3://BUCKET/KEY, or - for standard output"},
    {.name = "format",
     .type = OPTION_CHOICE,
     .offset = FIELD(format),
     .fallback = "jsonl",
     .choices = format_choices,
     .help = "jsonl, tsv as GLUE writes it, or text: one sentence a line"},
    {.name = "holdout",
     .type = OPTION_STRING,
     .offset = FIELD(holdout),
     .metavar = "PERCENT",
     .help = "make a split that the source lacks from this share of train, e.g. 5%"},
    {.name = "skip-bad",
     .type = OPTION_INT,
     .offset = FIELD(skip_bad),
     .fallback = "0",
     .min = 0,
     .max = 9e15,
     .help = "tolerate and count up to N bad rows a split"},
    {.name = "sha256",
     .type = OPTION_STRING,
     .offset = FIELD(sha256),
     .metavar = "HEX",
     .help = "the digest that the source file must have"},

    {.help = "Cache"},
    {.name = "cache-dir",
     .type = OPTION_STRING,
     .offset = FIELD(cache_dir),
     .metavar = "DIR",
     .help = "where downloads are kept (default: sst2-fetch below $XDG_CACHE_HOME or ~/.cache)"},
    {.name = "cache",
     .type = OPTION_BOOL,
     .offset = FIELD(cache),
     .fallback = "true",
     .help = "keep downloads and use kept ones"},
    {.name = "refresh",
     .type = OPTION_BOOL,
     .offset = FIELD(refresh),
     .help = "ask the server whether a kept file is still the current one"},
    {.name = "offline",
     .type = OPTION_BOOL,
     .offset = FIELD(offline),
     .help = "use no network: what is not kept is an error"},

    {.help = "Network"},
    {.name = "retries",
     .type = OPTION_INT,
     .offset = FIELD(retries),
     .fallback = "5",
     .min = 0,
     .max = 1000,
     .help = "attempts after a failed one that made no progress"},
    {.name = "retry-delay",
     .type = OPTION_FLOAT,
     .offset = FIELD(retry_delay),
     .fallback = "0.5",
     .min = 0,
     .max = 3600,
     .help = "seconds before the first retry; doubles each time, up to 30"},
    {.name = "connect-timeout",
     .type = OPTION_FLOAT,
     .offset = FIELD(connect_timeout),
     .fallback = "15",
     .min = 0.001,
     .max = 86400,
     .help = "seconds to reach a server"},
    {.name = "stall-timeout",
     .type = OPTION_FLOAT,
     .offset = FIELD(stall_timeout),
     .fallback = "30",
     .min = 1,
     .max = 86400,
     .help = "seconds without a byte after which a transfer is given up"},
    {.name = "ca-file",
     .type = OPTION_STRING,
     .offset = FIELD(ca_file),
     .metavar = "FILE",
     .help = "certificates (PEM) to verify HTTPS with instead of the system's"},
    {.name = "glue-url",
     .type = OPTION_STRING,
     .offset = FIELD(glue_url),
     .fallback = GLUE_URL,
     .metavar = "URL",
     .help = "where --source glue is"},
    {.name = "hub-url",
     .type = OPTION_STRING,
     .offset = FIELD(hub_url),
     .fallback = HUB_URL,
     .metavar = "URL",
     .help = "the server of --source hub"},
    {.name = "hub-dataset",
     .type = OPTION_STRING,
     .offset = FIELD(hub_dataset),
     .fallback = "stanfordnlp/sst2",
     .metavar = "NAME",
     .help = "the data set of --source hub"},
    {.name = "hub-config",
     .type = OPTION_STRING,
     .offset = FIELD(hub_config),
     .fallback = "default",
     .metavar = "NAME",
     .help = "its configuration"},
    {.name = "parallel",
     .type = OPTION_INT,
     .offset = FIELD(parallel),
     .fallback = "4",
     .min = 1,
     .max = 32,
     .help = "pages to ask the hub for at once"},

    {.help = "S3"},
    {.name = "endpoint-url",
     .type = OPTION_STRING,
     .offset = FIELD(endpoint_url),
     .metavar = "URL",
     .help = "a server that speaks S3 (default: $AWS_ENDPOINT_URL, else Amazon's)"},
    {.name = "region",
     .type = OPTION_STRING,
     .offset = FIELD(region),
     .help = "region of the bucket (default: $AWS_REGION, the profile's, us-east-1)"},
    {.name = "profile",
     .type = OPTION_STRING,
     .offset = FIELD(profile),
     .metavar = "NAME",
     .help = "profile in ~/.aws/credentials and ~/.aws/config (default: $AWS_PROFILE, default)"},
    {.name = "part-size",
     .type = OPTION_SIZE,
     .offset = FIELD(part_size),
     .fallback = "16MiB",
     .min = 5 << 20,
     .max = 5368709120.0,
     .help = "larger objects are uploaded in parts of this size"},

    {.help = "Messages"},
    {.name = "quiet",
     .type = OPTION_BOOL,
     .offset = FIELD(quiet),
     .help = "no progress and no summary; errors stay"},
};

const struct option_table config_table = {
    .tool = "sst2-fetch",
    .usage = "[--split SPLIT | --all -o DIR] [--source SOURCE] [--format FORMAT] [options]",
    .summary = "Fetch the SST-2 sentences and write them as JSON lines.",
    .specs = specs,
    .count = sizeof(specs) / sizeof(specs[0]),
    .config_file = true,
};

/* "5%" or "0.05". */
static enum status parse_fraction(const char *text, double *out, struct error *e)
{
    char number[64];
    size_t n = strlen(text);
    bool percent = n > 0 && text[n - 1] == '%';
    snprintf(number, sizeof(number), "%.*s", (int)(n - percent), text);
    TRY(parse_f64(number, "--holdout", out, e));
    if (percent)
        *out /= 100;
    /* Validation and test may both be made, and something has to be left for train. */
    if (*out > 0 && *out < 0.5)
        return STATUS_OK;
    return error_set(e, STATUS_USAGE, "--holdout %s: expected more than 0%% and less than 50%%",
                     text);
}

static enum status parse_sha256(const char *text, char out[65], struct error *e)
{
    if (strlen(text) != 64 || strspn(text, "0123456789abcdefABCDEF") != 64)
        return error_set(e, STATUS_USAGE, "--sha256 %s: expected 64 hexadecimal digits", text);
    for (int i = 0; i < 64; i++)
        out[i] = (char)(text[i] >= 'A' && text[i] <= 'F' ? text[i] + 32 : text[i]);
    out[64] = '\0';
    return STATUS_OK;
}

static enum status find_cache(struct settings *s, const struct config *c,
                              const struct environment *env, struct error *e)
{
    const char *base = env->xdg_cache_home;
    if (!c->cache)
        return STATUS_OK;
    if (c->cache_dir)
        s->cache_dir = strdup(c->cache_dir);
    else if (base && *base == '/') /* the specification: a relative path is to be ignored */
        s->cache_dir = path_join(base, "sst2-fetch");
    else if (env->home && *env->home)
        s->cache_dir = path_join(env->home, ".cache/sst2-fetch");
    else
        return STATUS_OK;
    return s->cache_dir ? STATUS_OK : error_memory(e, 0, "a path");
}

static enum status find_aws(struct settings *s, const struct config *c,
                            const struct environment *env, struct error *e)
{
    s->s3 = env->s3;
    if (c->endpoint_url)
        s->s3.endpoint_url = c->endpoint_url;
    if (c->region)
        s->s3.region = c->region;
    if (c->profile)
        s->s3.profile = c->profile;
    if (env->home) {
        s->credentials_file = path_join(env->home, ".aws/credentials");
        s->config_file = path_join(env->home, ".aws/config");
        if (!s->credentials_file || !s->config_file)
            return error_memory(e, 0, "a path");
    }
    if (!s->s3.credentials_file)
        s->s3.credentials_file = s->credentials_file;
    if (!s->s3.config_file)
        s->s3.config_file = s->config_file;
    return STATUS_OK;
}

enum status settings_resolve(struct settings *s, const struct config *c,
                             const struct environment *env, struct error *e)
{
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < SPLIT_COUNT; i++)
        if (strcmp(c->split, split_name((enum split)i)) == 0)
            s->split = (enum split)i;
    s->tmpdir = env->tmpdir && *env->tmpdir ? env->tmpdir : "/tmp";
    s->ca_file = c->ca_file ? c->ca_file : env->ca_file;
    if (c->holdout)
        TRY(parse_fraction(c->holdout, &s->holdout, e));
    if (c->sha256)
        TRY(parse_sha256(c->sha256, s->sha256, e));
    if (c->all && strcmp(c->output, "-") == 0)
        return error_set(e, STATUS_USAGE, "--all writes three files: name a folder with -o DIR");
    if (c->offline && c->refresh)
        return error_set(e, STATUS_USAGE, "--offline and --refresh exclude each other");
    TRY(find_cache(s, c, env, e));
    return find_aws(s, c, env, e);
}

void settings_release(struct settings *s)
{
    free(s->cache_dir);
    free(s->credentials_file);
    free(s->config_file);
    memset(s, 0, sizeof(*s));
}
