#include "gpt2/decode.h"

#include "base/checked.h"
#include "base/philox.h"
#include "gpt2/decode_pass.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_PAGE_TOKENS 64
#define KEPT_PASSES 32 /* graphs of passes that come again and again */
/* Philox stream of sampling; initial values, dropout and shuffling have others. */
#define SAMPLE_STREAM (0x53616d70ull << 32) /* "Samp" */

/* A running sequence. */
struct slot {
    struct gpt2_sequence *s; /* NULL = free */
    int32_t *window;         /* [context] tokens the next logits depend on */
    int64_t length;          /* tokens in window */
    int64_t cached;          /* the first `cached` of them are in the cache */
    int64_t pages;           /* held; the table's row has them */
    int64_t produced;
    int64_t rows; /* in the pass under way */
    uint64_t age; /* order of admission */
};

/* What a steady pass depends on: its rows, which host buffer, and where its tokens come from. */
struct pass_kind {
    int64_t rows;
    int side;
    bool chained;
};

/* A pass of one token of each of some sequences, kept as one launch. */
struct kept_pass {
    struct pass_kind kind;
    struct graph *graph; /* NULL = free */
    int64_t used;        /* number of the pass that used it last */
};

/* A pass whose results are not read yet. */
struct flight {
    int64_t selected; /* tokens drawn */
    int64_t *slot;    /* [sequences] whose token it is */
    uint64_t *age;    /* [sequences] and which admission's: it may have ended since */
};

struct gpt2_decoder {
    const struct gpt2_weights *w;
    struct device *dev;
    struct gpt2_pass *pass;
    struct gpt2_decoder_options o;
    int64_t context, max_pages; /* pages a sequence can hold */

    void *cache;        /* layer by layer: keys [pages, page_tokens, C], then values */
    int64_t page_bytes; /* of one layer's keys or values of one page */
    int64_t page_count;
    int32_t *free_pages; /* stack */
    int64_t free_count;
    int32_t *table, *device_table; /* [sequences, max_pages] host, device */
    bool table_changed;
    void *workspace;
    size_t workspace_bytes;
    struct decode_block *resident_blocks; /* [layers] device; NULL: the device has no such entry */
    void *resident_workspace;

    struct slot *slots; /* [sequences] */
    int64_t *order;     /* [sequences] running slots by age */
    int64_t running;
    uint64_t admitted;
    struct gpt2_sequence *head, **tail; /* waiting */
    int64_t queued;
    int64_t rows, selected; /* of the pass under way */
    bool steady;            /* it has one token of each of its sequences, and asks for all logits */
    bool chained;           /* its tokens are those that the pass before draws */
    struct flight flights[2]; /* by side of the pass's host buffers */
    bool under_way;           /* the pass of this side was queued by the step before */
    struct kept_pass kept[KEPT_PASSES];
    int64_t alike; /* steady passes of the same rows up to this one */
    int64_t last_rows;
    int64_t prompt_tokens, new_tokens, passes;
};

/* --- creation --------------------------------------------------------------------------------- */

static int64_t cache_bytes_per_page(const struct gpt2_decoder *d)
{
    return d->page_bytes * 2 * d->w->config.layers;
}

static void choose_sizes(struct gpt2_decoder *d)
{
    const struct gpt2_config *c = &d->w->config;
    struct gpt2_decoder_options *o = &d->o;
    if (o->page_tokens <= 0)
        o->page_tokens = DEFAULT_PAGE_TOKENS;
    o->page_tokens = min_i64(o->page_tokens, c->context);
    o->sequences = max_i64(o->sequences, 1);
    o->pass_rows = max_i64(o->pass_rows, o->sequences + 1);
    d->context = c->context;
    d->max_pages = ceil_div_i64(c->context, o->page_tokens);
    d->page_bytes = o->page_tokens * c->channels * (int64_t)dtype_bytes(d->w->dt);
    d->page_count = o->sequences * d->max_pages;
    if (o->cache_bytes > 0)
        d->page_count = min_i64(d->page_count, o->cache_bytes / cache_bytes_per_page(d));
    d->page_count = max_i64(d->page_count, d->max_pages);
    o->cache_bytes = d->page_count * cache_bytes_per_page(d);
}

