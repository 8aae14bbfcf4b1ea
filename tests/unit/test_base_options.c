/* test_base_options.c - the table decides everything: values, bounds, names, files, help, echo. */
#define _GNU_SOURCE
#include "base/options.h"
#include "tap.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

struct config {
    bool quiet, bf16;
    int64_t steps, size, seed;
    double lr;
    const char *output, *mode;
};

static const char *const modes[] = {"linear", "cosine", NULL};
static const struct option_spec specs[] = {
    {.help = "Training"},
    {.name = "max-steps",
     .type = OPTION_INT,
     .offset = offsetof(struct config, steps),
     .fallback = "1e3",
     .min = 0,
     .max = INFINITY,
     .help = "steps to run"},
    {.name = "seed", .type = OPTION_INT, .offset = offsetof(struct config, seed), .help = "seed"},
    {.name = "shard-size",
     .type = OPTION_SIZE,
     .offset = offsetof(struct config, size),
     .fallback = "256MiB",
     .min = 1,
     .max = 0x1p40,
     .help = "bytes of a shard"},
    {.name = "lr",
     .type = OPTION_FLOAT,
     .offset = offsetof(struct config, lr),
     .fallback = "2e-4",
     .min = 0,
     .max = 1,
     .help = "learning rate",
     .alias = "learning-rate"},
    {.name = "bf16",
     .type = OPTION_BOOL,
     .offset = offsetof(struct config, bf16),
     .fallback = "1",
     .help = "mixed precision"},
    {.help = "Output"},
    {.name = "output",
     .short_name = 'o',
     .type = OPTION_STRING,
     .metavar = "FILE",
     .offset = offsetof(struct config, output),
     .help = "where to"},
    {.name = "mode",
     .type = OPTION_CHOICE,
     .choices = modes,
     .fallback = "cosine",
     .offset = offsetof(struct config, mode),
     .help = "schedule"},
    {.name = "quiet",
     .short_name = 'q',
     .type = OPTION_BOOL,
     .offset = offsetof(struct config, quiet),
     .help = "no progress"},
};
static const struct option_table table = {.tool = "demo",
                                          .usage = "[options] [FILE...]\n--verify FILE",
                                          .summary = "Shows the options.",
                                          .specs = specs,
                                          .count = sizeof specs / sizeof specs[0],
                                          .config_file = true};

static struct options o;
static struct config c;
static struct error e;
static enum option_action action;

/* Arguments separated by '|', so that each may hold blanks. */
static enum status parse(const char *line)
{
    static char text[1024];
    char *argv[32] = {"demo"};
    int argc = 1;
    options_release(&o);
    error_clear(&e);
    memset(&c, 0xee, sizeof c); /* defaults must be set by the parser */
    snprintf(text, sizeof text, "%s", line);
    for (char *p = text; *line && p; argc++) {
        argv[argc] = p;
        p = strchr(p, '|');
        if (p)
            *p++ = '\0';
    }
    return options_parse(&o, &table, argc, argv, &c, &action, &e);
}

#define REFUSED(line, part)                   \
    do {                                      \
        CHECK_INT(parse(line), STATUS_USAGE); \
        CHECK_CONTAINS(e.message, part);      \
    } while (0)

