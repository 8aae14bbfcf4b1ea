/* infer_rate.c - decoding and prompts of a model on the CPU beside what bounds them, in turn in one
 * process, so that what else runs on the machine slows both. usage: infer_rate MODEL fp32|bf16
 * decode|prompt|score ROUNDS decode  one token of one sequence, beside a plain read of the weights
 * it needs prompt  PROMPT tokens up to the first new one, beside the products a prompt needs, by
 * oneDNN alone score   the same with the logits of every token prints "OURS BOUND RATIO":
 * milliseconds, the best of the rounds, and their ratio. With one thread, processor time. */
#include "gpt2/decode.h"
#include "gpt2/score.h"

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PROMPT 512
#define MOST_ROUNDS 200

static struct error err;
static volatile uint64_t sink;

static void must(bool ok)
{
    if (!ok) {
        fprintf(stderr, "infer_rate: %s\n", err.message);
        exit(1);
    }
}

/* --- the floor of a token: every weight read once --------------------------------------------- */

typedef uint64_t wide __attribute__((vector_size(64), aligned(8), may_alias));

static void read_bytes(const void *data, size_t bytes)
{
    uint64_t total = 0;
    int64_t count = (int64_t)(bytes / 512);
#pragma omp parallel for schedule(static) reduction(+ : total)
    for (int64_t k = 0; k < count; k++) {
        const wide *p = (const wide *)((const char *)data + k * 512);
        wide sum = (p[0] + p[1]) + (p[2] + p[3]) + ((p[4] + p[5]) + (p[6] + p[7]));
        total += sum[0] ^ sum[7];
    }
    sink += total;
}

static void read_weights(const struct gpt2_weights *w)
{
    const size_t c = (size_t)w->config.channels, elem = dtype_bytes(w->dt);
    for (int64_t i = 0; i < w->config.layers; i++) {
        const struct gpt2_block_params *b = &w->blocks[i];
        read_bytes(b->qkv_w, 3 * c * c * elem);
        read_bytes(b->proj_w, c * c * elem);
        read_bytes(b->fc_w, 4 * c * c * elem);
        read_bytes(b->fcproj_w, 4 * c * c * elem);
    }
    read_bytes(w->wte, (size_t)w->wte_rows * c * elem);
}

/* --- the bound of a prompt: its products, by oneDNN --------------------------------------------
 */

static void product(int64_t rows, int64_t n, int64_t k, const float *a, const float *b,
                    bool b_transposed, float *d)
{
    must(dnnl_sgemm('N', b_transposed ? 'T' : 'N', rows, n, k, 1.0f, a, k, b, b_transposed ? k : n,
                    0.0f, d, n) == dnnl_success);
}

static void prompt_products(const struct gpt2_weights *w, bool all_logits, const float *a, float *d)
{
    const int64_t c = w->config.channels;
    for (int64_t i = 0; i < w->config.layers; i++) {
        const struct gpt2_block_params *b = &w->blocks[i];
        product(PROMPT, 3 * c, c, a, b->qkv_w, false, d);
        product(PROMPT, c, c, a, b->proj_w, false, d);
        product(PROMPT, 4 * c, c, a, b->fc_w, false, d);
        product(PROMPT, c, 4 * c, a, b->fcproj_w, false, d);
    }
    product(all_logits ? PROMPT : 1, w->config.vocab, c, a, w->wte, true, d);
}

/* --- ours ---------------------------------------------------------------------------------------
 */

static bool on_token(void *arg, int32_t id, float logprob)
{
    (void)id, (void)logprob;
    return ++*(int64_t *)arg > 0;
}

static void on_finished(void *arg, enum gpt2_finish why)
{
    (void)arg, (void)why;
}

struct bench {
    struct gpt2_weights *w;
    struct gpt2_decoder *decoder;
    struct gpt2_pass *scorer;
    struct gpt2_sequence sequence;
    int32_t ids[PROMPT];
    int64_t tokens;
    float logprobs[PROMPT];
    float *a, *d;
};

