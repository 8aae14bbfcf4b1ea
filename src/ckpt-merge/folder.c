/* folder.c - what surrounds the tensors: configuration, index, tokenizer. */
#include "base/share.h"
#include "base/io.h"
#include "bpe/bpe.h"
#include "ckpt-merge/merge.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        TRY(share_find(getenv("SDP_GPT2_SHARE"), BPE_GPT2_FILE, "GPT-2 vocabulary",
                       "name the checkpoint's with --vocab, or leave it out with --tokenizer none",
                       place, e));
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
