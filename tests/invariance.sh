#!/usr/bin/env bash
# The invariance matrix: one training curve for every way of splitting the work. Prints TAP.
#   tests/invariance.sh list pairs   the sample for every day: each pair of values of two factors occurs in a row
#   tests/invariance.sh list full    every combination of ranks x degree, micro-batch, checkpointing, offloading,
#                                    threshold and overlap; the other factors take turns
#   tests/invariance.sh run pairs|full [FIRST [LAST]]
#   tests/invariance.sh factors      the factors and their values
# Losses and gradient norms are compared, within 1e-5 relative, with one rank that takes the whole batch at once
# and saves nothing; the digest of the samples must be equal. fp32 sums of 24 samples in another order differ by
# about 1e-7, and 3 steps of AdamW make less than 1e-5 of that.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck disable=SC2034
BATS_TEST_TMPDIR=${MATRIX_TMP:-$(mktemp -d)}
[ -n "${MATRIX_TMP:-}" ] || trap 'rm -rf "$BATS_TEST_TMPDIR"' EXIT
bats_require_minimum_version() { :; }
. ./helper.bash
. ./sdp.bash

# Name and values. ws: ranks:degree. batch: samples a rank and micro-step of the 24 of a step ("all": no
# accumulation). offload: horizon. nodes: ranks of a pretended node, f(lat) or h(ierarchical) gathers.
factors() {
    cat <<'TABLE'
ws 1:1 2:1 2:2 3:1 3:3 4:1 4:2 4:4 6:1 6:2 6:3 6:6 8:1 8:2 8:4 8:8
batch 1 2 5 all
saver none each group_2 sublayer
offload 0 1 4
threshold 0 2000 1e9
overlap 0 1
buffers 1 2 9
bucket 777 5e8
nodes 0 2f 2h 3h
model tiny odd
dropout 0 0.1
logits 512MiB 64KiB
TABLE
}

# Greedy: every row takes the best of some random candidates, and starts from a pair that is still missing.
# The generator is written out, so that every awk gives the same list.
list_pairs() {
    factors | awk '
        function rnd(n) { seed = (seed * 16807) % 2147483647; return seed % n }
        function key(f, v, g, w) { return f < g ? f SUBSEP v SUBSEP g SUBSEP w : g SUBSEP w SUBSEP f SUBSEP v }
        { for (i = 2; i <= NF; i++) value[NR, i - 1] = $i; size[NR] = NF - 1 }
        END {
            seed = 20
            for (f = 1; f < NR; f++) for (g = f + 1; g <= NR; g++) for (v = 1; v <= size[f]; v++)
                for (w = 1; w <= size[g]; w++) { open[key(f, v, g, w)]; order[++pairs] = key(f, v, g, w) }
            for (next_pair = 1; next_pair <= pairs; ) {
                if (!(order[next_pair] in open)) { next_pair++; continue }
                split(order[next_pair], first, SUBSEP)
                best = -1
                for (try = 0; try < 60; try++) {
                    for (f = 1; f <= NR; f++) row[f] = 1 + rnd(size[f])
                    row[first[1]] = first[2]; row[first[3]] = first[4]
                    gain = 0
                    for (f = 1; f < NR; f++) for (g = f + 1; g <= NR; g++)
                        gain += (key(f, row[f], g, row[g]) in open)
                    if (gain > best) { best = gain; for (f = 1; f <= NR; f++) kept[f] = row[f] }
                }
                line = ""
                for (f = 1; f <= NR; f++) {
                    line = line (f > 1 ? " " : "") value[f, kept[f]]
                    for (g = f + 1; g <= NR; g++) delete open[key(f, kept[f], g, kept[g])]
                }
                print line
            }
        }'
}
list_full() {
    factors | awk '
        { for (i = 2; i <= NF; i++) value[NR, i - 1] = $i; size[NR] = NF - 1 }
        END {
            total = size[1] * size[2] * 2 * 2 * 2 * 2
            for (n = 0; n < total; n++) {
                k = n; turn = n
                v[1] = 1 + k % size[1]; k = int(k / size[1])
                v[2] = 1 + k % size[2]; k = int(k / size[2])
                v[3] = k % 2 ? 2 + turn % (size[3] - 1) : 1; k = int(k / 2)
                v[4] = k % 2 ? 2 + turn % (size[4] - 1) : 1; k = int(k / 2)
                v[5] = k % 2 ? size[5] : 1; k = int(k / 2)
                v[6] = 1 + k % 2
                for (f = 7; f <= NR; f++) { turn = int(turn / 2) + f * n; v[f] = 1 + turn % size[f] }
                line = value[1, v[1]]
                for (f = 2; f <= NR; f++) line = line " " value[f, v[f]]
                print line
            }
        }'
}

