# What happens to sdp-train when it is killed, stalls, is asked to stop, loses its launcher, or the disk is full: one
# message, nothing left running, and what is on disk resumes. KILLS=N changes the number of random kills.
load helper
load sdp

setup() {
    start_in_tmp
    # Five blocks whose sizes nothing here divides.
    ODD="--model gpt2-nano --num-layers 5 --hidden-width 40 --num-heads 5 --vocab-size 517 --training-dir $SHARDS
        --lr 1e-3 --train-batch-size 1 --global-batch-size 12 --quiet"
    ENDLESS="$ODD --max-steps 1000000 --lr-decay-iters 100 --metrics m.jsonl"
    JOB=
}
teardown() {
    kill_job || true
    if [ -n "${MOUNTED:-}" ]; then umount "$MOUNTED"; fi
}

# start W OPTIONS: a job in a session of its own, in the background; JOB is the session. "alone" starts no launcher.
start() {
    local launch="mpirun -n $1"
    [ "$1" != alone ] || launch=
    shift
    rm -f pid
    setsid bash -c 'echo $$ >pid.new && mv pid.new pid && exec "$@"' _ \
        timeout 120 $launch ${WRAPPER:-} sdp-train "$@" >out 2>err </dev/null 3>&- &
    WAITED=$!
    while [ ! -e pid ]; do sleep 0.01; done
    JOB=$(cat pid)
}
members() { ps -s "$JOB" -o pid=,comm=; } # of the job's session: launcher and ranks
rank_pids() { members | awk '$2 == "sdp-train" { print $1 }' | sort -n; } # started in rank order
launcher_pid() { members | awk '$2 == "mpirun" || $2 == "orterun" { print $1 }'; }
# kill_job: everything at once, as when a machine loses power. mpirun may be gone already.
kill_job() {
    [ -n "$JOB" ] || return 0
    local pids
    pids=$(members | awk '{ print $1 }')
    [ -z "$pids" ] || kill -9 $pids 2>/dev/null || true
    wait "$WAITED" 2>/dev/null || true
    JOB=
}
last_step() { sed -nE 's/^\{"step":([0-9]+),.*/\1/p' "$1" 2>/dev/null | tail -n 1; }
past() { local n; n=$(last_step m.jsonl); [ "${n:-0}" -ge "$1" ]; }
gone() { [ -z "$(members)" ]; }
# saving: a checkpoint is under way (a folder without manifest).
saving() {
    local d
    for d in ck/step-*; do
        [ -d "$d" ] && [ ! -e "$d/manifest.json" ] && return 0
    done
    return 1
}
# wait_for SECONDS COMMAND: until the command succeeds.
wait_for() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $until ] || return 1
        sleep 0.02
    done
}
# reaches STEP: the running job gets there.
reaches() {
    wait_for 60 past "$1" && return 0
    echo "step $1 is not reached"
    cat err
    return 1
}
# ends STATUS: the job ends by itself with that status ("failure": any but 0) and leaves no process.
ends() {
    local status=0
    wait_for 60 gone || { echo "still running:"; members; tail -n 1 m.jsonl; cat err; return 1; }
    wait "$WAITED" || status=$?
    JOB=
    [ "$status" = "$1" ] || { [ "$1" = failure ] && [ "$status" -ne 0 ]; } || { echo "status $status, want $1"; cat err; return 1; }
}
# one_error REGEX: our only error message.
one_error() {
    [ "$(grep -c 'error:' err)" -eq 1 ] && grep -Eq "error: .*$1" err || { echo "want once: $1"; cat err; return 1; }
}

@test "asked to stop, any rank or the launcher, a job finishes the step, saves, exits 0, and goes on from there" {
    local case w signal whom n
    for case in "3 TERM rank" "2 USR1 launcher" "alone TERM rank"; do
        read -r w signal whom <<<"$case"
        rm -rf ck m.jsonl
        start $w ${ENDLESS/--quiet/} --checkpoint-dir ck --collective-timeout 50
        reaches 3
        if [ $whom = rank ]; then kill -$signal $(rank_pids | tail -n 1); else kill -$signal $(launcher_pid); fi
        ends 0
        grep -q "told to stop" err || { cat err; return 1; }
        [ "$(cat out)" = "$(printf 'ck/step-%08d' "$(last_step m.jsonl)")" ]
        [ "$(cat out)" = "$(ls -d ck/step-*)" ]
        n=$(($(last_step m.jsonl) + 2))
        ranks 2 $ODD --max-steps $n --lr-decay-iters 100 --checkpoint-dir ck --load-partial 1 --metrics m.jsonl >/dev/null
        ranks 1 $ODD --max-steps $n --lr-decay-iters 100 --metrics straight.jsonl
        near_curve straight.jsonl m.jsonl
    done
}