static void test_values(void)
{
    CASE("defaults")
    {
        CHECK_INT(parse(""), STATUS_OK);
        CHECK_INT(action, OPTIONS_RUN);
        CHECK_INT(c.steps, 1000);
        CHECK_INT(c.seed, 0);
        CHECK_INT(c.size, 256 << 20);
        CHECK_NEAR(c.lr, 2e-4, 0);
        CHECK(c.bf16 && !c.quiet && c.output == NULL);
        CHECK_STR(c.mode, "cosine");
        CHECK(!options_given(&o, "max_steps"));
        CHECK_INT(o.positional_count, 0);
    }
    CASE("--name=V, --name V, '_' for '-', aliases, the last one wins")
    {
        CHECK_INT(parse("--max_steps=5|--learning_rate|0.5|--mode|linear|--max-steps|7"),
                  STATUS_OK);
        CHECK_INT(c.steps, 7);
        CHECK_NEAR(c.lr, 0.5, 0);
        CHECK_STR(c.mode, "linear");
        CHECK(options_given(&o, "max-steps") && options_given(&o, "lr"));
        CHECK(!options_given(&o, "seed"));
    }
    CASE("booleans with and without a value")
    {
        CHECK_INT(parse("--quiet|--bf16|0"), STATUS_OK);
        CHECK(c.quiet && !c.bf16);
        CHECK_INT(parse("--quiet=False|--bf16=true"), STATUS_OK);
        CHECK(!c.quiet && c.bf16);
        CHECK_INT(parse("--quiet|file"), STATUS_OK); /* not a truth value: an argument */
        CHECK(c.quiet && o.positional_count == 1);
        REFUSED("--quiet=maybe", "--quiet: expected 0, 1, true or false, found \"maybe\"");
    }
    CASE("short names")
    {
        CHECK_INT(parse("-o|x"), STATUS_OK);
        CHECK_STR(c.output, "x");
        CHECK_INT(parse("-qoy"), STATUS_OK);
        CHECK_STR(c.output, "y");
        CHECK(c.quiet);
        REFUSED("-z", "unknown option -z");
        REFUSED("-o", "-o needs a value");
    }
    CASE("positional arguments, -, --, negative numbers as values")
    {
        CHECK_INT(parse("a|-|--seed|-5|--|--seed|-q"), STATUS_OK);
        CHECK_INT(c.seed, -5);
        CHECK_INT(o.positional_count, 4);
        CHECK_STR(o.positional[0], "a");
        CHECK_STR(o.positional[1], "-");
        CHECK_STR(o.positional[2], "--seed");
        CHECK_STR(o.positional[3], "-q");
    }
    CASE("values that are empty, missing or look like an option")
    {
        CHECK_INT(parse("--output="), STATUS_OK);
        CHECK_STR(c.output, "");
        REFUSED("--seed=", "--seed: expected an integer, found \"\"");
        REFUSED("--seed", "--seed needs a value");
        REFUSED("--output|--quiet", "--output needs a value, found the option --quiet");
        CHECK_INT(parse("--output=--quiet"), STATUS_OK);
        CHECK_STR(c.output, "--quiet");
        CHECK_INT(parse("--output|--weird"), STATUS_OK); /* no option of ours */
        REFUSED("--help=1", "takes no value");
    }
}

static void test_numbers(void)
{
    CASE("integers are strict")
    {
        static const char *const bad[] = {"",
                                          "x",
                                          "5x",
                                          " 5",
                                          "5 ",
                                          "1.5",
                                          "0x10",
                                          "nan",
                                          "inf",
                                          "1e300",
                                          "--5",
                                          "1e-1",
                                          "9223372036854775808",
                                          "+"};
        int64_t v;
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
            CHECK_INT(parse_i64(bad[i], "n", &v, &e), STATUS_USAGE);
        CHECK(parse_i64("9223372036854775807", "n", &v, &e) == STATUS_OK && v == INT64_MAX);
        CHECK(parse_i64("-9223372036854775808", "n", &v, &e) == STATUS_OK && v == INT64_MIN);
        CHECK(parse_i64("1e6", "n", &v, &e) == STATUS_OK && v == 1000000);
        CHECK(parse_i64("1.5e3", "n", &v, &e) == STATUS_OK && v == 1500);
        CHECK(parse_i64("+7", "n", &v, &e) == STATUS_OK && v == 7);
    }
    CASE("floats are strict and finite")
    {
        static const char *const bad[] = {"",    ".",    "x",     "1e", "0x1p3", "nan", "-nan",
                                          "inf", "-inf", "1e999", " 1", "1 ",    "1,5", "1..2"};
        double v;
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
            CHECK_INT(parse_f64(bad[i], "x", &v, &e), STATUS_USAGE);
        CHECK(parse_f64("-.5e-3", "x", &v, &e) == STATUS_OK && v == -.5e-3);
        CHECK(parse_f64("3", "x", &v, &e) == STATUS_OK && v == 3);
    }
    CASE("sizes with units")
    {
        static const struct {
            const char *text;
            int64_t bytes;
        } good[] = {{"0", 0},
                    {"4096", 4096},
                    {"1KiB", 1024},
                    {"256MiB", 256 << 20},
                    {"1.5GiB", 3ll << 29},
                    {"2TiB", 2ll << 40},
                    {"3KB", 3000},
                    {"1.25 MB", 1250000},
                    {"10gb", 10000000000},
                    {"7B", 7},
                    {"1e3", 1000}};
        static const char *const bad[] = {"",          "MiB",     "1XB", "1Ki",
                                          "1.0001KiB", "1e30TiB", "nan", "1KiBs"};
        int64_t v;
        for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
            CHECK_INT(parse_size(good[i].text, "s", &v, &e), STATUS_OK);
            CHECK_INT(v, good[i].bytes);
        }
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
            CHECK_INT(parse_size(bad[i], "s", &v, &e), STATUS_USAGE);
    }
    CASE("bounds name the option, the value and what is allowed")
    {
        REFUSED("--lr=1.5", "--lr: 1.5 is out of range, allowed are 0 to 1");
        REFUSED("--max_steps|-1", "--max_steps: -1 is out of range, allowed is at least 0");
        REFUSED("--shard-size|0", "--shard-size: 0 is out of range");
        REFUSED("--mode=round", "--mode: \"round\" is not one of linear, cosine");
        CHECK_INT(parse("--lr=0"), STATUS_OK);
        CHECK_INT(parse("--lr=1"), STATUS_OK);
    }
}

