/* load.c - finds the files of a vocabulary, reads them, and builds the tables that encoding and
 * decoding use. */
#include "bpe/bpe_private.h"
#include "base/hash.h"
#include "base/io.h"

#include <stdlib.h>

#define FILE_LIMIT_BYTES ((size_t)256 << 20)

/* Ids as the merge list alone gives them: bytes, merges, <|endoftext|>. */
static enum status default_ids(const struct bpe_source *s, struct bpe_ids *ids, struct error *e)
{
    ids->external = malloc((256 + (size_t)s->merges) * sizeof *ids->external);
    ids->specials = calloc(1, sizeof *ids->specials);
    char *text = strdup(BPE_EOT_TEXT);
    if (!ids->external || !ids->specials || !text) {
        free(text);
        return error_memory(e, s->merges * 4ull, "the id map");
    }
    for (uint32_t i = 0; i < 256; i++)
        ids->external[i] = bpe_alphabet_rank((uint8_t)i);
    for (uint32_t i = 256; i < 256 + s->merges; i++)
        ids->external[i] = i;
    ids->eot = 256 + s->merges;
    ids->size = ids->eot + 1;
    ids->specials[0] = (struct bpe_special){ids->eot, text};
    ids->special_count = 1;
    return STATUS_OK;
}

/* The text of every id, in the order of ids. */
static enum status build_tokens(struct bpe *b, const struct bpe_source *s,
                                const struct bpe_ids *ids, struct error *e)
{
    uint32_t plain = 256 + s->merges;
    uint32_t *internal = malloc(ids->size * sizeof *internal);
    size_t total = 256 + s->text.length, at = 0;
    for (uint32_t i = 0; i < ids->special_count; i++)
        total += strlen(ids->specials[i].text);
    b->blob = malloc(total + 16);
    b->offset = malloc(((size_t)ids->size + 1) * sizeof *b->offset);
    b->short_token = calloc(ids->size, sizeof *b->short_token);
    if (!internal || !b->blob || !b->offset || !b->short_token) {
        free(internal);
        return error_memory(e, total + ids->size * 28ull, "the tokens of a vocabulary");
    }
    for (uint32_t i = 0; i < plain; i++)
        internal[ids->external[i]] = i;
    for (uint32_t i = 0; i < ids->special_count; i++)
        internal[ids->specials[i].id] = plain + i;
    for (uint32_t id = 0; id < ids->size; id++) {
        char one[1];
        size_t n;
        const char *text;
        if (internal[id] < plain) {
            text = bpe_source_token(s, internal[id], &n, one);
        } else {
            text = ids->specials[internal[id] - plain].text;
            n = strlen(text);
        }
        b->offset[id] = at;
        memcpy(b->blob + at, text, n);
        at += n;
        b->longest_bytes = n > b->longest_bytes ? (uint32_t)n : b->longest_bytes;
        b->short_token[id][15] = n <= 15 ? (uint8_t)n : 255;
        memcpy(b->short_token[id], text, n <= 15 ? n : 0);
    }
    b->offset[ids->size] = at;
    free(internal);
    return STATUS_OK;
}

