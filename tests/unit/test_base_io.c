/* test_base_io.c - reading in awkward pieces, lines around the buffer's size, outputs that are
 * whole or absent, full disks, closed descriptors, interrupted calls. */
#define _GNU_SOURCE
#include "base/io.h"
#include "base/progress.h"
#include "tap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/test_base_ioXXXXXX";

static const char *in_dir(const char *name)
{
    static char paths[8][512];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", dir, name);
    return p;
}

static void put_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0)
        tap_fail_(__FILE__, __LINE__, "cannot prepare %s", path);
}

static bool holds(const char *path, const char *want)
{
    struct error e;
    char *data = NULL;
    size_t n;
    bool same = file_read_all(path, 1 << 20, &data, &n, &e) == STATUS_OK && n == strlen(want) &&
                memcmp(data, want, n) == 0;
    free(data);
    return same;
}

/* Entries of the folder besides . and .. */
static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 2;
}

/* --- input
 * --------------------------------------------------------------------------------------------- */

static void test_reading(void)
{
    struct error e;
    struct input in;
    enum { N = 700001 }; /* more than two buffers, not a multiple */
    uint8_t *data = malloc(N), *back = malloc(N + 10);
    for (int i = 0; i < N; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    put_file(in_dir("bytes"), data, N);
    CASE("pieces of every size give the file's bytes")
    {
        static const size_t steps[] = {1, 3, 4096, 262143, 262144, 262145, N, N + 10};
        for (size_t k = 1; k < sizeof steps / sizeof steps[0]; k++) {
            size_t total = 0, got;
            CHECK_INT(input_open(&in, in_dir("bytes"), &e), STATUS_OK);
            do {
                size_t want = steps[k] < N + 10 - total ? steps[k] : N + 10 - total;
                CHECK_INT(input_read(&in, back + total, want, &got, &e), STATUS_OK);
                total += got;
            } while (got > 0 && total < N + 10);
            CHECK_INT(total, N);
            CHECK_INT(in.offset, N);
            CHECK(memcmp(back, data, N) == 0);
            input_close(&in);
        }
    }
    CASE("in blocks: little is read ahead, and the bytes are the same")
    {
        static const size_t steps[] = {64, 200000, 1, 4095, 4096, 4097, 64, 300000, 30};
        const uint8_t *seen;
        size_t total = 0, got, n = sizeof steps / sizeof *steps;
        CHECK_INT(input_open(&in, in_dir("bytes"), &e), STATUS_OK);
        input_expect_blocks(&in);
        for (size_t k = 0; k < 3 * n && total < N; k++) {
            size_t want = steps[k % n];
            CHECK_INT(input_read(&in, back + total, want, &got, &e), STATUS_OK);
            CHECK_INT(got, want < N - total ? want : N - total);
            total += got;
            CHECK(k > 5 || lseek(in.fd, 0, SEEK_CUR) <= (off_t)total + 4096);
            if (k == 5) { /* what is looked at may be more than that */
                CHECK_INT(input_peek(&in, 10000, &seen, &got, &e), STATUS_OK);
                CHECK(got >= 10000 && memcmp(seen, data + total, 10000) == 0);
                CHECK_INT(input_read(&in, back + total, 10000, &got, &e), STATUS_OK);
                total += got;
            }
        }
        CHECK_INT(total, N);
        CHECK(memcmp(back, data, N) == 0);
        input_close(&in);
    }
    CASE("what is missing or a folder is refused by name")
    {
        CHECK_INT(input_open(&in, in_dir("absent"), &e), STATUS_FAILED);
        CHECK_CONTAINS(e.message, "absent");
        CHECK_CONTAINS(e.message, "No such file");
        CHECK_INT(input_open(&in, dir, &e), STATUS_FAILED);
        CHECK_CONTAINS(e.message, "folder");
        input_close(&in);
        input_close(&in);
    }
    CASE("whole files within and over the limit")
    {
        char *text;
        size_t n;
        CHECK_INT(file_read_all(in_dir("bytes"), N, &text, &n, &e), STATUS_OK);
        CHECK_INT(n, N);
        CHECK_INT(text[N], 0);
        CHECK(memcmp(text, data, N) == 0);
        free(text);
        CHECK_INT(file_read_all(in_dir("bytes"), N - 1, &text, &n, &e), STATUS_DATA);
        CHECK(text == NULL);
        CHECK_CONTAINS(e.message, "limit of 700000 bytes");
        put_file(in_dir("empty"), "", 0);
        CHECK_INT(file_read_all(in_dir("empty"), 0, &text, &n, &e), STATUS_OK);
        CHECK_INT(n, 0);
        CHECK_STR(text, "");
        free(text);
    }
    CASE("the size of files together is known only when all of them are files")
    {
        char *bytes = strdup(in_dir("bytes")), *empty = strdup(in_dir("empty"));
        char *paths[] = {bytes, empty, bytes, NULL};
        CHECK_INT(files_total_bytes(paths, 0), 0);
        CHECK_INT(files_total_bytes(paths, 3), 2 * N);
        for (int i = 0; i < 3; i++) {
            paths[3] = i == 0 ? "-" : i == 1 ? "/dev/null" : "/no/such/file";
            CHECK_INT(files_total_bytes(paths, 4), 0);
        }
        free(bytes);
        free(empty);
    }
    CASE("positioned reads say what is missing")
    {
        int fd = open(in_dir("bytes"), O_RDONLY);
        CHECK_INT(fd_read_at(fd, "bytes", N - 5, back, 5, &e), STATUS_OK);
        CHECK(memcmp(back, data + N - 5, 5) == 0);
        CHECK_INT(fd_read_at(fd, "bytes", N - 5, back, 6, &e), STATUS_DATA);
        CHECK_CONTAINS(e.message, "wanted 6 bytes at byte 699996, found 5");
        CHECK_INT(fd_read_at(fd, "bytes", UINT64_MAX - 1, back, 6, &e), STATUS_DATA);
        close(fd);
        CHECK_INT(fd_read_at(fd, "bytes", 0, back, 1, &e), STATUS_FAILED);
    }
    free(data);
    free(back);
}

static void expect_lines(const char *name, const char *text, size_t n, const size_t *lengths,
                         int count)
{
    struct error e;
    struct input in;
    const char *line;
    size_t length;
    put_file(in_dir(name), text, n);
    CHECK_INT(input_open(&in, in_dir(name), &e), STATUS_OK);
    uint64_t offset = 0;
    for (int i = 0; i < count; i++) {
        CHECK_INT(input_line(&in, &line, &length, SIZE_MAX, &e), STATUS_OK);
        CHECK(line != NULL);
        CHECK_INT(length, lengths[i]);
        if (line)
            CHECK(memcmp(line, text + offset, length) == 0);
        offset += length + 1;
        CHECK_INT(in.line, i + 1);
    }
    CHECK_INT(input_line(&in, &line, &length, SIZE_MAX, &e), STATUS_OK);
    CHECK(line == NULL);
    CHECK_INT(in.offset, n);
    input_close(&in);
}

static void test_lines(void)
{
    CASE("lines, empty lines, NUL bytes, no final newline")
    {
        expect_lines("l0", "", 0, NULL, 0);
        expect_lines("l1", "a\n\nbb\r\n\0x\n", 10, (size_t[]){1, 0, 3, 2}, 4);
        expect_lines("l2", "a\nlast", 6, (size_t[]){1, 4}, 2);
        expect_lines("l3", "\n", 1, (size_t[]){0}, 1);
    }
    CASE("lines around the size of the buffer")
    {
        static const size_t around[] = {262142, 262143, 262144, 262145, 524288, 1000000};
        for (size_t k = 0; k < sizeof around / sizeof around[0]; k++) {
            size_t n = 3 + around[k] + 1 + 5;
            char *text = malloc(n);
            memset(text, 'y', n);
            memcpy(text, "ab\n", 3);
            text[3 + around[k]] = '\n';
            expect_lines("long", text, n, (size_t[]){2, around[k], 5}, 3);
            free(text);
        }
    }
    CASE("a line over the limit is bad data, named by number and offset")
    {
        struct error e;
        struct input in;
        const char *line;
        size_t length;
        put_file(in_dir("limit"), "12345\n123456\n", 13);
        CHECK_INT(input_open(&in, in_dir("limit"), &e), STATUS_OK);
        CHECK_INT(input_line(&in, &line, &length, 5, &e), STATUS_OK);
        CHECK_INT(input_line(&in, &line, &length, 5, &e), STATUS_DATA);
        CHECK_CONTAINS(e.message, "line 2 (byte 6)");
        input_close(&in);
    }
}

static void on_alarm(int signal_number)
{
    (void)signal_number;
}

/* Writes 3000 bytes in slow dribs while the reader is interrupted by signals. */
static void *slow_writer(void *arg)
{
    int fd = *(int *)arg;
    for (int i = 0; i < 30; i++) {
        char block[100];
        memset(block, 'a' + i % 26, sizeof block);
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block)
            break;
        usleep(3000);
    }
    close(fd);
    return NULL;
}

