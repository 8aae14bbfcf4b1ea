/* peak.c - runs a command and says what it took.
 * usage: peak FILE COMMAND...     FILE gets "seconds peak-KiB"; the exit status is the command's */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    struct rusage use = {0};
    int status = 0;
    FILE *out = argc > 2 ? fopen(argv[1], "w") : NULL;
    double began = now();
    pid_t pid = out ? fork() : -1;
    if (pid == 0) {
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        _exit(127);
    }
    while (pid > 0 && wait4(pid, &status, 0, &use) < 0)
        if (errno != EINTR)
            return 1;
    if (pid < 0 || fprintf(out, "%.3f %ld\n", now() - began, use.ru_maxrss) < 0 ||
        fclose(out) != 0) {
        fprintf(stderr, "usage: peak FILE COMMAND...\n");
        return 2;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
