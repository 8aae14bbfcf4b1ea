/* emit.h - rows out: JSON lines, TSV as GLUE writes it, or bare sentences. */
#ifndef SST2_FETCH_EMIT_H
#define SST2_FETCH_EMIT_H

#include "base/io.h"
#include "base/strbuf.h"
#include "sst2-fetch/row.h"

enum emit_format { EMIT_JSONL, EMIT_TSV, EMIT_TEXT };

struct emitter {
    struct output *out; /* not owned */
    enum emit_format format;
    bool
        is_test; /* TSV: a split without labels is written index<TAB>sentence, as GLUE's test.tsv */
    uint64_t rows, positive, negative;
    /* private */
    bool with_labels;
    struct strbuf line;
};

/* STATUS_DATA, with nothing written, when the sentence does not fit the format (a tab or a line end
 * in TSV, a line end in text); name and row->line are for that message. */
enum status emitter_write(struct emitter *m, const struct row *row, const char *name,
                          struct error *e) MUST_CHECK;
/* The TSV header of a split without rows is still owed. */
enum status emitter_finish(struct emitter *m, struct error *e) MUST_CHECK;
void emitter_release(struct emitter *m);

#endif