# The options of a row, without those of the model and the data.
row_options() { # ws batch saver offload threshold overlap buffers bucket nodes model dropout logits
    local ranks=${1%:*} batch=$2
    [ "$batch" != all ] || batch=$((24 / ranks))
    echo "--sharded-data-parallel-degree ${1#*:} --train-batch-size $batch --global-batch-size 24"
    [ "$3" = none ] || echo "--activation-checkpointing 1 --activation-strategy $3"
    [ "$4" = 0 ] || echo "--offload-activations 1 --activation-loading-horizon $4"
    echo "--sdp-param-persistence-threshold $5 --overlap $6 --sdp-unit-buffers $7 --sdp-reduce-bucket-size $8"
    [ "$9" = 0 ] || echo "--ranks-per-node ${9%[fh]}"
    case $9 in *f) echo "--sdp-hierarchical-allgather 0" ;; esac
    echo "--logits-memory ${12}"
}
# tiny: 2 layers from given weights. odd: 5 layers whose sizes no number of ranks here divides.
model_options() { # model dropout
    local p=$2
    case $1 in
    tiny) echo "--init-from $FIXTURES/golden-tiny" ;;
    odd) echo "--model gpt2-nano --num-layers 5 --hidden-width 40 --num-heads 5 --vocab-size 517" ;;
    esac
    echo "--resid-pdrop $p --embd-pdrop $p --attn-pdrop $p --training-dir $TMP/shards"
    echo "--max-steps 3 --lr 1e-3 --warmup 0 --weight-decay 0.1 --lr-decay-style cosine"
}
numbers() { # METRICS: step, loss, norm, digest
    sed -nE 's/.*"step":([0-9]+),.*"loss":([^,]+),.*"grad_norm":([^,]+),.*"samples_digest":"([^"]+)".*/\1 \2 \3 \4/p' "$1"
}
close_to() { # REFERENCE METRICS
    paste -d ' ' <(numbers "$1") <(numbers "$2") | awk '
        function far(a, b) { return !((a > b ? a - b : b - a) <= 1e-5 * a) }
        NF != 8 || $1 != NR || $1 != $5 || $4 != $8 || far($2, $6) || far($3, $7) { print "# " $0; bad = 1 }
        END { exit bad || NR != 3 }'
}
# The curve all others must follow, made when first needed.
reference() { # model dropout
    [ -e "$TMP/$1-$2.jsonl" ] ||
        ranks 1 $(model_options "$1" "$2") --train-batch-size 24 --metrics "$TMP/$1-$2.jsonl"
}
run_row() { # the twelve values
    # shellcheck disable=SC2046
    ranks "${1%:*}" $(row_options "$@") $(model_options "${10}" "${11}") --metrics "$TMP/row.jsonl" \
        2>"$TMP/row.err" </dev/null && close_to "$TMP/${10}-${11}.jsonl" "$TMP/row.jsonl"
}
run_rows() { # FIRST LAST, rows on stdin
    local rows row n=0 bad=0
    mapfile -t rows < <(sed -n "$1,${2}p")
    echo "1..${#rows[@]}"
    shards_of "$FIXTURES/golden-tiny" "$TMP/shards"
    for row in "${rows[@]}"; do
        n=$((n + 1))
        rm -f "$TMP/row.jsonl"
        # shellcheck disable=SC2086
        set -- $row
        reference "${10}" "${11}"
        if run_row "$@"; then
            echo "ok $n - $row"
        else
            echo "not ok $n - $row"
            echo "# mpirun -n ${1%:*} sdp-train" $(row_options "$@") $(model_options "${10}" "${11}")
            sed 's/^/# /' "$TMP/row.err"
            bad=1
        fi
    done
    return $bad
}

case ${1:-} in
factors) factors ;;
list) "list_${2:?pairs or full}" ;;
run) "list_${2:?pairs or full}" | run_rows "${3:-1}" "${4:-\$}" ;;
*) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
