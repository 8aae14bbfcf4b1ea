#define _GNU_SOURCE
#include "sst2-fetch/sigv4.h"
#include "sst2-fetch/digest.h"
#include <stdio.h>
#include <string.h>

void sigv4_timestamp(time_t t, char out[17])
{
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(out, 17, "%Y%m%dT%H%M%SZ", &tm);
}

bool sigv4_encode(struct strbuf *out, const char *text, bool keep_slash)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        bool plain = (*p >= 'A' && *p <= 'Z') || (*p >= 'a' && *p <= 'z') ||
                     (*p >= '0' && *p <= '9') || strchr("-._~", *p) || (keep_slash && *p == '/');
        if (!(plain ? strbuf_putc(out, (char)*p) : strbuf_printf(out, "%%%02X", *p)))
            return false;
    }
    return true;
}

static bool signed_names(const struct sigv4_request *q, struct strbuf *out)
{
    for (size_t i = 0; i < q->header_count; i++)
        if (!strbuf_printf(out, "%s%s", i ? ";" : "", q->headers[i].name))
            return false;
    return true;
}

static bool canonical_request(const struct sigv4_request *q, struct strbuf *out)
{
    if (!strbuf_printf(out, "%s\n%s\n%s\n", q->method, q->path, q->query))
        return false;
    for (size_t i = 0; i < q->header_count; i++)
        if (!strbuf_printf(out, "%s:%s\n", q->headers[i].name, q->headers[i].value))
            return false;
    return strbuf_putc(out, '\n') && signed_names(q, out) &&
           strbuf_printf(out, "\n%s", q->payload_sha256);
}

/* HMAC chain: secret -> date -> region -> service -> "aws4_request" -> string to sign. */
static void signature(const struct sigv4_request *q, const char *date, const char *to_sign,
                      char hex[65])
{
    char secret[300];
    uint8_t key[32], next[32];
    const char *const steps[] = {date, q->region, q->service, "aws4_request", to_sign};
    int n = snprintf(secret, sizeof(secret), "AWS4%s", q->secret_access_key);
    hmac_sha256(secret, (size_t)n < sizeof(secret) ? (size_t)n : sizeof(secret) - 1, steps[0],
                strlen(steps[0]), key);
    for (int i = 1; i < 5; i++) {
        hmac_sha256(key, sizeof(key), steps[i], strlen(steps[i]), next);
        memcpy(key, next, sizeof(key));
    }
    explicit_bzero(secret, sizeof(secret));
    sha256_hex(key, hex);
}

enum status sigv4_authorization(const struct sigv4_request *q, const char *timestamp,
                                struct strbuf *out, struct error *e)
{
    struct strbuf canonical = {0}, to_sign = {0};
    char date[9], hex[65];
    snprintf(date, sizeof(date), "%.8s", timestamp);
    bool ok = canonical_request(q, &canonical);
    if (ok) {
        sha256_of_bytes(canonical.data, canonical.length, hex);
        ok = strbuf_printf(&to_sign, "AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", timestamp,
                           date, q->region, q->service, hex);
    }
    if (ok) {
        signature(q, date, to_sign.data, hex);
        ok = strbuf_printf(out,
                           "AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/aws4_request, "
                           "SignedHeaders=",
                           q->access_key_id, date, q->region, q->service) &&
             signed_names(q, out) && strbuf_printf(out, ", Signature=%s", hex);
    }
    strbuf_release(&canonical);
    strbuf_release(&to_sign);
    return ok ? STATUS_OK : error_memory(e, 0, "a signature");
}
