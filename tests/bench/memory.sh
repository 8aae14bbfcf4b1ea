#!/usr/bin/env bash
# make bench-memory: peak resident memory and speed of the streaming stages on inputs many times their memory. Fails when
# shard-pack needs 64 MiB or more: GIGABYTES=4 through a pipe onto disk, the same shuffled, and DROPPED=100 gigabytes of
# documents that are too short for a sample, which costs no disk. With sdp-train and ckpt-merge built, a checkpoint of
# the 124M model is merged too.
# usage: memory.sh [WORKDIR]       BIN=folder of the programs, when they are not on PATH
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/bars.bash
if [ -n "${BIN:-}" ]; then PATH=$(realpath "$BIN"):$PATH; fi
export SDP_GPT2_SHARE=${SDP_GPT2_SHARE:-$PWD/share}
gigabytes=${GIGABYTES:-4} dropped=${DROPPED:-100}
work=$(mktemp -d -p "${1:-${TMPDIR:-/tmp}}")
trap 'rm -rf "$work"' EXIT

# Runs a command on this stdin; prints "seconds peak-MiB" (GNU time is not everywhere: bash reads /proc instead).
measure() {
    local began=$EPOCHREALTIME peak=0 now pid
    "$@" <&0 >/dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        now=$(awk '/VmHWM/ { print $2 }' "/proc/$pid/status" 2>/dev/null || echo 0)
        [ "${now:-0}" -gt "$peak" ] && peak=$now
        sleep 0.02
    done
    wait "$pid"
    awk -v a="$began" -v b="$EPOCHREALTIME" -v p="$peak" 'BEGIN { printf "%.2f %.0f\n", b - a, p / 1024 }'
}

# row NAME GIGABYTES OPTIONS...: so much of ids.bin's documents over and over, then a long one that makes samples.
row() {
    local name=$1 size=$2 seconds peak
    shift 2
    read -r seconds peak < <({
        for _ in $(seq $((size * 1000 / 64))); do cat "$work/ids.bin"; done
        cat "$work/last.bin"
    } | measure shard-pack --quiet --input-format bin --split eot-ends -o "$work/set" "$@")
    shard-pack --quiet --list "$work/set" >/dev/null # there is a set: the run went to its end
    rm -rf "$work/set"
    echo "      shard-pack $name: $size GB, $(value "$size / $seconds" 2) GB/s"
    bar "shard-pack $name, $size GB, peak" "$peak" MiB '<' 64
}

# 64 MB of 16-bit ids (nanoGPT's form) in documents of 500: id 257, then <|endoftext|> (50256).
{ printf '\1\1%.0s' $(seq 499) && printf '\x50\xc4'; } >"$work/document"
for _ in $(seq 1000); do cat "$work/document"; done >"$work/thousand"
for _ in $(seq 64); do cat "$work/thousand"; done >"$work/ids.bin"
head -c 20000 /dev/zero >"$work/last.bin"

row "to disk" "$gigabytes"
row "--shuffle-documents" "$gigabytes" --shuffle-documents 1
row "too short, dropped" "$dropped" --group-documents 1

if command -v sdp-train >/dev/null && command -v ckpt-merge >/dev/null; then
    seq 4 | awk '{ printf "["; for (i = 0; i < 64; i++) printf "%s%d", i ? "," : "", i; print "]" }' |
        gpt2-tokenize --input-format ids --vocab-size 50257 | shard-pack --quiet --block-size 64 -o "$work/one"
    sdp-train --quiet --model gpt2-small --training-dir "$work/one" --train-batch-size 1 --max-steps 1 \
        --checkpoint-dir "$work/ck" --checkpoint-freq 1 >"$work/last"
    read -r seconds peak < <(measure ckpt-merge --quiet -o "$work/model" "$(cat "$work/last")")
    began=$EPOCHREALTIME
    cp "$work/model/model.safetensors" "$work/copy"
    sync "$work/copy"
    awk -v s="$seconds" -v p="$peak" -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN {
        printf "ckpt-merge 124M                  %8.2f s       peak %d MiB   cp of the same bytes %.2f s\n", s, p, b - a }'
fi
exit "$failed"
