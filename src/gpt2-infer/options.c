#include "gpt2-infer/options.h"

#include <stddef.h>
#include <string.h>

static const char *const devices[] = {"auto", "cpu", "cuda", NULL};
static const char *const weights[] = {"auto", "fp32", "bf16", "fp16", NULL};
static const char *const formats[] = {"jsonl", "lines", "text", NULL};
static const char *const long_prompts[] = {"slide", "refuse", NULL};

#define FIELD(f) offsetof(struct infer_options, f)

static const struct option_spec specs[] = {
    {.help = "Model and device"},
    {.name = "model",
     .type = OPTION_STRING,
     .offset = FIELD(model),
     .metavar = "DIR",
     .short_name = 'm',
     .help = "Folder with config.json and safetensors, as Hugging Face or ckpt-merge writes it"},
    {.name = "vocab",
     .type = OPTION_STRING,
     .offset = FIELD(vocab),
     .metavar = "PATH",
     .help = "Merge list, tokenizer.json or a folder with one; the model's folder when not given"},
    {.name = "device",
     .type = OPTION_CHOICE,
     .offset = FIELD(device),
     .fallback = "auto",
     .choices = devices,
     .help = "Where to compute; auto takes a GPU when there is one, cuda never falls back"},
    {.name = "weights",
     .type = OPTION_CHOICE,
     .offset = FIELD(weights),
     .fallback = "auto",
     .choices = weights,
     .help = "Working precision; auto is fp32 on a CPU and bf16 on a GPU"},
    {.help = "Input and output"},
    {.name = "input-format",
     .type = OPTION_CHOICE,
     .offset = FIELD(input_format),
     .fallback = "jsonl",
     .choices = formats,
     .help =
         "jsonl: a JSON object a line; lines: a text a line; text: the whole input is one text"},
    {.name = "field",
     .type = OPTION_STRING,
     .offset = FIELD(field),
     .metavar = "NAME",
     .help = "Field of a record that holds its text; prompt for generate, text otherwise, when not "
             "given"},
    {.name = "output",
     .type = OPTION_STRING,
     .offset = FIELD(output),
     .metavar = "FILE",
     .short_name = 'o',
     .help = "Write here instead of stdout; FILE.partial until the run is complete"},
    {.name = "resume",
     .type = OPTION_BOOL,
     .offset = FIELD(resume),
     .fallback = "0",
     .help = "Continue an interrupted run with --output: skip the records already answered"},
    {.name = "strict",
     .type = OPTION_BOOL,
     .offset = FIELD(strict),
     .fallback = "0",
     .help = "Stop at the first record that fails instead of writing an error object for it"},
    {.name = "stats",
     .type = OPTION_STRING,
     .offset = FIELD(stats),
     .metavar = "FILE",
     .help = "Write totals as one JSON object: records, tokens, seconds, tokens/s, perplexity, "
             "accuracy"},
    {.name = "max-record-bytes",
     .type = OPTION_SIZE,
     .offset = FIELD(max_record_bytes),
     .fallback = "64MiB",
     .min = 1,
     .max = 4294967296.0,
     .help = "A longer input line is an error; bounds memory"},
    {.name = "quiet",
     .type = OPTION_BOOL,
     .offset = FIELD(quiet),
     .fallback = "0",
     .short_name = 'q',
     .help = "No progress, only errors"},
    {.help = "Generation (each also a field of a record, with _ for -)"},
    {.name = "max-new-tokens",
     .type = OPTION_INT,
     .offset = FIELD(max_new_tokens),
     .fallback = "64",
     .min = 0,
     .max = 1e9,
     .help = "Tokens to generate at most"},
    {.name = "temperature",
     .type = OPTION_FLOAT,
     .offset = FIELD(temperature),
     .fallback = "1",
     .min = 0,
     .max = 100,
     .help = "Divide the logits by this; 0 takes the likeliest token"},
    {.name = "top-k",
     .type = OPTION_INT,
     .offset = FIELD(top_k),
     .fallback = "0",
     .min = 0,
     .max = 2147483647,
     .help = "Sample among the k likeliest tokens; 0 = all"},
    {.name = "top-p",
     .type = OPTION_FLOAT,
     .offset = FIELD(top_p),
     .fallback = "1",
     .min = 0,
     .max = 1,
     .help = "Sample among the fewest likeliest tokens whose probabilities reach p; 1 = all"},
    {.name = "seed",
     .type = OPTION_INT,
     .offset = FIELD(seed),
     .fallback = "0",
     .min = 0,
     .max = 9e15,
     .help = "Seed; a record without its own draws from this and its number in the input"},
    {.name = "stop",
     .type = OPTION_STRING,
     .offset = FIELD(stop),
     .metavar = "TEXT",
     .help = "End before this text appears; a record may carry a list"},
    {.name = "ignore-eos",
     .type = OPTION_BOOL,
     .offset = FIELD(ignore_eos),
     .fallback = "0",
     .help = "Go on after <|endoftext|>"},
    {.name = "logprobs",
     .type = OPTION_BOOL,
     .offset = FIELD(logprobs),
     .fallback = "1",
     .help = "Put the log-probability of each token in the answer"},
    {.name = "long-prompt",
     .type = OPTION_CHOICE,
     .offset = FIELD(long_prompt),
     .fallback = "slide",
     .choices = long_prompts,
     .help = "slide: keep the end of a text that is longer than the context and go on past it;\n"
             "refuse: that record is an error, and generation ends where the context does"},
    {.name = "allow-special",
     .type = OPTION_BOOL,
     .offset = FIELD(allow_special),
     .fallback = "0",
     .help = "<|endoftext|> in a text becomes that token instead of ordinary text"},
    {.help = "Scoring and classification"},
    {.name = "stride",
     .type = OPTION_INT,
     .offset = FIELD(stride),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .metavar = "N",
     .help = "Tokens by which the window moves over a text longer than the context; 0 = half a "
             "context"},
    {.name = "prepend-eot",
     .type = OPTION_BOOL,
     .offset = FIELD(prepend_eot),
     .fallback = "0",
     .help = "Put <|endoftext|> before each text, so that its first token is scored too"},
    {.name = "labels",
     .type = OPTION_STRING,
     .offset = FIELD(labels),
     .metavar = "LIST",
     .help =
         "Continuations to choose from, separated by commas, spaces kept: \" negative, positive\""},
    {.name = "template",
     .type = OPTION_STRING,
     .offset = FIELD(template),
     .fallback = "{}",
     .metavar = "TEXT",
     .help = "What is put before the label; {} stands for the record's text"},
    {.help = "Batching and memory"},
    {.name = "sequences",
     .type = OPTION_INT,
     .offset = FIELD(sequences),
     .fallback = "0",
     .min = 0,
     .max = 65536,
     .help = "Texts generated side by side; 0 = 8 on a CPU, 256 on a GPU"},
    {.name = "pass-rows",
     .type = OPTION_INT,
     .offset = FIELD(pass_rows),
     .fallback = "0",
     .min = 0,
     .max = 1048576,
     .help = "Tokens in one forward pass, prompts included; 0 = 256 on a CPU, 2048 on a GPU"},
    {.name = "page-tokens",
     .type = OPTION_INT,
     .offset = FIELD(page_tokens),
     .fallback = "64",
     .min = 1,
     .max = 65536,
     .help = "Positions in one page of the key/value cache"},
    {.name = "cache-size",
     .type = OPTION_SIZE,
     .offset = FIELD(cache_bytes),
     .fallback = "0",
     .min = 0,
     .max = 1e15,
     .help = "Memory of the key/value cache; 0 = enough for all sequences, at most half of what is "
             "free"},
    {.help = "Endpoint"},
    {.name = "serve",
     .type = OPTION_STRING,
     .offset = FIELD(serve),
     .metavar = "[HOST:]PORT",
     .help = "Answer HTTP until SIGTERM: GET /ping, POST /invocations, POST /v1/completions, GET "
             "/metrics;\n"
             "HOST is 127.0.0.1 when not given"},
    {.name = "model-name",
     .type = OPTION_STRING,
     .offset = FIELD(model_name),
     .metavar = "NAME",
     .help = "Name in /v1/completions; the last part of --model when not given"},
    {.name = "api-key-file",
     .type = OPTION_STRING,
     .offset = FIELD(api_key_file),
     .metavar = "FILE",
     .help = "Require \"Authorization: Bearer KEY\" with a line of this file, on all but /ping"},
    {.name = "queue-limit",
     .type = OPTION_INT,
     .offset = FIELD(queue_limit),
     .fallback = "256",
     .min = 1,
     .max = 1e6,
     .help = "Prompts waiting or running at most; more are answered 429"},
    {.name = "max-body-size",
     .type = OPTION_SIZE,
     .offset = FIELD(max_body_bytes),
     .fallback = "6MiB",
     .min = 1,
     .max = 4294967296.0,
     .help = "A longer request body is answered 413"},
    {.name = "max-request-tokens",
     .type = OPTION_INT,
     .offset = FIELD(max_request_tokens),
     .fallback = "4096",
     .min = 1,
     .max = 1e9,
     .help = "max_new_tokens of a request at most"},
    {.name = "drain-seconds",
     .type = OPTION_INT,
     .offset = FIELD(drain_seconds),
     .fallback = "30",
     .min = 0,
     .max = 86400,
     .help = "After SIGTERM, finish running requests for this long"},
    {.name = "log-requests",
     .type = OPTION_BOOL,
     .offset = FIELD(log_requests),
     .fallback = "0",
     .help =
         "A line on stderr for each request: method, path, status, tokens, time; never its text"},
};