static void test_interrupted(bool nonblocking)
{
    struct error e;
    struct input in;
    int fds[2];
    char path[64], back[4000];
    size_t got = 0;
    pthread_t thread;
    struct sigaction act = {.sa_handler = on_alarm}; /* no SA_RESTART */
    struct itimerval timer = {{0, 2000}, {0, 2000}}, off = {0};
    CHECK_INT(pipe(fds), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fds[0]);
    CHECK_INT(input_open(&in, path, &e), STATUS_OK);
    if (nonblocking)
        fcntl(in.fd, F_SETFL, O_NONBLOCK);
    close(fds[0]);
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    pthread_create(&thread, NULL, slow_writer, &fds[1]);
    CHECK_INT(input_read(&in, back, sizeof back, &got, &e), STATUS_OK);
    setitimer(ITIMER_REAL, &off, NULL);
    pthread_join(thread, NULL);
    CHECK_INT(got, 3000);
    CHECK(got > 2950 && back[0] == 'a' && back[2950] == 'a' + 29 % 26);
    input_close(&in);
}

/* --- output
 * -------------------------------------------------------------------------------------------- */

static void test_whole_or_absent(void)
{
    struct error e;
    struct output out;
    const char *path = in_dir("out/file");
    CHECK_INT(dir_create(in_dir("out"), &e), STATUS_OK);
    CASE("nothing under the final name before commit, everything after")
    {
        CHECK_INT(output_open(&out, path, OUTPUT_BINARY, &e), STATUS_OK);
        CHECK_INT(output_puts(&out, "hello ", &e), STATUS_OK);
        CHECK_INT(output_flush(&out, &e), STATUS_OK);
        CHECK(!path_exists(path));
        CHECK_INT(output_write(&out, "world", 5, &e), STATUS_OK);
        CHECK_INT(out.offset, 11);
        CHECK_INT(output_commit(&out, &e), STATUS_OK);
        output_close(&out);
        output_close(&out);
        CHECK(holds(path, "hello world"));
        CHECK_INT(entries(in_dir("out")), 1);
    }
    CASE("what is not committed disappears and the old file stays")
    {
        CHECK_INT(output_open(&out, path, OUTPUT_TEXT, &e), STATUS_OK);
        CHECK_INT(output_puts(&out, "half", &e), STATUS_OK);
        CHECK_INT(output_flush(&out, &e), STATUS_OK);
        output_close(&out);
        CHECK(holds(path, "hello world"));
        CHECK_INT(entries(in_dir("out")), 1);
    }
    CASE("a new version replaces the old one, keeps its mode and follows a link")
    {
        struct stat st;
        chmod(path, 0640);
        CHECK_INT(symlink("file", in_dir("out/link")), 0);
        CHECK_INT(file_write_atomic(in_dir("out/link"), "v2", 2, &e), STATUS_OK);
        CHECK(holds(path, "v2"));
        CHECK(lstat(in_dir("out/link"), &st) == 0 && S_ISLNK(st.st_mode));
        CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0640);
        unlink(in_dir("out/link"));
    }
    CASE("more than the buffer")
    {
        char *big = malloc(1000000);
        memset(big, 'z', 1000000);
        CHECK_INT(output_open(&out, path, OUTPUT_TEXT, &e), STATUS_OK);
        for (size_t n = 1, total = 0; total + n <= 1000000; total += n, n = n * 3 + 1)
            CHECK_INT(output_write(&out, big, n, &e), STATUS_OK);
        uint64_t wrote = out.offset;
        CHECK_INT(output_commit(&out, &e), STATUS_OK);
        output_close(&out);
        struct stat st;
        CHECK(stat(path, &st) == 0 && (uint64_t)st.st_size == wrote);
        free(big);
    }
    CASE("a killed writer leaves nothing")
    {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            if (output_open(&out, in_dir("out/killed"), OUTPUT_TEXT, &e) == STATUS_OK &&
                output_puts(&out, "half", &e) == STATUS_OK && output_flush(&out, &e) == STATUS_OK)
                raise(SIGKILL);
            _exit(1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK_INT(entries(in_dir("out")), 1); /* this filesystem has unnamed files */
    }
    CASE("a folder is refused, a missing folder is an error")
    {
        CHECK_INT(output_open(&out, dir, OUTPUT_TEXT, &e), STATUS_FAILED);
        CHECK_CONTAINS(e.message, "folder");
        CHECK_INT(output_open(&out, in_dir("no/such"), OUTPUT_TEXT, &e), STATUS_FAILED);
        CHECK_CONTAINS(e.message, "no/such");
    }
}

