/* decoder.h - how stream.c gets decoded bytes: one constant table per kind of file. */
#ifndef SST2_FETCH_DECODER_H
#define SST2_FETCH_DECODER_H

#include "sst2-fetch/stream.h"

struct decoder {
    /* name: of the stream, outlives the state. head may be NULL. */
    enum status (*open)(void **state, const struct source_file *f, const struct source_head *head,
                        const char *member, const char *name, struct error *e);
    /* At least one byte unless at the end, where *got is 0 and every checksum has been verified. */
    enum status (*read)(void *state, void *buf, size_t want, size_t *got, struct error *e);
    void (*close)(void *state);
};

extern const struct decoder decoder_plain, decoder_gzip, decoder_zip;

#endif