const struct option_table infer_option_table = {
    .tool = "gpt2-infer",
    .usage = "generate --model DIR [options] [FILE]\n"
             "score --model DIR [options] [FILE]\n"
             "classify --model DIR --labels LIST [options] [FILE]\n"
             "logits --model DIR [options] [FILE]\n"
             "--serve [HOST:]PORT --model DIR [options]",
    .summary = "Generate, score and classify text with a GPT-2, in batches or as an HTTP endpoint.",
    .specs = specs,
    .count = sizeof specs / sizeof specs[0],
    .config_file = true,
};

static enum status parse_task(const struct options *p, struct infer_options *o, struct error *e)
{
    static const char *const names[] = {"", "generate", "score", "classify", "logits"};
    if (o->serve) {
        if (p->positional_count > 0)
            return error_set(e, STATUS_USAGE, "--serve takes no input, found \"%s\"",
                             p->positional[0]);
        return STATUS_OK;
    }
    if (p->positional_count == 0)
        return error_set(e, STATUS_USAGE,
                         "what to do is missing: generate, score, classify, logits or --serve");
    for (int t = TASK_GENERATE; t <= TASK_LOGITS; t++)
        if (strcmp(p->positional[0], names[t]) == 0)
            o->task = (enum task)t;
    if (o->task == TASK_NONE)
        return error_set(e, STATUS_USAGE, "\"%s\" is not one of generate, score, classify, logits",
                         p->positional[0]);
    if (p->positional_count > 2)
        return error_set(e, STATUS_USAGE, "one input at most, found \"%s\" too", p->positional[2]);
    o->input = p->positional_count == 2 ? p->positional[1] : NULL;
    return STATUS_OK;
}

