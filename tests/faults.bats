# What happens to sdp-train when something dies, stalls, or asks it to stop.
load helper
load sdp

TINY=$FIXTURES/golden-tiny

setup_file() {
    shards_of "$TINY" "$BATS_FILE_TMPDIR/shards"
}
setup() {
    SHARDS=$BATS_FILE_TMPDIR/shards
    BASE="--model gpt2-nano --vocab-size 512 --training-dir $SHARDS --lr 1e-3 --train-batch-size 1 --global-batch-size 6"
    cd "$TMP"
}
# start W OPTIONS: a run in the background; LAUNCHER is its process.
start() {
    local w=$1
    shift
    timeout -k 5 120 mpirun -n "$w" sdp-train "$@" >out 2>err &
    LAUNCHER=$!
}
# Ranks of this test's own run: descendants of LAUNCHER.
rank_pids() {
    local parent child
    for parent in $(pgrep -P "$LAUNCHER"); do
        for child in $(pgrep -P "$parent"); do
            [ "$(cat "/proc/$child/comm" 2>/dev/null)" = sdp-train ] && echo "$child"
        done
    done
}
# kill_job: kill -9 of everything that start started; false when it had ended already. The launcher is stopped
# first, so that it starts no rank that the list misses.
kill_job() {
    local mpirun=
    while [ -z "$mpirun" ] && kill -0 "$LAUNCHER" 2>/dev/null; do
        mpirun=$(pgrep -P "$LAUNCHER")
    done
    [ -n "$mpirun" ] && kill -STOP "$mpirun" 2>/dev/null
    local pids
    pids="$(rank_pids) $mpirun"
    kill -9 $pids 2>/dev/null
    wait "$LAUNCHER" 2>/dev/null && return 1
    return 0
}
# until_step N FILE: waits until the metrics have reached step N.
until_step() {
    local i
    for ((i = 0; i < 600; i++)); do
        [ -s "$2" ] && grep -q "\"step\":$1," "$2" && return 0
        kill -0 "$LAUNCHER" || break
        sleep 0.1
    done
    echo "no step $1 within a minute"
    cat err
    return 1
}

@test "SIGTERM and SIGUSR1 end after the step with a checkpoint, and the run goes on from there" {
    local signal
    for signal in TERM USR1; do
        rm -rf ck m.jsonl
        start 3 $BASE --max-steps 1000000 --lr-decay-iters 100 --checkpoint-dir ck --metrics m.jsonl
        until_step 5 m.jsonl
        kill -$signal $(rank_pids | head -n 1)
        wait $LAUNCHER
        [ "$(cat out)" = "$(ls -d ck/step-*)" ]
        grep -q "told to stop" err
        n=$((10#$(sed 's/.*step-//' out)))
        ranks 2 $BASE --max-steps $((n + 2)) --lr-decay-iters 100 --checkpoint-dir ck --load-partial 1 --metrics m.jsonl
        ranks 1 $BASE --max-steps $((n + 2)) --lr-decay-iters 100 --metrics straight.jsonl
        near_curve straight.jsonl m.jsonl
    done
}

@test "a rank that dies ends the job in seconds, and the message names it, the step and the collective" {
    start 3 $BASE --quiet --max-steps 1000000 --metrics m.jsonl --collective-timeout 20
    until_step 5 m.jsonl
    SECONDS=0
    kill -9 $(rank_pids | sed -n 2p)
    status=0
    wait $LAUNCHER || status=$?
    [ "$status" -ne 0 ]
    [ $SECONDS -lt 15 ]
    [ "$(grep -c 'error:' err)" -eq 1 ] || { cat err; return 1; }
    grep -E "step [0-9]+, (all_gather|reduce_scatter|all_reduce).*rank [0-9] has ended" err
}

@test "a rank that stalls ends the job within the time-out" {
    start 3 $BASE --quiet --max-steps 1000000 --metrics m.jsonl --collective-timeout 2
    until_step 5 m.jsonl
    SECONDS=0
    kill -STOP $(rank_pids | sed -n 2p)
    status=0
    wait $LAUNCHER || status=$?
    [ "$status" -eq 4 ]
    [ $SECONDS -lt 20 ]
    [ "$(grep -c 'error:' err)" -eq 1 ] || { cat err; return 1; }
    grep -E "time-out: call [0-9]+ did not complete within 2000 ms" err
}

# A program that stops rank 1 before its first instruction.
stop_rank_1() {
    printf '#!/bin/sh\n[ "${OMPI_COMM_WORLD_RANK-$RANK}" = 1 ] && kill -STOP $$\nexec "$@"\n' >stopping
    chmod +x stopping
}

@test "a rank that stops before it starts MPI ends the job within the time-out, and itself" {
    stop_rank_1
    SECONDS=0
    run timeout -k 5 100 mpirun -n 3 ./stopping sdp-train $BASE --quiet --max-steps 2 --collective-timeout 3
    status_is 4
    [ $SECONDS -lt 60 ]
    [ "$(grep -c 'sdp-train.*error:' <<<"$output")" -eq 1 ] || { echo "$output"; return 1; }
    has "time-out: not all ranks came to the start of MPI within 3 s"
    [ -z "$(pgrep -f "^/bin/sh ./stopping sdp-train .*--training-dir $SHARDS ")" ]
}

@test "ranks without a launcher do not wait for one that stops before it starts, and name it" {
    local r pid=() port=$((20000 + RANDOM % 10000))
    stop_rank_1
    for r in 0 1 2; do
        RANK=$r WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout -k 5 100 ./stopping sdp-train $BASE --quiet \
            --max-steps 2 --collective-timeout 3 2>err.$r &
        pid[r]=$!
    done
    SECONDS=0
    for r in 0 2; do
        status=0
        wait ${pid[r]} || status=$?
        [ "$status" -eq 4 ] || { cat err.*; return 1; }
        [ "$(grep -c 'error:' err.$r)" -eq 1 ] || { cat err.*; return 1; }
    done
    [ $SECONDS -lt 60 ]
    grep -q "waiting for rank 1" err.0 || { cat err.*; return 1; }
    kill -CONT $(pgrep -P ${pid[1]}) # it finds nobody, and ends, too
    status=0
    wait ${pid[1]} || status=$?
    [ "$status" -eq 4 ]
    grep -q "rank 1 cannot reach rank 0" err.1
}

@test "killed at random moments, a job always resumes and follows the same curve" {
    local kills=${KILLS:-50} i w steps=600 died=0
    [ -n "${SMALL:-}" ] && kills=2 steps=30
    ranks 1 $BASE --max-steps $steps --metrics straight.jsonl
    for ((i = 0; i < kills; i++)); do
        w=$((1 + RANDOM % 3))
        start $w $BASE --quiet --max-steps $steps --checkpoint-dir ck --checkpoint-freq 2 --num-kept-checkpoints 2 \
            --load-partial auto --metrics m.jsonl
        # From before the first step into the middle of the run, much of it spent writing checkpoints.
        sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", 0.2 + r / 32768 * 0.8 }')"
        kill_job && died=$((died + 1))
    done
    [ "$died" -ge $((kills / 2)) ]
    ranks 2 $BASE --max-steps $steps --checkpoint-dir ck --checkpoint-freq 100 --load-partial auto --metrics m.jsonl
    near_curve straight.jsonl m.jsonl
}
