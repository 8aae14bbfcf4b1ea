/* byte_source.h - the bytes of an input, decompressed when they are gzip. */
#ifndef SHARD_PACK_BYTE_SOURCE_H
#define SHARD_PACK_BYTE_SOURCE_H

#include "base/io.h"
#include <zlib.h>

struct byte_source {
    const uint8_t *p, *end; /* what can be taken now; byte_source_fill gets more */
    uint64_t offset;        /* of `end` in the (decompressed) bytes */
    /* private */
    struct input *in; /* borrowed */
    uint8_t *raw, *buffer;
    z_stream z;
    bool gzip, member_open, at_end;
};

/* Looks at the first bytes to decide. */
enum status byte_source_open(struct byte_source *b, struct input *in, struct error *e) MUST_CHECK;
/* To be called when p == end; they are still equal afterwards at the end of the input. */
enum status byte_source_fill(struct byte_source *b, struct error *e) MUST_CHECK;
/* Up to `want` bytes; *got < want only at the end. */
enum status byte_source_read(struct byte_source *b, void *buf, size_t want, size_t *got,
                             struct error *e) MUST_CHECK;
void byte_source_close(struct byte_source *b);

#endif