static enum status allocate_host(struct gpt2_decoder *d, struct error *e)
{
    int64_t n = d->o.sequences;
    d->slots = calloc((size_t)n, sizeof *d->slots);
    d->order = calloc((size_t)n, sizeof *d->order);
    d->free_pages = malloc((size_t)d->page_count * sizeof *d->free_pages);
    int32_t *windows = malloc((size_t)(n * d->context) * sizeof *windows);
    if (d->slots)
        d->slots[0].window = windows; /* the owner of all windows */
    else
        free(windows);
    for (int i = 0; i < 2; i++) {
        d->flights[i].slot = malloc((size_t)n * sizeof *d->flights[i].slot);
        d->flights[i].age = malloc((size_t)n * sizeof *d->flights[i].age);
        if (!d->flights[i].slot || !d->flights[i].age)
            return error_memory(e, (unsigned long long)n * sizeof(int64_t), "the decoder's tables");
    }
    if (!d->slots || !d->order || !d->free_pages || !windows)
        return error_memory(e, (unsigned long long)(n * d->context) * sizeof *windows,
                            "the decoder's tables");
    for (int64_t i = 0; i < n; i++)
        d->slots[i].window = windows + i * d->context;
    for (int64_t i = 0; i < d->page_count; i++) /* low pages are handed out first */
        d->free_pages[i] = (int32_t)(d->page_count - 1 - i);
    d->free_count = d->page_count;
    return STATUS_OK;
}

static void layer_cache(const struct gpt2_decoder *d, int64_t layer, void **keys, void **values)
{
    int64_t half = d->page_bytes * d->page_count;
    *keys = (char *)d->cache + 2 * layer * half;
    *values = (char *)d->cache + (2 * layer + 1) * half;
}

static void fill_blocks(const struct gpt2_decoder *d, struct decode_block *blocks)
{
    for (int64_t l = 0; l < d->w->config.layers; l++) {
        const struct gpt2_block_params *p = &d->w->blocks[l];
        struct decode_block *b = &blocks[l];
        b->ln1_w = p->ln1_w, b->ln1_b = p->ln1_b, b->ln2_w = p->ln2_w, b->ln2_b = p->ln2_b;
        b->qkv_w = p->qkv_w, b->qkv_b = p->qkv_b, b->proj_w = p->proj_w, b->proj_b = p->proj_b;
        b->fc_w = p->fc_w, b->fc_b = p->fc_b;
        b->fcproj_w = p->fcproj_w, b->fcproj_b = p->fcproj_b;
        layer_cache(d, l, &b->keys, &b->values);
    }
}

/* Where the device computes a token's blocks in one call; its copy of the weights may take a
 * quarter of what is free. */
static enum status allocate_resident(struct gpt2_decoder *d, struct error *e)
{
    const struct device_ops *ops = d->dev->ops;
    const struct gpt2_config *c = &d->w->config;
    struct decode_block *blocks = NULL;
    size_t bytes = (size_t)c->layers * sizeof *blocks;
    if (!ops->decode_blocks)
        return STATUS_OK;
    size_t workspace =
        ops->decode_blocks_workspace(d->dev, c->layers, c->channels, c->heads, d->w->dt);
    struct device_info info = {0};
    ops->info(d->dev, &info);
    if (workspace == 0 || (int64_t)workspace > info.free_bytes / 4)
        return STATUS_OK;
    TRY(ops->alloc(d->dev, MEMORY_DEVICE, workspace, &d->resident_workspace, e));
    TRY(ops->alloc(d->dev, MEMORY_DEVICE, bytes, (void **)&d->resident_blocks, e));
    TRY(ops->alloc(d->dev, MEMORY_HOST, bytes, (void **)&blocks, e));
    fill_blocks(d, blocks);
    ops->copy(d->dev, d->pass->stream, d->resident_blocks, blocks, bytes);
    struct decode_blocks all = {.blocks = d->resident_blocks,
                                .layers = c->layers,
                                .channels = c->channels,
                                .heads = c->heads,
                                .epsilon = c->epsilon,
                                .dt = d->w->dt,
                                .table = d->device_table,
                                .max_pages = d->max_pages,
                                .page_tokens = d->o.page_tokens,
                                .workspace = d->resident_workspace};
    ops->decode_blocks_prepare(d->dev, d->pass->stream, &all);
    enum status st = ops->stream_sync(d->dev, d->pass->stream, e);
    ops->free(d->dev, MEMORY_HOST, blocks);
    gpt2_pass_set_resident(d->pass, &all);
    return st;
}

