/* cache.h - downloaded files between runs.
 *
 * One entry is KEY.data with KEY.json beside it (what it is, its validators, size and SHA-256), and
 * while it arrives KEY.part with KEY.part.json. KEY is a digest of the source's name; the name in
 * the JSON has no credentials. An entry is locked while one process uses it, so two downloads of
 * the same file become one. */
#ifndef SST2_FETCH_CACHE_H
#define SST2_FETCH_CACHE_H

#include "sst2-fetch/download.h"

struct cache_entry {
    char *data, *meta, *part, *part_meta; /* paths; NULL without a cache */
    char *name;
    int lock_fd;
};

/* dir NULL: no cache, every path is NULL. identity: what KEY is made of. Waits for the lock. */
enum status cache_entry_open(struct cache_entry *c, const char *dir, const char *identity,
                             const char *name, struct error *e) MUST_CHECK;
void cache_entry_close(struct cache_entry *c);

/* The complete file; *fd is -1 when there is none. One that is damaged is removed with a warning.
 */
enum status cache_entry_read(struct cache_entry *c, int *fd, struct version *v,
                             struct error *e) MUST_CHECK;
/* The partial file, created when absent; without a cache an unnamed file in tmpdir. */
enum status cache_entry_part(struct cache_entry *c, const char *tmpdir, int *fd, uint64_t *have,
                             struct version *v, struct error *e) MUST_CHECK;
/* Remembers which version the partial file holds the beginning of. */
enum status cache_entry_mark(struct cache_entry *c, const struct version *v,
                             struct error *e) MUST_CHECK;
/* The partial file is complete: it becomes the file. */
enum status cache_entry_commit(struct cache_entry *c, int fd, const struct version *v,
                               struct error *e) MUST_CHECK;
/* Forgets the partial file, and the complete one too when `all`. */
void cache_entry_drop(struct cache_entry *c, bool all);

#endif
