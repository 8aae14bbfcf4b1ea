#!/usr/bin/env bash
# Peak resident memory and speed of the streaming stages, on inputs many times their memory.
# usage: memory.sh WORKDIR       TOKENS=N (default 200 million)
set -euo pipefail
work=$1 tokens=${TOKENS:-200000000}

# Runs a command; prints "seconds peak-MiB" (GNU time is not everywhere: bash reads /proc instead).
measure() {
    local began end peak=0 now pid
    began=$(date +%s.%N)
    "$@" &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        now=$(awk '/VmHWM/ { print $2 }' "/proc/$pid/status" 2>/dev/null || echo 0)
        [ "${now:-0}" -gt "$peak" ] && peak=$now
        sleep 0.02
    done
    wait "$pid"
    end=$(date +%s.%N)
    awk -v a="$began" -v b="$end" -v p="$peak" 'BEGIN { printf "%.2f %.0f\n", b - a, p / 1024 }'
}

# A raw u16 file of token ids (nanoGPT's form) is the quickest large input.
head -c $((tokens * 2)) /dev/zero >"$work/tokens.bin"
read -r seconds peak < <(measure shard-pack --quiet --input-format bin --block-size 1024 -o "$work/big" "$work/tokens.bin")
awk -v n="$tokens" -v s="$seconds" -v p="$peak" 'BEGIN {
    printf "shard-pack %.0f MB                %8.2f GB/s    peak %d MiB\n", n * 2 / 1e6, n * 2 / s / 1e9, p }'
rm -rf "$work/big" "$work/tokens.bin"

# A checkpoint of the 124M model, merged.
seq 4 | awk '{ printf "["; for (i = 0; i < 64; i++) printf "%s%d", i ? "," : "", i; print "]" }' |
    gpt2-tokenize --input-format ids --vocab-size 50257 | shard-pack --quiet --block-size 64 -o "$work/one"
sdp-train --quiet --model gpt2-small --training-dir "$work/one" --train-batch-size 1 --max-steps 1 \
    --checkpoint-dir "$work/ck" --checkpoint-freq 1 >"$work/last"
read -r seconds peak < <(measure ckpt-merge --quiet -o "$work/model" "$(cat "$work/last")")
began=$(date +%s.%N)
cp "$work/model/model.safetensors" "$work/copy"
sync "$work/copy"
end=$(date +%s.%N)
awk -v s="$seconds" -v p="$peak" -v a="$began" -v b="$end" 'BEGIN {
    printf "ckpt-merge 124M                  %8.2f s       peak %d MiB   cp of the same bytes %.2f s\n", s, p, b - a }'
rm -rf "$work/ck" "$work/model" "$work/copy" "$work/one"
