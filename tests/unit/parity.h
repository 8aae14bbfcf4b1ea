/* parity.h - running one operation of the device table on any backend and keeping what it wrote.
 *
 * An operation is a function that uploads the same data on every backend, calls the entry, and
 * names its outputs. Output buffers start as NaN, so a forgotten element is an error. */
#ifndef TESTS_PARITY_H
#define TESTS_PARITY_H

#include "device_fixture.h"

enum { PARITY_OUTPUTS = 8, PARITY_BUFFERS = 128 };

struct output {
    const char *name;
    float *values;
    int64_t n;
    double slack; /* multiplies the tolerance of the dtype; 0 = equal */
};

struct parity {
    struct device *dev;
    const struct device_ops *ops;
    struct stream *s;
    enum dtype dt; /* working dtype */
    int64_t batch, time, channels, heads, vocab, vocab_padded;
    float dropout;
    int variant;
    struct output outputs[PARITY_OUTPUTS];
    int count;
    void *buffers[PARITY_BUFFERS]; /* freed after the operation */
    int buffer_count;
};

typedef void parity_op(struct parity *p);

static inline void *parity_alloc(struct parity *p, size_t bytes)
{
    struct error e = {0};
    void *out = NULL;
    if (p->buffer_count == PARITY_BUFFERS ||
        p->ops->alloc(p->dev, MEMORY_DEVICE, bytes ? bytes : 4, &out, &e) != STATUS_OK) {
        printf("Bail out! %s\n", e.message);
        exit(1);
    }
    p->buffers[p->buffer_count++] = out;
    return out;
}

/* Through pinned host memory, as the contract of copy asks. */
static inline void parity_move(struct parity *p, void *device, void *host, size_t bytes, bool up)
{
    struct error e = {0};
    void *pinned = NULL;
    if (bytes == 0)
        return;
    if (p->ops->alloc(p->dev, MEMORY_HOST, bytes, &pinned, &e) != STATUS_OK) {
        printf("Bail out! %s\n", e.message);
        exit(1);
    }
    if (up)
        memcpy(pinned, host, bytes);
    p->ops->copy(p->dev, p->s, up ? device : pinned, up ? pinned : device, bytes);
    if (p->ops->stream_sync(p->dev, p->s, &e) != STATUS_OK)
        tap_fail_(__FILE__, __LINE__, "%s: %s", p->ops->name, e.message);
    if (!up)
        memcpy(host, pinned, bytes);
    p->ops->free(p->dev, MEMORY_HOST, pinned);
}

static inline void *parity_bytes(struct parity *p, const void *host, size_t bytes)
{
    void *d = parity_alloc(p, bytes);
    parity_move(p, d, (void *)host, bytes, true);
    return d;
}

/* Random values in `dt` on the device, equal on every backend. */
static inline void *parity_random(struct parity *p, int64_t n, enum dtype dt, uint64_t seed,
                                  float scale)
{
    return parity_bytes(p, fx_narrow(fx_random(n, seed, scale), dt, n), (size_t)n * fx_width(dt));
}

/* An output buffer full of NaN. */
static inline void *parity_blank(struct parity *p, int64_t n, enum dtype dt)
{
    float *x = fx_floats(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = NAN;
    return parity_bytes(p, fx_narrow(x, dt, n), (size_t)n * fx_width(dt));
}

/* Names a result and brings it to the host as fp32. */
static inline void parity_output(struct parity *p, const char *name, const void *device, int64_t n,
                                 enum dtype dt, double slack)
{
    struct output *o = &p->outputs[p->count++];
    void *raw = fx_alloc((size_t)n * fx_width(dt));
    parity_move(p, (void *)device, raw, (size_t)n * fx_width(dt), false);
    *o = (struct output){name, fx_floats(n), n, slack};
    for (int64_t i = 0; i < n; i++)
        o->values[i] = dt == DTYPE_I32 ? (float)((int32_t *)raw)[i] : fx_get(raw, dt, i);
}

static inline struct dropout parity_dropout(struct parity *p, uint64_t site)
{
    struct dropout d = {p->dropout, 1234, site, NULL};
    int64_t *samples = fx_alloc((size_t)p->batch * sizeof *samples);
    for (int64_t b = 0; b < p->batch; b++)
        samples[b] = 5000000000 + 17 * b; /* past 32 bits */
    d.samples = parity_bytes(p, samples, (size_t)p->batch * sizeof *samples);
    return d;
}

static inline void parity_release(struct parity *p)
{
    while (p->buffer_count > 0)
        p->ops->free(p->dev, MEMORY_DEVICE, p->buffers[--p->buffer_count]);
}

#endif
