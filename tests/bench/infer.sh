#!/usr/bin/env bash
# make bench-infer: GPT-2 124M on this CPU beside what bounds it, all in one run: decoding beside a plain
# read of the same weights, prompts beside bare products, export beside cp. Best of RUNS (5).
# PYTHON=path/to/python with PyTorch and transformers adds Hugging Face generate.
set -euo pipefail
cd "$(dirname "$0")/../.."
export BUILD=${BUILD:-$PWD/build} PATH=${BIN:-$PWD/bin}:$PATH SDP_GPT2_SHARE=${SDP_GPT2_SHARE:-$PWD/share}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)}
runs=${RUNS:-5}
work=$(mktemp -d "${TMPDIR:-/tmp}/bench-infer.XXXXXX")
trap 'rm -rf "$work"' EXIT
cc=${CC:-cc}

$cc -std=gnu11 -O3 -march=native -Isrc -o "$work/stream" tests/bench/stream.c "$BUILD/libbase.a" -lpthread -lm
$cc -std=gnu11 -O3 -march=native -Isrc -o "$work/gemm_rate" tests/bench/gemm_rate.c \
    -Wl,--start-group "$BUILD/libcpu.a" "$BUILD/libbase.a" $([ -f "$BUILD/libcuda.a" ] && echo "$BUILD/libcuda.a") -Wl,--end-group \
    ${CUDA_LIBS:-$([ -f "$BUILD/libcuda.a" ] && echo -L/usr/local/cuda/lib64 -lcublasLt -lcudart -lstdc++)} \
    -ldnnl -fopenmp -lpthread -lm -ldl
tests/fixtures/make_ckpt.sh "$work/make_ckpt"
"$work/make_ckpt" "$work/ck" 1 12 12 768 1024 50257 4 1 >/dev/null
sync "$work"/ck/*/*
ckpt-merge -q --tokenizer none -o "$work/model" "$work/ck"

seconds() { # COMMAND...: wall seconds, best of runs
    local best=1e9 began i
    for i in $(seq "$runs"); do
        began=$(date +%s.%N)
        "$@" >/dev/null
        best=$(awk -v b="$best" -v a="$began" -v e="$(date +%s.%N)" 'BEGIN { t = e - a; print (t < b ? t : b) }')
    done
    echo "$best"
}
rate() { # STATS-FIELD RECORDS OPTIONS...: best of runs of tokens a second
    local field=$1 records=$2 best=0 i
    shift 2
    for i in $(seq "$runs"); do
        gpt2-infer "$@" -q --device cpu --model "$work/model" --stats "$work/stats" "$records" >/dev/null
        best=$(awk -v b="$best" -v f="$field" '{ match($0, "\"" f "\":[0-9.]+"); n = substr($0, RSTART + length(f) + 3)
            match($0, "\"seconds\":[0-9.]+"); t = substr($0, RSTART + 10); r = (n + 0) / (t + 0); print (r > b ? r : b) }' "$work/stats")
    done
    echo "$best"
}
line() { printf '%-44s %10s %s\n' "$@"; }

echo '{"prompt_ids":[15496,995,318]}' >"$work/one"
for i in $(seq 8); do echo "{\"prompt_ids\":[15496,995,$i]}"; done >"$work/eight"
awk 'BEGIN { for (r = 0; r < 8; r++) { printf "{\"ids\":["; for (i = 0; i < 512; i++) printf "%s%d", i ? "," : "", (i * 7919 + r * 31) % 50257; print "]}" } }' >"$work/long"

echo '{"ids":[1,2]}' >"$work/short"
line "start-up and one score" "$(seconds gpt2-infer score -q --device cpu --model "$work/model" "$work/short")" "s"
for weights in fp32 bf16; do
    bytes=$([ $weights = fp32 ] && echo 4 || echo 2)
    stream=$("$work/stream" "$work/model/model.safetensors" "$OMP_NUM_THREADS")
    got=$(rate new_tokens "$work/one" generate --weights $weights --sequences 1 --max-new-tokens 60 --ignore-eos --temperature 0)
    again=$("$work/stream" "$work/model/model.safetensors" "$OMP_NUM_THREADS")
    awk -v g="$got" -v b=$bytes -v x="$stream" -v y="$again" -v w=$weights 'BEGIN {
        s = x > y ? x : y; floor = 123.65e6 * b / (s * 1e9)
        printf "%-44s %10.1f tokens/s   %.2f ms a token, floor %.2f ms at %.1f GB/s: %.2fx\n", "decode, batch 1, " w, g, 1e3 / g, 1e3 * floor, s, 1 / g / floor }'
    line "decode, batch 8, $weights" "$(rate new_tokens "$work/eight" generate --weights $weights --sequences 8 --max-new-tokens 60 --ignore-eos --temperature 0)" "tokens/s"
done
gemm=$("$work/gemm_rate" 512)
got=$(rate prompt_tokens "$work/long" score)
awk -v g="$got" -v r="$gemm" 'BEGIN { f = g * 2 * 123.5e6 / 1e9
    printf "%-44s %10.1f tokens/s   %.0f GFLOP/s, bare products %.0f: %.0f%%\n", "prompts (scoring 8 x 512), fp32", g, f, r, 100 * f / r }'
rm -rf "$work/copy" "$work/m2"
copy=$(seconds bash -c "rm -f '$work/copy'; cp '$work/model/model.safetensors' '$work/copy'; sync '$work/copy'")
merge=$(seconds bash -c "rm -rf '$work/m2'; ckpt-merge -q --tokenizer none -o '$work/m2' '$work/ck'")
awk -v c="$copy" -v m="$merge" 'BEGIN { printf "%-44s %10.2f s          cp and sync of the result %.2f s: %.2fx its speed\n", "ckpt-merge of 4 ranks", m, c, c / m }'

if [ -n "${PYTHON:-}" ]; then
    HF_HUB_OFFLINE=1 "$PYTHON" - "$work/model" <<'PY'
import sys, time, torch
from transformers import GPT2LMHeadModel
model = GPT2LMHeadModel.from_pretrained(sys.argv[1]).eval()
ids = torch.tensor([[15496, 995, 318]])
with torch.no_grad():
    model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    best = 0
    for _ in range(3):
        began = time.time()
        out = model.generate(ids, max_new_tokens=60, min_new_tokens=60, do_sample=False, pad_token_id=0)
        best = max(best, (out.shape[1] - 3) / (time.time() - began))
print("%-44s %10.1f tokens/s" % ("Hugging Face generate, batch 1, fp32", best))
PY
fi
