/* plan_print.c - --plan: a table for people or JSON for scripts, on stdout. */
#include "sdp-train/train.h"
#include "sdp/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status find_backend(const char *name, const struct device_ops **ops, struct error *e)
{
    bool automatic = strcmp(name, "auto") == 0;
    for (int i = 0; device_backends[i]; i++)
        if (automatic ? device_backends[i]->count() > 0
                      : strcmp(name, device_backends[i]->name) == 0) {
            *ops = device_backends[i];
            return STATUS_OK;
        }
    return error_set(e, STATUS_DEVICE, "device \"%s\" is not built in", name);
}

static json_t *sizes(const char *const *names, const int64_t *values, int n)
{
    json_t *out = json_object();
    for (int i = 0; i < n; i++)
        json_object_set_new(out, names[i], json_integer(values[i]));
    return out;
}

static json_t *plan_json(const struct train_options *o, const struct sdp_config *c,
                         const struct sdp_plan *p)
{
    json_t *out = json_object();
    json_object_set_new(out, "parameters", json_integer(p->parameters));
    json_object_set_new(out, "ranks", json_integer(p->groups.world));
    json_object_set_new(out, "degree", json_integer(p->groups.degree));
    json_object_set_new(out, "replicas", json_integer(p->groups.replicas));
    json_object_set_new(out, "group_nodes", json_integer(p->groups.group_nodes));
    json_object_set_new(out, "hierarchical", json_boolean(p->groups.hierarchical));
    json_object_set_new(out, "micro_steps", json_integer(c->accumulation));
    json_object_set_new(out, "memory", sizes(sdp_memory_names, p->memory, SDP_MEMORY_COUNT));
    json_object_set_new(out, "device_bytes", json_integer(p->device_bytes));
    json_object_set_new(out, "host_bytes", json_integer(p->host_bytes));
    json_object_set_new(out, "communication_bytes",
                        sizes(sdp_traffic_names, p->sim.bytes, SDP_TRAFFIC_KINDS));
    json_object_set_new(out, "communication_calls",
                        sizes(sdp_traffic_names, p->sim.calls, SDP_TRAFFIC_KINDS));
    json_object_set_new(out, "model_flops", json_real(p->model_flops));
    json_object_set_new(out, "executed_flops", json_real(p->sim.flops));
    json_object_set_new(out, "step_ms", json_real(p->sim.step_ms));
    json_object_set_new(out, "compute_ms", json_real(p->sim.compute_ms));
    json_object_set_new(out, "communication_ms", json_real(p->sim.comm_ms));
    json_object_set_new(out, "exposed_comm_ms", json_real(p->sim.exposed_ms));
    if (o->device_memory > 0)
        json_object_set_new(out, "fit",
                            json_pack("{s:I, s:I, s:I, s:I}", "device_memory",
                                      (json_int_t)o->device_memory, "ranks",
                                      (json_int_t)p->fit_world, "degree", (json_int_t)p->fit_degree,
                                      "degree_here", (json_int_t)p->fit_degree_here));
    return out;
}

static void print_row(const char *name, int64_t bytes)
{
    if (bytes > 0)
        printf("  %-16s %12.1f MiB\n", name, (double)bytes / 1048576.0);
}

static void print_fit(const struct train_options *o, const struct sdp_plan *p)
{
    double gib = (double)o->device_memory / 1073741824.0;
    if (p->fit_degree == 0) {
        printf(
            "\nNo number of ranks fits %.1f GiB: activations and buffers alone are larger. Smaller "
            "--train-batch-size,\n--activation-checkpointing 1 and --offload-activations 1 need "
            "less.\n",
            gib);
        return;
    }
    printf("\nFits %.1f GiB a rank from degree %lld on, so from %lld ranks on", gib,
           (long long)p->fit_degree, (long long)p->fit_world);
    if (p->fit_degree_here > 0)
        printf("; of %d ranks: degree %lld", p->groups.world, (long long)p->fit_degree_here);
    printf("\n");
}

