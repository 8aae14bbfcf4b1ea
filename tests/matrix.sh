#!/usr/bin/env bash
# The invariance matrix: one curve for every way to run the same batches. Prints TAP, one line a combination.
#   tests/matrix.sh [pairs|full]     pairs: every pair of values of any two factors at least once (what CI
#                                    runs); full: all combinations (make test-matrix)
set -uo pipefail
cd "$(dirname "$0")/.."
BATS_TEST_TMPDIR=$(mktemp -d)
trap 'rm -rf "$BATS_TEST_TMPDIR"' EXIT
bats_require_minimum_version() { :; }
. tests/helper.bash
. tests/sdp.bash
cd "$TMP" || exit 1
shards_of "$FIXTURES/golden-tiny" shards || exit 1
BASE="--model gpt2-nano --num-layers 3 --vocab-size 512 --training-dir shards --max-steps 3 --global-batch-size 12
    --lr 1e-3 --warmup 0"

# Factors and their values. W:S are ranks and degree; a batch of 5 leaves places empty.
factors=(
    "1:1 2:1 2:2 3:1 3:3 4:1 4:2 4:4 6:1 6:2 6:3 6:6 8:1 8:2 8:4 8:8"
    "--train-batch-size=1 --train-batch-size=2 --train-batch-size=5"
    "--activation-checkpointing=0 --activation-checkpointing=1 --activation-checkpointing=1,--activation-strategy=group_2 --activation-checkpointing=1,--activation-strategy=sublayer"
    "--offload-activations=0 --offload-activations=1,--activation-loading-horizon=1"
    "--sdp-param-persistence-threshold=0 --sdp-param-persistence-threshold=2000 --sdp-param-persistence-threshold=1e12"
    "--overlap=0 --overlap=1"
    "--ranks-per-node=0 --ranks-per-node=2"
    "--sdp-unit-buffers=2 --sdp-unit-buffers=3"
)
# Lines of factor values, one combination a line.
combinations() {
    printf '%s\n' "${factors[@]}" | python3 -c '
import itertools, random, sys
factors = [line.split() for line in sys.stdin]
if sys.argv[1] == "full":
    rows = itertools.product(*factors)
else:  # greedy pairwise cover, the same every time
    random.seed(1)
    todo = {(i, a, j, b) for i, j in itertools.combinations(range(len(factors)), 2) for a in factors[i] for b in factors[j]}
    rows = []
    while todo:
        best, gain = None, -1
        for _ in range(60):
            i, a, j, b = random.choice(sorted(todo))
            row = [random.choice(f) for f in factors]
            row[i], row[j] = a, b
            g = sum((p, row[p], q, row[q]) in todo for p, q in itertools.combinations(range(len(factors)), 2))
            if g > gain:
                best, gain = row, g
        rows.append(best)
        todo -= {(p, best[p], q, best[q]) for p, q in itertools.combinations(range(len(factors)), 2)}
for row in rows:
    print(*row)' "$1"
}

ranks 1 $BASE --train-batch-size 12 --metrics straight.jsonl || exit 1
n=0 failed=0
while read -r split rest; do
    n=$((n + 1))
    rest=${rest//,/ }
    rm -f m.jsonl
    if ranks "${split%:*}" $BASE --sharded-data-parallel-degree "${split#*:}" $rest --metrics m.jsonl &&
        near_curve straight.jsonl m.jsonl; then
        echo "ok $n - $split $rest"
    else
        echo "not ok $n - $split $rest"
        failed=$((failed + 1))
    fi
done < <(combinations "${1:-pairs}")
echo "1..$n"
[ "$failed" -eq 0 ]
