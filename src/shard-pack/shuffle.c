/* shuffle.c - a radix sort by random keys that spills to files.
 *
 * A record is a piece of one document: key, number of ids, whether it is the last piece, ids. The
 * pieces of a document follow one another wherever they are, because documents arrive one by one
 * and all pieces go the same way. A node keeps records in memory until they are too many; then it
 * deals them to FANOUT children by the next bits of the key, each with a small buffer and a file.
 * Documents may be as short as a line, so what is done for each of them is what counts: a file that
 * fits into memory is read in one go, its documents are put in order by the next bits of their keys
 * (buckets of about two), and what will be copied soon is fetched ahead. */
#define _GNU_SOURCE
#include "shard-pack/shuffle.h"
#include "base/philox.h"
#include "format/token_ids.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FANOUT_BITS 7
#define FANOUT (1u << FANOUT_BITS)
#define DEPTH_LIMIT (64 / FANOUT_BITS)
#define CHILD_BUFFER_BYTES ((size_t)32 << 10)
#define PIECE_IDS ((size_t)8 << 10) /* so that a record fits a child's buffer at either width */
/* "shuf": keeps these keys apart from other uses of the seed. */
#define SHUFFLE_STREAM 0x73687566u

struct record {
    uint64_t key;
    uint32_t n;
    bool last;
};

/* As it is stored: key, n << 1 | last, ids. Records are not aligned to 8 bytes, ids are to 2 or 4.
 */
#define RECORD_BYTES 12

struct child {
    int fd; /* -1 until something is written */
    uint8_t *buffer;
    size_t used;
    uint64_t documents, bytes; /* added, the buffer included */
};

struct node {
    int depth;
    uint8_t *memory;
    size_t used;
    uint64_t documents;     /* that end in memory */
    struct child *children; /* NULL while everything is in memory */
};

struct shuffle {
    uint64_t key; /* of Philox */
    uint32_t id_bytes;
    size_t memory_bytes;
    char *dir;
    uint64_t documents; /* begun */
    bool open;
    uint64_t document_key;
    struct node root;
};

static inline void record_store(uint8_t *p, const struct record *r)
{
    uint32_t tail = r->n << 1 | r->last;
    memcpy(p, &r->key, 8);
    memcpy(p + 8, &tail, 4);
}

static inline struct record record_load(const uint8_t *p)
{
    struct record r;
    uint32_t tail;
    memcpy(&r.key, p, 8);
    memcpy(&tail, p + 8, 4);
    r.n = tail >> 1;
    r.last = tail & 1;
    return r;
}

static inline size_t record_size(const struct shuffle *s, const struct record *r)
{
    return RECORD_BYTES + (size_t)r->n * s->id_bytes;
}

/* --- temporary files -------------------------------------------------------------------------- */

static enum status open_temporary(const struct shuffle *s, int *out, struct error *e)
{
    *out = open(s->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*out < 0) { /* a filesystem without unnamed files */
        char *name = NULL;
        if (asprintf(&name, "%s/.shuffle-XXXXXX", s->dir) < 0)
            return error_memory(e, strlen(s->dir) + 16, "a file name");
        *out = mkostemp(name, O_CLOEXEC);
        if (*out >= 0)
            unlink(name);
        free(name);
    }
    return *out >= 0 ? STATUS_OK
                     : error_errno(e, "cannot create a temporary file in %s for shuffling", s->dir);
}

static enum status flush_child(const struct shuffle *s, struct child *c, struct error *e)
{
    if (c->used == 0)
        return STATUS_OK;
    if (c->fd < 0)
        TRY(open_temporary(s, &c->fd, e));
    if (fd_write_all(c->fd, "a temporary file", c->buffer, c->used, e) != STATUS_OK)
        return error_context(e, "shuffling in %s", s->dir);
    c->used = 0;
    return STATUS_OK;
}

/* --- nodes ------------------------------------------------------------------------------------ */

static void node_release(struct node *node)
{
    for (uint32_t i = 0; node->children && i < FANOUT; i++) {
        if (node->children[i].fd >= 0)
            close(node->children[i].fd);
        free(node->children[i].buffer);
    }
    free(node->children);
    free(node->memory);
    *node = (struct node){0};
}

static uint32_t child_of(const struct node *node, uint64_t key)
{
    return (uint32_t)(key >> (64 - FANOUT_BITS * (node->depth + 1))) & (FANOUT - 1);
}

