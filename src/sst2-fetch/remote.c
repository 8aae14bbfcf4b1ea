#define _GNU_SOURCE
#include "sst2-fetch/remote.h"
#include "sst2-fetch/cache.h"
#include "sst2-fetch/digest.h"
#include "sst2-fetch/hub.h"
#include "base/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

bool remote_is_url(const char *source)
{
    return strcmp(source, "glue") == 0 || strncasecmp(source, "http://", 7) == 0 ||
           strncasecmp(source, "https://", 8) == 0 || strncmp(source, "s3://", 5) == 0;
}

/* What one fetch is about. */
struct fetch {
    const struct remote *remote;
    const char *sha256;
    char *url, *name;
    bool is_s3;
    struct cache_entry entry;
};

static enum status resolve(struct fetch *f, const char *source, struct error *e)
{
    const struct remote *r = f->remote;
    f->is_s3 = strncmp(source, "s3://", 5) == 0;
    if (f->is_s3) {
        f->name = strdup(source);
        TRY(s3_object_url(r->s3, source, NULL, &f->url, e));
    } else {
        bool glue = strcmp(source, "glue") == 0;
        f->url = strdup(glue ? r->glue_url : source);
        f->name = f->url ? http_url_for_people(f->url) : NULL;
        if (glue && !f->sha256 && strcmp(r->glue_url, GLUE_URL) == 0)
            f->sha256 = GLUE_SHA256;
    }
    return f->url && f->name ? STATUS_OK : error_memory(e, strlen(source), "a URL");
}

static enum status verify(struct fetch *f, int fd, struct error *e)
{
    char hex[65];
    if (!f->sha256)
        return STATUS_OK;
    TRY(sha256_of_file(fd, f->name, hex, e));
    if (strcmp(hex, f->sha256) == 0)
        return STATUS_OK;
    return error_set(e, STATUS_DATA, "%s: SHA-256 of the file is %s, expected %s", f->name, hex,
                     f->sha256);
}

static enum status mark(void *arg, const struct version *v, struct error *e)
{
    return cache_entry_mark(arg, v, e);
}

/* Downloads into the entry's partial file and completes it. *fd stays -1 when `current` still is.
 */
static enum status download(struct fetch *f, const struct version *current, int *fd,
                            struct error *e)
{
    const struct remote *r = f->remote;
    const char *slash = strrchr(f->name, '/');
    struct download d = {
        .http = r->http,
        .request = {.method = "GET", .url = f->url, .name = f->name},
        .unless = current,
        .started = mark,
        .started_arg = &f->entry,
        .label = slash && slash[1] ? slash + 1 : f->name,
        .quiet = r->quiet,
    };
    int part = -1;
    enum status st;
    if (f->is_s3) {
        d.request.sign = s3_sign;
        d.request.sign_arg = r->s3;
        d.request.no_redirects = true;
    }
    TRY(cache_entry_part(&f->entry, r->tmpdir, &part, &d.have, &d.version, e));
    d.fd = part;
    d.file = f->entry.part ? f->entry.part : "a temporary file";
    if (d.have > 0)
        log_info("going on with %s at byte %llu", f->name, (unsigned long long)d.have);
    TRY_OUT(download_run(&d, e));
    if (d.not_modified)
        goto out;
    st = verify(f, part, e);
    if (st != STATUS_OK) {
        cache_entry_drop(&f->entry, false);
        goto out;
    }
    TRY_OUT(cache_entry_commit(&f->entry, part, &d.version, e));
    *fd = part;
    part = -1;
out:
    if (part >= 0)
        close(part);
    return st;
}

static enum status through_cache(struct fetch *f, int *fd, struct error *e)
{
    const struct remote *r = f->remote;
    struct version current = {.bytes = -1};
    int cached = -1;
    TRY(cache_entry_read(&f->entry, &cached, &current, e));
    if (r->offline && cached < 0)
        return error_set(e, STATUS_FAILED, "%s is not in the cache%s%s, and --offline was given",
                         f->name, r->cache_dir ? " " : "", r->cache_dir ? r->cache_dir : "");
    bool ask = !r->offline && (r->refresh || f->is_s3);
    if (cached >= 0 && !ask) {
        enum status st = verify(f, cached, e);
        if (st == STATUS_OK) {
            *fd = cached;
            return STATUS_OK;
        }
        close(cached);
        return st;
    }
    enum status st = download(f, cached >= 0 ? &current : NULL, fd, e);
    if (st == STATUS_OK && *fd < 0) { /* not modified */
        st = verify(f, cached, e);
        if (st == STATUS_OK) {
            *fd = cached;
            cached = -1;
        }
    }
    if (cached >= 0)
        close(cached);
    return st;
}

enum status remote_fetch(const struct remote *r, const char *source, const char *sha256,
                         struct remote_file *out, struct error *e)
{
    struct fetch f = {.remote = r, .sha256 = sha256, .entry = {.lock_fd = -1}};
    enum status st;
    TRY_OUT(resolve(&f, source, e));
    TRY_OUT(cache_entry_open(&f.entry, r->cache_dir, f.url, f.name, e));
    TRY_OUT(through_cache(&f, &out->fd, e));
    out->name = f.name;
    f.name = NULL;
out:
    cache_entry_close(&f.entry);
    free(f.url);
    free(f.name);
    return st;
}

/* A token must not travel in the clear. */
static bool is_private(const char *url)
{
    static const char *const good[] = {"https://", "http://127.0.0.1:", "http://localhost:"};
    for (int i = 0; i < 3; i++)
        if (strncasecmp(url, good[i], strlen(good[i])) == 0)
            return true;
    return false;
}

enum status remote_fetch_hub(const struct remote *r, const char *split, struct remote_file *out,
                             struct error *e)
{
    struct cache_entry entry = {.lock_fd = -1};
    struct hub hub = {
        .http = r->http,
        .base_url = r->hub_url,
        .dataset = r->hub_dataset,
        .config = r->hub_config,
        .token = is_private(r->hub_url) ? r->hub_token : NULL,
        .parallel = r->hub_parallel,
        .quiet = r->quiet,
    };
    struct version version = {.bytes = -1};
    char *identity = NULL, *name = NULL;
    int part = -1;
    uint64_t have = 0;
    enum status st;
    if (asprintf(&identity, "hub %s %s %s %s", hub.base_url, hub.dataset, hub.config, split) < 0)
        identity = NULL;
    if (asprintf(&name, "hub %s %s", hub.dataset, split) < 0)
        name = NULL;
    if (!identity || !name) {
        st = error_memory(e, 0, "a name");
        goto out;
    }
    TRY_OUT(cache_entry_open(&entry, r->cache_dir, identity, name, e));
    TRY_OUT(cache_entry_read(&entry, &out->fd, &version, e));
    if (out->fd >= 0 && r->refresh && !r->offline) {
        /* The rows API has no validators: refreshing is fetching. */
        close(out->fd);
        out->fd = -1;
    }
    if (out->fd < 0 && r->offline) {
        st = error_set(e, STATUS_FAILED, "%s is not in the cache, and --offline was given", name);
        goto out;
    }
    if (out->fd < 0) {
        TRY_OUT(cache_entry_part(&entry, r->tmpdir, &part, &have, &version, e));
        hub.cache = &entry;
        TRY_OUT(hub_fetch(&hub, split, part, have, &version, e));
        TRY_OUT(cache_entry_commit(&entry, part, &version, e));
        out->fd = part;
        part = -1;
    }
    out->name = name;
    name = NULL;
out:
    if (part >= 0)
        close(part);
    cache_entry_close(&entry);
    free(identity);
    free(name);
    return st;
}
