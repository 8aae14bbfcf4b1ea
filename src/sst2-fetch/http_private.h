/* http_private.h - one transfer, for http.c (one at a time) and hub.c (several at once). */
#ifndef SST2_FETCH_HTTP_PRIVATE_H
#define SST2_FETCH_HTTP_PRIVATE_H

#include "sst2-fetch/http.h"
#include <curl/curl.h>

struct transfer {
    CURL *easy;
    struct curl_slist *headers;
    const struct http_request *request;
    const struct http_sink *sink;
    struct http_response *response;
    struct error sink_error;
    bool sink_failed, stalled;
    double stall_timeout_s, connect_timeout_s;
    curl_off_t moved; /* bytes both ways */
    double last_move; /* monotonic seconds */
    char reason[CURL_ERROR_SIZE];
};

/* easy is reset and set up; request, sink and response outlive the transfer. */
enum status transfer_prepare(struct transfer *t, struct http *http, CURL *easy,
                             const struct http_request *request, const struct http_sink *sink,
                             struct http_response *response, struct error *e) MUST_CHECK;
/* After curl is done with it. */
enum http_verdict transfer_finish(struct transfer *t, CURLcode code, struct error *e);

#endif
