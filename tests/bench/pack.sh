#!/usr/bin/env bash
# make bench-pack: shard-pack from the page cache beside cp of the same bytes, to memory (/dev/shm) and to disk (each
# with fsync), and --verify beside cat. Whole processes that take turns; the best of 3 runs counts, of up to RUNS=10
# while that is below the bar. Fails when packing is slower than 1 GB/s of tokens to memory or 1.5 times cp's time to
# disk, a separator behind every line among them, when --verify takes more than 1.5 times cat's time on files that the
# page cache does not hold, or when shuffling lines takes longer than shuf, which holds all of them in memory.
# MEGABYTES=400 of 16-bit ids; WORK=folder on the disk to measure.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/bars.bash
export SDP_GPT2_SHARE=${SDP_GPT2_SHARE:-$PWD/share}
bin=$(realpath "${BIN:-bin}")
runs=${RUNS:-10} megabytes=${MEGABYTES:-400}
disk=$(mktemp -d -p "${WORK:-${TMPDIR:-/tmp}}")
places=("$disk")
if [ -w /dev/shm ]; then places=("$(mktemp -d -p /dev/shm)" "$disk"); else echo "no /dev/shm: memory is left out"; fi
trap 'rm -rf "${places[@]}"' EXIT

# Packs the inputs to DIR/out; copies them to DIR/copy.
pack() { "$bin/shard-pack" --quiet -o "$1/out" "${@:2}"; }
copy() {
    mkdir "$1/copy"
    if [ "$1" = "$disk" ]; then cat "${@:2}" >"$1/copy/all" && sync "$1/copy/all"; else cat "${@:2}" >"$1/copy/all"; fi
}

# row NAME DIR BYTES OPTIONS -- FILES: BYTES of tokens are in the files.
row() {
    local name=$1 dir=$2 bytes=$3 options=() mine='' theirs='' limit where=memory run
    shift 3
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    [ "$dir" != "$disk" ] || where=disk
    for run in $(seq "$runs"); do
        mine=$(least "$(seconds pack "$dir" "${options[@]}" "$@")" "$mine")
        rm -rf "$dir/out"
        theirs=$(least "$(seconds copy "$dir" "$@")" "$theirs")
        rm -rf "$dir/copy"
        if [ "$where" = disk ]; then limit="$mine <= 1.5 * $theirs"; else limit="$bytes / $mine >= 1e9"; fi
        [ "$run" -lt 3 ] || ! holds "$limit" || break
    done
    echo "      $name, $where: $(value "$bytes / $mine / 1e9" 2) GB/s, cp $(value "$bytes / $theirs / 1e9" 2) GB/s"
    if [ "$where" = disk ]; then
        bar "$name, $where, time over cp" "$(value "$mine / $theirs" 2)" times '<=' 1.5
    else
        bar "$name, $where" "$(value "$bytes / $mine / 1e9" 2)" GB/s '>=' 1
    fi
}

# Reading again what the page cache has been told to forget.
cold() { for f in "$disk"/set/*.shd; do sync "$f" && dd if="$f" iflag=nocache count=0 status=none; done; }
verify_row() { # cold|warm
    local mine='' theirs='' bytes limit=1 run
    bytes=$(cat "$disk"/set/*.shd | wc -c)
    for run in $(seq "$runs"); do
        [ "$1" = warm ] || cold
        theirs=$(least "$(seconds cat "$disk"/set/*.shd)" "$theirs")
        [ "$1" = warm ] || cold
        mine=$(least "$(seconds "$bin/shard-pack" --quiet --verify "$disk/set")" "$mine")
        [ "$1" = warm ] || limit="$mine <= 1.5 * $theirs"
        [ "$run" -lt 3 ] || ! holds "$limit" || break
    done
    echo "      --verify, page cache $1: $(value "$bytes / $mine / 1e9" 2) GB/s, cat $(value "$bytes / $theirs / 1e9" 2) GB/s"
    [ "$1" = warm ] || bar "--verify, page cache $1, time over cat" "$(value "$mine / $theirs" 2)" times '<=' 1.5
}

# Documents of a line each in a random order, to the first place; the same lines through shuf.
shuffle_row() {
    local mine='' theirs='' run
    for _ in "${streams[@]}"; do cat "$disk/lines"; done >"${places[0]}/text"
    for run in $(seq "$runs"); do
        mine=$(least "$(seconds pack "${places[0]}" --shuffle-documents 1 "${streams[@]}")" "$mine")
        rm -rf "${places[0]}/out"
        theirs=$(least "$(seconds shuf "${places[0]}/text")" "$theirs")
        [ "$run" -lt 3 ] || ! holds "$mine <= $theirs" || break
    done
    rm "${places[0]}/text"
    echo "      --shuffle-documents, lines: $(value "$total / $mine / 1e9" 2) GB/s of tokens"
    bar "--shuffle-documents, lines, time over shuf" "$(value "$mine / $theirs" 2)" times '<=' 1
}

# A raw file of 16-bit ids, and a token stream of many short documents that is given as often as fills MEGABYTES.
head -c $((megabytes * 1000000)) /dev/zero >"$disk/ids.bin"
for _ in $(seq 24); do cat src/*/*.[ch] src/*/*/*.[ch]; done >"$disk/lines"
"$bin/gpt2-tokenize" -q --input-format lines -o "$disk/lines.tok" "$disk/lines"
tokens=$("$bin/shard-pack" --verify "$disk/lines.tok" 2>&1 | sed -E 's/.* ([0-9]+) tokens.*/\1/')
streams=()
for ((total = 0; total < megabytes * 1000000; total += 2 * tokens)); do streams+=("$disk/lines.tok"); done

for dir in "${places[@]}"; do
    row "ids (.bin)" "$dir" $((megabytes * 1000000)) -- "$disk/ids.bin"
    row "token stream" "$dir" "$total" -- "${streams[@]}"
    row "token stream, groups of 1000" "$dir" "$total" --group-documents 1000 -- "${streams[@]}"
    row "token stream, separator" "$dir" "$total" --separator eot -- "${streams[@]}"
done
shuffle_row
pack "$disk" "$disk/ids.bin" && mv "$disk/out" "$disk/set"
verify_row warm
verify_row cold
exit "$failed"
