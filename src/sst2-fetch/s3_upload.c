/* Uploads: one PUT, or a multipart upload for large objects. */
#include "sst2-fetch/s3.h"
#include "sst2-fetch/sigv4.h"
#include "base/io.h"
#include "base/log.h"
#include "base/progress.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARTS = 10000 }; /* S3's limit */

struct upload {
    struct http *http;
    const struct s3 *s3;
    const char *name; /* s3://bucket/key */
    int fd;
    uint64_t bytes, part_bytes;
    char *id;            /* of the multipart upload, encoded for a query */
    struct strbuf parts; /* XML of the finished ones */
    struct progress progress;
};

static enum status call(const struct upload *u, const char *method, const char *query,
                        const void *body, size_t bytes, struct http_response *r, struct error *e)
{
    char *url = NULL;
    TRY(s3_object_url(u->s3, u->name, query, &url, e));
    struct http_request q = {
        .method = method,
        .url = url,
        .name = u->name,
        .body = body,
        .body_bytes = bytes,
        .no_redirects = true,
        .sign = s3_sign,
        .sign_arg = u->s3,
    };
    enum status st = http_call(u->http, &q, r, e);
    free(url);
    if (st == STATUS_OK && r->status >= 300)
        st = error_set(e, STATUS_FAILED, "%s: the server answered %ld to %s, expected 200", u->name,
                       r->status, method);
    return st;
}

/* The text of <tag> in a small XML answer, malloc'ed; NULL when it is not there. */
static char *xml_text(const struct strbuf *body, const char *tag)
{
    char open[32];
    snprintf(open, sizeof(open), "<%s>", tag);
    const char *p = body->data ? strstr(body->data, open) : NULL;
    if (!p)
        return NULL;
    p += strlen(open);
    return strndup(p, strcspn(p, "<"));
}

static enum status upload_whole(struct upload *u, struct error *e)
{
    struct http_response r = {0};
    char *data = malloc(u->bytes + 1);
    if (!data)
        return error_memory(e, u->bytes, "an upload");
    enum status st = fd_read_at(u->fd, u->name, 0, data, (size_t)u->bytes, e);
    if (st == STATUS_OK)
        st = call(u, "PUT", NULL, data, (size_t)u->bytes, &r, e);
    http_response_release(&r);
    free(data);
    return st;
}

static enum status begin_parts(struct upload *u, struct error *e)
{
    struct http_response r = {0};
    char *id = NULL;
    enum status st;
    TRY_OUT(call(u, "POST", "uploads=", NULL, 0, &r, e));
    id = xml_text(&r.body, "UploadId");
    struct strbuf encoded = {0};
    if (id && sigv4_encode(&encoded, id, false))
        u->id = encoded.data;
    if (!u->id)
        st = error_set(e, STATUS_FAILED, "%s: the server gave no UploadId", u->name);
    else if (strlen(u->id) > 900)
        st = error_set(e, STATUS_FAILED, "%s: the server's UploadId is too long", u->name);
out:
    free(id);
    http_response_release(&r);
    return st;
}

static enum status upload_part(struct upload *u, int number, char *buffer, struct error *e)
{
    struct http_response r = {0};
    char query[1024];
    uint64_t at = (uint64_t)(number - 1) * u->part_bytes;
    size_t n = (size_t)(u->bytes - at < u->part_bytes ? u->bytes - at : u->part_bytes);
    snprintf(query, sizeof(query), "partNumber=%d&uploadId=%s", number, u->id);
    enum status st = fd_read_at(u->fd, u->name, at, buffer, n, e);
    if (st == STATUS_OK)
        st = call(u, "PUT", query, buffer, n, &r, e);
    if (st == STATUS_OK && !r.etag[0])
        st =
            error_set(e, STATUS_FAILED, "%s: the server gave no ETag for part %d", u->name, number);
    if (st == STATUS_OK &&
        !strbuf_printf(&u->parts, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", number,
                       r.etag))
        st = error_memory(e, 0, "the list of parts");
    http_response_release(&r);
    progress_update(&u->progress, at + n);
    return st;
}

static enum status end_parts(struct upload *u, struct error *e)
{
    struct http_response r = {0};
    char query[1024];
    snprintf(query, sizeof(query), "uploadId=%s", u->id);
    if (!strbuf_puts(&u->parts, "</CompleteMultipartUpload>"))
        return error_memory(e, 0, "the list of parts");
    enum status st = call(u, "POST", query, u->parts.data, u->parts.length, &r, e);
    /* S3 answers 200 before it knows, so the failure may be in the body. */
    char *code = xml_text(&r.body, "Code");
    if (st == STATUS_OK && code && strstr(r.body.data, "<Error>"))
        st = error_set(e, STATUS_FAILED, "%s: completing the upload failed: %s", u->name, code);
    free(code);
    http_response_release(&r);
    return st;
}

/* Parts that are not removed cost money until someone notices. */
static void abort_parts(struct upload *u)
{
    struct http_response r = {0};
    struct error e = {0};
    char query[1024];
    snprintf(query, sizeof(query), "uploadId=%s", u->id);
    if (call(u, "DELETE", query, NULL, 0, &r, &e) != STATUS_OK)
        log_warn("%s: removing the parts of the failed upload failed too: %s", u->name, e.message);
    http_response_release(&r);
}

static enum status upload_parts(struct upload *u, struct error *e)
{
    int count = (int)((u->bytes + u->part_bytes - 1) / u->part_bytes);
    char *buffer = malloc((size_t)u->part_bytes);
    enum status st;
    if (!buffer)
        return error_memory(e, u->part_bytes, "a part");
    TRY_OUT(begin_parts(u, e));
    if (!strbuf_puts(&u->parts, "<CompleteMultipartUpload>"))
        st = error_memory(e, 0, "the list of parts");
    for (int i = 1; i <= count && st == STATUS_OK; i++)
        st = upload_part(u, i, buffer, e);
    if (st == STATUS_OK)
        st = end_parts(u, e);
    if (st != STATUS_OK)
        abort_parts(u);
out:
    free(buffer);
    return st;
}

enum status s3_upload(struct http *http, const struct s3 *s3, const char *s3_url, int fd,
                      uint64_t bytes, uint64_t part_bytes, bool quiet, struct error *e)
{
    struct upload u = {.http = http, .s3 = s3, .name = s3_url, .fd = fd, .bytes = bytes};
    u.part_bytes = part_bytes;
    if (bytes / MOST_PARTS >= u.part_bytes)
        u.part_bytes = bytes / MOST_PARTS + 1;
    progress_start(&u.progress, "upload", "B", bytes, quiet);
    enum status st = bytes <= u.part_bytes ? upload_whole(&u, e) : upload_parts(&u, e);
    if (st == STATUS_OK) {
        progress_update(&u.progress, bytes);
    } else {
        error_context(e, "uploading");
    }
    if (st == STATUS_OK || u.progress.drawn)
        progress_finish(&u.progress);
    strbuf_release(&u.parts);
    free(u.id);
    return st;
}
