# sdp-train killed, starved of disk, and orphaned: what is on disk stays usable, and nothing is left running.
# FULL=1 kills 50 times instead of 12. tests/faults.bats has the faults of one rank.
load helper
load sdp

TINY=$FIXTURES/golden-tiny

setup_file() {
    shards_of "$TINY" "$BATS_FILE_TMPDIR/shards"
}
setup() {
    SHARDS=$BATS_FILE_TMPDIR/shards
    ODD="--model gpt2-nano --num-layers 5 --hidden-width 40 --num-heads 5 --vocab-size 517 --training-dir $SHARDS
        --lr 1e-3 --train-batch-size 1 --global-batch-size 12 --quiet"
    cd "$TMP"
    JOB=
}
teardown() {
    kill_job || true
    if [ -n "${MOUNTED:-}" ]; then umount "$MOUNTED"; fi
}

# start W OPTIONS: a job in a session of its own, in the background; JOB is the session.
start() {
    local w=$1
    shift
    rm -f pid
    setsid bash -c 'echo $$ >pid.new && mv pid.new pid && exec "$@"' _ \
        timeout 120 mpirun -n "$w" sdp-train "$@" >out 2>err </dev/null 3>&- &
    WAITED=$!
    while [ ! -e pid ]; do sleep 0.01; done
    JOB=$(cat pid)
}
members() { ps -s "$JOB" -o pid=,comm=; } # of the job's session: launcher and ranks
rank_pids() { members | awk '$2 == "sdp-train" { print $1 }'; }
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
# wait_for SECONDS COMMAND: until the command succeeds.
wait_for() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $until ] || return 1
        sleep 0.02
    done
}
# saving: a checkpoint is under way (a folder without manifest, or a temporary file in one).
saving() {
    local d
    for d in ck/step-*; do
        [ -d "$d" ] && [ ! -e "$d/manifest.json" ] && return 0
    done
    return 1
}
past() { local n; n=$(last_step m.jsonl); [ "${n:-0}" -ge "$1" ]; }
gone() { [ -z "$(members)" ]; }

@test "killed whole at random moments while it trains and saves, a job resumes and follows the same curve" {
    local kills=12 i w moment saves=0 steps target
    [ -n "${FULL:-}" ] && kills=50
    [ -n "${SMALL:-}" ] && kills=3
    RANDOM=7
    steps=$((kills * 4 + 6))
    local shapes=("2 --sharded-data-parallel-degree 2" "3 --sharded-data-parallel-degree 1"
        "4 --sharded-data-parallel-degree 2" "2 --sharded-data-parallel-degree 1 --async-checkpoints 0")
    ranks 2 $ODD --max-steps $steps --metrics straight.jsonl
    for ((i = 0; i < kills; i++)); do
        start ${shapes[RANDOM % 4]} $ODD --max-steps $steps --checkpoint-dir ck --checkpoint-freq $((1 + RANDOM % 2)) \
            --num-kept-checkpoints 2 --load-partial auto --metrics m.jsonl
        moment=$((RANDOM % 3))
        target=$(last_step m.jsonl)
        target=$((${target:-0} + 1 + RANDOM % 3))
        if [ "$moment" = 0 ]; then # anywhere from the start on
            sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", r / 32768 * 1.2 }')"
        else
            wait_for 60 past $target || { cat err; return 1; }
            if [ "$moment" = 1 ]; then # in a checkpoint, if one is met
                wait_for 1 saving && saves=$((saves + 1))
            else
                sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", r / 32768 * 0.03 }')"
            fi
        fi
        kill_job
        # Whatever was left, what looks like a checkpoint is one.
        for d in ck/step-*/manifest.json; do
            [ ! -e "$d" ] || ckpt-merge --verify --quiet "${d%/*}" >/dev/null
        done
    done
    echo "# $saves of $kills kills met a checkpoint under way, at step $(last_step m.jsonl) of $steps" >&3
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

@test "ranks whose launcher is killed end too" {
    start 3 $ODD --max-steps 1000000 --metrics m.jsonl --collective-timeout 5
    wait_for 60 past 3
    kill -9 $(members | awk '$2 == "mpirun" || $2 == "orterun" { print $1 }')
    wait_for 30 gone || { members; return 1; }
}

@test "SIGTERM to the launcher ends the job with nothing left running, and it resumes" {
    start 3 $ODD --max-steps 1000000 --lr-decay-iters 100 --metrics m.jsonl --checkpoint-dir ck --checkpoint-freq 1
    wait_for 60 past 5
    kill -TERM $(members | awk '$2 == "mpirun" || $2 == "orterun" { print $1 }')
    wait_for 30 gone || { members; return 1; }
    n=$((10#$(ls -d ck/step-*/manifest.json | tail -n 1 | sed -E 's/.*step-([0-9]+).*/\1/') + 2))
    ranks 2 $ODD --max-steps $n --lr-decay-iters 100 --checkpoint-dir ck --load-partial 1 --metrics m.jsonl >/dev/null
    ranks 1 $ODD --max-steps $n --lr-decay-iters 100 --metrics straight.jsonl
    near_curve straight.jsonl m.jsonl
}

@test "SIGUSR1 to the launcher, and SIGTERM to one rank without one, finish the step, save, and exit 0" {
    local pid n
    start 2 $ODD --max-steps 1000000 --lr-decay-iters 100 --metrics m.jsonl --checkpoint-dir ck
    wait_for 60 past 3
    kill -USR1 $(members | awk '$2 == "mpirun" || $2 == "orterun" { print $1 }')
    wait "$WAITED"
    [ "$(cat out)" = "$(ls -d ck/step-*)" ]
    rm -rf ck m.jsonl
    timeout 60 sdp-train $ODD --max-steps 1000000 --lr-decay-iters 100 --metrics m.jsonl --checkpoint-dir ck >out 2>err &
    pid=$!
    wait_for 60 past 3
    kill -TERM $(pgrep -P $pid)
    wait $pid
    n=$(last_step m.jsonl)
    [ "$(cat out)" = "$(printf 'ck/step-%08d' "$n")" ]
    ckpt-merge --verify --quiet "$(cat out)" >/dev/null
}

@test "a rank stalled while it trains or saves, rank 0 too, ends the job with one message, status 4 and nothing left" {
    local victim moment status moments="1 4"
    [ -n "${SMALL:-}" ] && moments=1
    for moment in $moments; do
        for victim in 1 3; do
            [ "$moment" = 1 ] || [ "$victim" = 1 ] || continue
            rm -rf ck m.jsonl
            start 3 $ODD --max-steps 1000000 --metrics m.jsonl --collective-timeout 2 --checkpoint-dir ck --checkpoint-freq 1
            wait_for 60 past $moment
            SECONDS=0
            kill -STOP $(rank_pids | sort -n | sed -n ${victim}p)
            wait_for 30 gone || { members; cat err; return 1; }
            status=0
            wait "$WAITED" || status=$?
            [ "$status" -eq 4 ] || { echo "moment $moment, victim $victim: status $status"; cat err; return 1; }
            [ "$(grep -c 'error:' err)" -eq 1 ] || { echo "moment $moment, victim $victim"; cat err; return 1; }
            grep -q "time-out" err || { cat err; return 1; }
        done
    done
}
