#define _GNU_SOURCE
#include "sst2-fetch/source.h"
#include "sst2-fetch/digest.h"
#include "base/io.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static enum status check_sha256(const struct source *s, struct error *e)
{
    char hex[65];
    if (!s->request.sha256)
        return STATUS_OK;
    TRY(sha256_of_file(s->file.fd, s->file.name, hex, e));
    if (strcmp(hex, s->request.sha256) == 0)
        return STATUS_OK;
    return error_set(e, STATUS_DATA, "%s: SHA-256 is %s, expected %s", s->file.name, hex,
                     s->request.sha256);
}

static enum status open_file(struct source *s, const char *path, struct error *e)
{
    bool reread = s->request.reread || s->request.sha256;
    s->form = FORM_FILE;
    TRY(source_file_open(&s->file, &s->head, path, reread, s->request.tmpdir, e));
    TRY(check_sha256(s, e));
    if (s->file.kind == SOURCE_ZIP)
        TRY(locate_in_zip(&s->located, &s->file, e));
    return STATUS_OK;
}

static enum status open_remote(struct source *s, const char *url, struct error *e)
{
    struct remote_file local = {.fd = -1};
    enum status st = remote_fetch(s->request.remote, url, s->request.sha256, &local, e);
    if (st == STATUS_OK)
        st = source_file_adopt(&s->file, &s->head, local.fd, local.name, e);
    free(local.name);
    if (st == STATUS_OK && s->form == FORM_FILE && s->file.kind == SOURCE_ZIP)
        st = locate_in_zip(&s->located, &s->file, e);
    return st;
}

static enum status list_prefix(void *arg, void (*visit)(void *visit_arg, const char *name),
                               void *visit_arg, struct error *e)
{
    const struct source *s = arg;
    const struct remote *r = s->request.remote;
    return s3_list(r->http, r->s3, s->request.source, visit, visit_arg, e);
}

/* s3://bucket/prefix/: as a folder. */
static enum status open_prefix(struct source *s, struct error *e)
{
    const char *name = s->request.source;
    s->form = FORM_PREFIX;
    if (s->request.sha256)
        return error_set(e, STATUS_USAGE, "--sha256 needs a source of one file; %s is a prefix",
                         name);
    if (s->request.remote->offline)
        return error_set(e, STATUS_FAILED,
                         "%s has to be listed, and --offline was given; name the object", name);
    TRY(locate_in_list(&s->located, name, list_prefix, s, e));
    for (int i = 0; i < SPLIT_COUNT; i++) {
        char *url = NULL;
        if (!s->located.path[i])
            continue;
        if (asprintf(&url, "%s%s", name, s->located.path[i]) < 0)
            return error_memory(e, strlen(name), "a URL");
        free(s->located.path[i]);
        s->located.path[i] = url;
    }
    return STATUS_OK;
}

enum status source_open(struct source *s, const struct source_request *request, struct error *e)
{
    memset(s, 0, sizeof(*s));
    s->file.fd = -1;
    s->request = *request;
    const char *name = request->source;
    if (strcmp(name, "hub") == 0) {
        s->form = FORM_HUB;
        if (request->sha256)
            return error_set(e, STATUS_USAGE,
                             "--sha256 does not go with --source hub: its answers are no file");
        return STATUS_OK;
    }
    if (strncmp(name, "s3://", 5) == 0 && name[strlen(name) - 1] == '/')
        return open_prefix(s, e);
    if (remote_is_url(name)) {
        s->form = FORM_FILE;
        return open_remote(s, name, e);
    }
    if (strncmp(name, "file://", 7) == 0)
        name += name[7] == '/' ? 7 : 0;
    if (strstr(name, "://"))
        return error_set(e, STATUS_USAGE,
                         "--source %s: unknown kind of URL; http, https, s3 and file are known",
                         name);
    if (strcmp(name, "-") == 0 || !path_is_dir(name))
        return open_file(s, name, e);
    s->form = FORM_FOLDER;
    if (request->sha256)
        return error_set(e, STATUS_USAGE, "--sha256 needs a source of one file; %s is a folder",
                         name);
    return locate_in_folder(&s->located, name, e);
}

bool source_has(const struct source *s, enum split split)
{
    if (s->form == FORM_HUB)
        return true;
    if (s->form == FORM_FILE && s->file.kind != SOURCE_ZIP)
        return split == s->request.file_is;
    return s->located.path[split] != NULL;
}

static enum status open_hub(struct source *s, enum split split, struct error *e)
{
    struct remote_file local = {.fd = -1};
    enum status st = remote_fetch_hub(s->request.remote, split_name(split), &local, e);
    if (st == STATUS_OK)
        st = source_file_adopt(&s->file, &s->head, local.fd, local.name, e);
    free(local.name);
    return st;
}

enum status source_stream(struct source *s, enum split split, struct stream *out, struct error *e)
{
    const char *path = s->located.path[split];
    if (s->form == FORM_FILE)
        return stream_open(out, &s->file, &s->head, path, e);
    source_file_close(&s->file);
    if (s->form == FORM_HUB)
        TRY(open_hub(s, split, e));
    else if (s->form == FORM_PREFIX)
        TRY(open_remote(s, path, e));
    else
        TRY(source_file_open(&s->file, &s->head, path, false, s->request.tmpdir, e));
    if (s->file.kind == SOURCE_ZIP)
        return error_set(e, STATUS_DATA, "%s: found a zip, expected TSV or JSON lines",
                         s->file.name);
    return stream_open(out, &s->file, &s->head, NULL, e);
}

void source_describe(const struct source *s, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < SPLIT_COUNT; i++)
        if (source_has(s, (enum split)i) && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "",
                                     split_name((enum split)i));
    if (used == 0)
        snprintf(text, size, "none");
}

void source_close(struct source *s)
{
    source_file_close(&s->file);
    locate_release(&s->located);
}
