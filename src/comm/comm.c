/* comm.c - what is the same for every launcher and engine: choosing, agreeing, failing. */
#define _GNU_SOURCE
#include "comm/comm.h"
#include "comm/comm_private.h"
#include "base/options.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct comm_ops *const comm_engines[] = {
    &self_comm_ops,
    &mpi_comm_ops,
#if WITH_CUDA
    &nccl_comm_ops,
#endif
    NULL,
};

/* --- the world
 * ------------------------------------------------------------------------------------ */

static enum status
choose_launcher(const struct world_options *o,
                enum status (**open)(struct world *, const struct world_options *, struct error *),
                struct error *e)
{
    const char *name = o->launcher ? o->launcher : "auto";
    if (strcmp(name, "auto") == 0)
        name = o->mpi_launched ? "mpi" : o->env_rank || o->env_world_size ? "env" : "self";
    if (strcmp(name, "self") == 0)
        *open = self_world_open;
    else if (strcmp(name, "mpi") == 0)
        *open = mpi_world_open;
    else if (strcmp(name, "env") == 0)
        *open = env_world_open;
    else
        return error_set(e, STATUS_USAGE,
                         "unknown launcher \"%s\", expected auto, self, mpi or env", name);
    return STATUS_OK;
}

/* Nodes are numbered by their first rank, places within a node by rank. */
static enum status place_ranks(struct world *w, const struct world_options *o, struct error *e)
{
    const uint64_t *hosts = world_state(w)->hosts;
    int *node_of = calloc((size_t)w->size, sizeof *node_of);
    if (!node_of)
        return error_memory(e, (size_t)w->size * sizeof *node_of, "node numbers");
    w->nodes = 0;
    w->host_rank = w->host_size = 0;
    for (int r = 0; r < w->size; r++) {
        int first = 0;
        while (hosts[first] != hosts[r])
            first++;
        if (o->ranks_per_node > 0)
            node_of[r] = r / o->ranks_per_node;
        else
            node_of[r] = first < r ? node_of[first] : w->nodes;
        w->nodes = node_of[r] + 1 > w->nodes ? node_of[r] + 1 : w->nodes;
        w->host_rank += r < w->rank && hosts[r] == hosts[w->rank];
        w->host_size += hosts[r] == hosts[w->rank];
    }
    /* Who started the ranks may know better which GPU is meant for which. */
    int64_t given = -1;
    if (o->env_local_rank && strcmp(w->launcher, "env") == 0) {
        enum status st = parse_i64(o->env_local_rank, "LOCAL_RANK", &given, e);
        if (st == STATUS_OK && (given < 0 || given >= INT32_MAX))
            st = error_set(e, STATUS_USAGE, "LOCAL_RANK is %s, expected 0 or more",
                           o->env_local_rank);
        if (st != STATUS_OK) {
            free(node_of);
            return st;
        }
        w->host_rank = (int)given;
    }
    w->node = node_of[w->rank];
    w->local_rank = w->local_size = 0;
    for (int r = 0; r < w->size; r++) {
        w->local_rank += r < w->rank && node_of[r] == w->node;
        w->local_size += node_of[r] == w->node;
    }
    free(node_of);
    return STATUS_OK;
}

static enum status survey(struct world *w, const struct world_options *o, struct error *e)
{
    struct world_state *s = world_state(w);
    uint64_t host = host_identity();
    s->hosts = calloc((size_t)w->size, sizeof *s->hosts);
    if (!s->hosts)
        return error_memory(e, (size_t)w->size * sizeof *s->hosts, "host names");
    TRY(world_all_gather(w, &host, sizeof host, s->hosts, e));
    TRY(place_ranks(w, o, e));
    TRY(cpus_share(w, e));
    return board_open(&s->board, w, e);
}

