#!/usr/bin/env bash
# make bench-gpu: whole optimizer steps of sdp-train on one GPU, bf16, AdamW, clip 1.0, no dropout: GPT-2 124M with
# micro-batch 64 x 8 and XL with 16 x 8 at T = 1024, beside PyTorch (eager and compiled) on the same model in the same
# run where $PYTHON has it; and a 6.7B shape (32 x 4096, 32 heads, T = 2048) with checkpointing and offloading, with and
# without the offloading, whose cost is set against copies at 55 GB/s. "first s" is from the start of the process to its
# first line of metrics, "start s" the same without one step's time. Prints a table and the bars: at least the speed of
# compiled PyTorch, start to first step under 5 s. Fails when a run fails, misses a bar or uses memory more than 2% off
# its plan.
#   STEPS=6 MODELS="gpt2-small gpt2-xl 6.7b" PEERS="compile eager" (empty: none) PYTHON=python3 HOST_GBS=55
#   DEVICE=cpu MODELS=nano tries the script on processors.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${BIN:-bin}
case $bin in /*) ;; *) bin=$PWD/$bin ;; esac
export PATH=$bin:$PATH SDP_GPT2_SHARE=${SDP_GPT2_SHARE:-$PWD/share}
steps=${STEPS:-6} models=${MODELS:-gpt2-small gpt2-xl 6.7b} peers=${PEERS-compile eager} python=${PYTHON:-python3}
device=${DEVICE:-cuda}
. tests/bench/bars.bash
host_gbs=${HOST_GBS:-55} wrong=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$device" = cuda ] && ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
    echo "bench-gpu: skipped: no NVIDIA GPU here (DEVICE=cpu MODELS=nano tries the script)"
    exit 77
fi

median() { sort -n | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)]; else print 0 }'; }
field() { sed -nE "s/.*\"$1\": ?([0-9.eE+-]+).*/\1/p" "$2" | tail -n +3 | median; }
planned() { sed -nE "s/^ *\"$1\": ?([0-9.eE+-]+),?$/\1/p" "$2" | head -n 1; }

