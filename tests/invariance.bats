# Every way of splitting the work gives one curve (tests/invariance.sh), and where sums are exact or the partition
# is the same, the same bits.
load helper
load sdp

setup() {
    start_in_tmp
    # Five blocks whose sizes nothing here divides; random weights.
    ODD="--model gpt2-nano --num-layers 5 --hidden-width 40 --num-heads 5 --vocab-size 517 --training-dir $SHARDS
        --lr 1e-3 --warmup 0 --weight-decay 0.1"
}
# bits CHECKPOINT_DIR METRICS: master, m and v of every tensor, and the losses: all that a run leaves, as text.
bits() {
    tensors_of "$1"/step-*
    curve "$2" | awk '{ print $1, $2, $4 }'
}
# same_bits A B WHAT: the first differing lines when not.
same_bits() {
    cmp -s "$1" "$2" && return 0
    echo "$3: $(diff "$1" "$2" | grep -c '^<') of $(wc -l <"$1") lines differ"
    diff "$1" "$2" | head -n 5
    return 1
}

@test "the sample of the matrix holds every pair of values, and no row twice" {
    "$ROOT/tests/invariance.sh" factors >factors
    "$ROOT/tests/invariance.sh" list pairs >rows
    "$ROOT/tests/invariance.sh" list full >full
    python3 - factors rows full <<'PY'
import itertools, sys
factors = [line.split()[1:] for line in open(sys.argv[1])]
rows, full = ([tuple(line.split()) for line in open(p)] for p in sys.argv[2:])
assert all(len(r) == len(factors) and all(v in f for v, f in zip(r, factors)) for r in rows + full)
for (i, f), (j, g) in itertools.combinations(enumerate(factors), 2):
    missing = set(itertools.product(f, g)) - {(r[i], r[j]) for r in rows}
    assert not missing, missing
assert len(set(rows)) == len(rows) < 100 and len(set(full)) == len(full) == 16 * 4 * 2**4
PY
}

@test "ranks, degrees, micro-batches, savers, buffers, buckets, nodes and overlap give one curve" {
    local last='$'
    [ -n "${SMALL:-}" ] && last=12
    run env MATRIX_TMP="$TMP" "$ROOT/tests/invariance.sh" run pairs 1 "$last"
    grep -v '^ok' <<<"$output" || true
    status_is 0
    # The comparison can fail: other dropout is another curve.
    ! near_curve tiny-0.jsonl tiny-0.1.jsonl >/dev/null
}