static enum status build_pairs(struct bpe *b, struct error *e)
{
    size_t slots = 1024;
    while (slots < 2 * (size_t)b->merges)
        slots *= 2;
    b->pair_mask = slots - 1;
    b->pair_shift = 64 - (uint32_t)__builtin_ctzll(slots);
    b->filter_shift = b->pair_shift - (uint32_t)__builtin_ctz(BPE_FILTER_FACTOR);
    b->pair_table = malloc(slots * sizeof *b->pair_table);
    b->pair_filter = calloc(slots * BPE_FILTER_FACTOR / 64, sizeof *b->pair_filter);
    b->byte_pair = malloc(65536 * sizeof *b->byte_pair);
    if (!b->pair_table || !b->pair_filter || !b->byte_pair)
        return error_memory(e, slots * 8 + 65536 * 4, "the merge table");
    memset(b->pair_table, 0xFF, slots * sizeof *b->pair_table);
    memset(b->byte_pair, 0xFF, 65536 * sizeof *b->byte_pair);
    for (uint32_t k = 0; k < b->merges; k++) {
        uint32_t left = b->pairs[2 * k], right = b->pairs[2 * k + 1];
        uint64_t key = bpe_pair_key(left, right);
        uint64_t hash = bpe_pair_hash(key);
        size_t bit = (size_t)(hash >> b->filter_shift), i = (size_t)(hash >> b->pair_shift);
        while (b->pair_table[i] != BPE_PAIR_EMPTY)
            i = (i + 1) & b->pair_mask;
        b->pair_filter[bit / 64] |= 1ull << bit % 64;
        b->pair_table[i] = key << BPE_PAIR_VALUE_BITS | (256 + k);
        if (left < 256 && right < 256)
            b->byte_pair[left << 8 | right] = 256 + k;
    }
    return STATUS_OK;
}

static enum status put_token(struct strbuf *out, const struct bpe_source *s, uint32_t internal,
                             char end)
{
    size_t n;
    char one[1];
    const char *text = bpe_source_token(s, internal, &n, one);
    return bpe_alphabet_encode(out, text, n) && strbuf_putc(out, end) ? STATUS_OK : STATUS_FAILED;
}

/* XXH3-64 of "LEFT RIGHT\n" for every merge; when the ids are not the ones that follow from the
 * list, of that and the ids (32-bit little-endian, bytes first, then merges). */
static enum status fingerprint(struct bpe *b, const struct bpe_source *s, struct error *e)
{
    struct strbuf text = {0};
    enum status st = STATUS_OK;
    for (uint32_t k = 0; k < s->merges && st == STATUS_OK; k++) {
        st = put_token(&text, s, b->pairs[2 * k], ' ');
        if (st == STATUS_OK)
            st = put_token(&text, s, b->pairs[2 * k + 1], '\n');
    }
    for (uint32_t i = 0; b->own_order && i < 256 + s->merges && st == STATUS_OK; i++) {
        uint32_t id = b->external[i];
        char le[4] = {(char)id, (char)(id >> 8), (char)(id >> 16), (char)(id >> 24)};
        st = strbuf_append(&text, le, 4) ? STATUS_OK : STATUS_FAILED;
    }
    b->fingerprint = hash64(text.data, text.length);
    if (st != STATUS_OK)
        st = error_memory(e, text.length, "the merge list");
    strbuf_release(&text);
    return st;
}

static bool is_default_order(const struct bpe_source *s, const struct bpe_ids *ids)
{
    for (uint32_t i = 0; i < 256 + s->merges; i++)
        if (ids->external[i] != (i < 256 ? bpe_alphabet_rank((uint8_t)i) : i))
            return false;
    return ids->eot == 256 + s->merges && ids->size == ids->eot + 1;
}

static enum status build(struct bpe **out, struct bpe_source *s, struct bpe_ids *ids,
                         struct error *e)
{
    struct bpe *b = calloc(1, sizeof *b);
    if (!b)
        return error_memory(e, sizeof *b, "a vocabulary");
    enum status st = STATUS_OK;
    b->own_order = !is_default_order(s, ids);
    b->merges = s->merges;
    b->size = ids->size;
    b->eot = ids->eot;
    TRY_OUT(build_tokens(b, s, ids, e));
    b->pairs = s->pairs;
    s->pairs = NULL;
    b->external = ids->external;
    ids->external = NULL;
    TRY_OUT(build_pairs(b, e));
    TRY_OUT(fingerprint(b, s, e));
    unicode_classes_init(&b->classes);
out:
    if (st != STATUS_OK) {
        bpe_free(b);
        b = NULL;
    }
    *out = b;
    return st;
}

/* --- which files ------------------------------------------------------------------------------ */

struct files {
    char *merges, *vocab, *tokenizer; /* paths; NULL = not used */
};