static enum status child_add(const struct shuffle *s, struct node *node, const struct record *r,
                             const void *ids, struct error *e)
{
    struct child *c = &node->children[child_of(node, r->key)];
    size_t bytes = record_size(s, r);
    if (!c->buffer && !(c->buffer = malloc(CHILD_BUFFER_BYTES + RECORD_BYTES)))
        return error_memory(e, CHILD_BUFFER_BYTES, "a shuffle buffer");
    if (bytes > CHILD_BUFFER_BYTES + RECORD_BYTES - c->used)
        TRY(flush_child(s, c, e));
    record_store(c->buffer + c->used, r);
    memcpy(c->buffer + c->used + RECORD_BYTES, ids, bytes - RECORD_BYTES);
    c->used += bytes;
    c->bytes += bytes;
    c->documents += r->last;
    return STATUS_OK;
}

static enum status node_split(const struct shuffle *s, struct node *node, struct error *e)
{
    node->children = calloc(FANOUT, sizeof *node->children);
    if (!node->children)
        return error_memory(e, FANOUT * sizeof *node->children, "shuffle buffers");
    for (uint32_t i = 0; i < FANOUT; i++)
        node->children[i].fd = -1;
    for (size_t at = 0; at < node->used;) {
        struct record r = record_load(node->memory + at);
        TRY(child_add(s, node, &r, node->memory + at + RECORD_BYTES, e));
        at += record_size(s, &r);
    }
    free(node->memory);
    node->memory = NULL;
    node->used = 0;
    return STATUS_OK;
}

static enum status node_allocate(const struct shuffle *s, struct node *node, struct error *e)
{
    if (!node->memory && !(node->memory = malloc(s->memory_bytes)))
        return error_memory(e, s->memory_bytes, "shuffling");
    return STATUS_OK;
}

static enum status node_add(const struct shuffle *s, struct node *node, const struct record *r,
                            const void *ids, struct error *e)
{
    size_t bytes = record_size(s, r);
    if (!node->children && node->depth < DEPTH_LIMIT && bytes > s->memory_bytes - node->used)
        TRY(node_split(s, node, e));
    if (node->children)
        return child_add(s, node, r, ids, e);
    TRY(node_allocate(s, node, e));
    record_store(node->memory + node->used, r);
    memcpy(node->memory + node->used + RECORD_BYTES, ids, bytes - RECORD_BYTES);
    node->used += bytes;
    node->documents += r->last;
    return STATUS_OK;
}

/* --- in --------------------------------------------------------------------------------------- */

enum status shuffle_new(struct shuffle **out_s, uint64_t seed, uint32_t id_bytes, const char *dir,
                        uint64_t memory_bytes, struct error *e)
{
    struct shuffle *s = calloc(1, sizeof *s);
    *out_s = s;
    if (!s || !(s->dir = strdup(dir)))
        return error_memory(e, sizeof *s, "shuffling");
    s->key = philox_key(seed, SHUFFLE_STREAM);
    s->id_bytes = id_bytes;
    s->memory_bytes = memory_bytes < UINT32_MAX ? (size_t)memory_bytes : UINT32_MAX;
    return STATUS_OK;
}

/* Ids of the current document, perhaps none. */
static enum status add_pieces(struct shuffle *s, const uint8_t *ids, uint32_t id_bytes, size_t n,
                              bool end, struct error *e)
{
    uint32_t converted[PIECE_IDS];
    if (!s->open) {
        struct philox4 x = philox4x32(s->key, s->documents++, 0);
        /* As many bits as the levels use, so that equal keys stay in order of arrival everywhere.
         */
        s->document_key =
            ((uint64_t)x.v[1] << 32 | x.v[0]) & ~0ull << (64 - FANOUT_BITS * DEPTH_LIMIT);
        s->open = true;
    }
    do {
        size_t take = n < PIECE_IDS ? n : PIECE_IDS;
        struct record r = {s->document_key, (uint32_t)take, end && take == n};
        const void *from = ids;
        if (id_bytes != s->id_bytes) {
            token_convert(converted, s->id_bytes, ids, id_bytes, take);
            from = converted;
        }
        TRY(node_add(s, &s->root, &r, from, e));
        ids += take * id_bytes;
        n -= take;
    } while (n > 0);
    s->open = !end;
    return STATUS_OK;
}

enum status shuffle_block(struct shuffle *s, const struct token_block *b, struct error *e)
{
    const uint8_t *ids = b->ids;
    size_t left = b->n;
    for (uint32_t d = 0; d < b->documents; d++) {
        TRY(add_pieces(s, ids, b->id_bytes, b->ends[d], true, e));
        ids += (size_t)b->ends[d] * b->id_bytes;
        left -= b->ends[d];
    }
    return left ? add_pieces(s, ids, b->id_bytes, left, false, e) : STATUS_OK;
}

