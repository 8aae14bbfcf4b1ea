/* io.h - byte input and output with the guarantees every tool gives.
 *
 * Input: buffered sequential reading of a path or stdin ("-"), with byte offset and line number for
 * messages. Output: a path appears under its final name only when complete (unnamed or hidden
 * temporary in the same folder, fsync, rename, fsync of the folder); stdout is checked when closed.
 *
 * Objects are caller-allocated, zero-initialised before open, and used by one thread at a time. */
#ifndef BASE_IO_H
#define BASE_IO_H

#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct input {
    const char *name; /* for messages: the path, or "<stdin>"; owned */
    int fd;
    uint64_t offset; /* bytes handed out so far */
    uint64_t line;   /* lines handed out so far by input_line */
    /* private */
    uint8_t *buffer;
    size_t begin, end, capacity;
    bool at_end, own_fd, in_blocks;
};

/* path NULL or "-" is stdin. */
enum status input_open(struct input *in, const char *path, struct error *e) MUST_CHECK;
/* Reads until want bytes or end of input; *got < want only at the end. */
enum status input_read(struct input *in, void *buf, size_t want, size_t *got,
                       struct error *e) MUST_CHECK;
/* Reads at least one byte unless at the end (*got == 0): what a pipe has now, at most want. */
enum status input_read_some(struct input *in, void *buf, size_t want, size_t *got,
                            struct error *e) MUST_CHECK;
/* From now on large reads follow one another with a few bytes between them: little is read ahead,
 * so that hardly anything of the large ones is copied twice. */
void input_expect_blocks(struct input *in);
/* Looks at the next bytes without taking them: at *data (owned by `in`, valid until the next call)
 * are *got bytes, at least `want` unless the input ends before. */
enum status input_peek(struct input *in, size_t want, const uint8_t **data, size_t *got,
                       struct error *e) MUST_CHECK;
/* The next line without its LF, in *line (owned by `in`, valid until the next call, not
 * NUL-terminated). At the end *line is NULL. A line over limit_bytes is STATUS_DATA. */
enum status input_line(struct input *in, const char **line, size_t *length, size_t limit_bytes,
                       struct error *e) MUST_CHECK;
/* Bytes that a regular file holds, redirected to stdin or not; 0 = unknown: a pipe or device. */
uint64_t input_size(const struct input *in);
void input_close(struct input *in);

struct output {
    const char *name; /* for messages: the path, or "<stdout>"; owned */
    int fd;
    uint64_t offset; /* bytes written so far */
    /* private */
    uint8_t *buffer;
    size_t used, capacity;
    char *path, *temporary;
    bool is_stdout;
};

enum output_kind { OUTPUT_TEXT, OUTPUT_BINARY /* refused on a terminal */ };

/* path NULL or "-" is stdout. */
enum status output_open(struct output *out, const char *path, enum output_kind kind,
                        struct error *e) MUST_CHECK;
enum status output_write(struct output *out, const void *data, size_t bytes,
                         struct error *e) MUST_CHECK;
enum status output_puts(struct output *out, const char *text, struct error *e) MUST_CHECK;
enum status output_flush(struct output *out, struct error *e) MUST_CHECK; /* to the kernel */
/* Complete the output: flush; for a path fsync, rename, fsync the folder; for stdout flush and
 * check. After success or failure only output_close remains to be called. */
enum status output_commit(struct output *out, struct error *e) MUST_CHECK;
/* Releases everything; what was not committed disappears. Safe on a zeroed or closed object. */
void output_close(struct output *out);

/* Whole small files. *data is malloc'ed, NUL-terminated past the end; over limit_bytes is an error.
 */
enum status file_read_all(const char *path, size_t limit_bytes, char **data, size_t *bytes,
                          struct error *e) MUST_CHECK;
enum status file_write_atomic(const char *path, const void *data, size_t bytes,
                              struct error *e) MUST_CHECK;
bool path_exists(const char *path);
bool path_is_dir(const char *path);
/* Size of the files together; 0 when one of them is not a regular file or is stdin ("-"). */
uint64_t files_total_bytes(char *const *paths, size_t count);
char *path_join(const char *dir, const char *name); /* malloc'ed; NULL when out of memory */
/* mkdir -p; succeeds when the folder exists already. */
enum status dir_create(const char *path, struct error *e) MUST_CHECK;
enum status dir_sync(const char *path, struct error *e) MUST_CHECK;
/* rm -rf of a folder that this project wrote. */
enum status dir_remove(const char *path, struct error *e) MUST_CHECK;
/* pread/pwrite of exactly n bytes; a short read is STATUS_DATA naming offset and what was missing.
 */
enum status fd_read_at(int fd, const char *name, uint64_t offset, void *buf, size_t n,
                       struct error *e) MUST_CHECK;
enum status fd_write_all(int fd, const char *name, const void *buf, size_t n,
                         struct error *e) MUST_CHECK;

#endif
