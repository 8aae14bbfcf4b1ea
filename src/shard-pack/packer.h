/* packer.h - documents into samples of fixed length: concatenation by group, separator, remainder.
 */
#ifndef SHARD_PACK_PACKER_H
#define SHARD_PACK_PACKER_H

#include "format/shard_set.h"
#include "format/token_stream.h"

struct packer {
    struct shard_writer *writer; /* borrowed */
    uint32_t block_size, id_bytes;
    uint64_t group_documents; /* documents concatenated before the remainder is dropped; 0 = all */
    bool add_eot;             /* the separator, after each document */
    uint32_t eot;
    /* counts */
    uint64_t tokens, documents, separators, dropped;
    /* private */
    void *partial; /* [block_size] the sample being filled */
    uint32_t filled;
    uint64_t in_group;
};

/* id_bytes: 2 or 4, the width of ids put, eot included. The settings above are filled in first. */
enum status packer_init(struct packer *p, struct error *e) MUST_CHECK;
void packer_release(struct packer *p);
/* Ids of the current document, id_bytes wide. */
enum status packer_put(struct packer *p, const void *ids, size_t n, struct error *e) MUST_CHECK;
enum status packer_end_document(struct packer *p, struct error *e) MUST_CHECK;
/* A whole block, of any width. */
enum status packer_block(struct packer *p, const struct token_block *b, struct error *e) MUST_CHECK;
/* Drops the last group's remainder. */
void packer_finish(struct packer *p);

#endif
