#!/usr/bin/env bash
# make bench-gpu: whole optimizer steps of sdp-train on one GPU, bf16, T = 1024, AdamW, clip 1.0, no dropout:
# GPT-2 124M with micro-batch 64 x 8 and XL with 16 x 8; with PyTorch (eager and compiled) on the same model in
# the same run where python3 has it. Prints a table; STEPS=N (default 6), MODELS="gpt2-small gpt2-xl",
# PEERS="compile eager" (empty: none), PROFILE=1 adds time per operation.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PWD/${BIN:-bin}:$PATH
steps=${STEPS:-6} models=${MODELS:-gpt2-small gpt2-xl} peers=${PEERS-compile eager} python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

median() { sort -n | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)]; else print 0 }'; }
field() { sed -nE "s/.*\"$1\": ?([0-9.eE+-]+).*/\1/p" "$2" | tail -n +3 | median; }

# Random ids: 64 x 8 samples a step; the set is read again when a run needs more.
head -c $((1024 * 1024 * 2)) /dev/urandom >"$work/random"
od -An -v -tu2 -w2 "$work/random" | awk '{ print $1 % 50257 }' | awk '
    { line = line (n++ ? "," : "") $1; if (n == 1024) { print "[" line "]"; line = ""; n = 0 } }' |
    gpt2-tokenize --input-format ids --vocab-size 50257 | shard-pack --quiet --block-size 1024 -o "$work/shards"

printf '%-12s %-22s %12s %10s %10s %8s\n' model engine tokens/s ms/step TFLOP/s GiB
for model in $models; do
    case $model in gpt2-xl) batch=16 ;; *) batch=64 ;; esac
    sdp-train --quiet --device cuda --model "$model" --bf16 1 --training-dir "$work/shards" \
        --train-batch-size "$batch" --gradient-accumulation 8 --max-steps "$steps" --logging-freq 1 --epochs 100 \
        --resid-pdrop 0 --embd-pdrop 0 --attn-pdrop 0 --metrics "$work/$model.jsonl" >/dev/null
    printf '%-12s %-22s %12.0f %10.1f %10.1f %8.1f\n' "$model" sdp-train "$(field tokens_per_second "$work/$model.jsonl")" \
        "$(field step_ms "$work/$model.jsonl")" "$(field tflops "$work/$model.jsonl")" \
        "$(field memory_bytes "$work/$model.jsonl" | awk '{ print $1 / 2^30 }')"
    for peer in $peers; do
        "$python" -c 'import torch' 2>/dev/null || break
        "$python" tests/gpu/bench_torch.py "$model" "$batch" 8 "$steps" "$peer" || echo "$model: PyTorch $peer failed"
    done
done