static void test_failures(void)
{
    struct error e;
    struct output out;
    CASE("a full device is reported, and stays a device")
    {
        struct stat st;
        CHECK_INT(output_open(&out, "/dev/full", OUTPUT_TEXT, &e), STATUS_OK);
        CHECK_INT(output_puts(&out, "x", &e), STATUS_OK);
        CHECK_INT(output_commit(&out, &e), STATUS_FAILED);
        CHECK_CONTAINS(e.message, "No space left");
        CHECK_CONTAINS(e.message, "/dev/full");
        output_close(&out);
        CHECK_INT(file_write_atomic("/dev/null", "x", 1, &e), STATUS_OK);
        CHECK(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode));
    }
    CASE("a file-size limit (as a full disk) leaves the old file and no litter")
    {
        CHECK_INT(file_write_atomic(in_dir("out/quota"), "old", 3, &e), STATUS_OK);
        int before = entries(in_dir("out"));
        struct rlimit old, small = {4096, RLIM_INFINITY};
        getrlimit(RLIMIT_FSIZE, &old);
        signal(SIGXFSZ, SIG_IGN);
        small.rlim_max = old.rlim_max;
        setrlimit(RLIMIT_FSIZE, &small);
        char *big = calloc(1, 1 << 20);
        enum status st = file_write_atomic(in_dir("out/quota"), big, 1 << 20, &e);
        setrlimit(RLIMIT_FSIZE, &old);
        free(big);
        CHECK_INT(st, STATUS_FAILED);
        CHECK_CONTAINS(e.message, "File too large");
        CHECK_CONTAINS(e.message, "after 0 bytes");
        CHECK(holds(in_dir("out/quota"), "old"));
        CHECK_INT(entries(in_dir("out")), before);
    }
}