static void files_release(struct files *f)
{
    free(f->merges);
    free(f->vocab);
    free(f->tokenizer);
}

static char *existing(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    if (path && path_exists(path))
        return path;
    free(path);
    return NULL;
}

static bool ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

static enum status find_in_folder(const char *dir, struct files *f, struct error *e)
{
    f->tokenizer = existing(dir, "tokenizer.json");
    if (f->tokenizer)
        return STATUS_OK;
    f->merges = existing(dir, "merges.txt");
    if (f->merges)
        f->vocab = existing(dir, "vocab.json");
    else
        f->merges = existing(dir, "vocab.bpe");
    if (!f->merges)
        return error_set(e, STATUS_DATA,
                         "%s: no vocabulary here: expected tokenizer.json, merges.txt (with or "
                         "without vocab.json) or vocab.bpe",
                         dir);
    return STATUS_OK;
}

static enum status find_files(const char *path, struct files *f, struct error *e)
{
    if (path_is_dir(path))
        return find_in_folder(path, f, e);
    char **field = ends_with(path, "tokenizer.json") ? &f->tokenizer
                   : ends_with(path, "vocab.json")   ? &f->vocab
                                                     : &f->merges;
    *field = strdup(path);
    if (f->vocab) { /* the ids; the merges are in the file beside it */
        f->merges = strdup(path);
        if (f->merges) {
            char *slash = strrchr(f->merges, '/');
            char *dir = slash ? f->merges : NULL;
            if (slash)
                *slash = '\0';
            char *merges = path_join(dir ? dir : ".", "merges.txt");
            free(f->merges);
            f->merges = merges;
        }
    }
    return *field && (!f->vocab || f->merges) ? STATUS_OK : error_memory(e, strlen(path), "a path");
}

enum status bpe_load(struct bpe **out, const char *path, struct error *e)
{
    struct files files = {0};
    struct bpe_source source = {0};
    struct bpe_ids ids = {0};
    char *text = NULL;
    size_t bytes;
    enum status st;
    *out = NULL;
    TRY_OUT(find_files(path, &files, e));
    const char *first = files.tokenizer ? files.tokenizer : files.merges;
    TRY_OUT(bpe_source_init(&source, first, e));
    TRY_OUT(file_read_all(first, FILE_LIMIT_BYTES, &text, &bytes, e));
    if (files.tokenizer) {
        TRY_OUT(bpe_json_tokenizer(&source, &ids, text, bytes, e));
    } else {
        TRY_OUT(bpe_source_parse_merges(&source, text, bytes, e));
        if (source.merges == 0)
            TRY_OUT(error_set(e, STATUS_DATA, "%s: no merges in it", first));
    }
    if (files.vocab) {
        free(text);
        text = NULL;
        TRY_OUT(file_read_all(files.vocab, FILE_LIMIT_BYTES, &text, &bytes, e));
        TRY_OUT(bpe_json_vocab(&source, &ids, files.vocab, text, bytes, e));
    } else if (!files.tokenizer) {
        TRY_OUT(default_ids(&source, &ids, e));
    }
    st = build(out, &source, &ids, e);
out:
    free(text);
    bpe_source_release(&source);
    bpe_ids_release(&ids);
    files_release(&files);
    return st == STATUS_OK ? st : error_context(e, "loading the vocabulary");
}

void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    free(b->pairs);
    free(b->external);
    free(b->blob);
    free(b->offset);
    free(b->short_token);
    free(b->byte_pair);
    free(b->pair_table);
    free(b->pair_filter);
    free(b);
}

uint32_t bpe_vocab_size(const struct bpe *b)
{
    return b->size;
}

uint64_t bpe_fingerprint(const struct bpe *b)
{
    return b->fingerprint;
}

uint32_t bpe_eot(const struct bpe *b)
{
    return b->eot;
}

const char *bpe_token(const struct bpe *b, uint32_t id, size_t *bytes)
{
    *bytes = b->offset[id + 1] - b->offset[id];
    return b->blob + b->offset[id];
}
