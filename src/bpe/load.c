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

/* Takes the tokens' text from the source, and adds that of the special ones. */
static enum status take_text(struct bpe *b, struct bpe_source *s, const struct bpe_ids *ids,
                             struct error *e)
{
    uint32_t plain = 256 + s->merges;
    size_t special_bytes = 0;
    for (uint32_t i = 0; i < ids->special_count; i++)
        special_bytes += strlen(ids->specials[i].text);
    uint32_t *offset = realloc(s->offset, ((size_t)ids->size + 1) * sizeof *offset);
    s->offset = offset ? offset : s->offset;
    if (!offset || !strbuf_reserve(&s->text, special_bytes + 16))
        return error_memory(e, special_bytes + ids->size * 4ull, "the tokens of a vocabulary");
    for (uint32_t i = 0; i < ids->special_count; i++) {
        size_t n = strlen(ids->specials[i].text);
        memcpy(s->text.data + s->text.length, ids->specials[i].text, n);
        s->text.length += n;
        offset[plain + i + 1] = (uint32_t)s->text.length;
    }
    memset(s->text.data + s->text.length, 0, 16);
    b->text = s->text.data;
    b->offset = offset;
    s->text = (struct strbuf){0};
    s->offset = NULL;
    return STATUS_OK;
}

/* From ids to tokens. The ids have been checked: each has one token. */
static enum status build_tokens(struct bpe *b, const struct bpe_ids *ids, struct error *e)
{
    uint32_t plain = 256 + b->merges;
    b->internal = malloc(ids->size * sizeof *b->internal);
    b->short_token = malloc(ids->size * sizeof *b->short_token);
    if (!b->internal || !b->short_token)
        return error_memory(e, ids->size * 20ull, "the tokens of a vocabulary");
    for (uint32_t i = 0; i < ids->size; i++) {
        uint32_t id = i < plain ? ids->external[i] : ids->specials[i - plain].id;
        uint32_t begin = b->offset[i], n = b->offset[i + 1] - begin;
        b->internal[id] = i;
        b->longest_bytes = n > b->longest_bytes ? n : b->longest_bytes;
        memcpy(b->short_token[id], b->text + begin, 15);
        b->short_token[id][15] = n <= 15 ? (uint8_t)n : 255;
    }
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

static enum status put_token(struct strbuf *out, const struct bpe *b, uint32_t internal, char end)
{
    uint32_t begin = b->offset[internal], n = b->offset[internal + 1] - begin;
    return bpe_alphabet_encode(out, b->text + begin, n) && strbuf_putc(out, end) ? STATUS_OK
                                                                                 : STATUS_FAILED;
}

/* XXH3-64 of "LEFT RIGHT\n" for every merge; when the ids are not the ones that follow from the
 * list, of that and the ids (32-bit little-endian, bytes first, then merges). Only one symbol
 * stands for a byte string, so what a file has in this form need not be written again. */
static enum status fingerprint(struct bpe *b, const struct bpe_source *s, struct error *e)
{
    struct strbuf text = {0};
    enum status st = STATUS_OK;
    if (s->list && !b->own_order) {
        b->fingerprint = hash64(s->list, s->list_bytes);
        return STATUS_OK;
    }
    for (uint32_t k = 0; k < b->merges && st == STATUS_OK; k++) {
        st = put_token(&text, b, b->pairs[2 * k], ' ');
        if (st == STATUS_OK)
            st = put_token(&text, b, b->pairs[2 * k + 1], '\n');
    }
    for (uint32_t i = 0; b->own_order && i < 256 + b->merges && st == STATUS_OK; i++) {
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

static enum status build(struct bpe **out, struct bpe_source *s, struct bpe_ids *ids, bool encodes,
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
    TRY_OUT(take_text(b, s, ids, e));
    TRY_OUT(build_tokens(b, ids, e));
    b->pairs = s->pairs;
    s->pairs = NULL;
    b->external = ids->external;
    ids->external = NULL;
    TRY_OUT(fingerprint(b, s, e));
    if (encodes) {
        TRY_OUT(build_pairs(b, e));
        unicode_classes_init(&b->classes);
    }
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

static enum status load(struct bpe **out, const char *path, bool encodes, struct error *e)
{
    struct files files = {0};
    struct bpe_source source = {0};
    struct bpe_ids ids = {0};
    char *text = NULL, *vocab = NULL;
    size_t bytes, vocab_bytes;
    enum status st;
    *out = NULL;
    TRY_OUT(find_files(path, &files, e));
    const char *first = files.tokenizer ? files.tokenizer : files.merges;
    TRY_OUT(file_read_all(first, FILE_LIMIT_BYTES, &text, &bytes, e));
    if (files.tokenizer) {
        TRY_OUT(bpe_json_tokenizer(&source, &ids, first, text, bytes, e));
    } else {
        TRY_OUT(bpe_source_parse_merges(&source, first, text, bytes, e));
        if (source.merges == 0)
            TRY_OUT(error_set(e, STATUS_DATA, "%s: no merges in it", first));
    }
    if (files.vocab) {
        TRY_OUT(file_read_all(files.vocab, FILE_LIMIT_BYTES, &vocab, &vocab_bytes, e));
        TRY_OUT(bpe_json_vocab(&source, &ids, files.vocab, vocab, vocab_bytes, e));
    } else if (!files.tokenizer) {
        TRY_OUT(default_ids(&source, &ids, e));
    }
    st = build(out, &source, &ids, encodes, e);
out:
    free(text);
    free(vocab);
    bpe_source_release(&source);
    bpe_ids_release(&ids);
    files_release(&files);
    return st == STATUS_OK ? st : error_context(e, "loading the vocabulary");
}

enum status bpe_load(struct bpe **b, const char *path, struct error *e)
{
    return load(b, path, true, e);
}

enum status bpe_load_decoder(struct bpe **b, const char *path, struct error *e)
{
    return load(b, path, false, e);
}

void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    free(b->pairs);
    free(b->external);
    free(b->internal);
    free(b->text);
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
    uint32_t begin = b->offset[b->internal[id]];
    *bytes = b->offset[b->internal[id] + 1] - begin;
    return b->text + begin;
}
