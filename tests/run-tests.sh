#!/usr/bin/env bash
# Runs what is built: unit programs (TAP), then .bats files, and prints the counts line. Arguments pick
# tests by name (tests/run-tests.sh sdp-train test_comm).
set -uo pipefail
cd "$(dirname "$0")/.."
export BIN=${BIN:-$PWD/bin} BUILD=${BUILD:-$PWD/build}
case $BIN in /*) ;; *) BIN=$PWD/$BIN ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
UNIT_TIMEOUT=${UNIT_TIMEOUT:-600}
BATS_TIMEOUT=${BATS_TIMEOUT:-2400}

passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

selected() { # NAME: no arguments, or named in them
    [ ${#picks[@]} -eq 0 ] && return 0
    local p
    for p in "${picks[@]}"; do [ "$p" = "$1" ] && return 0; done
    return 1
}
# count NAME STATUS: adds the TAP in $log. A program that died counts as one failure.
count() {
    local ok bad skip plan
    skip=$(grep -ciE '^ok .*# skip' "$log")
    ok=$(($(grep -cE '^ok ' "$log") - skip))
    bad=$(grep -cE '^not ok ' "$log")
    plan=$(sed -nE 's/^1\.\.([0-9]+).*/\1/p' "$log" | tail -n 1)
    if [ "$bad" -eq 0 ] && { [ "$2" -ne 0 ] || [ "${plan:-none}" != $((ok + skip)) ]; }; then
        echo "not ok - $1 ended with status $2 after $((ok + skip)) of ${plan:-?} tests"
        bad=1
    fi
    if [ "$bad" -gt 0 ]; then cat "$log"; fi
    printf '%-28s %4d passed %3d failed %3d skipped  %4ds\n' "$1" "$ok" "$bad" "$skip" $((SECONDS - began))
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
}

picks=("$@")
for t in tests/unit/test_*.c; do
    name=$(basename "$t" .c)
    selected "$name" || continue
    began=$SECONDS
    (cd tests/unit && timeout "$UNIT_TIMEOUT" "$BUILD/tests/$name") >"$log" 2>&1
    count "$name" $?
done
for t in tests/*.bats; do
    name=$(basename "$t" .bats)
    selected "$name" || continue
    began=$SECONDS
    timeout "$BATS_TIMEOUT" bats --tap "$t" >"$log" 2>&1
    count "$name" $?
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