static void plan_text(const struct train_options *o, const struct sdp_config *c,
                      const struct sdp_plan *p)
{
    printf("%lld parameters on %d ranks: %d replicas of degree %d, a shard group on %d node%s%s\n",
           (long long)p->parameters, p->groups.world, p->groups.replicas, p->groups.degree,
           p->groups.group_nodes, p->groups.group_nodes > 1 ? "s" : "",
           p->groups.hierarchical ? ", gathered in two stages" : "");
    printf("%lld micro-steps of %lld x %lld tokens a rank and step, %s\n\nMemory a rank\n",
           (long long)c->accumulation, (long long)c->batch, (long long)c->time, dtype_name(c->dt));
    for (int m = 0; m < SDP_MEMORY_COUNT; m++)
        if (sdp_memory_kind((enum sdp_memory)m) == MEMORY_DEVICE)
            print_row(sdp_memory_names[m], p->memory[m]);
    print_row("device, all", p->device_bytes);
    for (int m = 0; m < SDP_MEMORY_COUNT; m++)
        if (sdp_memory_kind((enum sdp_memory)m) == MEMORY_HOST)
            print_row(sdp_memory_names[m], p->memory[m]);
    print_row("host, all", p->host_bytes);
    printf("\nSent by a rank in a step\n");
    for (int k = 0; k < SDP_TRAFFIC_KINDS; k++)
        if (p->sim.bytes[k] > 0)
            printf("  %-16s %12.1f MiB in %lld calls\n", sdp_traffic_names[k],
                   (double)p->sim.bytes[k] / 1048576.0, (long long)p->sim.calls[k]);
    printf("\nWork of a rank in a step\n  %-16s %12.3f TFLOP (6N + 12LCT a token), %.3f executed\n",
           "model", p->model_flops / 1e12, p->sim.flops / 1e12);
    printf("\nPredicted for %g TFLOP/s and %g GB/s a device, %g GB/s a rank inside a node of %lld, "
           "%g GB/s a node\n",
           o->device_tflops, o->memory_bandwidth, o->link_bandwidth,
           (long long)(o->ranks_per_node ? o->ranks_per_node : p->groups.world), o->node_bandwidth);
    printf("  %-16s %12.3f ms\n  %-16s %12.3f ms\n  %-16s %12.3f ms\n  %-16s %12.3f ms\n", "step",
           p->sim.step_ms, "compute", p->sim.compute_ms, "communication", p->sim.comm_ms, "exposed",
           p->sim.exposed_ms);
    if (o->device_memory > 0)
        print_fit(o, p);
}

enum status train_print_plan(const struct train_options *o, const struct sdp_config *c,
                             int64_t world, struct error *e)
{
    const struct device_ops *backend = NULL;
    struct sdp_plan p;
    TRY(find_backend(o->device, &backend, e));
    bool ring = strcmp(o->comm, "nccl") == 0 ||
                (strcmp(o->comm, "auto") == 0 && strcmp(backend->name, "cuda") == 0);
    struct sdp_sim_rates rates = {.tflops = o->device_tflops,
                                  .memory_gbs = o->memory_bandwidth,
                                  .host_gbs = o->host_bandwidth,
                                  .node_gbs = o->link_bandwidth,
                                  .network_gbs = o->node_bandwidth,
                                  .node_latency_us = o->node_latency,
                                  .network_latency_us = o->network_latency,
                                  .ring = ring};
    int per_node = (int)(o->ranks_per_node ? o->ranks_per_node : world);
    TRY(sdp_plan_make(c, (int)world, per_node, backend, &rates, o->device_memory, &p, e));
    if (o->json) {
        json_t *json = plan_json(o, c, &p);
        char *text = json_dumps(json, JSON_INDENT(1));
        if (text)
            puts(text);
        free(text);
        json_decref(json);
    } else {
        plan_text(o, c, &p);
    }
    if (fflush(stdout) != 0 || ferror(stdout))
        return error_errno(e, "writing to stdout");
    return STATUS_OK;
}
