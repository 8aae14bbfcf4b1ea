/* pack.c - joins sources, the shuffle, the packer and the writer. */
#include "shard-pack/pack.h"
#include "shard-pack/packer.h"
#include "shard-pack/shuffle.h"
#include "base/options.h"
#include "base/progress.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_RECORDED 100
#define PROGRESS_TOKENS 65536 /* looking at the clock for every document would take long */

struct pack {
    const struct pack_options *options;
    struct input in;
    struct source source;
    struct shard_writer *writer;
    struct packer packer;
    struct shuffle *shuffle;
    struct vocab_info vocab;
    const char *vocab_name; /* the input that it came from */
    bool separated;         /* documents are marked by an eot id already */
    int64_t bad_left;
    uint64_t bytes_before; /* of inputs already read */
    struct progress progress;
    uint64_t shown_tokens; /* while shuffled documents come out */
};

static const char *input_name(const struct pack_options *o, size_t i)
{
    return o->input_count && strcmp(o->inputs[i], "-") != 0 ? o->inputs[i] : "<stdin>";
}

/* --- provenance ------------------------------------------------------------------------------- */

static json_t *describe_inputs(const struct pack *p)
{
    const struct pack_options *o = p->options;
    size_t n = o->input_count ? o->input_count : 1;
    json_t *list = json_array();
    for (size_t i = 0; i < n && i < NAMES_RECORDED; i++)
        json_array_append_new(list, json_string(input_name(o, i)));
    return list;
}

/* What made the set, as far as it is known when the first shard begins: no paths of the output, no
 * times, so that the same work gives the same bytes. */
static char *make_provenance(const struct pack *p)
{
    const struct pack_options *o = p->options;
    json_t *options = json_pack(
        "{s:I, s:I, s:s, s:s, s:s}", "block_size", (json_int_t)o->shard.block_size, "shard_size",
        (json_int_t)o->shard.shard_bytes, "group_documents", o->shard.group_documents, "separator",
        o->shard.separator, "input_format", input_format_names[p->source.format]);
    if (options && o->shuffle)
        json_object_set_new(options, "shuffle_documents", json_integer((json_int_t)o->seed));
    json_t *root = json_pack("{s:s, s:s, s:o, s:o, s:I}", "tool", "shard-pack", "version",
                             PROJECT_VERSION, "options", options, "inputs", describe_inputs(p),
                             "input_count", (json_int_t)(o->input_count ? o->input_count : 1));
    json_t *from =
        p->source.provenance ? json_loads(p->source.provenance, JSON_ALLOW_NUL, NULL) : NULL;
    if (root && from)
        json_object_set(root, "made_from", from);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(from);
    json_decref(root);
    return text;
}

/* --- beginning -------------------------------------------------------------------------------- */

/* The writer, packer and shuffle, once the first input has said which vocabulary it is. */
static enum status open_set(struct pack *p, struct error *e)
{
    const struct pack_options *o = p->options;
    struct shard_options shard = o->shard;
    bool add_eot = o->separator_eot && !p->source.ends_with_eot;
    p->vocab = p->source.vocab;
    p->vocab_name = input_name(o, 0);
    p->separated = p->source.ends_with_eot;
    if (add_eot && p->vocab.eot < 0)
        return error_set(e, STATUS_USAGE,
                         "%s: the vocabulary has no end-of-text id to separate documents with",
                         p->in.name);
    char *provenance = make_provenance(p);
    if (!provenance)
        return error_memory(e, 1024, "the provenance");
    shard.provenance = provenance;
    enum status st = shard_writer_open(&p->writer, o->output, o->overwrite, &p->vocab, &shard, e);
    free(provenance);
    if (st != STATUS_OK)
        return st;
    p->packer = (struct packer){.writer = p->writer,
                                .block_size = o->shard.block_size,
                                .id_bytes = p->vocab.size <= 65536 ? 2 : 4,
                                .group_documents = o->group_documents,
                                .add_eot = add_eot,
                                .eot = (uint32_t)p->vocab.eot};
    TRY(packer_init(&p->packer, e));
    if (!o->shuffle)
        return STATUS_OK;
    return shuffle_new(&p->shuffle, o->seed, p->packer.id_bytes,
                       o->temporary_dir ? o->temporary_dir : o->output, o->shuffle_memory_bytes, e);
}