static enum status allocate(struct gpt2_decoder *d, struct error *e)
{
    const struct device_ops *ops = d->dev->ops;
    const struct gpt2_config *c = &d->w->config;
    size_t table_bytes = (size_t)(d->o.sequences * d->max_pages) * sizeof(int32_t);
    TRY(allocate_host(d, e));
    TRY(gpt2_pass_create(&d->pass, d->w, d->o.pass_rows, d->o.sequences, d->o.sequences, e));
    if (ops->alloc(d->dev, MEMORY_DEVICE, (size_t)d->o.cache_bytes, &d->cache, e) != STATUS_OK)
        return error_context(e, "the key/value cache of %lld sequences", (long long)d->o.sequences);
    TRY(ops->alloc(d->dev, MEMORY_HOST, table_bytes, (void **)&d->table, e));
    TRY(ops->alloc(d->dev, MEMORY_DEVICE, table_bytes, (void **)&d->device_table, e));
    d->workspace_bytes = ops->attention_cached_workspace(d->o.pass_rows, c->context, c->heads,
                                                         c->channels / c->heads);
    if (d->workspace_bytes > 0)
        TRY(ops->alloc(d->dev, MEMORY_DEVICE, d->workspace_bytes, &d->workspace, e));
    return allocate_resident(d, e);
}

enum status gpt2_decoder_create(struct gpt2_decoder **out, const struct gpt2_weights *w,
                                const struct gpt2_decoder_options *o, struct error *e)
{
    struct gpt2_decoder *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d)
        return error_memory(e, sizeof *d, "a decoder");
    d->w = w;
    d->dev = w->dev;
    d->o = *o;
    d->tail = &d->head;
    choose_sizes(d);
    enum status st = allocate(d, e);
    if (st != STATUS_OK) {
        gpt2_decoder_free(d);
        return st;
    }
    *out = d;
    return STATUS_OK;
}

void gpt2_decoder_free(struct gpt2_decoder *d)
{
    if (!d)
        return;
    const struct device_ops *ops = d->dev->ops;
    gpt2_pass_free(d->pass); /* first: it waits for a pass that is under way */
    for (int i = 0; i < 2; i++) {
        free(d->flights[i].slot);
        free(d->flights[i].age);
    }
    for (int i = 0; i < KEPT_PASSES; i++)
        if (d->kept[i].graph)
            ops->graph_free(d->dev, d->kept[i].graph);
    void *on_device[] = {d->cache, d->device_table, d->workspace, d->resident_workspace,
                         d->resident_blocks};
    for (size_t i = 0; i < sizeof on_device / sizeof on_device[0]; i++)
        if (on_device[i])
            ops->free(d->dev, MEMORY_DEVICE, on_device[i]);
    if (d->table)
        ops->free(d->dev, MEMORY_HOST, d->table);
    if (d->slots)
        free(d->slots[0].window);
    free(d->slots);
    free(d->order);
    free(d->free_pages);
    free(d);
}

/* --- coming and going ------------------------------------------------------------------------- */