@test "a rank that dies ends the job in seconds, and the message names it, the step and the collective" {
    start 3 $ENDLESS --collective-timeout 50
    reaches 5
    SECONDS=0
    kill -9 $(rank_pids | sed -n 2p)
    ends failure
    [ $SECONDS -lt 40 ] # well below the time-out
    # The one who notices waits in a collective of its step, or in the agreement behind it and says where the dead rank was.
    local where="(all_gather|reduce_scatter|all_reduce)"
    one_error "(step [0-9]+, $where.*rank [0-9] has ended|agreement [0-9]+ .*rank [0-9] has ended \\(it was at step [0-9]+, in $where)"
}

@test "a rank stalled while it trains or saves, rank 0 too, ends the job with one message, status 4 and nothing left" {
    local victim options
    while read -r victim options <&4; do
        rm -rf ck m.jsonl
        start 3 $ENDLESS --collective-timeout 3 $options
        reaches 2
        kill -STOP $(rank_pids | sed -n $((victim + 1))p)
        ends 4
        one_error "time-out: (call|agreement) [0-9]+ .*did not complete within 3000 ms; waiting for (some )?rank"
        [ -n "$options" ] || one_error "step [0-9]+, (all_gather|reduce_scatter|all_reduce) on communicator [a-z]+: time-out: call"
        [ -z "${SMALL:-}" ] || break
    done 4<<'LIST'
1
0 --checkpoint-dir ck --checkpoint-freq 1
2 --checkpoint-dir ck --checkpoint-freq 1 --async-checkpoints 0
LIST
}

# A program that stops rank 1 before its first instruction.
stop_rank_1() {
    printf '#!/bin/sh\n[ "${OMPI_COMM_WORLD_RANK-$RANK}" = 1 ] && kill -STOP $$\nexec "$@"\n' >stopping
    chmod +x stopping
}

@test "a rank that stops before it starts MPI ends the job within the time-out, and itself" {
    stop_rank_1
    WRAPPER=./stopping start 3 $ENDLESS --collective-timeout 3
    ends 4
    one_error "time-out: not all ranks came to the start of MPI within 3 s"
}

@test "ranks without a launcher do not wait for one that stops before it starts, and name it" {
    local r pid=() port=$((20000 + RANDOM % 10000))
    stop_rank_1
    for r in 0 1 2; do
        RANK=$r WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout -k 5 100 ./stopping sdp-train $ENDLESS \
            --collective-timeout 3 2>err.$r 3>&- &
        pid[r]=$!
    done
    for r in 0 2; do
        status=0
        wait ${pid[r]} || status=$?
        mv err.$r err
        [ "$status" -eq 4 ] || { cat err; return 1; }
        one_error "waiting for rank 1"
    done
    kill -CONT $(pgrep -P ${pid[1]}) # it finds nobody, and ends, too
    status=0
    wait ${pid[1]} || status=$?
    [ "$status" -eq 4 ]
    grep -q "rank 1 cannot reach rank 0" err.1
}

@test "ranks whose launcher is killed end too" {
    start 3 $ENDLESS --collective-timeout 5
    reaches 3
    kill -9 $(launcher_pid)
    ends failure
}

