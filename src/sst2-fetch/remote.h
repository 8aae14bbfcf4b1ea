/* remote.h - files from the network, through the cache. */
#ifndef SST2_FETCH_REMOTE_H
#define SST2_FETCH_REMOTE_H

#include "base/error.h"
#include "sst2-fetch/http.h"
#include "sst2-fetch/s3.h"
#include <stdbool.h>
#include <stdint.h>

#define GLUE_URL "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"
/* Of the file at GLUE_URL, 7,439,277 bytes, as several independent projects have published it. */
#define GLUE_SHA256 "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"
#define HUB_URL "https://datasets-server.huggingface.co"

struct remote {
    struct http *http;
    const struct s3 *s3;
    const char *cache_dir; /* NULL: nothing is kept */
    const char *tmpdir;
    bool offline; /* only what the cache has */
    bool refresh; /* ask the server whether the cached file still is the current one */
    bool quiet;
    const char *glue_url;
    const char *hub_url, *hub_dataset, *hub_config, *hub_token; /* token may be NULL */
    int hub_parallel;
};

struct remote_file {
    int fd;     /* complete and verified; the caller's to close */
    char *name; /* for messages, without credentials; owned */
};

/* "glue" and anything that starts with http://, https:// or s3://. */
bool remote_is_url(const char *source);
/* sha256: expected digest or NULL. A cached file is used as it is when its size and digest are
 * right; an s3 object is asked for again if it has changed since. A partial download goes on where
 * it was. */
enum status remote_fetch(const struct remote *r, const char *source, const char *sha256,
                         struct remote_file *out, struct error *e) MUST_CHECK;
/* One split of the hub's data set as JSON lines, from its rows API. */
enum status remote_fetch_hub(const struct remote *r, const char *split, struct remote_file *out,
                             struct error *e) MUST_CHECK;

#endif