/* --- out -------------------------------------------------------------------------------------- */

/* A document in memory. */
struct place {
    uint32_t key; /* the bits that follow those of its bucket */
    uint32_t at;  /* of its first record */
};

/* By key, then in order of arrival. */
static int place_compare(const struct node *node, const struct place *x, const struct place *y)
{
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    uint64_t a = record_load(node->memory + x->at).key, b = record_load(node->memory + y->at).key;
    if (a != b)
        return a < b ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static int place_compare_r(const void *x, const void *y, void *node)
{
    return place_compare(node, x, y);
}

static void sort_bucket(const struct node *node, struct place *p, size_t n)
{
    if (n > 32) { /* of more documents than there are buckets for */
        qsort_r(p, n, sizeof *p, place_compare_r, (void *)node);
        return;
    }
    for (size_t i = 1; i < n; i++) {
        struct place x = p[i];
        size_t k = i;
        for (; k > 0 && place_compare(node, &x, &p[k - 1]) < 0; k--)
            p[k] = p[k - 1];
        p[k] = x;
    }
}

/* The key of the document whose first record is at *at, which becomes the place behind it. */
static inline uint64_t pass_document(const struct shuffle *s, const struct node *node, size_t *at)
{
    struct record r = record_load(node->memory + *at);
    uint64_t key = r.key;
    *at += record_size(s, &r);
    while (!r.last) {
        r = record_load(node->memory + *at);
        *at += record_size(s, &r);
    }
    return key;
}

/* All documents of the node in order: places[node->documents]. end[1 << bits] is scratch. */
static void sort_documents(const struct shuffle *s, const struct node *node, struct place *places,
                           uint32_t *end, int bits)
{
    int known = FANOUT_BITS * node->depth; /* bits that all keys here have in common */
    memset(end, 0, sizeof *end << bits);
    for (size_t at = 0; at < node->used;)
        end[pass_document(s, node, &at) << known >> (64 - bits)]++;
    for (uint32_t i = 0, sum = 0; i < 1u << bits; i++) {
        uint32_t count = end[i];
        end[i] = sum;
        sum += count;
    }
    for (size_t at = 0; at < node->used;) {
        uint32_t begin = (uint32_t)at;
        uint64_t key = pass_document(s, node, &at) << known;
        places[end[key >> (64 - bits)]++] = (struct place){(uint32_t)(key << bits >> 32), begin};
    }
    for (uint32_t i = 0, begin = 0; i < 1u << bits; begin = end[i++])
        sort_bucket(node, places + begin, end[i] - begin);
}

static enum status emit_document(const struct shuffle *s, const struct node *node, size_t at,
                                 const struct shuffle_sink *sink, struct error *e)
{
    struct record r;
    do {
        r = record_load(node->memory + at);
        TRY(sink->put(sink->arg, node->memory + at + RECORD_BYTES, r.n, r.last, e));
        at += record_size(s, &r);
    } while (!r.last);
    return STATUS_OK;
}

#define FETCH_AHEAD 16

static enum status drain_memory(const struct shuffle *s, const struct node *node,
                                const struct shuffle_sink *sink, struct error *e)
{
    enum status st = STATUS_OK;
    uint64_t n = node->documents;
    int bits = 1;
    while (bits < 24 && 2ull << bits < n)
        bits++;
    struct place *places = malloc((n + FETCH_AHEAD) * sizeof *places);
    uint32_t *end = malloc(sizeof *end << bits);
    if (!places || !end)
        TRY_OUT(error_memory(e, n * sizeof *places, "shuffling"));
    sort_documents(s, node, places, end, bits);
    for (int i = 0; i < FETCH_AHEAD; i++)
        places[n + i].at = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *soon = node->memory + places[i + FETCH_AHEAD].at;
        __builtin_prefetch(soon);
        __builtin_prefetch(soon + 64);
        TRY_OUT(emit_document(s, node, places[i].at, sink, e));
    }
out:
    free(places);
    free(end);
    return st;
}

static enum status cut_file(const struct shuffle *s, struct error *e)
{
    return error_set(e, STATUS_FAILED, "a temporary file in %s is shorter than what was written",
                     s->dir);
}

/* Reads a child's records one by one from its file. */
struct record_reader {
    const struct shuffle *s;
    int fd;
    uint64_t offset;
    uint8_t *buffer; /* CHILD_BUFFER_BYTES + RECORD_BYTES: any record fits */
    size_t begin, end;
};