static void test_names(void)
{
    CASE("an unknown option names the nearest known one")
    {
        REFUSED("--max-step=3", "unknown option --max-step; the nearest known one is --max-steps");
        REFUSED("--max_setps=3", "the nearest known one is --max-steps"); /* transposition */
        REFUSED("--learning", "the nearest known one is --learning-rate");
        REFUSED("--sede|1", "the nearest known one is --seed");
        REFUSED("--hlep", "the nearest known one is --help");
        REFUSED("--print-confg", "the nearest known one is --print-config");
        REFUSED("--no-quiet", "unknown option --no-quiet");
        REFUSED("--Training", "unknown option"); /* a heading is no option */
    }
}

static char path[] = "/tmp/test_base_optionsXXXXXX";

static enum status parse_file(const char *json, const char *more)
{
    char line[256];
    int fd = open(path, O_WRONLY | O_TRUNC);
    if (write(fd, json, strlen(json)) != (ssize_t)strlen(json))
        return STATUS_FAILED;
    close(fd);
    snprintf(line, sizeof line, "--config|%s%s%s", path, *more ? "|" : "", more);
    return parse(line);
}

static void test_files(void)
{
    close(mkstemp(path));
    CASE("a configuration file: numbers, booleans, strings of numbers, JSON in strings")
    {
        CHECK_INT(
            parse_file("{\"max_steps\": \"12\", \"learning-rate\": 0.1, \"quiet\": true, "
                       "\"bf16\": 0, \"output\": \"\\\"/opt/x\\\"\", \"shard_size\": \"1MiB\", "
                       "\"mode\": \"linear\", \"seed\": 3.0}",
                       ""),
            STATUS_OK);
        CHECK_INT(c.steps, 12);
        CHECK_NEAR(c.lr, 0.1, 0);
        CHECK(c.quiet && !c.bf16);
        CHECK_STR(c.output, "/opt/x");
        CHECK_INT(c.size, 1 << 20);
        CHECK_INT(c.seed, 3);
        CHECK(options_given(&o, "seed"));
    }
    CASE("the command line wins wherever it stands")
    {
        CHECK_INT(parse_file("{\"max_steps\": 12, \"seed\": 1}", "--seed|2"), STATUS_OK);
        CHECK_INT(c.seed, 2);
        CHECK_INT(c.steps, 12);
        char line[256];
        snprintf(line, sizeof line, "--seed=2|--config=%s", path);
        CHECK_INT(parse(line), STATUS_OK);
        CHECK_INT(c.seed, 2);
        CHECK_INT(c.steps, 12);
    }
#define BAD_FILE(json, part)                           \
    do {                                               \
        CHECK_INT(parse_file(json, ""), STATUS_USAGE); \
        CHECK_CONTAINS(e.message, part);               \
        CHECK_CONTAINS(e.message, path);               \
    } while (0)
    CASE("bad files say where and what")
    {
        BAD_FILE("{\"max_stps\": 1}",
                 "unknown key \"max_stps\"; the nearest known one is \"max-steps\"");
        BAD_FILE("{\"help\": 1}", "unknown key");
        BAD_FILE("{\"lr\": 2}", "\"lr\": 2 is out of range");
        BAD_FILE("{\"lr\": [1]}", "found an array");
        BAD_FILE("{\"lr\": 0.1, \"learning_rate\": 0.2}", "a second time");
        BAD_FILE("{\"lr\": 0.1, \"lr\": 0.2}", "duplicate");
        BAD_FILE("{\"lr\": ", "line 1");
        BAD_FILE("[1]", "expected a JSON object");
        CHECK_INT(parse("--config|/nonexistent/x.json"), STATUS_FAILED);
        CHECK_CONTAINS(e.message, "/nonexistent/x.json");
    }
    CASE("the echoed configuration reads back as itself")
    {
        CHECK_INT(parse("--lr=0.1|--output=a\"b\\c\n\xc3\xa9|--seed=-9007199254740993"), STATUS_OK);
        char *first = options_config_json(&o, &c);
        CHECK_CONTAINS(first, "\"max_steps\": 1000,");
        CHECK_CONTAINS(first, "\"lr\": 0.1,");
        CHECK_CONTAINS(first, "\"seed\": -9007199254740993,");
        CHECK_INT(parse_file(first, ""), STATUS_OK);
        char *second = options_config_json(&o, &c);
        CHECK_STR(second, first);
        free(first);
        free(second);
    }
    CASE("bytes that are not UTF-8 still echo as JSON")
    {
        CHECK_INT(parse("--output=x\xff"), STATUS_OK);
        char *text = options_config_json(&o, &c);
        CHECK_CONTAINS(text, "\"x\\ufffd\"");
        free(text);
    }
    unlink(path);
}

