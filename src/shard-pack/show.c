/* show.c - see show.h. */
#define _GNU_SOURCE
#include "shard-pack/show.h"
#include "base/share.h"
#include "base/log.h"
#include "base/progress.h"
#include "bpe/bpe.h"
#include "format/shard_set.h"
#include "format/token_stream.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- verify ----------------------------------------------------------------------------------- */

static void on_bytes(void *arg, uint64_t bytes)
{
    progress_update(arg, bytes);
}

static enum status verify_set(const char *dir, bool quiet, struct error *e)
{
    struct shard_set *s = NULL;
    struct progress progress = {0};
    uint64_t total = 0;
    enum status st;
    TRY_OUT(shard_set_open(&s, dir, e));
    for (uint32_t i = 0; i < shard_set_shards(s); i++)
        total += shard_set_info(s, i).bytes;
    progress_start(&progress, "verify", "B", total, quiet);
    TRY_OUT(shard_set_verify(s, on_bytes, &progress, e));
    log_info("%s: ok, %" PRIu64 " samples of %u tokens in %u shard%s, %" PRIu64 " bytes", dir,
             shard_set_samples(s), shard_set_block_size(s), shard_set_shards(s),
             shard_set_shards(s) == 1 ? "" : "s", total);
out:
    shard_set_close(s);
    return st;
}

static enum status verify_stream(const char *path, bool quiet, struct error *e)
{
    struct input in = {.fd = -1};
    struct token_reader *r = NULL;
    struct token_block b;
    struct progress progress = {0};
    uint64_t tokens = 0, documents = 0;
    enum status st;
    TRY_OUT(input_open(&in, path, e));
    TRY_OUT(token_reader_open(&r, &in, e));
    progress_start(&progress, "verify", "B", 0, quiet);
    do {
        TRY_OUT(token_reader_block(r, &b, e));
        tokens += b.n;
        documents += b.documents;
        progress_update(&progress, in.offset);
    } while (b.ids);
    log_info("%s: ok, %" PRIu64 " tokens in %" PRIu64 " documents, %" PRIu64 " bytes", in.name,
             tokens, documents, in.offset);
out:
    token_reader_free(r);
    input_close(&in);
    return st;
}

enum status show_verify(const char *path, bool quiet, struct error *e)
{
    if (strcmp(path, "-") != 0 && path_is_dir(path))
        return verify_set(path, quiet, e);
    return verify_stream(path, quiet, e);
}

/* --- list ------------------------------------------------------------------------------------- */

static bool append_list(const struct shard_set *s, struct strbuf *text)
{
    const struct vocab_info *v = shard_set_vocab(s);
    uint32_t block_size = shard_set_block_size(s);
    bool ok =
        strbuf_printf(text,
                      "# set %016" PRIx64 ", digest %016" PRIx64 "\n"
                      "# %" PRIu64 " samples of %u tokens, %" PRIu64
                      " tokens as %s; documents grouped by %s, separator %s\n"
                      "# vocabulary of %u ids, fingerprint %016" PRIx64 "\n"
                      "# made by %s\n"
                      "file\tsamples\ttokens\tbytes\tdigest\n",
                      shard_set_id(s), shard_set_digest(s), shard_set_samples(s), block_size,
                      shard_set_samples(s) * block_size, dtype_name(shard_set_dtype(s)),
                      shard_set_group_documents(s), shard_set_separator(s), v->size, v->fingerprint,
                      shard_set_provenance(s) ? shard_set_provenance(s) : "?");
    for (uint32_t i = 0; ok && i < shard_set_shards(s); i++) {
        struct shard_info x = shard_set_info(s, i);
        ok = strbuf_printf(text, "%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%016" PRIx64 "\n",
                           x.file, x.samples, x.samples * block_size, x.bytes, x.digest);
    }
    return ok;
}

enum status show_list(const char *dir, struct output *out, struct error *e)
{
    struct shard_set *s = NULL;
    struct strbuf text = {0};
    enum status st;
    TRY_OUT(shard_set_open(&s, dir, e));
    if (!append_list(s, &text))
        TRY_OUT(error_memory(e, text.length, "a list"));
    TRY_OUT(output_write(out, text.data, text.length, e));
out:
    strbuf_release(&text);
    shard_set_close(s);
    return st;
}

/* --- sample ----------------------------------------------------------------------------------- */

static enum status load_vocab(struct bpe **bpe, const char *path, const char *share,
                              const struct vocab_info *want, const char *dir, struct error *e)
{
    char own[PATH_MAX];
    if (!path) {
        TRY(share_find(share, BPE_GPT2_FILE, "GPT-2 vocabulary", "--vocab names one", own, e));
        path = own;
    }
    TRY(bpe_load_decoder(bpe, path, e));
    struct vocab_info have = {bpe_vocab_size(*bpe), bpe_fingerprint(*bpe), bpe_eot(*bpe)};
    return vocab_info_match(want, dir, &have, path, e);
}

static bool append_ids(struct strbuf *text, const uint32_t *ids, uint32_t n)
{
    bool ok = strbuf_putc(text, '[');
    for (uint32_t i = 0; ok && i < n; i++)
        ok = strbuf_printf(text, i ? ",%u" : "%u", ids[i]);
    return ok && strbuf_puts(text, "]\n");
}

enum status show_sample(const char *dir, uint64_t number, const char *vocab_path, const char *share,
                        struct output *out, struct error *note, struct error *e)
{
    struct shard_set *s = NULL;
    struct bpe *bpe = NULL;
    struct strbuf text = {0};
    uint32_t *ids = NULL;
    enum status st;
    TRY_OUT(shard_set_open(&s, dir, e));
    uint32_t n = shard_set_block_size(s);
    ids = malloc(n * sizeof *ids);
    if (!ids)
        TRY_OUT(error_memory(e, n * sizeof *ids, "a sample"));
    TRY_OUT(shard_set_get(s, number, (int32_t *)ids, e));
    st = load_vocab(&bpe, vocab_path, share, shard_set_vocab(s), dir, note);
    if (st != STATUS_OK && vocab_path) { /* the one that was asked for must fit */
        *e = *note;
        goto out;
    }
    if (st == STATUS_OK) {
        TRY_OUT(bpe_decode(bpe, ids, n, &text, e));
        if (!strbuf_putc(&text, '\n'))
            TRY_OUT(error_memory(e, n, "a sample"));
    } else if (!append_ids(&text, ids, n))
        TRY_OUT(error_memory(e, n * 6, "a sample"));
    TRY_OUT(output_write(out, text.data, text.length, e));
out:
    free(ids);
    strbuf_release(&text);
    bpe_free(bpe);
    shard_set_close(s);
    return st;
}
