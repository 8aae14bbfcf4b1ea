#!/usr/bin/env bats
# The nccl engine on the GPUs of this machine; the program is tests/unit/test_nccl.c.

load ../helper

@test "collectives, time-outs and lost ranks over NCCL" {
    program=${BUILD:-$ROOT/build}/tests/test_nccl
    [ -x "$program" ] || skip "test_nccl is not built (make unit)"
    run timeout 300 "$program"
    if [[ "$output" == *"needs a GPU and NCCL"* ]]; then skip "needs a GPU and NCCL"; fi
    status_is 0
    ! grep -q '^not ok' <<<"$output" || { echo "$output"; return 1; }
}