/* Runs `line` with stdout at `target` (NULL: closed); the status, and in text what was printed. */
static int printed(const char *line, const char *target, char *text, size_t room)
{
    int fds[2];
    if (pipe(fds) != 0)
        return -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(STDOUT_FILENO);
        if (target && strcmp(target, "pipe") == 0)
            dup2(fds[1], STDOUT_FILENO);
        else if (target && open(target, O_WRONLY) < 0)
            _exit(98);
        enum status st = parse(line);
        if (st == STATUS_OK && o.print_config)
            st = options_print_config(&o, &c, stdout, &e);
        _exit(st == STATUS_OK && action != OPTIONS_EXIT && !o.print_config ? 97 : (int)st);
    }
    close(fds[1]);
    size_t n = 0;
    ssize_t r;
    while ((r = read(fds[0], text + n, room - 1 - n)) > 0)
        n += (size_t)r;
    text[n] = '\0';
    close(fds[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_printing(void)
{
    static char text[16384];
    CASE("--help shows the live table")
    {
        CHECK_INT(printed("--help", "pipe", text, sizeof text), 0);
        CHECK_CONTAINS(text, "Usage: demo [options] [FILE...]\n       demo --verify FILE\n");
        CHECK_CONTAINS(text, "\nTraining:\n");
        CHECK_CONTAINS(text, "--max-steps N");
        CHECK_CONTAINS(text, "(at least 0; default 1e3)");
        CHECK_CONTAINS(text, "--lr X, --learning-rate");
        CHECK_CONTAINS(text, "  -o, --output FILE           where to\n");
        CHECK_CONTAINS(text, "(linear|cosine; default cosine)");
        CHECK_CONTAINS(text, "--config FILE.json");
        for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
            CHECK(strcspn(line, "\n") <= 100);
    }
    CASE("--help wins over later arguments, --version and --print-config print")
    {
        CHECK_INT(printed("-h|--bogus", "pipe", text, sizeof text), 0);
        CHECK_INT(printed("--version", "pipe", text, sizeof text), 0);
        CHECK_STR(text, "demo " PROJECT_VERSION "\n");
        CHECK_INT(printed("--print-config|--seed|4", "pipe", text, sizeof text), 0);
        CHECK_CONTAINS(text, "\"seed\": 4");
    }
    CASE("a full or closed stdout is reported")
    {
        CHECK_INT(printed("--help", "/dev/full", text, sizeof text), STATUS_FAILED);
        CHECK_INT(printed("--version", "/dev/full", text, sizeof text), STATUS_FAILED);
        CHECK_INT(printed("--print-config", "/dev/full", text, sizeof text), STATUS_FAILED);
        CHECK_INT(printed("--help", NULL, text, sizeof text), STATUS_FAILED);
    }
}

int main(void)
{
    test_values();
    test_numbers();
    test_names();
    test_files();
    test_printing();
    options_release(&o);
    return tap_done();
}
