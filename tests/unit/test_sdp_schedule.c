/* Learning rates against values of Megatron-LM's AnnealingLR, loss scaling, order of samples. */
#include "sdp/data.h"
#include "sdp/schedule.h"
#include "sdp/state.h"

#include <stdlib.h>

#include "tap.h"

static void check_rates(enum sdp_decay decay, const int64_t *steps, const double *want, int n)
{
    /* 100 steps, 10 of warm-up, a plateau until 50, peak 1, floor 0.1 */
    struct sdp_schedule s = {.decay = decay,
                             .lr = 1,
                             .min_lr = 0.1,
                             .warmup_steps = 10,
                             .plateau_steps = 50,
                             .decay_steps = 100};
    for (int i = 0; i < n; i++)
        CHECK_NEAR(sdp_schedule_lr(&s, steps[i]), want[i], 1e-12);
}

static void check_permutation(uint64_t n)
{
    unsigned char *seen = calloc(n, 1);
    uint64_t fixed = 0, same_epoch = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t p = sdp_permute(i, n, 7, 0);
        CHECK(p < n && !seen[p]);
        seen[p < n ? p : 0] = 1;
        fixed += p == i;
        same_epoch += p == sdp_permute(i, n, 7, 1);
    }
    if (n > 100) {
        CHECK(fixed < 10);
        CHECK(same_epoch < 10);
    }
    free(seen);
}

int main(void)
{
    CASE("schedules have AnnealingLR's values")
    {
        const int64_t steps[] = {0, 5, 10, 30, 90, 99, 200};
        const double constant[] = {0, 0.5, 1, 1, 1, 1, 1};
        const double linear[] = {0, 0.5, 1, 0.8, 0.2, 0.2, 0.2}; /* held at N - w, as there */
        const double cosine[] = {0, 0.5, 1, 0.9045084971874737, 0.1, 0.1, 0.1};
        const double exponential[] = {0,
                                      0.5,
                                      1,
                                      0.8705761892971605,
                                      0.5744168079068306,
                                      0.5744168079068306,
                                      0.5744168079068306};
        const double plateau[] = {0, 0.5, 1, 1, 0.2, 0.1, 0.1};
        check_rates(SDP_DECAY_CONSTANT, steps, constant, 7);
        check_rates(SDP_DECAY_LINEAR, steps, linear, 7);
        check_rates(SDP_DECAY_COSINE, steps, cosine, 7);
        check_rates(SDP_DECAY_EXPONENTIAL, steps, exponential, 7);
        check_rates(SDP_DECAY_PLATEAU, steps, plateau, 7);
    }
    CASE("cosine-to-min and warmup-stable-decay end at the floor")
    {
        const int64_t steps[] = {5, 10, 50, 55, 75, 100, 150};
        const double cosine[] = {0.5, 1, 0.1 + 0.45 * (1 + 0.17364817766693041), 0.55, 0, 0.1, 0.1};
        const double wsd[] = {0.5, 1, 1, 0.91, 0.55, 0.1, 0.1};
        check_rates(SDP_DECAY_COSINE_TO_MIN, steps, cosine, 4);
        check_rates(SDP_DECAY_COSINE_TO_MIN, steps + 5, cosine + 5, 2);
        check_rates(SDP_DECAY_WSD, steps, wsd, 7);
    }
    CASE("the loss scale halves after its hysteresis, stops at its minimum, doubles after its "
         "window")
    {
        struct sdp_loss_scale s = sdp_loss_scale_start(8, 1, 3, 2);
        sdp_loss_scale_update(&s, true);
        CHECK_NEAR(s.scale, 8, 0);
        sdp_loss_scale_update(&s, true);
        CHECK_NEAR(s.scale, 4, 0);
        for (int i = 0; i < 5; i++)
            sdp_loss_scale_update(&s, true);
        CHECK_NEAR(s.scale, 1, 0);
        for (int i = 0; i < 3; i++)
            sdp_loss_scale_update(&s, false);
        CHECK_NEAR(s.scale, 2, 0);
        sdp_loss_scale_update(&s, true); /* the hysteresis is whole again */
        CHECK_NEAR(s.scale, 2, 0);
        sdp_loss_scale_update(&s, false);
        sdp_loss_scale_update(&s, false);
        CHECK_NEAR(s.scale, 2, 0); /* the window starts anew after an overflow */
        sdp_loss_scale_update(&s, false);
        CHECK_NEAR(s.scale, 4, 0);
    }
    CASE("the order of samples is a permutation, another one every epoch")
    {
        uint64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 781, 4096, 4097};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            check_permutation(sizes[i]);
        CHECK(sdp_permute(123456789012ull, 1ull << 40, 1, 3) < 1ull << 40);
    }
    CASE("the last step of a run takes what is left")
    {
        struct sdp_data_plan p = {.step_samples = 9, .limit = 80};
        CHECK_INT(sdp_data_step_samples(&p, 0), 9);
        CHECK_INT(sdp_data_step_samples(&p, 72), 8);
        CHECK_INT(sdp_data_step_samples(&p, 81), 0);
    }
    CASE("a state survives JSON, and a state with a hole is named")
    {
        struct error e = {0};
        struct sdp_state b, a = {.step = 3,
                                 .adam_steps = 2,
                                 .samples = 1ll << 40,
                                 .tokens = 5,
                                 .skipped = 1,
                                 .consumed = 0xfedcba9876543210ull,
                                 .scale = sdp_loss_scale_start(4096, 1, 7, 2),
                                 .seed = 9,
                                 .shuffle = true,
                                 .data_digest = 0x8000000000000001ull,
                                 .data_samples = 80};
        json_t *json = sdp_state_to_json(&a);
        CHECK(json != NULL);
        CHECK(sdp_state_from_json(json, "x", &b, &e) == STATUS_OK);
        CHECK(b.step == 3 && b.adam_steps == 2 && b.samples == 1ll << 40 && b.shuffle);
        CHECK(b.consumed == a.consumed && b.data_digest == a.data_digest && b.seed == 9);
        CHECK(b.scale.scale == 4096 && b.scale.window == 7 && b.scale.tolerance == 2);
        json_object_del(json, "consumed_digest");
        CHECK(sdp_state_from_json(json, "manifest", &b, &e) == STATUS_DATA);
        CHECK_CONTAINS(e.message, "consumed_digest");
        json_decref(json);
    }
    return tap_done();
}
