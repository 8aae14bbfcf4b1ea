/* stream.h - decoded text of one member of a source file, line by line.
 *
 * A source file is plain text, gzip or a zip. It is read as it lies: nothing is unpacked to disk.
 * Checksums are verified on the way: gzip's CRC-32 and length, and the zip member's CRC-32. */
#ifndef SST2_FETCH_STREAM_H
#define SST2_FETCH_STREAM_H

#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum source_kind { SOURCE_PLAIN, SOURCE_GZIP, SOURCE_ZIP };

/* An open source file. Zero-initialise before open. */
struct source_file {
    char *name; /* for messages; owned */
    int fd;
    bool own_fd;
    enum source_kind kind;
};

/* Opens path, or stdin for "-". Input that cannot be read twice (a pipe) is copied, still packed,
 * to an unnamed temporary file in tmpdir when it is a zip or when `reread` asks for several passes;
 * otherwise `head` keeps what was peeked. */
struct source_head {
    uint8_t bytes[4];
    size_t length;
};
enum status source_file_open(struct source_file *f, struct source_head *head, const char *path,
                             bool reread, const char *tmpdir, struct error *e) MUST_CHECK;
/* The same for an open regular file, which then belongs to f, also on failure. */
enum status source_file_adopt(struct source_file *f, struct source_head *head, int fd,
                              const char *name, struct error *e) MUST_CHECK;
void source_file_close(struct source_file *f);

struct stream {
    char *name;      /* "SST-2.zip: SST-2/train.tsv"; owned */
    uint64_t line;   /* lines handed out */
    uint64_t offset; /* decoded bytes handed out, line ends included */
    /* private */
    const struct decoder *decoder;
    void *state;
    char *buffer;
    size_t begin, end, capacity;
    bool at_end;
};

/* One stream at a time per source file. member: name of the zip member, NULL otherwise. */
enum status stream_open(struct stream *s, const struct source_file *f,
                        const struct source_head *head, const char *member,
                        struct error *e) MUST_CHECK;
/* The next line without its LF or CRLF; *line is NULL at the end and otherwise valid until the next
 * call. A line over limit_bytes is STATUS_DATA. */
enum status stream_line(struct stream *s, const char **line, size_t *length, size_t limit_bytes,
                        struct error *e) MUST_CHECK;
void stream_close(struct stream *s);

/* Calls visit(arg, member name) for every regular file of a zip, in order. */
enum status zip_list(const struct source_file *f, void (*visit)(void *arg, const char *member),
                     void *arg, struct error *e) MUST_CHECK;

#endif