# shape MODEL: sets flags, tokens, batch, accumulation.
shape() {
    tokens=1024 batch=64 accumulation=8 flags="--model $1"
    case $1 in
        gpt2-small) ;;
        gpt2-xl) batch=16 ;;
        6.7b)
            tokens=2048 batch=4 accumulation=2
            flags="--model gpt2-xl --num-layers 32 --hidden-width 4096 --num-heads 32 --max-context-width 2048"
            flags+=" --activation-checkpointing 1"
            ;;
        nano) tokens=64 batch=2 accumulation=2 flags="--model gpt2-nano --num-layers 8 --activation-checkpointing 1" ;;
        *)
            echo "bench-gpu: MODELS are gpt2-small, gpt2-xl, 6.7b and nano, not \"$1\"" >&2
            exit 2
            ;;
    esac
    flags+=" --bf16 1 --train-batch-size $batch --gradient-accumulation $accumulation"
    flags+=" --resid-pdrop 0 --embd-pdrop 0 --attn-pdrop 0"
}
# shards TOKENS: two million random ids; the set is read again when a run needs more.
shards() {
    [ -d "$work/shards-$1" ] && return
    head -c $((1024 * 1024 * 2)) /dev/urandom | od -An -v -tu2 -w2 | awk -v t="$1" '
        { line = line (n++ ? "," : "") $1 % 50257; if (n == t) { print "[" line "]"; line = ""; n = 0 } }' |
        gpt2-tokenize --quiet --input-format ids --vocab-size 50257 | shard-pack --quiet --block-size "$1" -o "$work/shards-$1"
}
# train MODEL ENGINE OPTIONS: one run and its row; leaves $work/m.jsonl, $work/plan, rate and start.
train() {
    local name=$1 engine=$2 began started first
    shift 2
    rm -f "$work/m.jsonl"
    sdp-train --plan --json --device "$device" --world-size 1 --block-size "$tokens" $flags "$@" >"$work/plan"
    began=$EPOCHREALTIME
    sdp-train --quiet --device "$device" $flags "$@" --training-dir "$work/shards-$tokens" --max-steps "$steps" --epochs 100000 \
        --logging-freq 1 --metrics "$work/m.jsonl" >/dev/null &
    started=$!
    until [ -s "$work/m.jsonl" ] || ! kill -0 "$started" 2>/dev/null; do sleep 0.05; done
    first=$EPOCHREALTIME
    wait "$started" || { echo "bench-gpu: $name: sdp-train ended with status $?"; exit 1; }
    rate=$(field tokens_per_second "$work/m.jsonl")
    start=$(awk -v a="${began/,/.}" -v b="${first/,/.}" -v s="$(field step_ms "$work/m.jsonl")" 'BEGIN {
        t = b - a - s / 1000
        printf "%.1f", (t > 0 ? t : 0) }')
    awk -v n="$name" -v e="$engine" -v t="$rate" -v begin="$start" -v s="$(field step_ms "$work/m.jsonl")" \
        -v f="$(field tflops "$work/m.jsonl")" -v m="$(field memory_bytes "$work/m.jsonl")" -v p="$(planned device_bytes "$work/plan")" \
        -v a="${began/,/.}" -v b="${first/,/.}" 'BEGIN {
        off = m - p < 0 ? p - m : m - p
        bad = off > 0.02 * p + 65536 # a device keeps some pages of its own
        printf "%-12s %-22s %12.0f %10.1f %10.1f %8.1f %8.1f%% %8.1f %8.1f%s\n", n, e, t, s, f, m / 2^30, 100 * (m - p) / p, begin, b - a,
            bad ? "  FAIL: memory is more than 2% off the plan" : ""
        exit bad }' || wrong=$((wrong + 1))
}
# offload_cost MODEL: after runs without and with offloading.
offload_cost() {
    awk -v n="$1" -v without="$2" -v with="$3" -v bytes="$(planned offload "$work/plan")" -v k="$accumulation" -v rate="$host_gbs" 'BEGIN {
        ideal = 2 * k * bytes / rate / 1e6 # every micro-step sends the kept activations away and back
        cost = with - without
        if (cost > ideal) cost = ideal # all of it in the way, and noise
        hidden = ideal > 0 ? 100 * (1 - (cost > 0 ? cost : 0) / ideal) : 0
        printf "%-12s offloading moves %.2f GiB each way a step: %.1f ms at %g GB/s; the step is %.1f ms longer, so %.0f%% of it runs beside compute\n",
            n, k * bytes / 2^30, ideal, rate, with - without, hidden }'
}

printf '%-12s %-22s %12s %10s %10s %8s %9s %8s %8s\n' model engine tokens/s ms/step TFLOP/s GiB "off plan" "start s" "first s"
verdicts=
for model in $models; do
    shape "$model"
    shards "$tokens"
    train "$model" sdp-train
    case $model in
        6.7b | nano)
            without=$(field step_ms "$work/m.jsonl")
            train "$model" "sdp-train, offloading" --offload-activations 1
            offload_cost "$model" "$without" "$(field step_ms "$work/m.jsonl")"
            continue
            ;;
    esac
    [ "$device" = cpu ] || verdicts+=$(bar "$model: start to first step" "$start" s "<" 5)$'\n'
    for peer in $peers; do
        "$python" -c 'import torch' 2>/dev/null || { echo "$model: no PyTorch in $python: no comparison"; break; }
        "$python" tests/gpu/bench_torch.py "$model" "$batch" "$accumulation" "$steps" "$peer" | tee "$work/peer" || {
            echo "$model: PyTorch $peer failed"
            wrong=$((wrong + 1))
            continue
        }
        theirs=$(awk '$2 == "PyTorch" { print $4 }' "$work/peer")
        verdicts+=$(bar "$model: of PyTorch's speed ($peer)" "$(awk -v a="$rate" -v b="$theirs" 'BEGIN { printf "%.3f", (b > 0 ? a / b : 0) }')" "" ">=" 1)$'\n'
    done
done
printf '%s' "$verdicts"
case $verdicts in *FAIL*) wrong=$((wrong + 1)) ;; esac
[ "$wrong" -eq 0 ] || { echo "bench-gpu: $wrong rows failed"; exit 1; }
