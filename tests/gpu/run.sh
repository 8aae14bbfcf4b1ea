#!/usr/bin/env bash
# make test-gpu: every test that needs an NVIDIA GPU; ends with "N passed, N failed, N skipped".
# BUILD: where the programs were built. Without a GPU everything is skipped, with a word.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
export BUILD=${BUILD:-build} BIN=${BIN:-bin} SDP_GPT2_SHARE=${SDP_GPT2_SHARE:-$PWD/share}
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
case $BIN in /*) ;; *) BIN=$PWD/$BIN ;; esac
build=$BUILD
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0

# tap NAME COMMAND...: runs a TAP program and counts its lines; ending badly is one more failure.
tap() {
    local name=$1 status ok bad skip
    shift
    timeout "${TEST_TIMEOUT:-600}" "$@" >"$log" 2>&1
    status=$?
    skip=$(grep -c '^ok .*# SKIP' "$log")
    ok=$(($(grep -c '^ok ' "$log") - skip))
    bad=$(grep -c '^not ok ' "$log")
    if [ "$bad" -eq 0 ] && [ "$status" -ne 0 ]; then bad=1; fi
    if [ "$bad" -gt 0 ]; then grep -vE '^ok ' "$log" | head -n "${TEST_LINES:-40}"; fi
    grep '# SKIP' "$log"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    echo "$name: $ok passed, $bad failed, $skip skipped (status $status)"
}

# checked TOOL COMMAND...: the command under compute-sanitizer, which must find nothing.
checked() {
    local tool=$1 sanitizer
    shift
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [ -z "$sanitizer" ] || [ "$has_gpu" -eq 0 ]; then
        skipped=$((skipped + 1))
        echo "$tool: skipped: needs a GPU and compute-sanitizer"
    elif timeout "${TEST_TIMEOUT:-600}" "$sanitizer" --tool "$tool" --error-exitcode 9 "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "$tool: clean: $*"
    else
        failed=$((failed + 1))
        head -n 60 "$log"
        echo "$tool: FAILED: $*"
    fi
}

has_gpu=0
for program in "$build/gpu/test_cuda_kernels" "$build/tests/test_parity"; do
    [ -x "$program" ] || { echo "test-gpu: $program is not built (make CUDA=1 gpu-programs unit)"; exit 1; }
done
# The whole output, so that a pipe closed early does not look like a missing GPU.
quick=$("$build/gpu/test_cuda_kernels" --quick 2>/dev/null)
if grep -v 'SKIP\|^1\.\.' <<<"$quick" | grep -q .; then has_gpu=1; fi

tap kernels "$build/gpu/test_cuda_kernels"
tap parity "$build/tests/test_parity" cuda
checked memcheck "$build/gpu/test_cuda_kernels" --quick
checked racecheck "$build/gpu/test_cuda_kernels" --quick
for part in skinny attention_cached decode_blocks head_logprobs; do # what decoding and scoring are made of
    checked memcheck "$build/tests/test_parity" cuda $part
    checked racecheck "$build/tests/test_parity" cuda $part
done
# The last one takes the GPU by itself: --device auto.
for script in tests/gpu/*.bats tests/sdp-nonfinite.bats; do
    [ -e "$script" ] || continue
    if [ "$has_gpu" -eq 0 ]; then
        n=$(grep -c '^@test' "$script")
        skipped=$((skipped + n))
        echo "$script: $n skipped: no GPU"
        continue
    fi
    tap "$(basename "$script" .bats)" bats --tap "$script"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
