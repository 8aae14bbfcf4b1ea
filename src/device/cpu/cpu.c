/* cpu.c - the cpu backend: opening it, and its table. */
#include "device/cpu/cpu.h"

#include "base/pool.h"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct device_ops cpu_device_ops;

static int cpu_device_count(void)
{
    return 1;
}

static void cpu_close(struct device *dev)
{
    struct cpu_device *cpu = (struct cpu_device *)dev;
    if (!cpu)
        return;
    cpu_stream_free(dev, dev->compute);
    gemm_cache_free(cpu->gemms);
    pthread_mutex_destroy(&cpu->lock);
    free(cpu);
}

static enum status cpu_open(struct device **dev, int ordinal, struct error *e)
{
    struct cpu_device *cpu = calloc(1, sizeof *cpu);
    enum status st = STATUS_OK;
    (void)ordinal;
    *dev = NULL;
    if (!cpu)
        return error_memory(e, sizeof *cpu, "device cpu");
    cpu->base.ops = &cpu_device_ops;
    pthread_mutex_init(&cpu->lock, NULL);
    TRY_OUT(stream_new(cpu, true, &cpu->base.compute, e));
    TRY_OUT(gemm_cache_new(&cpu->gemms, e));
    *dev = &cpu->base;
    return STATUS_OK;
out:
    cpu_close(&cpu->base);
    return st;
}

/* The value after "key<blanks>:" of the first such line of a /proc file. */
static bool proc_value(const char *path, const char *key, char *value, size_t bytes)
{
    char line[256];
    bool found = false;
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(value, bytes, "%s", colon);
        found = true;
    }
    fclose(f);
    return found;
}

static void cpu_info(struct device *dev, struct device_info *info)
{
    char text[96];
    (void)dev;
    memset(info, 0, sizeof *info);
    if (!proc_value("/proc/cpuinfo", "model name", text, sizeof text))
        snprintf(text, sizeof text, "CPU");
    snprintf(info->name, sizeof info->name, "%.64s, %d processors", text, cpu_count());
    info->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    info->free_bytes = info->memory_bytes;
    if (proc_value("/proc/meminfo", "MemAvailable", text, sizeof text))
        info->free_bytes = strtoll(text, NULL, 10) * 1024;
}

/* The compute stream runs in its submitter, whose teams this sets; oneDNN's are OpenMP's, too. */
static void cpu_set_threads(struct device *dev, int threads)
{
    (void)dev;
    omp_set_num_threads(threads);
}

const struct device_ops cpu_device_ops = {
    .name = "cpu",
    .reads_host_memory = true,
    .open = cpu_open,
    .close = cpu_close,
    .count = cpu_device_count,
    .info = cpu_info,
    .set_threads = cpu_set_threads,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .stream_create = cpu_stream_create,
    .stream_free = cpu_stream_free,
    .event_create = cpu_event_create,
    .event_free = cpu_event_free,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .stream_sync = cpu_stream_sync,
    .event_sync = cpu_event_sync,
    .event_elapsed_ms = cpu_event_elapsed_ms,
    .host_call = cpu_host_call,
    .copy = cpu_copy,
    .fill_zero = cpu_fill_zero,
    .gemm = cpu_gemm,
    .embed_forward = cpu_embed_forward,
    .embed_backward = cpu_embed_backward,
    .embed_backward_workspace = cpu_embed_backward_workspace,
    .layernorm_forward = cpu_layernorm_forward,
    .layernorm_backward = cpu_layernorm_backward,
    .layernorm_backward_workspace = cpu_layernorm_backward_workspace,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .attention_backward_workspace = cpu_attention_backward_workspace,
    .classifier = cpu_classifier,
    .bias_backward = cpu_bias_backward,
    .bias_backward_workspace = cpu_bias_backward_workspace,
    .dropout_backward = cpu_dropout_backward,
    .reduce_sum = cpu_reduce_sum,
    .step_control = cpu_step_control,
    .adamw = cpu_adamw,
    .cast = cpu_cast,
    .accumulate = cpu_accumulate,
    .kv_append = cpu_kv_append,
    .attention_cached = cpu_attention_cached,
    .attention_cached_workspace = cpu_attention_cached_workspace,
    .gather_rows = cpu_gather_rows,
    .sample = cpu_sample,
    .token_logprobs = cpu_token_logprobs,
    .find_nonfinite = cpu_find_nonfinite,
};