static void submit(struct bench *b, int64_t prompt, int64_t new_tokens)
{
    b->sequence = (struct gpt2_sequence){.prompt = b->ids,
                                         .prompt_length = prompt,
                                         .max_new_tokens = new_tokens,
                                         .top_p = 1.0f,
                                         .eos = -1,
                                         .token = on_token,
                                         .finished = on_finished,
                                         .arg = &b->tokens};
    must(gpt2_decoder_submit(b->decoder, &b->sequence, &err) == STATUS_OK);
}

/* Steps until `more` tokens have come. */
static void step(struct bench *b, int64_t more)
{
    int64_t want = b->tokens + more;
    while (b->tokens < want)
        must(gpt2_decoder_step(b->decoder, &err) == STATUS_OK);
}

static void ours(struct bench *b, const char *what)
{
    if (strcmp(what, "decode") == 0) {
        step(b, 1);
    } else if (strcmp(what, "prompt") == 0) {
        submit(b, PROMPT, 1);
        step(b, 1);
    } else {
        struct gpt2_score_item item = {
            .ids = b->ids, .length = PROMPT, .first = 1, .logprobs = b->logprobs};
        must(gpt2_score(b->scorer, &item, 1, &err) == STATUS_OK);
    }
}

static void bound(struct bench *b, const char *what)
{
    if (strcmp(what, "decode") == 0)
        read_weights(b->w);
    else
        prompt_products(b->w, strcmp(what, "score") == 0, b->a, b->d);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(omp_get_max_threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    static struct bench b;
    double mine = 1e9, best = 1e9;
    struct device *dev;
    int rounds = argc == 5 ? atoi(argv[4]) : 0;
    const char *what = argc == 5 ? argv[3] : "";
    enum dtype dt = argc == 5 && strcmp(argv[2], "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    if (rounds < 1 || rounds > MOST_ROUNDS || (dt == DTYPE_BF16 && strcmp(what, "decode") != 0)) {
        fprintf(
            stderr,
            "usage: infer_rate MODEL fp32|bf16 decode|prompt|score ROUNDS (bf16: decode only)\n");
        return 2;
    }
    must(device_open(&dev, "cpu", 0, &err) == STATUS_OK);
    must(gpt2_weights_load(&b.w, dev, argv[1], dt, &err) == STATUS_OK);
    must(gpt2_decoder_create(&b.decoder, b.w,
                             &(struct gpt2_decoder_options){
                                 .sequences = 1, .pass_rows = 256, .separate_prompts = true},
                             &err) == STATUS_OK);
    must(gpt2_scorer_create(&b.scorer, b.w, PROMPT, 128, &err) == STATUS_OK);
    const size_t widest = (size_t)(b.w->config.vocab + 4 * b.w->config.channels);
    b.a = calloc((size_t)PROMPT * 4 * (size_t)b.w->config.channels, sizeof *b.a);
    b.d = malloc((size_t)PROMPT * widest * sizeof *b.d);
    must(b.a && b.d);
    for (int i = 0; i < PROMPT; i++)
        b.ids[i] = (int32_t)(i * 7919 % b.w->config.vocab);
    for (size_t i = 0; i < (size_t)PROMPT * 4 * (size_t)b.w->config.channels; i++)
        b.a[i] = (float)(i % 1000) * 1e-3f;
    if (strcmp(what, "decode") == 0)
        submit(&b, 4, MOST_ROUNDS + 10);
    for (int i = -2; i < rounds; i++) { /* two to warm up */
        double begin = now_ms();
        ours(&b, what);
        double middle = now_ms();
        bound(&b, what);
        double end = now_ms();
        if (i >= 0 && middle - begin < mine)
            mine = middle - begin;
        if (i >= 0 && end - middle < best)
            best = end - middle;
    }
    printf("%.2f %.2f %.3f\n", mine, best, mine / best);
    gpt2_pass_free(b.scorer);
    gpt2_decoder_free(b.decoder);
    gpt2_weights_free(b.w);
    device_close(dev);
    free(b.a);
    free(b.d);
    return 0;
}