# With one real sample in a step, or two on different ranks, every sum over ranks and replicas is a + 0 or a + b:
# no rounding depends on order. (A rank that takes both adds the second inside its matrix products, which is another
# order.) Clipping is off: the norm alone is summed by shards.
@test "sums that are exact give equal bits on every number of ranks and degree" {
    local base="$ODD --max-steps 3 --train-batch-size 1 --grad-clip 0 --resid-pdrop 0.1 --embd-pdrop 0.1 --attn-pdrop 0.1"
    local global split w s threshold splits="1:1 2:1 2:2 3:3 4:2 4:4 6:2 6:3 8:1 8:4 8:8"
    [ -n "${SMALL:-}" ] && splits="1:1 2:2 4:2"
    for global in 1 2; do
        threshold=0
        rm -f want
        for split in $splits; do
            w=${split%:*} s=${split#*:}
            [ "$w" -ge "$global" ] || continue
            rm -rf ck && ranks $w $base --global-batch-size $global --sharded-data-parallel-degree $s \
                --sdp-param-persistence-threshold $threshold --checkpoint-dir ck --metrics m.jsonl >/dev/null
            bits ck m.jsonl >got
            [ -e want ] || cp got want
            same_bits want got "$split, $global samples, threshold $threshold"
            threshold=$((threshold ? threshold == 100 ? 1000000000 : 0 : 100))
        done
    done
    [ "$(wc -l <want)" -eq $((5 * 12 + 4 + 3)) ]
}

@test "overlap, buffers, buckets and savers leave equal bits" {
    local w=6 base m=0 options
    base="$ODD --max-steps 3 --train-batch-size 2 --global-batch-size 25 --sharded-data-parallel-degree 3"
    [ -n "${SMALL:-}" ] && w=2 base=${base/degree 3/degree 2}
    ranks $w $base --checkpoint-dir ck --metrics m.jsonl >/dev/null
    bits ck m.jsonl >want
    while read -r options <&3; do # mpirun reads stdin
        rm -rf ck && ranks $w $base $options --checkpoint-dir ck --metrics m.jsonl >/dev/null
        bits ck m.jsonl >got
        same_bits want got "$options"
        m=$((m + 1))
    done 3<<'LIST'
--overlap 0
--overlap 0 --sdp-unit-buffers 1 --sdp-reduce-bucket-size 99
--sdp-unit-buffers 2 --sdp-reduce-bucket-size 1001
--sdp-max-live-parameters 30000
--sdp-unit-buffers 5 --activation-checkpointing 1
--activation-checkpointing 1 --activation-strategy sublayer --offload-activations 1 --activation-loading-horizon 2
--activation-checkpointing 1 --activation-strategy group_3
--offload-activations 1 --activation-loading-horizon 1 --overlap 0
LIST
    [ "$m" -eq 8 ]
}

@test "a hierarchical gather leaves the bits of a flat one, with nodes of 2, 3 and 4 ranks" {
    [ -z "${SMALL:-}" ] || skip "the plain build runs it"
    local base="$ODD --max-steps 3 --train-batch-size 1 --global-batch-size 16 --sharded-data-parallel-degree"
    local w s per split hierarchical
    memory() { field_of <(head -n 1 "$1") '["memory_bytes"]'; }
    for split in 8:8:2 8:8:4 6:6:3 8:4:2; do
        IFS=: read -r w s per <<<"$split"
        for hierarchical in 0 1; do
            rm -rf ck && ranks $w $base $s --ranks-per-node $per --sdp-hierarchical-allgather $hierarchical \
                --checkpoint-dir ck --metrics $hierarchical.jsonl >/dev/null
            bits ck $hierarchical.jsonl >bits.$hierarchical
        done
        same_bits bits.0 bits.1 "$split"
        # It was another route: the stage between nodes has a buffer of its own.
        [ "$(memory 0.jsonl)" -lt "$(memory 1.jsonl)" ]
    done
}

@test "without clipping the persistence threshold leaves equal bits" {
    local base="$ODD --max-steps 3 --train-batch-size 2 --global-batch-size 12 --grad-clip 0" w=3 t
    for t in 0 41 1000 1e9; do
        rm -rf ck && ranks $w $base --sdp-param-persistence-threshold $t --checkpoint-dir ck --metrics m.jsonl >/dev/null
        bits ck m.jsonl >bits.$t
        same_bits bits.0 bits.$t "threshold $t"
    done
}

# Working copies are rounded to 8 (bf16) or 11 (fp16) bits, so a sum that differs in its last fp32 bit can now and
# then round a weight the other way. Over six steps that stays below 1e-4 of the loss; bf16 on the wire rounds
# gradients to 2^-9 too and stays below 1e-3.
@test "bf16 and fp16 keep one curve over degrees, and their savers equal bits" {
    local base="$ODD --max-steps 6 --train-batch-size 2 --global-batch-size 24" p s w=6 degrees="1 2 3 6"
    [ -n "${SMALL:-}" ] && w=2 degrees="1 2"
    for p in "bf16 1" "fp16 1" "bf16 1 --reduce-dtype bf16"; do
        for s in $degrees; do
            ranks $w $base --$p --sharded-data-parallel-degree $s --metrics $s.jsonl
        done
        ranks $w $base --$p --sharded-data-parallel-degree $w --metrics saver.jsonl --activation-checkpointing 1 --overlap 0
        same_curve $w.jsonl saver.jsonl
        python3 - "$p" 1 $degrees <<'PY'
import json, sys
limit = 1e-3 if "reduce" in sys.argv[1] else 1e-4
runs = [[r for r in map(json.loads, open(s + ".jsonl")) if "loss" in r] for s in sys.argv[2:]]
for run in runs[1:]:
    assert len(run) == len(runs[0]) == 6
    for a, b in zip(runs[0], run):
        assert a["samples_digest"] == b["samples_digest"]
        assert abs(a["loss"] - b["loss"]) <= limit * a["loss"], (sys.argv[1], a["step"], a["loss"], b["loss"])
PY
    done
}

@test "a device that works behind the host computes the same bits on several ranks" {
    local w program=${BUILD:-$ROOT/build}/tests/test_sdp_step
    [ -x "$program" ] || skip "test_sdp_step is not built (make unit)"
    for w in 2 4; do
        [ -n "${SMALL:-}" ] && [ $w -gt 2 ] && break
        run timeout 100 mpirun -n $w "$program"
        status_is 0
        has "ok 2 - sharded, replicated and overlapped"
    done
}
