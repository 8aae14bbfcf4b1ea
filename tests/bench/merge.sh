#!/usr/bin/env bash
# make bench-merge: ckpt-merge's memory and speed, with bars that fail.
#  - Memory: a checkpoint of a 30B shape (MODEL=smp-gpt2-30b) stored by 8 and by 128 ranks (RANKS), 360 GB that are holes
#    but for biases, norms and checksums: every byte is read, hashed and digested, disk is hardly used. Merging must peak
#    below 64 MiB with 4 threads, and a byte changed in a hole must be found.
#  - Speed: MODELS="gpt2-small gpt2-medium" in fp32 from 4 ranks, beside cp and sync of the same bytes, taking turns: at
#    least 0.8 times its speed, counting the best of 3 runs, of up to RUNS=10 while that is below the bar. What comes out
#    must equal the checkpoint, and --list, --verify and --diff of it stay below 64 MiB too.
# WORK=folder on the disk to measure; SCALE=0 leaves the 30B shape out (a few minutes).
set -euo pipefail
cd "$(dirname "$0")/../.."
export BUILD=${BUILD:-$PWD/build} SDP_GPT2_SHARE=${SDP_GPT2_SHARE:-$PWD/share}
# shellcheck source=tests/bench/bars.bash
. tests/bench/bars.bash
bin=$(realpath "${BIN:-bin}") runs=${RUNS:-10} limit_mib=64
work=$(mktemp -d -p "${WORK:-${TMPDIR:-/tmp}}" bench-merge.XXXXXX)
trap 'rm -rf "$work"' EXIT
tests/fixtures/make_ckpt.sh "$work/make_ckpt"
tests/fixtures/make_ckpt.sh "$work/sparse_ckpt" tests/bench/sparse_ckpt.c
${CC:-cc} -std=gnu11 -O1 -o "$work/peak" tests/bench/peak.c

measure() { # COMMAND...: sets took (seconds) and peak (MiB); its output goes to $work/said
    local kib code=0
    "$work/peak" "$work/took" "$@" >"$work/said" 2>&1 || code=$?
    read -r took kib <"$work/took"
    peak=$(awk -v k="$kib" 'BEGIN { printf "%.1f", k / 1024 }')
    return "$code"
}
must() { measure "$@" || { cat "$work/said" && echo "FAIL: $*" && exit 1; }; }
memory_bar() { # NAME BYTES
    bar "$1, peak" "$peak" MiB "<" "$limit_mib"
    awk -v b="$2" -v t="$took" 'BEGIN { printf "      %.1f GB in %.1f s, %.2f GB/s\n", b / 1e9, t, b / t / 1e9 }'
}

# --- speed ---
setting() { sed -nE "s/.*\"$2\": ([0-9]+).*/\1/p" "share/models/$1.json"; }
speed() { # MODEL
    local mine=1e9 theirs=1e9 run bytes ck=$work/ck model=$work/model
    "$work/make_ckpt" "$ck" 1 "$(setting "$1" n_layer)" "$(setting "$1" n_head)" "$(setting "$1" n_embd)" \
        "$(setting "$1" n_positions)" "$(setting "$1" vocab_size)" 4 1 >/dev/null
    sync "$ck"/*/*
    for run in $(seq "$runs"); do
        rm -rf "$model"
        must "$bin/ckpt-merge" -q --tokenizer none -o "$model" "$ck"
        mine=$(least "$took" "$mine")
        rm -f "$work/copy"
        must bash -c 'cp "$1" "$2" && sync "$2"' cp "$model/model.safetensors" "$work/copy"
        theirs=$(least "$took" "$theirs")
        [ "$run" -lt 3 ] || ! holds "$theirs >= 0.8 * $mine" || break
    done
    rm -f "$work/copy"
    bytes=$(stat -c %s "$model/model.safetensors")
    bar "$1, 4 ranks, speed of cp and sync" "$(value "$theirs / $mine" 2)" x ">=" 0.8
    awk -v b="$bytes" -v m="$mine" -v t="$theirs" 'BEGIN { printf "      %.1f GB in %.2f s, cp and sync %.2f s\n", b / 1e9, m, t }'
    must "$bin/ckpt-merge" -q --threads 4 --list "$model" && memory_bar "$1, --list of the model" "$bytes"
    must "$bin/ckpt-merge" -q --threads 4 --verify "$ck" && memory_bar "$1, --verify of the checkpoint" "$(cat "$ck"/*/*.ckp | wc -c)"
    must "$bin/ckpt-merge" -q --threads 4 --diff --tolerance 0 "$ck" "$model" && memory_bar "$1, --diff of both" $((2 * bytes))
    rm -rf "$ck" "$model"
}
for model in ${MODELS-gpt2-small gpt2-medium}; do speed "$model"; done

# --- memory ---
[ "${SCALE:-1}" != 0 ] || exit "$failed"
model=${MODEL:-smp-gpt2-30b}
for ranks in ${RANKS:-8 128}; do
    ck=$("$work/sparse_ckpt" "$work/ck" "share/models/$model.json" "$ranks")
    bytes=$(stat -c %s "$ck"/*.ckp | awk '{ n += $1 } END { printf "%.0f", n }')
    must "$bin/ckpt-merge" --threads 4 --tokenizer none -o "$work/model" "$ck"
    memory_bar "$model, $ranks ranks, $(du -sm "$ck" | cut -f1) MB of disk" $((bytes / 3))
    made=$(stat -c %s "$work"/model/*.safetensors | awk '{ n += $1 } END { printf "%.0f", n }')
    parameters=$(sed -nE 's/.*, ([0-9]+) parameters.*/\1/p' "$work/said")
    bar "$model, $ranks ranks, bytes a parameter" "$(value "$made / $parameters" 6)" "" ">=" 4
    rm -rf "$work/model"
    printf '\1' | dd of="$(ls "$ck"/*.ckp | sed -n 2p)" bs=1 seek=50000000 conv=notrunc status=none
    code=0
    measure "$bin/ckpt-merge" -q --tokenizer none -o "$work/model" "$ck" || code=$?
    grep -q "is damaged: its checksum" "$work/said" || code=1
    bar "$model, $ranks ranks, a byte changed in a hole" "$code" "" "==" 3
    rm -rf "$work/ck" "$work/model"
done
exit "$failed"