enum status world_open(struct world **out, const struct world_options *o, struct error *e)
{
    enum status (*open)(struct world *, const struct world_options *, struct error *) = NULL;
    *out = NULL;
    TRY(choose_launcher(o, &open, e));
    struct world *w = calloc(1, sizeof *w);
    if (!w)
        return error_memory(e, sizeof *w, "the world of ranks");
    w->size = 1;
    w->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : 600000;
    enum status st = open(w, o, e);
    if (st == STATUS_OK)
        st = survey(w, o, e);
    if (st != STATUS_OK) {
        if (w->state)
            world_mark_broken(w);
        world_close(w);
        return error_context(e, "finding the other ranks");
    }
    *out = w;
    return STATUS_OK;
}

void world_close(struct world *w)
{
    if (!w)
        return;
    struct world_state *s = world_state(w);
    if (s) {
        if (!world_is_broken(w)) /* after a failure the others may hear of this rank's end */
            board_leaving(s->board);
        board_close(s->board);
        free(s->hosts);
        struct error *cause = s->cause; /* the launcher may pass it on */
        s->ops->close(w);
        free(cause);
    }
    free(w);
}

enum status world_all_gather(struct world *w, const void *in, size_t bytes, void *out,
                             struct error *e)
{
    if (world_is_broken(w)) {
        if (world_cause(w, e))
            return e->status;
        return error_set(
            e, STATUS_DEVICE,
            "rank %d cannot talk to the other ranks any more: an earlier collective failed",
            w->rank);
    }
    enum status st = world_state(w)->ops->all_gather(w, in, bytes, out, e);
    if (st != STATUS_OK) {
        world_keep_cause(w, e);
        world_mark_broken(w);
    }
    return st;
}

enum status world_barrier(struct world *w, struct error *e)
{
    uint8_t mine = 0, *all = malloc((size_t)w->size);
    if (!all)
        return error_memory(e, (size_t)w->size, "a barrier");
    enum status st = world_all_gather(w, &mine, sizeof mine, all, e);
    free(all);
    return st;
}

static enum status agree(struct world *w, enum status mine, struct error *e, int32_t *all,
                         struct error *errors, struct error *scratch)
{
    int32_t value = (int32_t)mine;
    enum status st = world_all_gather(w, &value, sizeof value, all, scratch);
    int32_t worst = STATUS_OK;
    int rank = 0;
    for (int r = 0; r < w->size && st == STATUS_OK; r++)
        if (all[r] > worst) {
            worst = all[r];
            rank = r;
        }
    if (st == STATUS_OK && worst == STATUS_OK)
        return STATUS_OK;
    /* Only a failure pays for sending the messages around. */
    if (st == STATUS_OK)
        st = world_all_gather(w, e, sizeof *e, errors, scratch);
    if (st != STATUS_OK) {
        /* The peers are out of reach; an own failure is the better story. */
        if (mine == STATUS_OK)
            *e = *scratch;
        return e->status = mine == STATUS_OK ? st : mine;
    }
    errors[rank].message[sizeof errors[rank].message - 1] = '\0';
    return w->size == 1
               ? error_set(e, (enum status)worst, "%s", errors[rank].message)
               : error_set(e, (enum status)worst, "rank %d: %s", rank, errors[rank].message);
}

enum status world_agree(struct world *w, enum status mine, struct error *e)
{
    int32_t *all = calloc((size_t)w->size, sizeof *all);
    struct error *errors = calloc((size_t)w->size + 1, sizeof *errors);
    enum status st;
    if (mine == STATUS_OK)
        error_clear(e);
    if (!all || !errors) {
        /* Without this rank the others would wait in vain: say so and let them time out. */
        st = error_memory(e, ((size_t)w->size + 1) * sizeof *errors, "agreement between ranks");
        world_mark_broken(w);
    } else {
        st = agree(w, mine, e, all, errors, errors + w->size);
    }
    free(all);
    free(errors);
    return st;
}

void world_note_step(struct world *w, int64_t step)
{
    board_step(world_state(w)->board, step);
}

void world_abort(struct world *w, int exit_status)
{
    world_mark_broken(w);
    world_state(w)->ops->abort(w, exit_status);
    _exit(exit_status);
}

