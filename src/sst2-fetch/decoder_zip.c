/* One member of a zip, inflated by libarchive as it is read. */
#include "sst2-fetch/decoder.h"
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct zip {
    struct archive *a;
    const char *name;
};

static enum status zip_error(struct archive *a, const char *name, const char *doing,
                             struct error *e)
{
    const char *why = archive_error_string(a);
    return error_set(e, STATUS_DATA, "%s: %s the zip: %s", name, doing, why ? why : "unknown");
}

static enum status zip_start(struct archive **out, const struct source_file *f, struct error *e)
{
    struct archive *a = archive_read_new();
    if (!a)
        return error_memory(e, 0, "a zip reader");
    if (lseek(f->fd, 0, SEEK_SET) < 0) {
        archive_read_free(a);
        return error_errno(e, "%s: seeking to the start", f->name);
    }
    if (archive_read_support_format_zip_seekable(a) != ARCHIVE_OK ||
        archive_read_open_fd(a, f->fd, 1 << 16) != ARCHIVE_OK) {
        enum status st = zip_error(a, f->name, "opening", e);
        archive_read_free(a);
        return st;
    }
    *out = a;
    return STATUS_OK;
}

/* The next regular file; *entry is NULL at the end. */
static enum status zip_next(struct archive *a, const char *name, struct archive_entry **entry,
                            struct error *e)
{
    for (;;) {
        int rc = archive_read_next_header(a, entry);
        if (rc == ARCHIVE_EOF) {
            *entry = NULL;
            return STATUS_OK;
        }
        if (rc != ARCHIVE_OK && rc != ARCHIVE_WARN)
            return zip_error(a, name, "reading the directory of", e);
        if (archive_entry_filetype(*entry) == AE_IFREG && archive_entry_pathname(*entry))
            return STATUS_OK;
    }
}

enum status zip_list(const struct source_file *f, void (*visit)(void *arg, const char *member),
                     void *arg, struct error *e)
{
    struct archive *a;
    TRY(zip_start(&a, f, e));
    struct archive_entry *entry;
    enum status st;
    while ((st = zip_next(a, f->name, &entry, e)) == STATUS_OK && entry)
        visit(arg, archive_entry_pathname(entry));
    archive_read_free(a);
    return st;
}

static enum status zip_open(void **state, const struct source_file *f,
                            const struct source_head *head, const char *member, const char *name,
                            struct error *e)
{
    (void)head;
    struct archive_entry *entry;
    struct zip *z = calloc(1, sizeof(*z));
    if (!z)
        return error_memory(e, sizeof(*z), "a zip reader");
    enum status st = zip_start(&z->a, f, e);
    if (st != STATUS_OK)
        goto out;
    do
        TRY_OUT(zip_next(z->a, f->name, &entry, e));
    while (entry && strcmp(archive_entry_pathname(entry), member) != 0);
    if (!entry)
        st = error_set(e, STATUS_DATA, "%s: no member %s", f->name, member);
    else if (archive_entry_is_data_encrypted(entry))
        st = error_set(e, STATUS_DATA, "%s: the member is encrypted", name);
    z->name = name;
out:
    if (st != STATUS_OK) {
        archive_read_free(z->a);
        free(z);
        return st;
    }
    *state = z;
    return STATUS_OK;
}

static enum status zip_read(void *state, void *buf, size_t want, size_t *got, struct error *e)
{
    struct zip *z = state;
    la_ssize_t n = archive_read_data(z->a, buf, want);
    /* A wrong checksum is only a warning to libarchive. */
    if (n < 0)
        return zip_error(z->a, z->name, "reading", e);
    *got = (size_t)n;
    return STATUS_OK;
}

static void zip_close(void *state)
{
    struct zip *z = state;
    if (!z)
        return;
    archive_read_free(z->a);
    free(z);
}

const struct decoder decoder_zip = {zip_open, zip_read, zip_close};
