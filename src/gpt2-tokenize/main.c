/* gpt2-tokenize - text to the token ids of GPT-2, and back. */
#define _GNU_SOURCE
#include "gpt2-tokenize/pipeline.h"
#include "base/share.h"
#include "base/log.h"
#include "base/tool.h"

#include <jansson.h>
#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct run {
    const struct config *config;
    struct plan plan;
    struct reader *reader;
    struct bpe *bpe;
    struct vocab_info vocab;
    struct worker *workers;
    struct sink sink;
    char *provenance;
};

static enum status open_vocab(struct run *r, struct error *e)
{
    const struct plan *p = &r->plan;
    char path[PATH_MAX];
    r->vocab = (struct vocab_info){.size = p->vocab_size, .eot = -1};
    if (p->input == INPUT_TOKENS)
        r->vocab = *reader_vocab(r->reader);
    if (!plan_needs_text(p))
        return STATUS_OK;
    if (!r->config->vocab)
        TRY(share_find(getenv("SDP_GPT2_SHARE"), BPE_GPT2_FILE, "GPT-2 vocabulary",
                       "name one with --vocab, or its folder's parent with SDP_GPT2_SHARE", path,
                       e));
    const char *from = r->config->vocab ? r->config->vocab : path;
    TRY(plan_encodes(p) ? bpe_load(&r->bpe, from, e) : bpe_load_decoder(&r->bpe, from, e));
    struct vocab_info mine = {bpe_vocab_size(r->bpe), bpe_fingerprint(r->bpe), bpe_eot(r->bpe)};
    if (p->input == INPUT_TOKENS)
        TRY(vocab_info_match(&r->vocab, "the token stream", &mine, from, e));
    r->vocab = mine;
    return STATUS_OK;
}

/* What made the output, without what does not shape it (threads, file names of the output). */
static enum status make_provenance(struct run *r, const struct options *o, struct error *e)
{
    const struct config *c = r->config;
    static const char *const inputs[] = {"jsonl", "lines", "text", "ids", "tokens"};
    json_t *files = json_array();
    for (size_t i = 0; i < o->positional_count; i++)
        json_array_append_new(files,
                              json_stringn_nocheck(o->positional[i], strlen(o->positional[i])));
    json_t *root = json_pack(
        "{s:s, s:s, s:{s:s, s:s, s:b, s:b, s:I, s:I}, s:o}", "tool", "gpt2-tokenize", "version",
        PROJECT_VERSION, "options", "input_format", inputs[r->plan.input], "field", c->field,
        "allow_special", c->allow_special, "append_eot", c->append_eot, "vocab_size",
        (json_int_t)c->vocab_size, "skip_bad", (json_int_t)c->skip_bad, "inputs", files);
    r->provenance = root ? json_dumps(root, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    json_decref(root);
    return r->provenance ? STATUS_OK : error_memory(e, 0, "the provenance");
}

static void print_stats(const struct run *r)
{
    const struct sink *s = &r->sink;
    size_t longest = 0;
    for (int i = 0; i < r->plan.threads; i++) {
        struct bpe_stats stats;
        if (!r->workers[i].state)
            continue;
        bpe_state_stats(r->workers[i].state, &stats);
        longest = stats.longest_piece_bytes > longest ? stats.longest_piece_bytes : longest;
    }
    fprintf(stderr, "documents: %llu\nbytes: %llu\ntokens: %llu\nbytes per token: %.4f\n",
            (unsigned long long)s->documents, (unsigned long long)s->text_bytes,
            (unsigned long long)s->tokens,
            s->tokens ? (double)s->text_bytes / (double)s->tokens : 0);
    if (longest)
        fprintf(stderr, "longest piece: %zu bytes\n", longest);
    if (r->plan.skip_bad)
        fprintf(stderr, "lines left out: %llu\n", (unsigned long long)s->bad);
}

static enum status start_workers(struct run *r, bool strip_eot, struct error *e)
{
    r->workers = calloc((size_t)r->plan.threads, sizeof *r->workers);
    if (!r->workers)
        return error_memory(e, (size_t)r->plan.threads * sizeof *r->workers, "the workers");
    for (int i = 0; i < r->plan.threads; i++)
        worker_init(&r->workers[i], &r->plan, r->bpe, r->vocab.size, strip_eot);
    return STATUS_OK;
}

/* Large blocks come from the heap, and the heap from pages of 2 MiB where the kernel has them: what
 * loading the vocabulary gives back is used again, and there is a tenth of the page faults. What is
 * not used of it takes no memory. */
static void prepare_heap(int threads)
{
    const size_t huge = (size_t)2 << 20, most = (size_t)256 << 20;
    size_t bytes =
        (size_t)(threads + 1) * 8 * (1 << 20); /* vocabulary; cache and batches of each */
    int pad = (int)(bytes < most ? bytes : most);
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 16 << 20);
    mallopt(M_TRIM_THRESHOLD, pad);
    mallopt(M_TOP_PAD, pad);
    uintptr_t begin = (uintptr_t)sbrk(0), end;
    void *volatile first = malloc(1 << 20); /* more than there is; volatile keeps it */
    end = (uintptr_t)sbrk(0) & ~(huge - 1);
    begin = (begin + huge - 1) & ~(huge - 1);
    if (begin < end)
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* a hint: it may fail */
    free(first);
}

static enum status run(struct run *r, const struct options *o, struct error *e)
{
    const struct config *c = r->config;
    struct progress progress;
    TRY(plan_resolve(&r->plan, c, o, e));
    prepare_heap(r->plan.threads);
    TRY(reader_open(&r->reader, &r->plan, o->positional, o->positional_count, e));
    TRY(open_vocab(r, e));
    bool stream_eot = r->plan.input == INPUT_TOKENS && reader_ends_with_eot(r->reader);
    if (stream_eot && c->append_eot)
        return error_set(e, STATUS_USAGE,
                         "the documents of the stream end with <|endoftext|> "
                         "already; leave out --append-eot");
    TRY(start_workers(r, stream_eot && !c->keep_eot, e));
    TRY(make_provenance(r, o, e));
    TRY(sink_open(&r->sink, &r->plan, c->output, &r->vocab, c->append_eot || stream_eot,
                  r->provenance, e));
    progress_start(&progress, c->decode ? "decode" : "tokenize", "B", reader_total_bytes(r->reader),
                   c->quiet);
    enum status st = pipeline_run(r->reader, r->workers, r->plan.threads, &r->sink, &progress, e);
    progress_finish(&progress);
    TRY(st);
    TRY(sink_commit(&r->sink, e));
    if (r->sink.bad)
        log_warn("left out %llu bad line%s; the first: %s", (unsigned long long)r->sink.bad,
                 r->sink.bad == 1 ? "" : "s", r->sink.first_bad.message);
    if (c->stats)
        print_stats(r);
    return STATUS_OK;
}

static void release(struct run *r)
{
    sink_close(&r->sink);
    for (int i = 0; r->workers && i < r->plan.threads; i++)
        worker_release(&r->workers[i]);
    free(r->workers);
    free(r->provenance);
    bpe_free(r->bpe);
    reader_free(r->reader);
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct config config = {0};
    struct options options = {0};
    struct run r = {.config = &config};
    enum option_action action;
    int exit_status;

    log_set_prefix("gpt2-tokenize");
    enum status st = options_parse(&options, &config_table, argc, argv, &config, &action, &e);
    if (tool_ready(&options, &config, config.quiet, st, action, &e, &exit_status))
        exit_status = run(&r, &options, &e) == STATUS_OK ? 0 : log_error(&e);
    release(&r);
    options_release(&options);
    return exit_status;
}
