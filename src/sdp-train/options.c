/* options.c - the table. Names and defaults of the SageMaker GPT-2 example wherever it has them. */
#include "sdp-train/options.h"
#include "sdp-train/refused.h"

#include <stddef.h>

#define AT(field) offsetof(struct train_options, field)
#define HEADING(text) \
    {                 \
        .help = text  \
    }
#define INT(n, field, def, low, high, text)                                              \
    {                                                                                    \
        .name = n, .type = OPTION_INT, .offset = AT(field), .fallback = def, .min = low, \
        .max = high, .help = text                                                        \
    }
#define BOOL(n, field, def, text)                                                          \
    {                                                                                      \
        .name = n, .type = OPTION_BOOL, .offset = AT(field), .fallback = def, .help = text \
    }
#define FLOAT(n, field, def, low, high, text)                                              \
    {                                                                                      \
        .name = n, .type = OPTION_FLOAT, .offset = AT(field), .fallback = def, .min = low, \
        .max = high, .help = text                                                          \
    }
#define SIZE(n, field, def, text)                                                          \
    {                                                                                      \
        .name = n, .type = OPTION_SIZE, .offset = AT(field), .fallback = def, .help = text \
    }
#define TEXT(n, field, def, meta, text)                                                          \
    {                                                                                            \
        .name = n, .type = OPTION_STRING, .offset = AT(field), .fallback = def, .metavar = meta, \
        .help = text                                                                             \
    }
#define CHOICE(n, field, def, list, text)                                                        \
    {                                                                                            \
        .name = n, .type = OPTION_CHOICE, .offset = AT(field), .fallback = def, .choices = list, \
        .help = text                                                                             \
    }

static const char *const precisions[] = {"fp32", "bf16", "fp16", NULL};
static const char *const wires[] = {"fp32", "bf16", NULL};
static const char *const devices[] = {"auto", "cpu", "cuda", NULL};
static const char *const engines[] = {"auto", "self", "mpi", "nccl", NULL};
static const char *const launchers[] = {"auto", "self", "mpi", "env", NULL};
static const char *const partials[] = {"0", "1", "auto", NULL};

#define BIG 1e30

