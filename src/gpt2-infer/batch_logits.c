/* batch_logits.c - raw logits, for comparing implementations: fp32, row-major [tokens, vocabulary]
 * of each record, one record after another, nothing else. */
#include "base/io.h"
#include "base/le.h"
#include "gpt2-infer/batch.h"

#include <stdlib.h>
#include <string.h>

static enum status write_logits(struct output *out, float *logits, int64_t n, struct error *e)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], 4);
        le32_put((uint8_t *)&logits[i], bits);
    }
#endif
    return output_write(out, logits, (size_t)n * sizeof *logits, e);
}

static enum status write_job(struct engine *g, struct gpt2_pass *pass, struct output *out,
                             const struct job *job, float *logits, struct error *e)
{
    enum status st = job->failed ? STATUS_DATA : STATUS_OK;
    if (job->failed)
        *e = job->error;
    else
        st = gpt2_score_logits(pass, job->ids.ids, job->ids.length, logits, e);
    if (st != STATUS_OK)
        return error_context(e, "record %llu (line %llu)", (unsigned long long)job->number,
                             (unsigned long long)job->line);
    return write_logits(out, logits, job->ids.length * g->vocab, e);
}

enum status batch_logits(struct engine *g, struct error *e)
{
    enum status st;
    struct source *source = NULL;
    struct gpt2_pass *pass = NULL;
    struct output out = {0};
    float *logits = malloc((size_t)(g->context * g->vocab) * sizeof *logits);
    if (!logits)
        TRY_OUT(error_memory(e, (size_t)(g->context * g->vocab) * sizeof *logits, "logits"));
    TRY_OUT(output_open(&out, g->o->output, OUTPUT_BINARY, e));
    TRY_OUT(engine_scorer(g, &pass, e));
    TRY_OUT(source_open(&source, g, g->o->input, 0, NULL, NULL, e));
    for (bool ended = false; !ended;) {
        struct job *job;
        TRY_OUT(source_take(source, true, &job, &ended, e));
        if (!job)
            break;
        st = write_job(g, pass, &out, job, logits, e);
        job_free(job);
        if (st != STATUS_OK)
            goto out;
    }
    st = output_commit(&out, e);
out:
    g->in_use = !source_close(source);
    gpt2_pass_free(pass);
    output_close(&out);
    free(logits);
    return st;
}
