/* worker.h - one thread's work on a batch: text to ids, and ids to the form of the output. */
#ifndef TOKENIZE_WORKER_H
#define TOKENIZE_WORKER_H

#include "gpt2-tokenize/batch.h"

struct worker {
    const struct plan *plan;
    const struct bpe *bpe; /* NULL when no text is involved */
    uint32_t vocab_size;
    bool strip_eot; /* decoding: the last id of a document is its end mark */
    /* Made with the first batch, so that each thread fills its own cache with zeros while the
     * others are at work. NULL likewise, and in a thread that had no batch. */
    struct bpe_state *state;
    struct strbuf scratch;
};

void worker_init(struct worker *w, const struct plan *plan, const struct bpe *bpe,
                 uint32_t vocab_size, bool strip_eot);
void worker_release(struct worker *w);
/* Failures are left in b->error. */
void worker_run(struct worker *w, struct batch *b);

/* --- render.c: b->ids and b->ends to b->text -------------------------------------------------- */
enum status render_ids(const struct batch *b, struct strbuf *out, struct error *e) MUST_CHECK;
enum status render_pieces(const struct batch *b, const struct bpe *bpe, struct strbuf *out,
                          struct error *e) MUST_CHECK;
enum status render_text(struct worker *w, const struct batch *b, struct strbuf *out,
                        struct error *e) MUST_CHECK;

/* --- ids.c ------------------------------------------------------------------------------------ */
/* One JSON array of integers below vocab_size, appended to out. */
enum status ids_parse(const char *text, size_t bytes, uint32_t vocab_size, const char *name,
                      uint64_t line, struct token_buffer *out, struct error *e) MUST_CHECK;

#endif