enum status gpt2_decoder_submit(struct gpt2_decoder *d, struct gpt2_sequence *s, struct error *e)
{
    if (s->prompt_length < 1)
        return error_set(e, STATUS_DATA, "the prompt is empty; at least one token is needed");
    if (s->prompt_length > d->context && !s->slide)
        return error_set(e, STATUS_DATA, "the prompt has %lld tokens, the model's context is %lld",
                         (long long)s->prompt_length, (long long)d->context);
    for (int64_t i = 0; i < s->prompt_length; i++)
        if (s->prompt[i] < 0 || s->prompt[i] >= d->w->config.vocab)
            return error_set(e, STATUS_DATA,
                             "token %lld of the prompt is %d, outside the vocabulary of %lld",
                             (long long)i, s->prompt[i], (long long)d->w->config.vocab);
    s->next = NULL;
    *d->tail = s;
    d->tail = &s->next;
    d->queued++;
    return STATUS_OK;
}

/* Tokens of the prompt that are used, counted from its end. A prompt that does not fit leaves room
 * for what will be generated, up to half a context, so that it does not slide at once. */
static int64_t prompt_kept(const struct gpt2_decoder *d, const struct gpt2_sequence *s)
{
    if (s->prompt_length <= d->context)
        return s->prompt_length;
    int64_t room = min_i64(max_i64(s->max_new_tokens - 1, 0), d->context / 2);
    return d->context - room;
}

static int64_t pages_needed(const struct gpt2_decoder *d, const struct gpt2_sequence *s)
{
    int64_t kept = prompt_kept(d, s);
    /* the last token drawn never enters the cache */
    int64_t more = min_i64(max_i64(s->max_new_tokens - 1, 0), d->context);
    return ceil_div_i64(min_i64(kept + more, d->context), d->o.page_tokens);
}

static void admit(struct gpt2_decoder *d, int64_t index, struct gpt2_sequence *s)
{
    struct slot *slot = &d->slots[index];
    int64_t kept = prompt_kept(d, s);
    memcpy(slot->window, s->prompt + s->prompt_length - kept, (size_t)kept * sizeof *slot->window);
    slot->s = s;
    slot->length = kept;
    slot->cached = slot->produced = 0;
    slot->age = d->admitted++;
    slot->pages = pages_needed(d, s);
    for (int64_t i = 0; i < slot->pages; i++)
        d->table[index * d->max_pages + i] = d->free_pages[--d->free_count];
    d->table_changed = true;
    d->prompt_tokens += kept;
    d->order[d->running++] = index; /* ages ascend */
}

static void release(struct gpt2_decoder *d, int64_t index)
{
    struct slot *slot = &d->slots[index];
    for (int64_t i = slot->pages; i-- > 0;)
        d->free_pages[d->free_count++] = d->table[index * d->max_pages + i];
    slot->s = NULL;
    for (int64_t i = 0, kept = 0; i < d->running; i++)
        if (d->order[i] != index)
            d->order[kept++] = d->order[i];
    d->running--;
}

static void finish(struct gpt2_decoder *d, int64_t index, enum gpt2_finish why)
{
    struct gpt2_sequence *s = d->slots[index].s;
    release(d, index);
    s->finished(s->arg, why);
}

static struct gpt2_sequence *pop_queue(struct gpt2_decoder *d)
{
    struct gpt2_sequence *s = d->head;
    d->head = s->next;
    if (!d->head)
        d->tail = &d->head;
    d->queued--;
    return s;
}

static void admit_waiting(struct gpt2_decoder *d)
{
    while (d->head) {
        if (d->head->max_new_tokens < 1) {
            struct gpt2_sequence *s = pop_queue(d);
            s->finished(s->arg, GPT2_FINISH_LENGTH);
            continue;
        }
        if (d->running == d->o.sequences || pages_needed(d, d->head) > d->free_count)
            return;
        int64_t index = 0;
        while (d->slots[index].s)
            index++;
        admit(d, index, pop_queue(d));
    }
}