@test "SIGTERM to the launcher ends the job with nothing left running, and it resumes" {
    local n
    start 3 $ENDLESS --checkpoint-dir ck --checkpoint-freq 1
    reaches 5
    kill -TERM $(launcher_pid)
    ends failure
    n=$((10#$(ls -d ck/step-*/manifest.json | tail -n 1 | sed -E 's/.*step-([0-9]+).*/\1/') + 2))
    ranks 2 $ODD --max-steps $n --lr-decay-iters 100 --checkpoint-dir ck --load-partial 1 --metrics m.jsonl >/dev/null
    ranks 1 $ODD --max-steps $n --lr-decay-iters 100 --metrics straight.jsonl
    near_curve straight.jsonl m.jsonl
}

# Everything dies at once, on 1 to 4 ranks and any degree: at any time from the start on, right after a step, and in a
# checkpoint. A job that comes near its end starts over, so that each kill meets one that has work left.
@test "killed at 50 random moments while it trains and saves, a job always resumes and follows the same curve" {
    local kills=${KILLS:-50} steps=300 i moment target met=0 killed=0
    [ -n "${SMALL:-}" ] && kills=3 steps=60
    local shapes=("1" "2 --sharded-data-parallel-degree 2" "3 --sharded-data-parallel-degree 1"
        "4 --sharded-data-parallel-degree 2" "2 --sharded-data-parallel-degree 1 --async-checkpoints 0")
    ranks 2 $ODD --max-steps $steps --metrics straight.jsonl
    RANDOM=7
    for ((i = 0; i < kills; i++)); do
        ! past $((steps - 30)) || rm -rf ck m.jsonl
        start ${shapes[RANDOM % 5]} $ODD --max-steps $steps --metrics m.jsonl --checkpoint-dir ck \
            --checkpoint-freq $((1 + RANDOM % 2)) --num-kept-checkpoints 2 --load-partial auto
        moment=$((RANDOM % 4))
        target=$(last_step m.jsonl)
        target=$((${target:-0} + 1 + RANDOM % 3))
        if [ "$moment" -lt 2 ]; then
            sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", r / 32768 }')"
        else
            reaches $target
            if [ "$moment" = 2 ]; then
                wait_for 1 saving && met=$((met + 1))
            else
                sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", r / 32768 * 0.03 }')"
            fi
        fi
        gone || killed=$((killed + 1))
        kill_job
        # Whatever was left, what looks like a checkpoint is one.
        for d in ck/step-*/manifest.json; do
            [ ! -e "$d" ] || ckpt-merge --verify --quiet "${d%/*}" >/dev/null
        done
    done
    echo "# $killed kills, $met in a checkpoint, the last at step $(last_step m.jsonl) of $steps" >&3
    [ "$killed" -ge $((kills * 9 / 10)) ]
    ranks 2 $ODD --max-steps $steps --checkpoint-dir ck --checkpoint-freq 1000 --num-kept-checkpoints 2 \
        --load-partial auto --metrics m.jsonl >last
    near_curve straight.jsonl m.jsonl
    [ "$(cat last)" = "$(printf 'ck/step-%08d' $steps)" ]
    [ "$(ls -d ck/* | wc -l)" -eq "$(ls -d ck/*/manifest.json | wc -l)" ] # leftovers of broken saves are gone
}

@test "a kill between any two files of a checkpoint leaves the one before it" {
    # The last save of a copied folder is taken apart the way a crash can leave it; rank files come before the manifest.
    local drop
    ranks 2 $ODD --max-steps 4 --checkpoint-freq 2 --checkpoint-dir whole --metrics straight.jsonl >/dev/null
    for drop in "manifest.json" "manifest.json rank-00000-of-00002.ckp" "manifest.json rank-00001-of-00002.ckp"; do
        rm -rf ck && cp -r whole ck && cp straight.jsonl m.jsonl
        (cd ck/step-00000004 && rm $drop && head -c 999 /dev/urandom >.rank-00000-of-00002.ckp.tmp)
        ranks 2 $ODD --max-steps 4 --checkpoint-dir ck --load-partial auto --metrics m.jsonl >/dev/null
        same_curve straight.jsonl m.jsonl
        diff <(tensors_of whole/step-00000004) <(tensors_of ck/step-00000004)
        [ "$(ls -A ck/step-00000004 | wc -l)" -eq 3 ] # nothing of the broken one is among the new files
    done
}

@test "a disk that fills while a checkpoint is written keeps the old one and says so" {
    local async pages
    mkdir disk
    mount -t tmpfs -o size=4m tmpfs disk 2>/dev/null || skip "mounting is not permitted"
    MOUNTED=$TMP/disk
    ranks 2 $ODD --max-steps 2 --lr-decay-iters 6 --checkpoint-dir disk/ck --metrics m.jsonl >/dev/null
    tensors_of disk/ck/step-00000002 >want
    # Leave room for less than one more.
    pages=$(($(df --output=avail -B 4096 disk | tail -n 1) - $(du -s -B 4096 disk/ck/step-00000002 | cut -f1) / 2))
    head -c $((pages * 4096)) /dev/zero >disk/filler
    for async in 1 0; do
        run ranks 2 $ODD --max-steps 5 --lr-decay-iters 6 --checkpoint-dir disk/ck --checkpoint-freq 1 --num-kept-checkpoints 1 \
            --load-partial 1 --async-checkpoints $async
        status_is 1
        has "No space left on device"
        has "step-0000000"
        [ "$(grep -c 'error:' <<<"$output")" -eq 1 ] || { echo "$output"; return 1; }
        [ "$(ls -d disk/ck/step-*/manifest.json)" = disk/ck/step-00000002/manifest.json ]
        tensors_of disk/ck/step-00000002 | diff want -
        ckpt-merge --verify --quiet disk/ck/step-00000002 >/dev/null
    done
    rm disk/filler
    ranks 2 $ODD --max-steps 5 --lr-decay-iters 6 --checkpoint-dir disk/ck --num-kept-checkpoints 1 --load-partial 1 --metrics m.jsonl >/dev/null
    ranks 1 $ODD --max-steps 5 --lr-decay-iters 6 --metrics straight.jsonl
    near_curve straight.jsonl m.jsonl
    [ "$(ls disk/ck)" = step-00000005 ]
}
