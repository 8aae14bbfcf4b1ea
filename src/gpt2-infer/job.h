/* job.h - one record: what it asks for, and the line that answers it. */
#ifndef GPT2_INFER_JOB_H
#define GPT2_INFER_JOB_H

#include "base/strbuf.h"
#include "gpt2-infer/engine.h"
#include <jansson.h>

struct id_list {
    int32_t *ids;
    int64_t length, capacity;
};

/* Settings of one generation; defaults from the command line. */
struct generate_params {
    int64_t max_new_tokens, top_k;
    double temperature, top_p;
    uint64_t seed;
    bool ignore_eos, logprobs, slide;
    char **stops; /* owned */
    size_t *stop_bytes;
    size_t stop_count;
};

struct job {
    struct job *next;
    uint64_t number; /* of the record in the input, from 0 */
    uint64_t line;   /* from 1 */
    size_t bytes;    /* of its line: what a queue counts */
    uint64_t end;    /* bytes of the input up to its end */
    bool done, failed;
    char *id;           /* the record's "id" as JSON text, NULL = its number */
    struct id_list ids; /* prompt (generate) or text (score, classify, logits) */
    int64_t first;      /* score: the first token that counts; context is before it */
    char *gold;         /* classify: the record's label, NULL = none */
    int64_t gold_index; /* the same as an index, -1 = none */
    struct generate_params params;
    struct error error;   /* when failed */
    struct strbuf answer; /* one line, without LF */
};

/* What turning lines into jobs needs. One thread. */
struct job_reader {
    const struct engine *g;
    const char *name; /* of the input, for messages */
    struct bpe_state *state;
    struct token_buffer tokens;
    struct strbuf text;
};

enum status job_reader_init(struct job_reader *r, const struct engine *g, const char *name,
                            struct error *e) MUST_CHECK;
void job_reader_release(struct job_reader *r);
/* A job from one record. A record that is wrong gives a job that has failed; only running out of
 * memory is an error here. raw: the bytes are the text itself, not JSON. */
enum status job_parse(struct job_reader *r, const char *bytes, size_t length, bool raw,
                      uint64_t number, uint64_t line, struct job **job, struct error *e) MUST_CHECK;
/* A job from a parsed object; record is the same object's text, for exact strings. */
enum status job_from_object(struct job_reader *r, const json_t *object, const char *record,
                            size_t length, struct job *job, struct error *e) MUST_CHECK;
void job_free(struct job *job);
/* Append ids of text. STATUS_DATA when the model has no vocabulary. */
enum status job_encode(struct job_reader *r, const char *text, size_t bytes, struct id_list *out,
                       struct error *e) MUST_CHECK;
bool id_list_put(struct id_list *l, int32_t id) MUST_CHECK;
void generate_params_release(struct generate_params *p);
enum status generate_params_add_stop(struct generate_params *p, const char *text, size_t bytes,
                                     struct error *e) MUST_CHECK;
/* The command line's settings for record `number`. */
enum status generate_params_default(struct generate_params *p, const struct engine *g,
                                    uint64_t number, struct error *e) MUST_CHECK;
/* Settings that an object carries. */
enum status generate_params_read(struct generate_params *p, const json_t *object,
                                 struct error *e) MUST_CHECK;

/* The job failed: its answer becomes an error object. Keeps e. */
enum status job_fail(struct job *job, const struct error *e, struct error *out) MUST_CHECK;

#endif
