#define _GNU_SOURCE
#include "sst2-fetch/s3.h"
#include "sst2-fetch/digest.h"
#include "sst2-fetch/sigv4.h"
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* s3://bucket/key in its parts; *n: bytes of the bucket's name. */
static enum status split_name_of(const char *s3_url, const char **bucket, size_t *n,
                                 const char **key, struct error *e)
{
    *bucket = s3_url + strlen("s3://");
    const char *slash = strchr(*bucket, '/');
    *n = slash ? (size_t)(slash - *bucket) : strlen(*bucket);
    *key = slash ? slash + 1 : "";
    if (*n == 0)
        return error_set(e, STATUS_USAGE, "%s: expected s3://BUCKET/KEY", s3_url);
    if (strspn(*bucket, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") < *n)
        return error_set(e, STATUS_USAGE, "%s: '%.*s' cannot be the name of a bucket", s3_url,
                         (int)*n, *bucket);
    return STATUS_OK;
}

/* Appends scheme://host/ up to where the key begins. */
static bool append_base(struct strbuf *out, const struct s3 *s3, const char *bucket, size_t n)
{
    /* A dot in a bucket's name does not fit Amazon's wildcard certificate. */
    if (s3->endpoint)
        return strbuf_printf(out, "%s/%.*s/", s3->endpoint, (int)n, bucket);
    if (memchr(bucket, '.', n))
        return strbuf_printf(out, "https://s3.%s.amazonaws.com/%.*s/", s3->region, (int)n, bucket);
    return strbuf_printf(out, "https://%.*s.s3.%s.amazonaws.com/", (int)n, bucket, s3->region);
}

enum status s3_object_url(const struct s3 *s3, const char *s3_url, const char *query, char **url,
                          struct error *e)
{
    const char *bucket, *key;
    size_t n;
    struct strbuf out = {0};
    TRY(split_name_of(s3_url, &bucket, &n, &key, e));
    if (!*key)
        return error_set(e, STATUS_USAGE, "%s: expected s3://BUCKET/KEY", s3_url);
    if (!append_base(&out, s3, bucket, n) || !sigv4_encode(&out, key, true) ||
        (query && !strbuf_printf(&out, "?%s", query))) {
        strbuf_release(&out);
        return error_memory(e, strlen(s3_url), "a URL");
    }
    *url = out.data;
    return STATUS_OK;
}

enum status s3_list_url(const struct s3 *s3, const char *s3_url, char **url, struct error *e)
{
    const char *bucket, *key;
    size_t n;
    struct strbuf out = {0};
    TRY(split_name_of(s3_url, &bucket, &n, &key, e));
    if (!append_base(&out, s3, bucket, n) ||
        !strbuf_puts(&out, "?delimiter=%2F&list-type=2&prefix=") ||
        !sigv4_encode(&out, key, false)) {
        strbuf_release(&out);
        return error_memory(e, strlen(s3_url), "a URL");
    }
    *url = out.data;
    return STATUS_OK;
}

/* The parts of a URL that we built ourselves: scheme://host[:port]/path[?query]. */
static bool split_url(const char *url, struct strbuf *host, struct strbuf *path, const char **query)
{
    bool https = strncmp(url, "https://", 8) == 0;
    const char *h = strstr(url, "://") + 3;
    const char *p = h + strcspn(h, "/");
    const char *q = strchr(p, '?');
    size_t n = (size_t)(p - h);
    /* libcurl leaves the default port out of the Host header. */
    const char *port = https ? ":443" : ":80";
    size_t k = strlen(port);
    if (n > k && memcmp(p - k, port, k) == 0)
        n -= k;
    *query = q ? q + 1 : "";
    return strbuf_append(host, h, n) && strbuf_append(path, p, q ? (size_t)(q - p) : strlen(p));
}

static bool append_header(struct curl_slist **list, const char *name, const char *value)
{
    struct strbuf line = {0};
    struct curl_slist *longer = NULL;
    if (strbuf_printf(&line, "%s: %s", name, value))
        longer = curl_slist_append(*list, line.data);
    strbuf_release(&line);
    if (longer)
        *list = longer;
    return longer != NULL;
}

enum status s3_sign(const void *arg, const struct http_request *request,
                    struct curl_slist **headers, struct error *e)
{
    const struct s3 *s3 = arg;
    struct strbuf host = {0}, path = {0}, authorization = {0};
    char timestamp[17], payload[65];
    const char *query;
    enum status st = STATUS_OK;
    if (!s3->access_key_id)
        return STATUS_OK;
    bool ok = split_url(request->url, &host, &path, &query);
    sigv4_timestamp(time(NULL), timestamp);
    sha256_of_bytes(request->body ? request->body : "", request->body_bytes, payload);
    const struct sigv4_header list[] = {
        {"host", host.data},
        {"x-amz-content-sha256", payload},
        {"x-amz-date", timestamp},
        {"x-amz-security-token", s3->session_token},
    };
    struct sigv4_request q = {
        .method = request->method,
        .path = path.data,
        .query = query,
        .headers = list,
        .header_count = s3->session_token ? 4 : 3,
        .payload_sha256 = payload,
        .region = s3->region,
        .service = "s3",
        .access_key_id = s3->access_key_id,
        .secret_access_key = s3->secret_access_key,
    };
    if (ok)
        st = sigv4_authorization(&q, timestamp, &authorization, e);
    for (size_t i = 1; i < q.header_count; i++)
        ok = ok && append_header(headers, list[i].name, list[i].value);
    if (st == STATUS_OK)
        ok = ok && append_header(headers, "Authorization", authorization.data);
    strbuf_release(&host);
    strbuf_release(&path);
    strbuf_release(&authorization);
    return st == STATUS_OK && !ok ? error_memory(e, 0, "a signature") : st;
}

void s3_release(struct s3 *s3)
{
    if (s3->secret_access_key)
        explicit_bzero(s3->secret_access_key, strlen(s3->secret_access_key));
    free(s3->access_key_id);
    free(s3->secret_access_key);
    free(s3->session_token);
    free(s3->region);
    free(s3->endpoint);
    memset(s3, 0, sizeof(*s3));
}
