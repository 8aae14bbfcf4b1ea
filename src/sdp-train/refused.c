#include "sdp-train/refused.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct foreign {
    const char *name;
    const char *neutral; /* the value that changes nothing; NULL = none */
    const char *instead;
};

static const struct foreign foreign[] = {
    {"pipeline-parallel-degree", "1", "the model is sharded by --sharded-data-parallel-degree"},
    {"tensor-parallel-degree", "1", "the model is sharded by --sharded-data-parallel-degree"},
    {"microbatches", "1", "--gradient-accumulation splits a step into micro-steps"},
    {"active-microbatches", "1", "--gradient-accumulation splits a step into micro-steps"},
    {"ddp", "1", "--sharded-data-parallel-degree 1 is plain data parallelism"},
    {"ddp-dist-backend", "auto", "--comm chooses the collectives"},
    {"shard-optimizer-state", "1",
     "optimizer state is always sharded by --sharded-data-parallel-degree"},
    {"prescaled-batch", "0", "--global-batch-size fixes the samples of a step"},
    {"placement-strategy", "cluster",
     "ranks of a node are kept together; --ranks-per-node overrides"},
    {"optimize", "memory",
     "--sdp-unit-buffers and --activation-checkpointing trade memory for speed"},
    {"fast-mode", "0", "--overlap and --sdp-unit-buffers govern communication"},
    {"static-mode", "0", "the schedule is always static"},
    {"delayed-param", "1", "parameters are always made by the rank that owns them"},
    {"checkpoint-sublayers", "0", "--activation-strategy sublayer"},
    {"use-distributed-transformer", "1", "there is one implementation of the transformer"},
    {"fused-softmax", "1", "softmax is always fused"},
    {"fused-dropout", "1", "dropout is always fused"},
    {"fused-bias-gelu", "1", "bias and GELU are always fused"},
    {"attention-in-fp32", "0",
     "softmax and all sums are in fp32 already; --precision fp32 for the rest"},
    {"residual-addition-in-fp32", "0", "--precision fp32"},
    {"query-key-layer-scaling", "0", "no layer scaling is needed: scores are summed in fp32"},
    {"summary-first-pdrop", NULL,
     "the summary head is not part of the language model; leave it out"},
    {"initializer-range", "0.02", "initial values have a standard deviation of 0.02"},
    {"gather-if-shard", "0", "ckpt-merge makes one model from the shards"},
    {"save-final-full-model", "0", "ckpt-merge makes one model from the last checkpoint"},
    {"save-or-verify-ckptsum", "0",
     "checkpoints always carry digests; ckpt-merge --verify checks them"},
    {"same-partition-load", "0", "a checkpoint loads on any number of ranks"},
    {"preserve-np-state", "0", "the order of samples never depends on state of a library"},
    {"parallel-proc-data-processing", "0",
     "shards are mapped, not parsed; gpt2-tokenize --threads"},
    {"zipped-data", "0", "shard-pack makes the training data"},
    {"use-fsx", "0", "--training-dir may lie on any file system"},
    {"fast-validation", "1", "--validation-batches bounds a validation"},
    {"manual-partition", "0", "units are blocks; there is nothing to partition by hand"},
    {"partition-assignment", NULL, "units are blocks; there is nothing to partition by hand"},
    {"skip-tracing", "1", "there is no tracing"},
    {"clean-cache", "0", "memory is allocated once"},
    {"same-seed", "0", "--seed; results never depend on ranks"},
    {"partitions", "1", "the model is sharded by --sharded-data-parallel-degree"},
    {"pipeline", NULL,
     "there is no pipeline; the model is sharded by --sharded-data-parallel-degree"},
    {"auto-partition", "1", "units are blocks; there is nothing to partition by hand"},
    {"default-partition", "0", "units are blocks; there is nothing to partition by hand"},
    {"contiguous", "1", "units are blocks, in the model's order"},
    {"memory-weight", NULL, "units are blocks; there is nothing to balance"},
    {"deterministic-server", "1", "--deterministic; every rank runs the same schedule"},
    {"horovod", "0", "--comm chooses the collectives"},
    {"ddp-port", NULL, "MASTER_PORT"},
    {"fp16-params", "0", "--precision; master weights are always fp32"},
    {"fp32-grad-accumulation", "1", "gradients are always accumulated in fp32"},
    {"delayed-parameter-initialization", "1",
     "parameters are always made by the rank that owns them"},
    {"load-partition", NULL, "a checkpoint loads on any number of ranks"},
    {"sdp-gradient-clipping", NULL, "--grad-clip"},
    {"mp-parameters", NULL,
     "each of the model-parallel library's parameters is an option: "
     "--sharded-data-parallel-degree, "
     "--sdp-reduce-bucket-size, ..."},
    {"n-gpus", NULL, "ranks come from mpirun, Slurm or RANK and WORLD_SIZE"},
    {"local-rank", NULL, "ranks come from mpirun, Slurm or RANK and WORLD_SIZE"},
};

/* '_' and '-' are the same inside a name. */
static bool same_name(const char *argument, size_t n, const char *name)
{
    if (strlen(name) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((argument[i] == '_' ? '-' : argument[i]) != name[i])
            return false;
    return true;
}

/* What the SDK adds to a job's hyperparameters about starting a script. */
static const struct foreign of_sdk = {
    "sagemaker-*", NULL,
    "it tells the SageMaker SDK's own containers how to start a script; leave it out"};

static const struct foreign *find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (same_name(name, n, foreign[i].name))
            return &foreign[i];
    const char *first = name + (n > 0 && (name[0] == '_' || name[0] == '-')); /* _tensor_... */
    if (first != name)
        return find(first, n - 1);
    return n > 10 && same_name(name, 10, "sagemaker-") ? &of_sdk : NULL;
}

/* Configuration files and people write booleans either way. */
static bool neutral(const struct foreign *f, const char *value)
{
    if (strcmp(value, "true") == 0 || strcmp(value, "True") == 0)
        value = "1";
    else if (strcmp(value, "false") == 0 || strcmp(value, "False") == 0)
        value = "0";
    return f->neutral && strcmp(value, f->neutral) == 0;
}

enum status refuse_foreign_key(const char *key, const char *value, bool *known, struct error *e)
{
    const struct foreign *f = find(key, strlen(key));
    *known = f != NULL;
    if (!f || neutral(f, value))
        return STATUS_OK;
    return error_set(e, STATUS_USAGE, "\"%s\" is not an option here: %s", key, f->instead);
}

enum status refuse_foreign_options(int *argc, char **argv, struct error *e)
{
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        const char *equals = strchr(argv[i], '=');
        bool option = strncmp(argv[i], "--", 2) == 0;
        size_t n = equals ? (size_t)(equals - argv[i]) - 2 : strlen(argv[i]) - 2;
        const struct foreign *f = option ? find(argv[i] + 2, n) : NULL;
        const char *value = equals ? equals + 1 : i + 1 < *argc ? argv[i + 1] : "";
        if (!f) {
            argv[kept++] = argv[i];
            continue;
        }
        if (!neutral(f, value))
            return error_set(e, STATUS_USAGE, "--%.*s is not an option here: %s", (int)n,
                             argv[i] + 2, f->instead);
        i += equals == NULL; /* its value goes too */
    }
    *argc = kept;
    argv[kept] = NULL;
    return STATUS_OK;
}
