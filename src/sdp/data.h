/* data.h - which sample goes where, and reading it ahead of use.
 *
 * Samples are numbered for ever: global sample g of a run is sample permute(g mod n) of the set in
 * epoch g div n, a function of (seed, epoch, g) that needs no table and no memory. A step takes
 * step_samples of them: position p of the step goes to slot p mod batch of micro-step
 * p div (world * batch) on rank (p div batch) mod world. Positions past step_samples or past the
 * end of the run are empty samples that count nothing, so any number of samples works on any ranks.
 */
#ifndef SDP_DATA_H
#define SDP_DATA_H

#include "format/shard_set.h"
#include "sdp/pass.h"

/* A bijection of [0, n): a Feistel network over the next even power of two with Philox as its round
 * function, walked along its cycle until it lands inside (Black and Rogaway, "Ciphers with
 * Arbitrary Finite Domains", CT-RSA 2002). */
uint64_t sdp_permute(uint64_t index, uint64_t n, uint64_t seed, uint64_t epoch);

struct sdp_data_plan {
    int64_t batch, time, accumulation;
    int64_t step_samples; /* of the whole step, all ranks */
    int world, rank;      /* rank: its index by node */
    bool shuffle;
    uint64_t seed;
    int64_t first; /* global number of the first sample to take */
    int64_t limit; /* global number past the last sample */
};

struct sdp_data_slot {
    struct sdp_batch batch;
    uint64_t digest; /* sum over real samples of mix(global number, index in the set) */
    struct event *uploaded;
    /* private */
    bool pending; /* uploaded has been recorded and is not known to have happened */
    int64_t number;
    int32_t *tokens, *targets;
    int64_t *samples;
    bool full;
};

struct sdp_data {
    struct sdp_data_plan plan;
    struct shard_set *set; /* borrowed */
    struct device *dev;
    struct sdp_data_slot *slots; /* [slot_count] */
    int64_t slot_count;
    struct sdp_data_thread *thread;
    int64_t taken; /* micro-batches given out */
};

/* Host bytes for micro-batches read ahead: those of two steps, and one more. */
int64_t sdp_data_bytes(int64_t batch, int64_t time, int64_t accumulation);
/* Starts the reading thread. memory: sdp_data_bytes of host memory, borrowed. */
enum status sdp_data_open(struct sdp_data *d, const struct sdp_data_plan *plan,
                          struct shard_set *set, struct device *dev, void *memory,
                          struct error *e) MUST_CHECK;
void sdp_data_close(struct sdp_data *d);
/* The next micro-batch of this rank, in order. */
enum status sdp_data_next(struct sdp_data *d, struct sdp_data_slot **slot,
                          struct error *e) MUST_CHECK;
/* slot->uploaded has been recorded. The slot is filled again once the upload is known to have
 * happened. */
void sdp_data_done(struct sdp_data *d, struct sdp_data_slot *slot);
/* The micro-batches before number `taken` have been uploaded, as the caller knows from what came
 * after them. Where nobody says so, sdp_data_next waits for the oldest upload when it needs the
 * slot. */
void sdp_data_uploaded(struct sdp_data *d, int64_t taken);
/* Real samples of the step that starts at global sample `first`. */
int64_t sdp_data_step_samples(const struct sdp_data_plan *plan, int64_t first);
#endif
