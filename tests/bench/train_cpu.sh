#!/usr/bin/env bash
# GPT-2 124M, fp32, one rank on the CPU: tokens/s of a whole optimizer step, batch 4x64 and 4x256.
# usage: train_cpu.sh WORKDIR     STEPS=N (default 6)
set -euo pipefail
work=$1 steps=${STEPS:-6}
python=${PYTHON:-python3}

for time in 64 256; do
    # Random ids are as good as text here; 4 samples a step.
    seq $((4 * steps)) | awk -v t="$time" 'BEGIN { srand(1) } {
        printf "["; for (i = 0; i < t; i++) printf "%s%d", i ? "," : "", int(rand() * 50257); print "]" }' |
        gpt2-tokenize --input-format ids --vocab-size 50257 |
        shard-pack --quiet --block-size "$time" -o "$work/shards-$time"
    sdp-train --quiet --model gpt2-small --training-dir "$work/shards-$time" --train-batch-size 4 \
        --max-steps "$steps" --logging-freq 1 --resid-pdrop 0 --embd-pdrop 0 --attn-pdrop 0 \
        --metrics "$work/m-$time.jsonl" >/dev/null
    ours=$(sed -nE 's/.*"tokens_per_second": ?([0-9.]+).*/\1/p' "$work/m-$time.jsonl" | tail -n +2 | sort -n |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')
    printf 'train 124M fp32 4x%-4d           %8.0f tokens/s' "$time" "$ours"
    if "$python" -c 'import torch, transformers' 2>/dev/null; then
        peer=$("$python" tests/bench/train_torch.py 4 "$time" "$steps")
        awk -v a="$ours" -v b="$peer" 'BEGIN { printf "   PyTorch %8.0f   ratio %.2f", b, a / b }'
    fi
    printf '\n'
done