/* What a tool does with stdout in a state; returns its exit status. */
static int stdout_child(const char *mode)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct error e;
        struct output out;
        enum status st;
        int fds[2];
        if (strcmp(mode, "full") == 0)
            dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO);
        else if (strcmp(mode, "closed") == 0)
            close(STDOUT_FILENO);
        else if (strcmp(mode, "pipe") == 0 && pipe(fds) == 0) {
            signal(SIGPIPE, SIG_IGN);
            close(fds[0]);
            dup2(fds[1], STDOUT_FILENO);
        } else if (strcmp(mode, "terminal") == 0) {
            int terminal = posix_openpt(O_RDWR | O_NOCTTY);
            if (terminal < 0 || grantpt(terminal) || unlockpt(terminal))
                _exit(99);
            dup2(open(ptsname(terminal), O_RDWR | O_NOCTTY), STDOUT_FILENO);
        } else {
            dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
        }
        st = output_open(&out, "-", strcmp(mode, "text") == 0 ? OUTPUT_TEXT : OUTPUT_BINARY, &e);
        if (st == STATUS_OK)
            st = output_puts(&out, "data", &e);
        if (st == STATUS_OK)
            st = output_commit(&out, &e);
        output_close(&out);
        _exit((int)st);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_stdout(void)
{
    CASE("stdout: written, full, closed, reader gone, terminal")
    {
        CHECK_INT(stdout_child("null"), STATUS_OK);
        CHECK_INT(stdout_child("full"), STATUS_FAILED);
        CHECK_INT(stdout_child("closed"), STATUS_FAILED);
        CHECK_INT(stdout_child("pipe"), STATUS_FAILED);
        int terminal = stdout_child("terminal");
        if (terminal == 99)
            SKIP("no pseudo-terminals here");
        else
            CHECK_INT(terminal, STATUS_USAGE);
    }
    CASE("with stdout closed, an opened file does not become stdout")
    {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            struct error e;
            struct input in;
            close(STDOUT_FILENO);
            int ok = input_open(&in, in_dir("bytes"), &e) == STATUS_OK && in.fd > STDERR_FILENO;
            _exit(ok ? 0 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void test_folders(void)
{
    struct error e;
    CASE("mkdir -p and rm -rf")
    {
        CHECK_INT(dir_create(in_dir("a/b//c/"), &e), STATUS_OK);
        CHECK_INT(dir_create(in_dir("a/b/c"), &e), STATUS_OK);
        CHECK(path_is_dir(in_dir("a/b/c")));
        put_file(in_dir("a/b/file"), "x", 1);
        put_file(in_dir("a/b/c/file"), "x", 1);
        CHECK_INT(symlink(in_dir("out"), in_dir("a/b/c/link")), 0);
        CHECK_INT(dir_create(in_dir("a/b/file/d"), &e), STATUS_FAILED);
        CHECK_CONTAINS(e.message, "a/b/file");
        int outside = entries(in_dir("out"));
        CHECK_INT(dir_remove(in_dir("a"), &e), STATUS_OK);
        CHECK(!path_exists(in_dir("a")));
        CHECK_INT(entries(in_dir("out")), outside); /* links are not followed */
        CHECK_INT(dir_remove(in_dir("a"), &e), STATUS_OK);
        CHECK_INT(dir_sync(in_dir("a"), &e), STATUS_FAILED);
    }
    CASE("path_join")
    {
        char *p = path_join("a/", "b"), *q = path_join("a", "b"), *r = path_join("", "b");
        CHECK_STR(p, "a/b");
        CHECK_STR(q, "a/b");
        CHECK_STR(r, "b");
        free(p);
        free(q);
        free(r);
    }
}

int main(void)
{
    if (!mkdtemp(dir))
        return 1;
    test_reading();
    test_lines();
    CASE("signals do not break a read")
    test_interrupted(false);
    CASE("a non-blocking descriptor is waited for")
    test_interrupted(true);
    test_whole_or_absent();
    test_failures();
    test_stdout();
    test_folders();
    struct error e;
    if (dir_remove(dir, &e) != STATUS_OK)
        printf("# %s\n", e.message);
    return tap_done();
}
