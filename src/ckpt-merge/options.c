#include "ckpt-merge/options.h"

#include "base/checked.h"
#include "base/pool.h"

#include <stddef.h>
#include <string.h>

/* Each thread holds a few blocks of 4 MiB; the tool promises less than 64 MB in all. */
#define MAX_THREADS 4

static const char *const dtypes[] = {"fp32", "bf16", "fp16", NULL};
static const char *const tokenizers[] = {"auto", "none", NULL};
static const char *const kinds[] = {"master", "m", "v", NULL};

#define FIELD(f) offsetof(struct merge_options, f)

static const struct option_spec specs[] = {
    {.help = "Merging"},
    {.name = "output",
     .type = OPTION_STRING,
     .offset = FIELD(output),
     .metavar = "DIR",
     .short_name = 'o',
     .help = "The model folder to make; it appears when complete"},
    {.name = "overwrite",
     .type = OPTION_BOOL,
     .offset = FIELD(overwrite),
     .fallback = "0",
     .help = "Replace a model folder that is there, at the end"},
    {.name = "dtype",
     .type = OPTION_CHOICE,
     .offset = FIELD(dtype_name),
     .fallback = "fp32",
     .choices = dtypes,
     .help = "Element type of the tensors; fp32 keeps the master weights bit for bit"},
    {.name = "max-shard-size",
     .type = OPTION_SIZE,
     .offset = FIELD(max_shard_bytes),
     .fallback = "5GB",
     .min = 1,
     .max = 1e15,
     .help = "Start another file, and write an index, when a file would grow beyond this"},
    {.name = "vocab",
     .type = OPTION_STRING,
     .offset = FIELD(vocab),
     .metavar = "PATH",
     .help =
         "Merge list or tokenizer.json of the checkpoint's vocabulary, for the tokenizer files;\n"
         "GPT-2's own when not given"},
    {.name = "tokenizer",
     .type = OPTION_CHOICE,
     .offset = FIELD(tokenizer),
     .fallback = "auto",
     .choices = tokenizers,
     .help = "auto: write tokenizer files when the checkpoint's ids have a text; none: never"},
    {.help = "Looking (on a checkpoint, a model folder or a safetensors file)"},
    {.name = "verify",
     .type = OPTION_BOOL,
     .offset = FIELD(verify),
     .fallback = "0",
     .help = "Read everything; check sizes, checksums, digests, coverage, shapes and for NaN"},
    {.name = "list",
     .type = OPTION_BOOL,
     .offset = FIELD(list),
     .fallback = "0",
     .help = "Print each tensor: name, type, shape, elements, norm, largest magnitude, NaN, "
             "infinities"},
    {.name = "diff",
     .type = OPTION_BOOL,
     .offset = FIELD(diff),
     .fallback = "0",
     .help = "Compare two: print the largest difference of each tensor and where it is"},
    {.name = "tolerance",
     .type = OPTION_FLOAT,
     .offset = FIELD(tolerance),
     .min = 0,
     .max = 1e300,
     .fallback = "0",
     .help = "With --diff: exit 3 when a tensor differs by more than this; exit 0 always when not "
             "given"},
    {.name = "kind",
     .type = OPTION_CHOICE,
     .offset = FIELD(kind_name),
     .fallback = "master",
     .choices = kinds,
     .help = "Which of a checkpoint's values --list and --diff read"},
    {.help = "Running"},
    {.name = "threads",
     .type = OPTION_INT,
     .offset = FIELD(threads),
     .fallback = "0",
     .min = 0,
     .max = MAX_THREADS,
     .help = "Threads that read, check and write; 0 = one a processor, 4 at most"},
    {.name = "quiet",
     .type = OPTION_BOOL,
     .offset = FIELD(quiet),
     .fallback = "0",
     .short_name = 'q',
     .help = "No progress, only errors"},
};

const struct option_table merge_option_table = {
    .tool = "ckpt-merge",
    .usage = "-o DIR [options] CHECKPOINT\n"
             "--verify PATH\n"
             "--list PATH\n"
             "--diff PATH PATH",
    .summary =
        "Make one Hugging Face model folder of a sharded training checkpoint, or look inside.",
    .specs = specs,
    .count = sizeof specs / sizeof specs[0],
};

static enum status choose_action(const struct options *p, struct merge_options *o, struct error *e)
{
    if (o->verify + o->list + o->diff > 1)
        return error_set(e, STATUS_USAGE, "--verify, --list and --diff are one at a time");
    o->action = o->verify ? ACTION_VERIFY
                : o->list ? ACTION_LIST
                : o->diff ? ACTION_DIFF
                          : ACTION_MERGE;
    size_t want = o->diff ? 2 : 1;
    if (p->positional_count != want)
        return error_set(e, STATUS_USAGE, "%zu arguments, expected %s", p->positional_count,
                         want == 2 ? "two: what to compare" : "one: a checkpoint's folder");
    o->input = p->positional[0];
    o->other = want == 2 ? p->positional[1] : NULL;
    if (o->action == ACTION_MERGE && (!o->output || !*o->output))
        return error_set(e, STATUS_USAGE, "--output DIR is missing");
    if (o->action != ACTION_MERGE && o->output)
        return error_set(e, STATUS_USAGE, "--output is for merging; --%s prints to stdout",
                         o->verify ? "verify"
                         : o->list ? "list"
                                   : "diff");
    return STATUS_OK;
}

enum status merge_options_parse(struct options *parsed, struct merge_options *o, int argc,
                                char **argv, enum option_action *action, struct error *e)
{
    TRY(options_parse(parsed, &merge_option_table, argc, argv, o, action, e));
    if (*action == OPTIONS_EXIT || parsed->print_config)
        return STATUS_OK;
    TRY(choose_action(parsed, o, e));
    o->dtype = strcmp(o->dtype_name, "fp32") == 0   ? DTYPE_F32
               : strcmp(o->dtype_name, "bf16") == 0 ? DTYPE_BF16
                                                    : DTYPE_F16;
    o->kind = strcmp(o->kind_name, "master") == 0 ? CKPT_MASTER
              : strcmp(o->kind_name, "m") == 0    ? CKPT_M
                                                  : CKPT_V;
    if (o->threads == 0)
        o->threads = min_i64(cpu_count(), MAX_THREADS);
    if (!options_given(parsed, "tolerance"))
        o->tolerance = -1.0;
    return STATUS_OK;
}
