/* self.c - one rank: the launcher that starts nobody and the engine whose collectives are copies.
 */
#include "comm/comm_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum status self_gather(struct world *w, const void *in, size_t bytes, void *out,
                               struct error *e)
{
    (void)w, (void)e;
    if (bytes && out != in)
        memcpy(out, in, bytes);
    return STATUS_OK;
}

static void self_close(struct world *w)
{
    free(w->state);
}

static void self_abort(struct world *w, int exit_status)
{
    (void)w;
    _exit(exit_status);
}

static const struct world_ops self_world_ops = {
    .name = "self",
    .all_gather = self_gather,
    .close = self_close,
    .abort = self_abort,
};

enum status self_world_open(struct world *w, const struct world_options *o, struct error *e)
{
    (void)o;
    struct world_state *s = calloc(1, sizeof *s);
    if (!s)
        return error_memory(e, sizeof *s, "the world of ranks");
    s->ops = &self_world_ops;
    w->rank = 0;
    w->size = 1;
    w->launcher = self_world_ops.name;
    w->state = s;
    return STATUS_OK;
}

static enum status self_usable(const struct world *w, const struct device *dev, struct error *e)
{
    (void)dev;
    if (w->size != 1)
        return error_set(e, STATUS_USAGE, "self is for 1 rank, there are %d", w->size);
    return STATUS_OK;
}

static void self_free(struct comm *c)
{
    if (!c)
        return;
    comm_release(c);
    free(c);
}

static enum status self_create(struct comm **out, struct world *w, struct device *dev, int color,
                               int key, const char *name, struct error *e)
{
    *out = NULL;
    struct comm *c = calloc(1, sizeof *c);
    if (!c)
        return error_memory(e, sizeof *c, "a communicator");
    enum status st = comm_init(c, &self_comm_ops, w, dev, color, key, name, e);
    if (st == STATUS_OK)
        *out = c;
    else
        self_free(c);
    return st;
}

static void self_copy(struct comm *c, struct stream *s, void *recv, const void *send, size_t bytes)
{
    c->calls++;
    if (recv != send && bytes)
        c->dev->ops->copy(c->dev, s, recv, send, bytes);
}

static void self_reduce_scatter(struct comm *c, struct stream *s, void *recv, const void *send,
                                int64_t count, enum dtype dt)
{
    self_copy(c, s, recv, send, (size_t)count * dtype_bytes(dt));
}

static void self_all_reduce(struct comm *c, struct stream *s, void *buf, int64_t count,
                            enum dtype dt, enum comm_reduce op)
{
    (void)s, (void)buf, (void)count, (void)dt, (void)op;
    c->calls++;
}

static void self_broadcast(struct comm *c, struct stream *s, void *buf, size_t bytes, int root)
{
    (void)s, (void)buf, (void)bytes, (void)root;
    c->calls++;
}

const struct comm_ops self_comm_ops = {
    .name = "self",
    .usable = self_usable,
    .create = self_create,
    .free = self_free,
    .all_gather = self_copy,
    .reduce_scatter = self_reduce_scatter,
    .all_reduce = self_all_reduce,
    .broadcast = self_broadcast,
    .check = comm_first_error,
};
