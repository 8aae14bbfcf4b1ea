/* container.h - the envelope of our three binary formats: header, checksummed blocks, trailer.
 *
 * All integers are little-endian, written field by field. Writers never seek, so pipes work.
 *
 * Header, 64 bytes:
 *    0  8  magic: 0x89, three letters ("TOK" "SHD" "CKP"), CR LF, 0x1A, LF
 *    8  2  major version (readers refuse another)      10  2  minor version (readers ignore)
 *   12  2  header size, 64                             14  2  element type, enum dtype
 *   16  4  flags: bits 0-15 must be understood, bits 16-31 may be ignored
 *   20  4  alignment of block payloads in the file, 64
 *   24  8  count of elements, all ones = not known when the header was written
 *   32  8  set id: the same in all files written together, 0 = stands alone
 *   40  4  k: this is file k of n, from 0              44  4  n, at least 1; all ones = not known
 *   48  8  reserved, 0
 *   56  8  XXH3-64 of bytes 0-55
 * Block, any number, each starting at a multiple of 64:
 *    0  4  tag (four ASCII letters; lower-case first letter = readers may skip it when unknown)
 *    4  4  sequence number of the block in the file, from 0
 *    8  8  payload bytes (without padding)
 *   16  8  XXH3-64 of the payload
 *   24  8  XXH3-64 of bytes 0-23
 *   32 32  reserved, 0
 *   64     payload, then zeros to a multiple of 64
 * Trailer, 64 bytes:
 *    0  4  tag "TEND"                                   4  4  number of blocks
 *    8  8  count of elements                           16  8  file bytes including the trailer
 *   24  8  digest: XXH3-64 of the elements' bytes in order (payloads of "DATA" blocks)
 *   32 16  reserved, 0
 *   48  8  XXH3-64 of bytes 0-47                       56  8  closing magic "\x89" letters "END\n"
 * Bytes after the trailer, non-zero reserved bytes and non-zero padding are errors. The count times
 * the element's size is the total of the "DATA" payloads. Multiples of 64 are counted from the
 * header.
 *
 * Common blocks: "prov" provenance, JSON (tool, version, options, inputs); "vocb" vocabulary, JSON
 * ({"size":50257,"fingerprint":"16 hex digits","eot":50256}). */
#ifndef FORMAT_CONTAINER_H
#define FORMAT_CONTAINER_H

#include "base/dtype.h"
#include "base/io.h"

#define CONTAINER_HEADER_BYTES 64
#define CONTAINER_BLOCK_BYTES 64
#define CONTAINER_TRAILER_BYTES 64
#define CONTAINER_ALIGN 64
#define CONTAINER_COUNT_UNKNOWN UINT64_MAX
#define CONTAINER_PARTS_UNKNOWN UINT32_MAX
/* Flag bits that a reader of this version understands; others of the lower half are refused. */
#define CONTAINER_FLAGS_UNDERSTOOD 0u

struct container_header {
    char kind[4]; /* "TOK", "SHD", "CKP" */
    uint16_t major, minor;
    enum dtype dtype;
    uint32_t flags;
    uint64_t count;
    uint64_t set_id;
    uint32_t part, parts;
};

struct container_block {
    char tag[5];
    uint32_t sequence;
    uint64_t payload_bytes;
    uint64_t payload_offset; /* of the payload in the file */
    uint64_t checksum;
};

struct container_trailer {
    uint32_t blocks;
    uint64_t count;
    uint64_t file_bytes;
    uint64_t digest;
};

/* --- writing: sequential, on a struct output opened by the caller ----------------------------- */
struct container_writer {
    struct output *out; /* borrowed; commit is the caller's */
    struct container_header header;
    uint64_t start; /* out->offset of the header */
    uint32_t blocks;
    uint64_t data_bytes; /* in "DATA" payloads so far */
    struct hash_state *digest;
};

enum status container_write_header(struct container_writer *w, struct output *out,
                                   const struct container_header *h, struct error *e) MUST_CHECK;
/* The payload of "DATA" blocks enters the digest. payload_offset (may be NULL) gets its place. */
enum status container_write_block(struct container_writer *w, const char tag[4],
                                  const void *payload, uint64_t bytes, uint64_t *payload_offset,
                                  struct error *e) MUST_CHECK;
/* count: elements written; t (may be NULL) gets what the trailer says. */
enum status container_write_trailer(struct container_writer *w, uint64_t count,
                                    struct container_trailer *t, struct error *e) MUST_CHECK;
void container_writer_release(struct container_writer *w);

/* --- reading: sequential, from a file or pipe ------------------------------------------------- */
struct container_reader {
    struct input *in; /* borrowed */
    struct container_header header;
    uint32_t blocks;
    uint64_t start;
    uint64_t data_bytes; /* in "DATA" payloads so far */
    struct hash_state *digest;
    bool finished;
};

/* kind NULL accepts any of ours. Wrong magic says what the file looks like instead (text with CRLF
 * damage, gzip, zip, safetensors, empty, another of our kinds). */
enum status container_read_header(struct container_reader *r, struct input *in, const char *kind,
                                  uint16_t major, struct error *e) MUST_CHECK;
/* The next block head; *done at the trailer, which is then verified (count, bytes, digest, nothing
 * after it). payload_bytes over limit_bytes is refused before anything is allocated. */
enum status container_next_block(struct container_reader *r, uint64_t limit_bytes,
                                 struct container_block *b, bool *done, struct container_trailer *t,
                                 struct error *e) MUST_CHECK;
/* The payload of the block just announced, verified. buf holds payload_bytes. */
enum status container_read_payload(struct container_reader *r, const struct container_block *b,
                                   void *buf, struct error *e) MUST_CHECK;
/* The same without keeping it: for blocks whose tag the reader may skip. */
enum status container_skip_payload(struct container_reader *r, const struct container_block *b,
                                   struct error *e) MUST_CHECK;
/* True when a reader that does not know this tag may skip the block. */
bool container_tag_optional(const char tag[4]);
void container_reader_release(struct container_reader *r);

/* --- random access on a file descriptor ------------------------------------------------------- */
/* Header, trailer and every block head, verified (not the payloads). *blocks is malloc'ed. */
enum status container_index(int fd, const char *name, const char *kind, uint16_t major,
                            struct container_header *h, struct container_trailer *t,
                            struct container_block **blocks, uint32_t *count,
                            struct error *e) MUST_CHECK;
/* Verify one payload in memory against its block head. */
enum status container_check_payload(const struct container_block *b, const char *name,
                                    const void *payload, struct error *e) MUST_CHECK;

/* A set id from the current time, process and host; never 0. */
uint64_t container_new_set_id(void);

#endif