/* Every input must agree with the first and with --vocab. */
static enum status check_source(struct pack *p, struct error *e)
{
    const struct pack_options *o = p->options;
    if (o->expected)
        TRY(vocab_info_match(&p->source.vocab, p->in.name, o->expected, o->expected_name, e));
    if (!p->writer)
        return open_set(p, e);
    TRY(vocab_info_match(&p->vocab, p->vocab_name, &p->source.vocab, p->in.name, e));
    if (o->separator_eot && p->separated != p->source.ends_with_eot)
        return error_set(
            e, STATUS_DATA,
            "documents of %s %s with an end-of-text id, those of %s %s: separate them the "
            "same way first",
            p->vocab_name, p->separated ? "end" : "do not end", p->in.name,
            p->separated ? "do not" : "do");
    return STATUS_OK;
}

/* --- moving tokens ---------------------------------------------------------------------------- */

static enum status take_block(void *arg, const struct token_block *b, struct error *e)
{
    struct pack *p = arg;
    progress_update(&p->progress, p->bytes_before + p->in.offset);
    return p->shuffle ? shuffle_block(p->shuffle, b, e) : packer_block(&p->packer, b, e);
}

static enum status run_input(struct pack *p, const char *path, struct pack_result *result,
                             struct error *e)
{
    struct source_sink sink = {take_block, p};
    enum status st;
    TRY_OUT(input_open(&p->in, path, e));
    TRY_OUT(source_open(&p->source, &p->in, &p->options->source, e));
    TRY_OUT(check_source(p, e));
    TRY_OUT(source_run(&p->source, &sink, &p->bad_left, e));
    p->bytes_before += p->in.offset;
    result->bad += p->source.bad;
out:
    source_close(&p->source);
    input_close(&p->in);
    return st;
}

static enum status take_document(void *arg, const void *ids, size_t n, bool end, struct error *e)
{
    struct pack *p = arg;
    TRY(packer_put(&p->packer, ids, n, e));
    if (p->packer.tokens - p->shown_tokens >= PROGRESS_TOKENS) {
        p->shown_tokens = p->packer.tokens;
        progress_update(&p->progress, p->shown_tokens);
    }
    return end ? packer_end_document(&p->packer, e) : STATUS_OK;
}

static enum status drain(struct pack *p, struct error *e)
{
    struct shuffle_sink sink = {take_document, p};
    progress_finish(&p->progress);
    progress_start(&p->progress, "shuffle", "tokens", 0, p->options->quiet);
    return shuffle_drain(p->shuffle, &sink, e);
}

static enum status finish(struct pack *p, struct pack_result *result, struct error *e)
{
    const struct packer *k = &p->packer;
    packer_finish(&p->packer);
    result->tokens = k->tokens;
    result->documents = k->documents;
    result->separators = k->separators;
    result->dropped = k->dropped;
    if (k->tokens + k->separators == k->dropped)
        return error_set(e, STATUS_DATA,
                         "too little data: %" PRIu64 " tokens in %" PRIu64
                         " documents%s%s make no block of %u tokens",
                         k->tokens, k->documents, k->group_documents ? ", grouped by " : "",
                         k->group_documents ? p->options->shard.group_documents : "",
                         k->block_size);
    return shard_writer_finish(p->writer, &result->samples, &result->shards, e);
}

enum status pack_run(const struct pack_options *o, struct pack_result *result, struct error *e)
{
    struct pack p = {.options = o, .in.fd = -1, .bad_left = o->source.skip_bad};
    size_t n = o->input_count ? o->input_count : 1;
    enum status st = STATUS_OK;
    *result = (struct pack_result){0};
    progress_start(&p.progress, "pack", "B", files_total_bytes(o->inputs, o->input_count),
                   o->quiet);
    for (size_t i = 0; i < n; i++) {
        TRY_OUT(run_input(&p, o->input_count ? o->inputs[i] : NULL, result, e));
    }
    progress_update(&p.progress, p.bytes_before);
    if (p.shuffle)
        TRY_OUT(drain(&p, e));
    TRY_OUT(finish(&p, result, e));
    progress_finish(&p.progress);
out:
    shuffle_free(p.shuffle);
    packer_release(&p.packer);
    shard_writer_free(p.writer);
    return st;
}
