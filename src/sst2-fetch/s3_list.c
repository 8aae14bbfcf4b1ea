/* The objects directly below a prefix. */
#include "sst2-fetch/s3.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* XML's five named entities and numbers below 128; in place. */
static void unescape(char *text)
{
    static const struct {
        const char *name;
        char c;
    } named[] = {{"amp;", '&'}, {"lt;", '<'}, {"gt;", '>'}, {"quot;", '"'}, {"apos;", '\''}};
    char *out = text;
    for (char *p = text; *p; out++) {
        *out = *p++;
        if (*out != '&')
            continue;
        int code = 0, used = 0;
        if (sscanf(p, "#x%x;%n", (unsigned *)&code, &used) < 1 || !used)
            if (sscanf(p, "#%d;%n", &code, &used) < 1)
                used = 0;
        if (used > 0 && code > 0 && code < 128) {
            *out = (char)code;
            p += used;
            continue;
        }
        for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
            size_t n = strlen(named[i].name);
            if (strncmp(p, named[i].name, n) == 0) {
                *out = named[i].c;
                p += n;
                break;
            }
        }
    }
    *out = '\0';
}

static enum status visit_keys(char *body, const char *prefix,
                              void (*visit)(void *arg, const char *name), void *arg)
{
    for (char *p = body; (p = strstr(p, "<Key>")) != NULL;) {
        char *key = p + strlen("<Key>"), *end = strstr(key, "</Key>");
        if (!end)
            break;
        *end = '\0';
        p = end + 1;
        unescape(key);
        if (strncmp(key, prefix, strlen(prefix)) == 0 && key[strlen(prefix)])
            visit(arg, key + strlen(prefix));
    }
    return STATUS_OK;
}

enum status s3_list(struct http *http, const struct s3 *s3, const char *s3_url,
                    void (*visit)(void *arg, const char *name), void *arg, struct error *e)
{
    struct http_response r = {0};
    char *url = NULL;
    enum status st;
    TRY(s3_list_url(s3, s3_url, &url, e));
    struct http_request q = {
        .method = "GET",
        .url = url,
        .name = s3_url,
        .no_redirects = true,
        .sign = s3_sign,
        .sign_arg = s3,
    };
    TRY_OUT(http_call(http, &q, &r, e));
    if (r.status != 200 || !r.body.data || !strstr(r.body.data, "<ListBucketResult")) {
        st = error_set(e, STATUS_FAILED, "%s: the server does not list its objects", s3_url);
        goto out;
    }
    if (strstr(r.body.data, "<IsTruncated>true")) {
        st = error_set(e, STATUS_DATA,
                       "%s: more than a thousand objects lie there, expected a few files; name one",
                       s3_url);
        goto out;
    }
    const char *slash = strchr(s3_url + strlen("s3://"), '/');
    st = visit_keys(r.body.data, slash ? slash + 1 : "", visit, arg);
out:
    free(url);
    http_response_release(&r);
    return st;
}