void gpt2_decoder_cancel(struct gpt2_decoder *d, struct gpt2_sequence *s)
{
    for (struct gpt2_sequence **p = &d->head; *p; p = &(*p)->next) {
        if (*p == s) {
            *p = s->next;
            if (d->tail == &s->next)
                d->tail = p;
            d->queued--;
            return;
        }
    }
    for (int64_t i = 0; i < d->running; i++)
        if (d->slots[d->order[i]].s == s) {
            release(d, d->order[i]);
            return;
        }
}

/* --- one pass --------------------------------------------------------------------------------- */

static void attend_cached(void *arg, struct gpt2_pass *p, int64_t layer, void *out, const void *qkv)
{
    struct gpt2_decoder *d = arg;
    const struct gpt2_config *c = &d->w->config;
    int64_t rows = d->rows;
    struct kv_cache kv = {
        .table = d->device_table, .max_pages = d->max_pages, .page_tokens = d->o.page_tokens};
    layer_cache(d, layer, &kv.keys, &kv.values);
    int64_t head_dim = c->channels / c->heads;
    if (!d->steady)
        d->dev->ops->kv_append(d->dev, p->stream, &kv, qkv, p->device.sequences,
                               p->device.positions, rows, c->heads, head_dim, d->w->dt);
    d->dev->ops->attention_cached(d->dev, p->stream, out, &kv, qkv, p->device.sequences,
                                  p->device.positions, rows, c->heads, head_dim, d->w->dt,
                                  d->steady, d->workspace, d->workspace_bytes);
}

/* Asks for the logits of the last row, which draw token number `token` of the slot's sequence. */
static void select_row(struct gpt2_decoder *d, int64_t index, int64_t token)
{
    struct gpt2_pass_io *io = &d->pass->host;
    struct flight *f = &d->flights[d->pass->side];
    const struct gpt2_sequence *s = d->slots[index].s;
    uint64_t key = philox_key(s->seed, SAMPLE_STREAM);
    struct philox4 random = philox4x32(key, (uint64_t)token, 0);
    io->select[d->selected] = (int32_t)(d->rows - 1);
    io->sampling[d->selected] = (struct sampling){.temperature = s->temperature,
                                                  .top_p = s->top_p,
                                                  .top_k = s->top_k,
                                                  .uniform = philox_uniform(random.v[0])};
    f->slot[d->selected] = index;
    f->age[d->selected] = d->slots[index].age;
    d->selected++;
}

/* Adds the next n tokens of a slot to the pass; asks for logits when its last token is among them.
 */
static void add_rows(struct gpt2_decoder *d, int64_t index, int64_t n)
{
    struct slot *slot = &d->slots[index];
    struct gpt2_pass_io *io = &d->pass->host;
    for (int64_t i = 0; i < n; i++) {
        io->tokens[d->rows + i] = slot->window[slot->cached + i];
        io->positions[d->rows + i] = (int32_t)(slot->cached + i);
        io->sequences[d->rows + i] = (int32_t)index;
    }
    d->rows += n;
    slot->rows = n;
    slot->cached += n;
    if (slot->cached < slot->length)
        return;
    select_row(d, index, slot->produced);
}

/* Every sequence that only lacks its newest token. */
static void add_decoding(struct gpt2_decoder *d)
{
    for (int64_t i = 0; i < d->running; i++) {
        const struct slot *slot = &d->slots[d->order[i]];
        if (slot->rows == 0 && slot->length - slot->cached == 1)
            add_rows(d, d->order[i], 1);
    }
}

/* Pieces of prompts, oldest first, at most `sequences` of them, while rows remain. */
static void add_prompts(struct gpt2_decoder *d, int64_t sequences)
{
    for (int64_t i = 0; i < d->running && sequences > 0; i++) {
        const struct slot *slot = &d->slots[d->order[i]];
        int64_t missing = slot->length - slot->cached;
        int64_t n = min_i64(missing, d->o.pass_rows - d->rows);
        if (slot->rows > 0 || n <= 0 || (missing == 1 && slot->produced > 0))
            continue;
        add_rows(d, d->order[i], n);
        sequences--;
    }
}

