#!/usr/bin/env bash
# The main job on this machine's CPU, offline but for packages: text becomes tokens, shards, a GPT-2 trained
# by two ranks that each hold half of it, one merged model, and text again.
#
#   examples/quickstart.sh                      the small data set in share/sample, about a minute
#   examples/quickstart.sh --source PATH|URL    the same on other SST-2 data: a folder or zip in GLUE's form
#   examples/quickstart.sh --source glue        ... downloaded from GLUE
# Options: --steps N, --ranks N, --degree N, --model NAME, --work DIR (default build/quickstart), --no-setup
set -euo pipefail
cd "$(dirname "$0")/.."

source=share/sample steps= ranks=2 degree=2 model=gpt2-tiny work=build/quickstart setup=1
while [ $# -gt 0 ]; do
    case $1 in
    --source) source=$2; shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --ranks) ranks=$2; shift 2 ;;
    --degree) degree=$2; shift 2 ;;
    --model) model=$2; shift 2 ;;
    --work) work=$2; shift 2 ;;
    --no-setup) setup=0; shift ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "quickstart: unknown option $1 (see --help)" >&2; exit 2 ;;
    esac
done
steps=${steps:-100}

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() { # shows a command (on stderr: its stdout may go to a file), then runs it
    { printf '$'; printf ' %s' "$@"; printf '\n'; } >&2
    "$@"
}

if [ "$setup" = 1 ]; then
    say "1. What this machine lacks"
    share/setup.sh
    say "2. Build"
    make -j"$(nproc)" --no-print-directory -s
    echo "built: $(ls bin | tr '\n' ' ')"
fi
began=$SECONDS
export PATH=$PWD/bin:$PATH
# mpirun: allow root (containers) and more ranks than cores; give each rank its share of the cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none
cores=$(nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}
rm -rf "$work"
mkdir -p "$work"

say "3. Fetch the sentences ($source)"
run sst2-fetch --source "$source" --split train -o "$work/train.jsonl"
run sst2-fetch --source "$source" --split validation -o "$work/validation.jsonl"
head -n 2 "$work/train.jsonl"

say "4. Tokens, then fixed-length samples"
for split in train validation; do
    run gpt2-tokenize --append-eot -o "$work/$split.tok" "$work/$split.jsonl"
    run shard-pack --block-size 64 --group-documents all -o "$work/$split-shards" "$work/$split.tok"
done

say "5. Train: $ranks ranks, every tensor in $degree parts, $steps steps"
run mpirun -n "$ranks" sdp-train --model "$model" --max-context-width 64 \
    --training-dir "$work/train-shards" --test-dir "$work/validation-shards" \
    --sharded-data-parallel-degree "$degree" --train-batch-size 8 --val-batch-size 8 \
    --max-steps "$steps" --lr 3e-3 --lr-decay-style cosine --warmup 0.05 --min-lr 3e-4 \
    --weight-decay 0.1 --beta2 0.95 --resid-pdrop 0 --embd-pdrop 0 --attn-pdrop 0 \
    --validation-freq 40 --validation-batches 4 --logging-freq "$((steps >= 40 ? steps / 20 : 1))" \
    --checkpoint-dir "$work/checkpoints" --checkpoint-freq "$((steps / 2))" --num-kept-checkpoints 2 \
    --metrics "$work/metrics.jsonl" >"$work/last-checkpoint"

say "6. One model from all parts"
run ckpt-merge -o "$work/model" "$(cat "$work/last-checkpoint")"
ls -lh "$work/model" | tail -n +2 | awk '{printf "  %-26s %s\n", $NF, $5}'

say "7. The model writes"
printf '{"prompt":"%s"}\n' "the film is" "a " "this movie" >"$work/prompts.jsonl"
run gpt2-infer generate --model "$work/model" --max-new-tokens 16 --temperature 0.7 --top-k 40 \
    --seed 1 "$work/prompts.jsonl" | tee "$work/generated.jsonl"

say "8. The model scores: a sentence of the held-out set against the same words shuffled"
sentence=$(sed -n '1s/.*"sentence":"\([^"]*\)".*/\1/p' "$work/validation.jsonl")
shuffled=$(tr ' ' '\n' <<<"$sentence" | sort | tr '\n' ' ')
printf '{"text":"%s"}\n' "$sentence" "$shuffled" >"$work/score.jsonl"
cat "$work/score.jsonl"
run gpt2-infer score --model "$work/model" "$work/score.jsonl"

say "9. The loss"
# One column of the plot a logged step, scaled to 12 rows.
awk -F'[:,}]' '
    /"loss"/ && !/"val/ {
        for (i = 1; i < NF; i++) {
            if ($i ~ /"step"/) step = $(i + 1)
            if ($i ~ /"loss"/) loss = $(i + 1)
        }
        n++; s[n] = step + 0; l[n] = loss + 0
        if (n == 1 || l[n] > hi) hi = l[n]
        if (n == 1 || l[n] < lo) lo = l[n]
    }
    END {
        if (n < 2) { print "too few logged steps to plot"; exit 1 }
        rows = 12; if (hi == lo) hi = lo + 1; wide = int(60 / n); if (wide < 1) wide = 1
        for (r = rows; r >= 0; r--) {
            line = (r == rows || r == 0 || r == rows / 2) ? sprintf("%7.3f |", lo + (hi - lo) * r / rows) : "        |"
            for (i = 1; i <= n; i++) {
                mark = int((l[i] - lo) / (hi - lo) * rows + 0.5) == r ? "*" : " "
                line = line mark; for (k = 1; k < wide; k++) line = line " "
            }
            print line
        }
        printf "        +"; for (i = 0; i < n * wide; i++) printf "-"
        printf "\n         step %d to %d\n\nloss %.3f -> %.3f\n", s[1], s[n], l[1], l[n]
        if (l[n] >= l[1]) { print "the loss did not fall"; exit 1 }
    }' "$work/metrics.jsonl"
echo "checkpoint $(cat "$work/last-checkpoint"), model $work/model, metrics $work/metrics.jsonl"
echo "$((SECONDS - began)) seconds after the build"
