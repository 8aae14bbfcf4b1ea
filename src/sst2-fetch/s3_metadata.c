/* Credentials that the machine hands out: to a container (ECS, EKS, SageMaker) and to an EC2
 * instance (instance metadata service, version 2). */
#define _GNU_SOURCE
#include "sst2-fetch/s3.h"
#include "base/io.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static char *copy_string(const json_t *o, const char *field)
{
    const char *text = json_string_value(json_object_get(o, field));
    return text ? strdup(text) : NULL;
}

static enum status take_credentials(struct s3 *s3, const struct http_response *r, const char *name,
                                    struct error *e)
{
    json_t *o = json_loadb(r->body.data ? r->body.data : "", r->body.length, 0, NULL);
    char *id = copy_string(o, "AccessKeyId"), *secret = copy_string(o, "SecretAccessKey");
    char *token = copy_string(o, "Token");
    json_decref(o);
    if (!id || !secret) {
        free(id);
        free(secret);
        free(token);
        return error_set(e, STATUS_FAILED,
                         "%s: the answer holds no AccessKeyId and SecretAccessKey", name);
    }
    s3->access_key_id = id;
    s3->secret_access_key = secret;
    s3->session_token = token;
    return STATUS_OK;
}

/* The text of an answer up to its first line end. */
static char *first_line(const struct http_response *r)
{
    return r->body.data ? strndup(r->body.data, strcspn(r->body.data, "\r\n")) : NULL;
}

static enum status ask(struct http *http, const char *method, const char *url, const char *name,
                       const char *header, struct http_response *r, struct error *e)
{
    const char *headers[] = {header, NULL};
    struct http_request q = {
        .method = method, .url = url, .name = name, .headers = headers, .no_redirects = true};
    TRY(http_call(http, &q, r, e));
    if (r->status != 200)
        return error_set(e, STATUS_FAILED, "%s: the server answered %ld, expected 200", name,
                         r->status);
    return STATUS_OK;
}

/* --- containers ------------------------------------------------------------------------------- */

/* Credentials in the clear are for this machine's own addresses only. */
static bool is_local_url(const char *url)
{
    static const char *const hosts[] = {"127.0.0.1",     "localhost",      "[::1]",
                                        "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
    if (strncasecmp(url, "https://", 8) == 0)
        return true;
    if (strncasecmp(url, "http://", 7) != 0)
        return false;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        size_t n = strlen(hosts[i]);
        if (strncasecmp(url + 7, hosts[i], n) == 0 && strchr(":/", url[7 + n]))
            return true;
    }
    return false;
}

static enum status container_header(const struct s3_environment *env, char **header,
                                    struct error *e)
{
    char *text = NULL;
    size_t bytes = 0;
    const char *token = env->container_token;
    if (env->container_token_file) {
        TRY(file_read_all(env->container_token_file, 1 << 16, &text, &bytes, e));
        text[strcspn(text, "\r\n")] = '\0';
        token = text;
    }
    enum status st = STATUS_OK;
    if (token && asprintf(header, "Authorization: %s", token) < 0) {
        *header = NULL;
        st = error_memory(e, 0, "a header");
    }
    free(text);
    return st;
}

static enum status from_container(struct s3 *s3, const struct s3_environment *env,
                                  struct http *http, struct error *e)
{
    const char *name = "the container's credentials";
    char *url = NULL, *header = NULL;
    struct http_response r = {0};
    enum status st = STATUS_OK;
    if (asprintf(&url, "%s%s", env->container_relative_uri ? "http://169.254.170.2" : "",
                 env->container_relative_uri ? env->container_relative_uri
                                             : env->container_full_uri) < 0) {
        url = NULL;
        st = error_memory(e, 0, "a URL");
        goto out;
    }
    if (!is_local_url(url)) {
        st = error_set(e, STATUS_USAGE,
                       "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor on this machine");
        goto out;
    }
    TRY_OUT(container_header(env, &header, e));
    TRY_OUT(ask(http, "GET", url, name, header, &r, e));
    st = take_credentials(s3, &r, name, e);
out:
    http_response_release(&r);
    free(header);
    free(url);
    return st;
}

/* --- EC2 -------------------------------------------------------------------------------------- */

static enum status from_instance(struct s3 *s3, const char *base, struct http *http,
                                 struct error *e)
{
    const char *name = "the instance's credentials";
    const char *path = "latest/meta-data/iam/security-credentials";
    char *url = NULL, *token = NULL, *header = NULL, *role = NULL;
    struct http_response r = {0};
    enum status st = STATUS_OK;
    bool ok = asprintf(&url, "%s/latest/api/token", base) >= 0;
    if (ok)
        TRY_OUT(ask(http, "PUT", url, name, "X-aws-ec2-metadata-token-ttl-seconds: 300", &r, e));
    token = first_line(&r);
    free(url);
    url = NULL;
    ok = ok && token && asprintf(&header, "X-aws-ec2-metadata-token: %s", token) >= 0 &&
         asprintf(&url, "%s/%s/", base, path) >= 0;
    if (ok)
        TRY_OUT(ask(http, "GET", url, name, header, &r, e));
    role = first_line(&r);
    free(url);
    url = NULL;
    ok = ok && role && asprintf(&url, "%s/%s/%s", base, path, role) >= 0;
    if (!ok) {
        st = error_memory(e, 0, "a request");
        goto out;
    }
    TRY_OUT(ask(http, "GET", url, name, header, &r, e));
    st = take_credentials(s3, &r, name, e);
out:
    http_response_release(&r);
    free(url);
    free(token);
    free(header);
    free(role);
    return st;
}

enum status s3_ask_machine(struct s3 *s3, const struct s3_environment *env, struct error *e)
{
    /* Never through a proxy, and not long: elsewhere nobody answers. */
    struct http_config config = {.connect_timeout_s = 1, .stall_timeout_s = 2, .no_proxy = true};
    struct http *http = NULL;
    bool container = env->container_relative_uri || env->container_full_uri;
    bool instance = !env->metadata_disabled && (!s3->endpoint || env->metadata_endpoint);
    if (s3->access_key_id || (!container && !instance))
        return STATUS_OK;
    TRY(http_create(&http, &config, e));
    enum status st;
    if (container) {
        st = from_container(s3, env, http, e);
    } else {
        const char *base =
            env->metadata_endpoint ? env->metadata_endpoint : "http://169.254.169.254";
        st = from_instance(s3, base, http, e);
        if (st == STATUS_FAILED) { /* not on EC2, or an instance without a role */
            error_clear(e);
            st = STATUS_OK;
        }
    }
    http_free(http);
    return st;
}