static void choose_rows(struct gpt2_decoder *d)
{
    d->rows = d->selected = 0;
    d->chained = false;
    for (int64_t i = 0; i < d->running; i++)
        d->slots[d->order[i]].rows = 0;
    if (d->o.separate_prompts) {
        add_prompts(d, 1);
        if (d->rows == 0)
            add_decoding(d);
    } else {
        add_decoding(d);
        add_prompts(d, d->running);
    }
    d->steady = d->selected == d->rows;
    for (int64_t i = 0; i < d->running && d->steady; i++)
        d->steady = d->slots[d->order[i]].rows <= 1;
    d->alike = !d->steady ? 0 : d->rows == d->last_rows ? d->alike + 1 : 1;
    d->last_rows = d->rows;
}

/* Whether the pass under way will be followed by the same rows, each one token further: none is
 * known to end or to slide, and nobody waits for a place. */
static bool can_chain(const struct gpt2_decoder *d)
{
    if (!d->o.run_ahead || !d->steady || d->rows != d->running ||
        (d->head && d->running < d->o.sequences))
        return false;
    for (int64_t i = 0; i < d->running; i++) {
        const struct slot *slot = &d->slots[d->order[i]];
        if (slot->produced + 1 >= slot->s->max_new_tokens || slot->cached >= d->context ||
            slot->cached != slot->length)
            return false;
    }
    return true;
}

/* The pass after the one under way, in the same order of rows. */
static void chain_rows(struct gpt2_decoder *d)
{
    const struct flight *before = &d->flights[!d->pass->side];
    struct gpt2_pass_io *io = &d->pass->host;
    int64_t rows = d->rows;
    d->rows = d->selected = 0;
    d->chained = true;
    for (int64_t i = 0; i < rows; i++) {
        int64_t index = before->slot[i];
        struct slot *slot = &d->slots[index];
        io->tokens[i] = 0; /* known to the device alone */
        io->positions[i] = (int32_t)slot->cached;
        io->sequences[i] = (int32_t)index;
        d->rows++;
        slot->cached++;
        select_row(d, index, slot->produced + 1);
    }
    d->alike++;
}

/* Puts a drawn token behind the window; false when the context is full and must not slide. */
static bool extend_window(struct gpt2_decoder *d, struct slot *slot, int32_t id)
{
    if (slot->length == d->context) {
        if (!slot->s->slide)
            return false;
        int64_t kept = d->context / 2;
        memmove(slot->window, slot->window + slot->length - kept,
                (size_t)kept * sizeof *slot->window);
        slot->length = kept;
        slot->cached = 0;
    }
    slot->window[slot->length++] = id;
    return true;
}

static void take_token(struct gpt2_decoder *d, int64_t index, int32_t id, float logprob)
{
    struct slot *slot = &d->slots[index];
    struct gpt2_sequence *s = slot->s;
    if (id == s->eos) {
        finish(d, index, GPT2_FINISH_EOS);
        return;
    }
    slot->produced++;
    d->new_tokens++;
    if (!s->token(s->arg, id, logprob))
        finish(d, index, GPT2_FINISH_STOPPED);
    else if (slot->produced == s->max_new_tokens || !extend_window(d, slot, id))
        finish(d, index, GPT2_FINISH_LENGTH);
}

static void upload_table(struct gpt2_decoder *d)
{
    if (d->table_changed)
        d->dev->ops->copy(d->dev, d->pass->stream, d->device_table, d->table,
                          (size_t)(d->o.sequences * d->max_pages) * sizeof *d->table);
    d->table_changed = false;
}

/* Everything between the host's inputs and its results. */
static void queue_work(struct gpt2_decoder *d)
{
    const struct gpt2_config *c = &d->w->config;
    struct gpt2_pass *p = d->pass;
    gpt2_pass_upload(p);
    if (d->chained)
        gpt2_pass_chain(p, d->rows);
    gpt2_pass_body(p, d->rows, attend_cached, d);
    if (d->selected > 0) {
        gpt2_pass_logits(p, 0, d->selected);
        d->dev->ops->sample(d->dev, p->stream, p->device.ids, p->device.logprobs, p->logits,
                            p->device.sampling, d->selected, c->vocab, gpt2_vocab_padded(c),
                            DTYPE_F32);
    }
    gpt2_pass_download(p);
}

