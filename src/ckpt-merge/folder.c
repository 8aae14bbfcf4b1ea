/* folder.c - what surrounds the tensors: configuration, index, tokenizer. */
#include "base/io.h"
#include "bpe/bpe.h"
#include "ckpt-merge/merge.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Takes json over. */
static enum status write_json(const char *dir, const char *name, json_t *json, struct error *e)
{
    char *text = json ? json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    char *path = path_join(dir, name);
    struct strbuf out = {0};
    enum status st;
    json_decref(json);
    if (!text || !path || !strbuf_puts(&out, text) || !strbuf_putc(&out, '\n'))
        st = error_memory(e, 4096, name);
    else
        st = file_write_atomic(path, out.data, out.length, e);
    strbuf_release(&out);
    free(text);
    free(path);
    return st;
}

enum status merge_write_config(const struct merge_plan *p, const struct gpt2_config *c,
                               const char *dir, struct error *e)
{
    const char *torch = p->dtype == DTYPE_F32    ? "float32"
                        : p->dtype == DTYPE_BF16 ? "bfloat16"
                                                 : "float16";
    TRY(write_json(dir, "config.json", gpt2_config_to_json(c, torch), e));
    json_t *generation = json_pack("{s:b}", "_from_model_config", 1);
    if (generation && c->eot >= 0)
        json_object_update_new(generation,
                               json_pack("{s:I,s:I}", "bos_token_id", (json_int_t)c->eot,
                                         "eos_token_id", (json_int_t)c->eot));
    return write_json(dir, "generation_config.json", generation, e);
}

enum status merge_write_index(const struct merge_plan *p, const char *dir, struct error *e)
{
    if (p->shard_count == 1)
        return STATUS_OK;
    json_t *map = json_object();
    for (size_t i = 0; map && i < p->count; i++)
        if (json_object_set_new(map, p->outputs[i].name,
                                json_string(p->shards[merge_plan_shard_of(p, i)].name)) != 0)
            return error_memory(e, 256, "the index");
    json_t *index = json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)p->total_bytes,
                              "weight_map", map);
    return write_json(dir, "model.safetensors.index.json", index, e);
}

/* GPT-2's own merges: in $SDP_GPT2_SHARE, beside bin/ in a checkout, or where they are installed.
 */
static bool default_vocab(char path[PATH_MAX])
{
    static const char *const places[] = {"../share/gpt2/vocab.bpe",
                                         "../share/sdp-gpt2/gpt2/vocab.bpe",
                                         "../../share/gpt2/vocab.bpe"};
    const char *share = getenv("SDP_GPT2_SHARE");
    char exe[PATH_MAX];
    if (share && *share)
        return snprintf(path, PATH_MAX, "%s/gpt2/vocab.bpe", share) < PATH_MAX;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n < 0)
        return false;
    exe[n] = '\0';
    *strrchr(exe, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(path, PATH_MAX, "%s/%s", exe, places[i]) < PATH_MAX && path_exists(path))
            return true;
    return false;
}

enum status merge_write_tokenizer(const struct tensor_set *set, const struct merge_options *o,
                                  const char *dir, struct error *e)
{
    const struct vocab_info *want = ckpt_vocab(set->ckpt);
    char place[PATH_MAX];
    const char *path = o->vocab;
    struct bpe *bpe = NULL;
    if (want->fingerprint == 0 || strcmp(o->tokenizer, "none") == 0)
        return STATUS_OK;
    if (!path) {
        if (!default_vocab(place))
            return error_set(e, STATUS_FAILED,
                             "GPT-2's merge list is not beside this program: name the "
                             "checkpoint's vocabulary with --vocab, or leave it out with "
                             "--tokenizer none");
        path = place;
    }
    TRY(bpe_load(&bpe, path, e));
    struct vocab_info have = {bpe_vocab_size(bpe), bpe_fingerprint(bpe), bpe_eot(bpe)};
    enum status st = vocab_info_match(want, ckpt_path(set->ckpt), &have, path, e);
    if (st == STATUS_OK)
        st = bpe_export(bpe, dir, e);
    else if (!o->vocab)
        error_context(e, "tokenizer files need the checkpoint's vocabulary (--vocab, or "
                         "--tokenizer none)");
    bpe_free(bpe);
    return st;
}
