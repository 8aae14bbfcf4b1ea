/* Groups and layouts: every element owned once, whatever the ranks, degree and threshold. */
#include "sdp/groups.h"
#include "sdp/layout.h"

#include <stdlib.h>

#include "tap.h"

static struct gpt2_config tiny(void)
{
    struct gpt2_config c = {
        .layers = 3, .heads = 3, .channels = 24, .context = 10, .vocab = 37, .epsilon = 1e-5f};
    return c;
}

/* Marks owned elements of every tensor; each must be marked exactly once over all places. */
static void check_cover(int degree, int64_t threshold)
{
    struct gpt2_config c = tiny();
    struct gpt2_tensors t;
    struct sdp_layout l;
    struct error e = {0};
    CHECK(gpt2_tensors_create(&t, &c, &e) == STATUS_OK);
    CHECK(sdp_layout_create(&l, &t, degree, threshold, &e) == STATUS_OK);
    int64_t total = 0, owned = 0, small = 0;
    for (int64_t i = 0; i < t.count; i++) {
        unsigned char *seen = calloc((size_t)t.tensors[i].elems, 1);
        int64_t u = l.tensor_unit[i];
        for (int place = 0; place < degree; place++) {
            int64_t begin = place * l.unit[u].shard, cursor = 0;
            struct sdp_segment s;
            while (sdp_layout_next(&l, u, begin, begin + l.unit[u].shard, &cursor, &s))
                for (int64_t j = 0; s.tensor == i && j < s.count; j++)
                    seen[s.first + j]++;
        }
        for (int64_t j = 0; j < t.tensors[i].elems; j++)
            owned += seen[j] == 1;
        total += t.tensors[i].elems;
        small += u == l.units - 1;
        free(seen);
        bool decay = l.tensor_offset[i] < l.unit[u].decay;
        CHECK(decay == t.tensors[i].decay);
    }
    CHECK_INT(owned, total);
    CHECK_INT(total, gpt2_parameters(&c));
    CHECK_INT(small, threshold == 0 ? 2 : threshold > 100000 ? t.count - 2 : small);
    for (int64_t u = 0; u < l.units; u++) {
        CHECK_INT(l.unit[u].elems % (degree * SDP_ALIGN), 0);
        CHECK_INT(l.unit[u].shard * degree, l.unit[u].elems);
    }
    sdp_layout_release(&l);
    gpt2_tensors_release(&t);
}

int main(void)
{
    struct sdp_groups g;
    struct error e = {0};

    CASE("each element has one owner for every degree and threshold")
    {
        int degrees[] = {1, 2, 3, 4, 5, 7, 8, 64};
        int64_t thresholds[] = {0, 50, 600, 1000000};
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < 4; j++)
                check_cover(degrees[i], thresholds[j]);
    }
    CASE("consecutive ranks shard, ranks of the same place replicate")
    {
        CHECK(sdp_groups_make(&g, 6, 4, 2, NULL, true, &e) == STATUS_OK);
        CHECK_INT(g.replicas, 3);
        CHECK_INT(g.replica, 2);
        CHECK_INT(g.place, 0);
        CHECK(!g.hierarchical);
    }
    CASE("ranks dealt out over nodes in turn are brought together by node")
    {
        int32_t nodes[] = {0, 1, 0, 1};
        int want_replica[] = {0, 1, 0, 1}, want_place[] = {0, 0, 1, 1};
        for (int r = 0; r < 4; r++) {
            CHECK(sdp_groups_make(&g, 4, r, 2, nodes, true, &e) == STATUS_OK);
            CHECK_INT(g.replica, want_replica[r]);
            CHECK_INT(g.place, want_place[r]);
            CHECK_INT(g.group_nodes, 1);
        }
    }
    CASE("groups over nodes gather in stages only when every node has as many ranks")
    {
        int32_t even[] = {0, 0, 1, 1}, uneven[] = {0, 0, 0, 1}, single[] = {0, 1, 2, 3};
        CHECK(sdp_groups_make(&g, 4, 3, 4, even, true, &e) == STATUS_OK);
        CHECK(g.hierarchical && g.group_nodes == 2 && g.node_ranks == 2);
        CHECK(sdp_groups_make(&g, 4, 3, 4, even, false, &e) == STATUS_OK);
        CHECK(!g.hierarchical && g.group_nodes == 2);
        CHECK(sdp_groups_make(&g, 4, 3, 4, uneven, true, &e) == STATUS_OK);
        CHECK(!g.hierarchical && g.group_nodes == 1);
        CHECK(sdp_groups_make(&g, 4, 3, 4, single, true, &e) == STATUS_OK);
        CHECK(!g.hierarchical && g.node_ranks == 1);
        /* Two groups of two over three nodes: one is inside a node, the other is not; all flat. */
        int32_t mixed[] = {0, 0, 1, 2};
        for (int r = 0; r < 4; r++) {
            CHECK(sdp_groups_make(&g, 4, r, 2, mixed, true, &e) == STATUS_OK);
            CHECK(!g.hierarchical);
        }
    }
    CASE("a degree that does not divide names its neighbours")
    {
        CHECK(sdp_degree_check(12, 5, &e) == STATUS_USAGE);
        CHECK_CONTAINS(e.message, "degree 5 does not divide 12 ranks");
        CHECK_CONTAINS(e.message, "4 and 6");
        CHECK(sdp_degree_check(12, 13, &e) == STATUS_USAGE);
        CHECK_CONTAINS(e.message, "12");
        CHECK(sdp_degree_check(7, 0, &e) == STATUS_USAGE);
        CHECK(sdp_degree_check(7, 7, &e) == STATUS_OK);
    }
    return tap_done();
}
