/* s3.h - objects of S3 and of servers that speak its protocol. */
#ifndef SST2_FETCH_S3_H
#define SST2_FETCH_S3_H

#include "sst2-fetch/http.h"

/* What main found in the environment and on the command line; any may be NULL. */
struct s3_environment {
    const char *access_key_id, *secret_access_key, *session_token;
    const char *region;           /* AWS_REGION, else AWS_DEFAULT_REGION */
    const char *profile;          /* --profile, else AWS_PROFILE */
    const char *endpoint_url;     /* --endpoint-url, else AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL */
    const char *credentials_file; /* AWS_SHARED_CREDENTIALS_FILE, else ~/.aws/credentials */
    const char *config_file;      /* AWS_CONFIG_FILE, else ~/.aws/config */
    /* AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, _FULL_URI, AWS_CONTAINER_AUTHORIZATION_TOKEN,
     * _TOKEN_FILE */
    const char *container_relative_uri, *container_full_uri;
    const char *container_token, *container_token_file;
    const char *metadata_endpoint; /* AWS_EC2_METADATA_SERVICE_ENDPOINT */
    bool metadata_disabled;        /* AWS_EC2_METADATA_DISABLED */
};

struct s3 {
    char *access_key_id, *secret_access_key, *session_token; /* NULL key: requests are not signed */
    char *region;
    char *endpoint; /* NULL: Amazon's */
};

/* Credentials: the environment, else the profile's in the two files; none is not an error (public
 * objects). A profile that is named but missing is. */
enum status s3_configure(struct s3 *s3, const struct s3_environment *env,
                         struct error *e) MUST_CHECK;
/* When there are no credentials yet: those that the container or the EC2 instance hands out. */
enum status s3_ask_machine(struct s3 *s3, const struct s3_environment *env,
                           struct error *e) MUST_CHECK;
void s3_release(struct s3 *s3);

/* "s3://bucket/key" and a query ("uploads=", sorted and encoded; NULL for none) as an https URL,
 * virtual-hosted at Amazon, path style elsewhere. malloc'ed. */
enum status s3_object_url(const struct s3 *s3, const char *s3_url, const char *query, char **url,
                          struct error *e) MUST_CHECK;
/* The URL that lists what lies directly below "s3://bucket/prefix/". */
enum status s3_list_url(const struct s3 *s3, const char *s3_url, char **url,
                        struct error *e) MUST_CHECK;
/* Calls visit with the name of each of these objects, without the prefix. */
enum status s3_list(struct http *http, const struct s3 *s3, const char *s3_url,
                    void (*visit)(void *arg, const char *name), void *arg,
                    struct error *e) MUST_CHECK;
/* For http_request.sign, with the struct s3 as its argument: Signature Version 4. */
enum status s3_sign(const void *s3, const struct http_request *request, struct curl_slist **headers,
                    struct error *e);
/* Uploads `bytes` bytes of fd from its start; over part_bytes in parts, which are removed again
 * when one fails. The object appears complete or not at all. */
enum status s3_upload(struct http *http, const struct s3 *s3, const char *s3_url, int fd,
                      uint64_t bytes, uint64_t part_bytes, bool quiet, struct error *e) MUST_CHECK;

#endif
