/* resume.c - which checkpoint a run continues from. */
#include "base/log.h"
#include "sdp-train/train.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool resumes(const struct train *t)
{
    return strcmp(t->o.load_partial, "0") != 0;
}

static bool wants_checkpoint(const struct train *t)
{
    return resumes(t) || t->o.load_full || (t->o.fine_tune && !t->o.model_dir);
}

/* The newest step before *step, as rank 0 sees the folder: all ranks try the same one. -1: none. */
static enum status next_step(struct train *t, int64_t *step, struct error *e)
{
    int64_t *steps = NULL, found = -1, *all = calloc((size_t)t->world->size, sizeof *all);
    size_t n = 0;
    enum status st = STATUS_OK;
    if (!all)
        st = error_memory(e, (size_t)t->world->size * sizeof *all, "a list of checkpoints");
    else if (t->world->rank == 0)
        st = ckpt_list_all_steps(t->o.checkpoint_dir, &steps, &n, e);
    for (size_t i = 0; i < n; i++)
        if (steps[i] < *step)
            found = steps[i];
    free(steps);
    TRY_OUT(world_agree(t->world, st, e));
    TRY_OUT(world_all_gather(t->world, &found, sizeof found, all, e));
    *step = all[0];
out:
    free(all);
    return st;
}

/* Every rank proves its share of the files, so that together they have read every byte. */
static enum status open_verified(struct train *t, int64_t step, struct error *e)
{
    char *path = ckpt_step_path(t->o.checkpoint_dir, step);
    if (!path)
        return error_memory(e, strlen(t->o.checkpoint_dir) + 32, "a file name");
    enum status st = ckpt_open(&t->ckpt, path, e);
    free(path);
    size_t first = (size_t)t->world->rank, ranks = (size_t)t->world->size;
    for (size_t i = first; st == STATUS_OK && i < ckpt_file_count(t->ckpt); i += ranks)
        st = ckpt_verify_file(t->ckpt, i, e);
    return st;
}

/* Damage is passed over; that the disk or a rank fails is not damage. */
static enum status find_newest(struct train *t, struct error *e)
{
    struct error all = {0};
    int64_t step = INT64_MAX;
    for (;;) {
        TRY(next_step(t, &step, e));
        if (step < 0)
            break;
        enum status st = world_agree(t->world, open_verified(t, step, e), e);
        if (st == STATUS_OK)
            return st;
        ckpt_close(t->ckpt);
        t->ckpt = NULL;
        if (st != STATUS_DATA)
            return st;
        if (t->world->rank == 0)
            log_warn("a newer checkpoint is damaged and passed over: %s", e->message);
        struct error so_far = all;
        error_set(&all, STATUS_DATA, "%s%s%s", so_far.message, so_far.status ? "; " : "",
                  e->message);
    }
    if (all.status == STATUS_OK)
        return STATUS_OK; /* afresh */
    *e = all;
    return error_context(e, "no valid checkpoint in %s", t->o.checkpoint_dir);
}

static enum status open_asked(struct train *t, struct error *e)
{
    TRY(world_agree(t->world, ckpt_open(&t->ckpt, t->o.checkpoint_dir, e), e));
    if (ckpt_skipped(t->ckpt) && t->world->rank == 0)
        log_warn("a newer checkpoint is damaged and passed over: %s", ckpt_skipped(t->ckpt));
    return STATUS_OK;
}

enum status train_find_checkpoint(struct train *t, struct error *e)
{
    if (!wants_checkpoint(t))
        return STATUS_OK;
    return strcmp(t->o.load_partial, "auto") == 0 ? find_newest(t, e) : open_asked(t, e);
}