void world_keep_cause(struct world *w, const struct error *e)
{
    struct world_state *s = world_state(w);
    struct error *none = NULL, *kept = malloc(sizeof *kept);
    if (!kept)
        return; /* each collective still has a message of its own */
    *kept = *e;
    if (!__atomic_compare_exchange_n(&s->cause, &none, kept, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        free(kept);
}

bool world_cause(const struct world *w, struct error *e)
{
    const struct error *kept = __atomic_load_n(&world_state(w)->cause, __ATOMIC_ACQUIRE);
    if (kept)
        *e = *kept;
    return kept != NULL;
}

void world_mark_broken(struct world *w)
{
    __atomic_store_n(&world_state(w)->broken, 1, __ATOMIC_RELEASE);
}

bool world_is_broken(const struct world *w)
{
    return __atomic_load_n(&world_state(w)->broken, __ATOMIC_ACQUIRE);
}

bool world_lost(struct world *w, char *why, size_t room)
{
    const struct world_state *s = world_state(w);
    int dead = board_dead(s->board);
    if (dead >= 0) {
        char doing[256];
        board_describe(s->board, dead, doing, sizeof doing);
        snprintf(why, room, "rank %d has ended (it was %s)", dead, doing);
        return true;
    }
    return s->ops->lost && s->ops->lost(w, why, room);
}

/* --- communicators
 * ---------------------------------------------------------------------------------- */

struct membership {
    int32_t color, key;
};

/* Members by key, equal keys by rank. */
static enum status find_group(struct comm *c, const struct membership *all, int color,
                              struct error *e)
{
    struct world *w = c->world;
    c->members = calloc((size_t)w->size, sizeof *c->members);
    if (!c->members)
        return error_memory(e, (size_t)w->size * sizeof *c->members, "a group of ranks");
    for (int r = 0; r < w->size; r++) {
        if (all[r].color != color)
            continue;
        int at = c->size++;
        while (at > 0 && all[c->members[at - 1]].key > all[r].key) {
            c->members[at] = c->members[at - 1];
            at--;
        }
        c->members[at] = r;
    }
    for (int i = 0; i < c->size; i++)
        if (c->members[i] == w->rank)
            c->rank = i;
    return STATUS_OK;
}

enum status comm_init(struct comm *c, const struct comm_ops *ops, struct world *w,
                      struct device *dev, int color, int key, const char *name, struct error *e)
{
    c->ops = ops;
    c->world = w;
    c->dev = dev;
    c->slot = ++world_state(w)->comms;
    snprintf(c->name, sizeof c->name, "%s", name);
    struct membership mine = {color, key};
    struct membership *all = calloc((size_t)w->size, sizeof *all);
    enum status st;
    if (!all)
        TRY_OUT(error_memory(e, (size_t)w->size * sizeof *all, "a group of ranks"));
    TRY_OUT(world_all_gather(w, &mine, sizeof mine, all, e));
    TRY_OUT(find_group(c, all, color, e));
out:
    free(all);
    return st == STATUS_OK ? st : error_context(e, "creating communicator %s", name);
}

void comm_release(struct comm *c)
{
    free(c->members);
    c->members = NULL;
}

bool comm_failed(const struct comm *c)
{
    return __atomic_load_n(&c->error.status, __ATOMIC_ACQUIRE) != STATUS_OK;
}

enum status comm_first_error(struct comm *c, struct error *e)
{
    if (!comm_failed(c))
        return STATUS_OK;
    if (world_cause(c->world, e))
        return e->status;
    memcpy(e->message, c->error.message, sizeof e->message);
    return e->status = c->error.status;
}

void comm_fail(struct comm *c, const char *collective, const char *fmt, ...)
{
    if (__atomic_exchange_n(&c->failing, 1, __ATOMIC_ACQ_REL))
        return; /* the first failure stays */
    char detail[1600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    int64_t step = board_step_of(world_state(c->world)->board, c->world->rank);
    struct error made;
    if (step >= 0)
        error_set(&made, STATUS_DEVICE, "rank %d, step %lld, %s on communicator %s: %s",
                  c->world->rank, (long long)step, collective, c->name, detail);
    else
        error_set(&made, STATUS_DEVICE, "rank %d, %s on communicator %s: %s", c->world->rank,
                  collective, c->name, detail);
    memcpy(c->error.message, made.message, sizeof made.message);
    world_keep_cause(c->world, &made);
    /* Readers look at status first; the message is complete when it changes. */
    __atomic_store_n(&c->error.status, STATUS_DEVICE, __ATOMIC_RELEASE);
    world_mark_broken(c->world);
}

void ranks_describe(const bool *set, int n, const int *members, char *out, size_t room)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += set[i];
    int used = snprintf(out, room, count == 1 ? "rank" : "ranks");
    const char *separator = " ";
    for (int i = 0; i < n && used > 0 && (size_t)used < room; i++) {
        if (!set[i])
            continue;
        int first = members ? members[i] : i, last = first;
        while (i + 1 < n && set[i + 1] && (members ? members[i + 1] : i + 1) == last + 1) {
            last++;
            i++;
        }
        used += snprintf(out + used, room - (size_t)used, last > first ? "%s%d-%d" : "%s%d",
                         separator, first, last);
        separator = ", ";
    }
}

/* The board knows better than the transport who has not even entered; members on other hosts are
 * judged by what they sent. */
static int find_absent(const struct comm *c, uint64_t call, const bool *missing, bool *absent)
{
    int count = 0;
    for (int i = 0; i < c->size; i++) {
        int entered = board_entered(world_state(c->world)->board, c->members[i], c->slot, call);
        absent[i] = i != c->rank && (entered == 0 || (entered < 0 && missing && missing[i]));
        count += absent[i];
    }
    return count;
}

void comm_fail_late(struct comm *c, enum collective which, uint64_t call, int64_t waited_ms,
                    const bool *missing)
{
    char who[400] = "some ranks", doing[256] = "", lost[400];
    bool *absent = calloc((size_t)c->size, sizeof *absent);
    int count = absent ? find_absent(c, call, missing, absent) : 0;
    if (count == 0 && absent && missing) {
        memcpy(absent, missing, (size_t)c->size * sizeof *absent);
        for (int i = 0; i < c->size; i++)
            count += absent[i];
    }
    if (count)
        ranks_describe(absent, c->size, c->members, who, sizeof who);
    for (int i = 0; i < c->size && count && !doing[0]; i++)
        if (absent[i])
            board_describe(world_state(c->world)->board, c->members[i], doing, sizeof doing);
    free(absent);
    if (world_lost(c->world, lost, sizeof lost))
        comm_fail(c, collective_name(which), "%s; call %llu cannot complete", lost,
                  (unsigned long long)call);
    else
        comm_fail(c, collective_name(which),
                  "time-out: call %llu did not complete within %lld ms; waiting for %s%s%s%s",
                  (unsigned long long)call, (long long)waited_ms, who, doing[0] ? " (" : "", doing,
                  doing[0] ? ")" : "");
}

static const struct comm_ops *find_engine(const char *name)
{
    for (int i = 0; comm_engines[i]; i++)
        if (strcmp(comm_engines[i]->name, name) == 0)
            return comm_engines[i];
    return NULL;
}

enum status comm_choose(const char *engine, struct world *w, struct device *dev,
                        const struct comm_ops **ops, struct error *e)
{
    *ops = NULL;
    if (strcmp(engine, "auto") != 0) {
        const struct comm_ops *named = find_engine(engine);
        if (!named)
            return error_set(e, STATUS_USAGE,
                             "collectives \"%s\" are not built in; known are auto, self, mpi%s",
                             engine, find_engine("nccl") ? " and nccl" : "");
        TRY(named->usable(w, dev, e));
        *ops = named;
        return STATUS_OK;
    }
    static const char *const preference[] = {"nccl", "self", "mpi"};
    struct error why, reasons;
    error_set(&reasons, STATUS_USAGE, "no collectives for %d ranks", w->size);
    for (size_t i = 0; i < sizeof preference / sizeof preference[0]; i++) {
        const struct comm_ops *candidate = find_engine(preference[i]);
        if (!candidate)
            continue;
        if (candidate->usable(w, dev, &why) == STATUS_OK) {
            *ops = candidate;
            return STATUS_OK;
        }
        error_set(e, why.status, "%s; %s", reasons.message, why.message);
        reasons = *e;
    }
    *e = reasons;
    return e->status;
}
