#!/usr/bin/env bash
# make bench-tokenize: gpt2-tokenize by the whole process (start, vocabulary, reading and writing included, page cache
# warm), beside tiktoken and Hugging Face tokenizers by their encode call alone, when PYTHON=path/to/python has them.
# One thread, two threads and decoding take turns; the best run counts, of at least 5 and at most RUNS=40 while a bar is
# not met, because another program on a small machine takes time from any of them. Fails when a bar is missed:
#   100 MB/s of English on one core, 1.9 times the speed on two, 1000 MB/s decoded, 5 times tiktoken, no more memory for
#   8 times the text, and time in proportion to the length of text without a break.
# Two busy cores may each be slower than one alone. So two threads on a file are held against two processes side by
# side, which share nothing and do twice the work: that must take 1.9 times as long. It says nothing where a second core
# is not to be had, so two processes must get 1.5 times the work done that one does. Two threads over one is shown too.
# English and 47 languages need the reference data beside the checkout (SHARED); they fail the run when it is missing,
# unless SHARED= says that it is to be done without.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/bars.bash
bin=$(realpath "${BIN:-bin}")
tool=$bin/gpt2-tokenize
shared=${SHARED-../shared}
runs=${RUNS:-40}
export SDP_GPT2_SHARE=${SDP_GPT2_SHARE:-$PWD/share}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

repeat() { # FILE TIMES: its text that many times over
    for _ in $(seq "$2"); do cat "$1"; done
}
corpora=()
corpus() { # NAME FILE MEGABYTES
    local size
    size=$(stat -c %s "$2")
    repeat "$2" $(($3 * 1000000 / size + 1)) >"$work/$1.txt"
    corpora+=("$1")
}
rate() { value "$1 / 1e6 / $2"; }

# peak_mb COMMAND...: its peak resident memory (VmHWM, looked at while it runs).
peak_mb() {
    local peak=0 now pid
    "$@" >/dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        now=$(awk '/VmHWM/ { print $2 }' "/proc/$pid/status" 2>/dev/null || true)
        [ "${now:-0}" -le "$peak" ] || peak=$now
        sleep 0.01
    done
    wait "$pid"
    value "$peak / 1024" 1
}

if [ -d "$shared/data/corpora" ]; then
    corpus english "$shared/data/corpora/tinyshakespeare.txt" 71
    corpus languages "$shared/data/corpora/udhr_all.txt" 59
elif [ -n "$shared" ]; then
    echo "FAIL  no reference data at $shared: English and 47 languages are left out"
    failed=1
fi
cat src/*/*.[ch] src/*/*/*.[ch] >"$work/once"
corpus source "$work/once" 60

# Two processes at once, each with one thread.
side_by_side() {
    encode "$1" &
    encode "$1"
    wait
}
encode() { "$tool" -q --input-format text "$@"; }
declare -A speed
for c in "${corpora[@]}"; do
    file=$work/$c.txt bytes=$(stat -c %s "$work/$c.txt") one='' two='' pair='' back=''
    [ "$c" = english ] && least_rate=100 || least_rate=1
    encode -o "$work/t.tok" "$file"
    for run in $(seq "$runs"); do
        one=$(least "$(seconds encode "$file")" "$one")
        two=$(least "$(seconds encode --threads 2 "$file")" "$two")
        pair=$(least "$(seconds side_by_side "$file")" "$pair")
        back=$(least "$(seconds "$tool" -q --decode "$work/t.tok")" "$back")
        met="$bytes / $one >= 1e6 * $least_rate && $pair >= 1.9 * $two && 2 * $one >= 1.5 * $pair && $bytes / $back >= 1e9"
        [ "$run" -lt 5 ] || ! holds "$met" || break
    done
    speed[$c]=$(rate "$bytes" "$one")
    if [ "$c" = english ]; then
        bar "$c, one thread" "${speed[$c]}" MB/s '>=' 100
    else
        echo "      $c, one thread: ${speed[$c]} MB/s"
    fi
    echo "      $c, two threads: $(rate "$bytes" "$two") MB/s, $(value "$one / $two" 2) times one"
    bar "$c, two processes over one (a core is free)" "$(value "2 * $one / $pair" 2)" times '>=' 1.5
    bar "$c, two files by processes over one by threads" "$(value "$pair / $two" 2)" times '>=' 1.9
    bar "$c, decode" "$(rate "$bytes" "$back")" MB/s '>=' 1000
done

# Memory: of the last corpus, and of 8 times as much.
repeat "$file" 8 >"$work/eight.txt"
small=$(peak_mb "$tool" -q --input-format text "$file")
bar "peak memory for 8 times the text" "$(peak_mb "$tool" -q --input-format text "$work/eight.txt")" MiB '<=' \
    "$(value "$small + 4")"
rm "$work/eight.txt"

# Text without a break: four times the length, four times the time.
awk 'BEGIN { srand(1); for (i = 0; i < 10000000; i++) printf "%c", 97 + int(26 * rand()) }' >"$work/letters"
head -c 10000000 /dev/zero | tr '\0' a >"$work/a"
for name in letters a; do
    head -c 2500000 "$work/$name" >"$work/quarter"
    whole='' quarter=''
    for run in $(seq 5); do
        whole=$(least "$(seconds encode "$work/$name")" "$whole")
        quarter=$(least "$(seconds encode "$work/quarter")" "$quarter")
    done
    [ "$name" = a ] && text='one letter' || text='random letters'
    bar "10 MB of $text over 2.5 MB" "$(value "$whole / $quarter" 2)" times '<=' 5
done

if [ -n "${PYTHON:-}" ]; then
    for c in "${corpora[@]}"; do
        peers=$("$PYTHON" tests/bench/tokenize_peers.py share/gpt2/vocab.bpe "$c" "$work/$c.txt")
        echo "      $peers"
        theirs=$(sed -nE 's|.*tiktoken [^ ]+ ([0-9.]+) MB/s.*|\1|p' <<<"$peers")
        [ -z "$theirs" ] || bar "$c, over tiktoken" "$(value "${speed[$c]} / $theirs" 1)" times '>=' 5
    done
else
    echo "      PYTHON=path/to/python with tiktoken or tokenizers adds them, and the bar of 5 times tiktoken"
fi
exit "$failed"