static const struct option_spec specs[] = {
    HEADING("Data and length"),
    TEXT("training-dir", training_dir, NULL, "DIR", "Shards to train on, made by shard-pack."),
    TEXT("test-dir", test_dir, NULL, "DIR", "Shards for validation."),
    BOOL("shuffle", shuffle, "1",
         "Visit samples in a new order every epoch; 0 keeps the file's order."),
    INT("max-steps", max_steps, "0", 0, BIG,
        "Optimizer steps to train for; 0 trains to the end of the data."),
    INT("epochs", epochs, "0", 0, 1e9,
        "Passes over the data; 0 means as many as --max-steps needs, or one without it."),
    INT("seed", seed, "12345", 0, BIG, "Seed of initial values, order of samples and dropout."),

    HEADING("Model"),
    TEXT("model", model, NULL, "NAME|FILE.json",
         "A shape by name (gpt2-small, gpt2-xl, smp-gpt2-30b, gpt2-tiny, ...) or a config.json; "
         "default "
         "gpt2-small, or the one beside --init-from."),
    INT("max-context-width", context, "0", 0, 1 << 24, "Positions; 0 keeps the model's."),
    INT("vocab-size", vocab, "0", 0, 2e9, "Vocabulary; 0 keeps the model's."),
    INT("hidden-width", width, "0", 0, 1 << 20, "Channels; 0 keeps the model's."),
    INT("num-layers", layers, "0", 0, 1000, "Blocks; 0 keeps the model's."),
    INT("num-heads", heads, "0", 0, 4096, "Attention heads; 0 keeps the model's."),
    FLOAT("resid-pdrop", resid_pdrop, "-1", -1, 1,
          "Dropout of sub-layer outputs; -1 keeps the model's."),
    FLOAT("embd-pdrop", embd_pdrop, "-1", -1, 1, "Dropout of embeddings; -1 keeps the model's."),
    FLOAT("attn-pdrop", attn_pdrop, "-1", -1, 1,
          "Dropout of attention weights; -1 keeps the model's."),
    TEXT("init-from", init_from, NULL, "DIR|FILE.safetensors",
         "Start from these weights (a Hugging Face GPT-2); shapes come from its config.json unless "
         "--model is given."),

    HEADING("Batch"),
    INT("train-batch-size", batch, "2", 1, 1 << 20, "Samples a rank and micro-step."),
    INT("gradient-accumulation", accumulation, "1", 1, 1 << 20, "Micro-steps an optimizer step."),
    INT("global-batch-size", global_batch, "0", 0, BIG,
        "Samples a step over all ranks, any number; sets --gradient-accumulation. 0: ranks x "
        "--train-batch-size x --gradient-accumulation."),
    INT("val-batch-size", val_batch, "4", 1, 1 << 20, "Samples a rank and validation batch."),

    HEADING("Optimizer"),
    FLOAT("lr", lr, "1e-4", 0, 1e30, "Peak learning rate."),
    CHOICE("lr-decay-style", decay, "linear", sdp_decay_names, "Schedule of the learning rate."),
    INT("lr-decay-iters", decay_iters, "0", 0, BIG, "Steps the schedule spans; 0: the run's."),
    FLOAT("min-lr", min_lr, "0", 0, 1e30, "Floor of the learning rate."),
    FLOAT("warmup", warmup, "0.01", 0, 1, "Fraction of the schedule that warms up linearly."),
    FLOAT("plateau", plateau, "0.4", 0, 1,
          "Fraction at the peak after warm-up (plateau, warmup-stable-decay)."),
    BOOL("use-adamw", adamw, "1", "Decoupled weight decay; 0 is Adam with L2."),
    FLOAT("weight-decay", weight_decay, "0.01", 0, 1e30, "Not applied to biases and norms."),
    FLOAT("beta1", beta1, "0.9", 0, 0.999999999, "Decay of the first moment."),
    FLOAT("beta2", beta2, "0.95", 0, 0.999999999, "Decay of the second moment."),
    FLOAT("adam-eps", eps, "1e-8", 0, 1, "Added to the root of the second moment."),
    FLOAT("grad-clip", grad_clip, "1.0", 0, 1e30,
          "Largest norm of the gradient; 0 turns clipping off."),

    HEADING("Precision"),
    CHOICE("precision", precision, "fp32", precisions, "Of working weights and activations."),
    BOOL("bf16", bf16, "0", "The same as --precision bf16."),
    BOOL("fp16", fp16, "0", "The same as --precision fp16, with dynamic loss scaling."),
    CHOICE("reduce-dtype", reduce_dtype, "fp32", wires, "Of gradients between ranks."),
    FLOAT("loss-scale", loss_scale, "65536", 1, 1e38, "Initial loss scale (fp16)."),
    FLOAT("loss-scale-min", loss_scale_min, "1", 1e-6, 1e38, "Smallest loss scale."),
    INT("loss-scale-window", loss_scale_window, "1000", 1, BIG,
        "Steps without overflow before the scale is doubled."),
    INT("loss-scale-hysteresis", loss_scale_hysteresis, "2", 1, 1e9,
        "Overflows before the scale is halved."),
    INT("abort-after-skips", abort_after_skips, "50", 0, 1e9,
        "End after this many skipped steps in a row; 0 never."),

    HEADING("Sharding"),
    INT("sharded-data-parallel-degree", degree, "0", 0, 1e6,
        "Ranks that share one copy of the model; 0 is all. 1 is plain data parallelism."),
    INT("sdp-param-persistence-threshold", threshold, "0", 0, BIG,
        "Tensors of fewer elements stay gathered for a whole step."),
    INT("sdp-reduce-bucket-size", bucket, "5e8", 1, BIG,
        "Most elements of one reduction between replicas."),
    INT("sdp-max-live-parameters", max_live, "1e9", 1, BIG,
        "Most elements gathered at a time; bounds --sdp-unit-buffers."),
    INT("sdp-unit-buffers", unit_buffers, "3", 1, 1000,
        "Buffers for gathered blocks; as many as blocks gathers each once a step."),
    BOOL("sdp-hierarchical-allgather", hierarchical, "1",
         "Gather between nodes, then inside, when a shard group spans nodes."),
    BOOL("overlap", overlap, "1", "Communicate beside compute."),
    INT("ranks-per-node", ranks_per_node, "0", 0, 1e6,
        "Pretend nodes of this many ranks; 0 detects."),
    BOOL("deterministic", deterministic, "1", "The same bits every time."),

    HEADING("Memory savers"),
    BOOL("activation-checkpointing", checkpointing, "0", "Keep less of forward and recompute it."),
    TEXT("activation-strategy", strategy, "each", "each|group_N|sublayer",
         "Recompute every block from its input, N blocks from one input, or each half of a block."),
    BOOL("offload-activations", offload, "0",
         "Keep them in host memory between forward and backward."),
    INT("activation-loading-horizon", horizon, "4", 1, 1000,
        "Kept activations brought back ahead of use."),
    SIZE("logits-memory", logits_memory, "512MiB", "Most memory for logits at a time."),

    HEADING("Checkpoints"),
    TEXT("checkpoint-dir", checkpoint_dir, NULL, "DIR", "Where checkpoints go and come from."),
    INT("checkpoint-freq", checkpoint_freq, "0", 0, BIG,
        "Steps between checkpoints; 0: one at the end."),
    INT("num-kept-checkpoints", kept, "5", 0, BIG, "Newest to keep; 0 keeps all."),
    CHOICE("load-partial", load_partial, "0", partials,
           "Resume from the newest checkpoint in --checkpoint-dir; auto starts afresh when there "
           "is none."),
    BOOL("load-full", load_full, "0",
         "Start at the newest checkpoint's step with its weights and a fresh optimizer."),
    BOOL(
        "fine-tune", fine_tune, "0",
        "Start at step 0 from the weights in --model-dir, or of the newest checkpoint without it."),
    TEXT("model-dir", model_dir, NULL, "DIR", "A Hugging Face GPT-2 for --fine-tune."),
    BOOL("async-checkpoints", async, "1", "Train on while a checkpoint is written."),

    HEADING("Validation and reports"),
    INT("validation-freq", validation_freq, "0", 0, BIG,
        "Steps between validations; 0: at the end when --test-dir is given."),
    INT("validation-batches", validation_batches, "10", 1, BIG, "Batches a rank and validation."),
    INT("logging-freq", logging_freq, "1", 1, BIG, "Steps between reports."),
    BOOL("log-param-norms", log_param_norms, "0", "Report the norm of every parameter."),
    BOOL("enable-memory-profiling", memory_profiling, "0", "Report memory by purpose."),
    TEXT("metrics", metrics, NULL, "FILE", "One JSON object a line; - is stdout."),
    TEXT("dump-gradients", dump_gradients, NULL, "DIR",
         "Write the mean gradients of the first step to DIR/gradients.safetensors."),
    BOOL("debug-nonfinite", debug_nonfinite, "0",
         "End at the first NaN or infinity, naming operation, block and element; slow."),
    {.name = "quiet",
     .type = OPTION_BOOL,
     .offset = AT(quiet),
     .fallback = "0",
     .help = "Only warnings and errors on stderr.",
     .short_name = 'q'},

    HEADING("Machine"),
    CHOICE("device", device, "auto", devices, "Where to compute."),
    CHOICE("comm", comm, "auto", engines, "How ranks exchange data."),
    CHOICE("launcher", launcher, "auto", launchers, "How ranks find each other."),
    FLOAT("collective-timeout", collective_timeout, "300", 0.1, 1e6,
          "Seconds after which a collective that does not complete ends the job."),

    HEADING("Planning"),
    BOOL("plan", plan, "0", "Print memory, communication and work a rank, and exit."),
    INT("world-size", world_size, "0", 0, 1 << 20, "Ranks of the plan; 0: as launched."),
    INT("block-size", plan_time, "0", 0, 1 << 24,
        "Tokens a sample of the plan; 0: the model's context, or --training-dir's."),
    SIZE("device-memory", device_memory, NULL,
         "Find the smallest ranks and degree that fit this memory a rank."),
    FLOAT("device-tflops", device_tflops, "400", 1e-9, 1e9,
          "TFLOP/s of products on a device, for the plan's times."),
    FLOAT("memory-bandwidth", memory_bandwidth, "3000", 1e-6, 1e9,
          "GB/s of device memory, for the plan's times."),
    FLOAT("host-bandwidth", host_bandwidth, "50", 1e-6, 1e9,
          "GB/s between device and host memory, for the plan's times."),
    FLOAT("node-bandwidth", link_bandwidth, "200", 1e-6, 1e6,
          "GB/s a rank sends inside a node, for the plan's times."),
    FLOAT("network-bandwidth", node_bandwidth, "50", 1e-6, 1e6,
          "GB/s a node sends to other nodes, for the plan's times."),
    FLOAT("node-latency", node_latency, "5", 0, 1e9,
          "Microseconds a message inside a node, for the plan's times."),
    FLOAT("network-latency", network_latency, "20", 0, 1e9,
          "Microseconds a message to another node, for the plan's times."),
    BOOL("json", json, "0", "The plan as JSON."),
};

const struct option_table train_option_table = {
    .tool = "sdp-train",
    .usage = "--training-dir DIR [options]\n"
             "--plan --model NAME --world-size W [options]",
    .summary = "Trains GPT-2 with sharded data parallelism; under mpirun -n W or srun, on W ranks.",
    .specs = specs,
    .count = sizeof specs / sizeof specs[0],
    .config_file = true,
    .foreign = refuse_foreign_key,
};
