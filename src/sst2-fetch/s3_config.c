/* Credentials, region and endpoint: the environment, then the profile in ~/.aws/credentials and
 * ~/.aws/config. */
#define _GNU_SOURCE
#include "sst2-fetch/s3.h"
#include "base/io.h"
#include <stdlib.h>
#include <string.h>

struct settings {
    char *access_key_id, *secret_access_key, *session_token, *region, *endpoint_url;
    bool found; /* the profile's section was there */
};

static char *trim(char *s)
{
    s += strspn(s, " \t\r");
    size_t n = strlen(s);
    while (n > 0 && strchr(" \t\r", s[n - 1]))
        s[--n] = '\0';
    return s;
}

static bool take(struct settings *out, const char *key, const char *value)
{
    struct {
        const char *name;
        char **slot;
    } known[] = {
        {"aws_access_key_id", &out->access_key_id},
        {"aws_secret_access_key", &out->secret_access_key},
        {"aws_session_token", &out->session_token},
        {"region", &out->region},
        {"endpoint_url", &out->endpoint_url},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(key, known[i].name) != 0)
            continue;
        free(*known[i].slot);
        *known[i].slot = *value ? strdup(value) : NULL;
        return !*value || *known[i].slot;
    }
    return true;
}

/* "[name]", and "[profile name]" in the config file. */
static bool section_is(char *line, const char *profile)
{
    char *end = strchr(line, ']');
    if (!end)
        return false;
    *end = '\0';
    char *name = trim(line + 1);
    if (strncmp(name, "profile ", 8) == 0)
        name = trim(name + 8);
    return strcmp(name, profile) == 0;
}

static enum status read_profile(const char *path, const char *profile, struct settings *out,
                                struct error *e)
{
    char *text = NULL, *next;
    size_t bytes;
    bool inside = false, ok = true;
    if (!path || !path_exists(path))
        return STATUS_OK;
    TRY(file_read_all(path, 1 << 20, &text, &bytes, e));
    for (char *line = text; line && ok; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *s = trim(line);
        /* Indented lines belong to a nested setting, such as "s3 =" with its own below. */
        bool nested = s != line && inside;
        if (*s == '[') {
            inside = section_is(s, profile);
            out->found |= inside;
        } else if (inside && !nested && *s != '#' && *s != ';') {
            char *equals = strchr(s, '=');
            if (!equals)
                continue;
            *equals = '\0';
            ok = take(out, trim(s), trim(equals + 1));
        }
    }
    explicit_bzero(text, bytes);
    free(text);
    return ok ? STATUS_OK : error_memory(e, 0, "a setting");
}

static void release(struct settings *s)
{
    if (s->secret_access_key)
        explicit_bzero(s->secret_access_key, strlen(s->secret_access_key));
    free(s->access_key_id);
    free(s->secret_access_key);
    free(s->session_token);
    free(s->region);
    free(s->endpoint_url);
}

static char *copy_or_null(const char *text)
{
    return text && *text ? strdup(text) : NULL;
}

static void strip_slashes(char *url)
{
    size_t n = url ? strlen(url) : 0;
    while (n > 0 && url[n - 1] == '/')
        url[--n] = '\0';
}

enum status s3_configure(struct s3 *s3, const struct s3_environment *env, struct error *e)
{
    const char *profile = env->profile && *env->profile ? env->profile : "default";
    struct settings file = {0};
    enum status st;
    memset(s3, 0, sizeof(*s3));
    TRY_OUT(read_profile(env->config_file, profile, &file, e));
    TRY_OUT(read_profile(env->credentials_file, profile, &file, e));
    if (env->profile && *env->profile && !file.found) {
        st = error_set(e, STATUS_USAGE, "no profile '%s' in %s or %s", profile,
                       env->credentials_file ? env->credentials_file : "~/.aws/credentials",
                       env->config_file ? env->config_file : "~/.aws/config");
        goto out;
    }
    /* Key, secret and token go together: never half from here and half from there. */
    bool from_env = env->access_key_id && *env->access_key_id;
    s3->access_key_id = copy_or_null(from_env ? env->access_key_id : file.access_key_id);
    s3->secret_access_key =
        copy_or_null(from_env ? env->secret_access_key : file.secret_access_key);
    s3->session_token = copy_or_null(from_env ? env->session_token : file.session_token);
    const char *region = env->region && *env->region ? env->region : file.region;
    s3->region = strdup(region ? region : "us-east-1");
    s3->endpoint = copy_or_null(env->endpoint_url && *env->endpoint_url ? env->endpoint_url
                                                                        : file.endpoint_url);
    strip_slashes(s3->endpoint);
    if (!s3->region)
        st = error_memory(e, 0, "a region");
    else if (s3->access_key_id && !s3->secret_access_key)
        st = error_set(e, STATUS_USAGE, "there is an AWS access key id but no secret access key");
    else if (s3->endpoint && strncmp(s3->endpoint, "http://", 7) != 0 &&
             strncmp(s3->endpoint, "https://", 8) != 0)
        st = error_set(e, STATUS_USAGE, "endpoint URL '%s' does not start with http:// or https://",
                       s3->endpoint);
out:
    release(&file);
    return st;
}