enum status infer_options_parse(struct options *parsed, struct infer_options *o, int argc,
                                char **argv, enum option_action *action, struct error *e)
{
    TRY(options_parse(parsed, &infer_option_table, argc, argv, o, action, e));
    if (*action == OPTIONS_EXIT || parsed->print_config)
        return STATUS_OK;
    TRY(parse_task(parsed, o, e));
    if (!o->model)
        return error_set(e, STATUS_USAGE, "--model DIR is missing");
    if (o->resume && (!o->output || strcmp(o->output, "-") == 0))
        return error_set(e, STATUS_USAGE, "--resume continues a file: --output FILE is missing");
    if (o->resume && o->task == TASK_LOGITS)
        return error_set(e, STATUS_USAGE, "logits are one binary output; --resume cannot apply");
    if (o->task == TASK_CLASSIFY && !o->labels)
        return error_set(e, STATUS_USAGE,
                         "classify needs --labels, such as \" negative, positive\"");
    if (o->task == TASK_CLASSIFY && !strstr(o->template, "{}"))
        return error_set(e, STATUS_USAGE, "--template has no {} for the record's text: \"%s\"",
                         o->template);
    if (!o->field)
        o->field = o->task == TASK_GENERATE || o->serve ? "prompt" : "text";
    return STATUS_OK;
}