static enum status refill(struct record_reader *r, size_t want, bool *at_end, struct error *e)
{
    while (r->end - r->begin < want) {
        memmove(r->buffer, r->buffer + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->begin = 0;
        ssize_t got = pread(r->fd, r->buffer + r->end, CHILD_BUFFER_BYTES + RECORD_BYTES - r->end,
                            (off_t)r->offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_errno(e, "reading a temporary file in %s", r->s->dir);
        *at_end = got == 0;
        if (got == 0)
            return STATUS_OK;
        r->offset += (uint64_t)got;
        r->end += (size_t)got;
    }
    return STATUS_OK;
}

static enum status next_record(struct record_reader *r, struct record *rec, const uint8_t **ids,
                               bool *done, struct error *e)
{
    *done = false;
    TRY(refill(r, RECORD_BYTES, done, e));
    if (*done && r->end == r->begin)
        return STATUS_OK;
    bool cut = *done;
    if (!cut) {
        *rec = record_load(r->buffer + r->begin);
        TRY(refill(r, record_size(r->s, rec), &cut, e));
    }
    if (cut)
        return cut_file(r->s, e);
    *ids = r->buffer + r->begin + RECORD_BYTES;
    r->begin += record_size(r->s, rec);
    return STATUS_OK;
}

/* A child that fits into memory. */
static enum status read_child(const struct shuffle *s, struct node *node, const struct child *c,
                              struct error *e)
{
    TRY(node_allocate(s, node, e));
    while (node->used < c->bytes) {
        ssize_t got =
            pread(c->fd, node->memory + node->used, c->bytes - node->used, (off_t)node->used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_errno(e, "reading a temporary file in %s", s->dir);
        if (got == 0)
            return cut_file(s, e);
        node->used += (size_t)got;
    }
    node->documents = c->documents;
    return STATUS_OK;
}

static enum status node_drain(const struct shuffle *s, struct node *node,
                              const struct shuffle_sink *sink, struct error *e);

/* A child that is larger than memory: its records go to children of its own. One document, or no
 * bits left to part them by: they leave as they lie. */
static enum status stream_child(const struct shuffle *s, struct node *node, const struct child *c,
                                const struct shuffle_sink *sink, struct error *e)
{
    struct record_reader r = {.s = s, .fd = c->fd};
    struct record rec;
    const uint8_t *ids = NULL;
    bool done = false, as_it_lies = c->documents <= 1 || node->depth == DEPTH_LIMIT;
    enum status st = STATUS_OK;
    r.buffer = malloc(CHILD_BUFFER_BYTES + RECORD_BYTES);
    if (!r.buffer)
        return error_memory(e, CHILD_BUFFER_BYTES, "a shuffle buffer");
    for (;;) {
        TRY_OUT(next_record(&r, &rec, &ids, &done, e));
        if (done)
            break;
        TRY_OUT(as_it_lies ? sink->put(sink->arg, ids, rec.n, rec.last, e)
                           : node_add(s, node, &rec, ids, e));
    }
out:
    free(r.buffer);
    return st;
}

static enum status drain_child(const struct shuffle *s, const struct node *parent, struct child *c,
                               const struct shuffle_sink *sink, struct error *e)
{
    struct node node = {.depth = parent->depth + 1};
    enum status st = STATUS_OK;
    if (c->fd < 0)
        return STATUS_OK;
    if (c->bytes <= s->memory_bytes && node.depth < DEPTH_LIMIT)
        TRY_OUT(read_child(s, &node, c, e));
    else
        TRY_OUT(stream_child(s, &node, c, sink, e));
    TRY_OUT(node_drain(s, &node, sink, e));
out:
    node_release(&node);
    return st;
}

static enum status node_drain(const struct shuffle *s, struct node *node,
                              const struct shuffle_sink *sink, struct error *e)
{
    if (!node->children)
        return drain_memory(s, node, sink, e);
    for (uint32_t i = 0; i < FANOUT; i++) {
        TRY(flush_child(s, &node->children[i], e));
        free(node->children[i].buffer);
        node->children[i].buffer = NULL;
    }
    for (uint32_t i = 0; i < FANOUT; i++) {
        struct child *c = &node->children[i];
        TRY(drain_child(s, node, c, sink, e));
        if (c->fd >= 0)
            close(c->fd); /* gives the disk back early */
        c->fd = -1;
    }
    return STATUS_OK;
}

enum status shuffle_drain(struct shuffle *s, const struct shuffle_sink *sink, struct error *e)
{
    TRY(node_drain(s, &s->root, sink, e));
    node_release(&s->root);
    return STATUS_OK;
}

void shuffle_free(struct shuffle *s)
{
    if (!s)
        return;
    node_release(&s->root);
    free(s->dir);
    free(s);
}
