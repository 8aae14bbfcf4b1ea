/* sigv4.h - AWS Signature Version 4, as the S3 API reference defines it. Own code, because libcurl
 * before 7.87 signs neither the session token nor the payload digest that S3 demands. */
#ifndef SST2_FETCH_SIGV4_H
#define SST2_FETCH_SIGV4_H

#include "base/error.h"
#include "base/strbuf.h"
#include <time.h>

struct sigv4_header {
    const char *name; /* lower case */
    const char *value;
};

struct sigv4_request {
    const char *method;
    const char *path;                   /* encoded, as sent */
    const char *query;                  /* encoded and sorted, as sent; "" for none */
    const struct sigv4_header *headers; /* sorted by name; host and x-amz-date among them */
    size_t header_count;
    const char *payload_sha256; /* hex */
    const char *region, *service;
    const char *access_key_id, *secret_access_key;
};

void sigv4_timestamp(time_t t, char out[17]); /* 20130524T000000Z */
/* Appends the value of the Authorization header. timestamp: of sigv4_timestamp. */
enum status sigv4_authorization(const struct sigv4_request *q, const char *timestamp,
                                struct strbuf *out, struct error *e) MUST_CHECK;
/* Percent-encodes all but A-Z a-z 0-9 - . _ ~ and, when keep_slash, '/'. */
bool sigv4_encode(struct strbuf *out, const char *text, bool keep_slash) MUST_CHECK;

#endif