static bool same_kind(struct pass_kind a, struct pass_kind b)
{
    return a.rows == b.rows && a.side == b.side && a.chained == b.chained;
}

/* Where a pass of this kind is kept, or the place to keep it: a free one or the longest unused. */
static struct kept_pass *find_kept(struct gpt2_decoder *d, struct pass_kind kind)
{
    struct kept_pass *oldest = &d->kept[0];
    for (int i = 0; i < KEPT_PASSES; i++) {
        struct kept_pass *k = &d->kept[i];
        if (k->graph && same_kind(k->kind, kind))
            return k;
        if (oldest->graph && (!k->graph || k->used < oldest->used))
            oldest = k;
    }
    return oldest;
}

/* A steady pass depends on nothing but its kind, so the second of the same rows is kept as one
 * launch: on a GPU the hundred launches of a small model take longer than their work. */
static void queue_pass(struct gpt2_decoder *d)
{
    const struct device_ops *ops = d->dev->ops;
    struct pass_kind kind = {d->rows, d->pass->side, d->chained};
    struct kept_pass *k = d->steady && ops->graph_launch ? find_kept(d, kind) : NULL;
    bool have = k && k->graph && same_kind(k->kind, kind);
    d->flights[d->pass->side].selected = d->selected;
    if (!k || (!have && d->alike < 2)) {
        queue_work(d);
    } else {
        if (!have) {
            if (k->graph)
                ops->graph_free(d->dev, k->graph);
            ops->graph_begin(d->dev, d->pass->stream);
            queue_work(d);
            k->graph = ops->graph_end(d->dev, d->pass->stream);
            k->kind = kind;
        }
        k->used = d->passes;
        if (k->graph) /* else the device has failed */
            ops->graph_launch(d->dev, d->pass->stream, k->graph);
    }
    gpt2_pass_mark(d->pass);
}

/* The results of a pass, for the sequences that are still there. */
static void take_tokens(struct gpt2_decoder *d, const struct gpt2_pass_io *io,
                        const struct flight *f)
{
    d->passes++;
    for (int64_t i = 0; i < f->selected; i++) {
        const struct slot *slot = &d->slots[f->slot[i]];
        if (slot->s && slot->age == f->age[i])
            take_token(d, f->slot[i], io->ids[i], io->logprobs[i]);
    }
}

enum status gpt2_decoder_step(struct gpt2_decoder *d, struct error *e)
{
    struct gpt2_pass *p = d->pass;
    if (!d->under_way) {
        admit_waiting(d);
        if (d->running == 0)
            return STATUS_OK;
        choose_rows(d);
        upload_table(d);
        queue_pass(d);
    }
    int side = p->side;
    struct gpt2_pass_io io = p->host;
    gpt2_pass_turn(p);
    d->under_way = can_chain(d);
    if (d->under_way) {
        chain_rows(d);
        queue_pass(d);
    }
    TRY(gpt2_pass_wait(p, side, e));
    take_tokens(d, &io, &d->flights[side]);
    return STATUS_OK;
}

bool gpt2_decoder_idle(const struct gpt2_decoder *d)
{
    return d->running == 0 && !d->head;
}

struct gpt2_decoder_stats gpt2_decoder_stats(const struct gpt2_decoder *d)
{
    return (struct gpt2_decoder_stats){.running = d->running,
                                       .queued = d->queued,
                                       .pages = d->page_count,
                                       .free_pages = d->free_count,
                                       .cache_bytes = d->o.cache_bytes,
                                       .prompt_tokens = d->prompt_tokens,
                                       .new_tokens = d->new_tokens,
                                       .passes = d->passes};
}
