#!/usr/bin/env bats
# Launchers and collectives under mpirun: right results for awkward numbers of ranks, and faults that
# end with a message instead of a hang. The program is tests/unit/test_comm.c.

load helper

setup() {
    need_command mpirun
    TEST_COMM=${BUILD:-$ROOT/build}/tests/test_comm
    [ -x "$TEST_COMM" ] || skip "test_comm is not built (make unit)"
}

# ranks N [MODE]: every rank's verdict is in the exit status; rank 0 prints TAP.
ranks() {
    run timeout 120 mpirun -n "$1" "$TEST_COMM" "${@:2}"
}
all_passed() {
    status_is 0
    ! grep -q '^not ok' <<<"$output" || { echo "$output"; return 1; }
    has "every rank passed"
}

@test "collectives on 1 rank under mpirun" { ranks 1; all_passed; }
@test "collectives on 2 ranks" { ranks 2; all_passed; }
@test "collectives on 3 ranks" { ranks 3; all_passed; }
@test "collectives on 4 ranks" { ranks 4; all_passed; }
@test "collectives on 8 ranks, more than this machine may have cores" { ranks 8; all_passed; }

@test "a stalled rank ends in a time-out that names rank, step, collective and who is missing" {
    SECONDS=0
    ranks 4 stall
    status_is 4
    has "rank 0, step 17, all_gather on communicator gather: time-out"
    has "waiting for rank 1 (at step 16)"
    [ "$SECONDS" -lt 30 ]
}

@test "a killed rank is noticed at once and named" {
    SECONDS=0
    ranks 4 kill
    [ "$status" -ne 0 ]
    has "all_gather on communicator gather: rank 1 has ended (it was at step 16)"
    [ "$SECONDS" -lt 30 ]
}

@test "a rank missing from an agreement is named" {
    ranks 4 late-agree
    status_is 4
    has "time-out: agreement"
    has "waiting for rank 1"
}

@test "of two communicators that fail, both tell what the first one saw" {
    ranks 3 two-comms
    status_is 4
    grep -E "rank [02], step 17, all_gather on communicator gather: time-out" <<<"$output"
    [[ "$output" != *"given up"* ]]
}

@test "waiting at the end for a rank that does not come can be limited" {
    SECONDS=0
    ranks 3 late-end
    status_is 4
    has "gave up waiting for the end of MPI"
    [ "$SECONDS" -lt 40 ]
}
