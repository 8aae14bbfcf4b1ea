#!/usr/bin/env bash
# run.sh [SECONDS] [TARGET...] - builds every fuzz target with the sanitizers and runs each for SECONDS (60),
# one a processor. A target names its "sources:" and "libs:" in its first lines. A failure leaves its input
# as fuzz-crash.bin in the folder it names.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

fuzz() { # SECONDS SOURCE: a TAP line
    local seconds=$1 source=$2 name log
    name=$(basename "$source" .c)
    log=$OUT/$name.log
    # Patterns in "sources:" are meant to expand.
    # shellcheck disable=SC2046
    if ! gcc -std=gnu11 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -Wall -Wextra -Werror \
        -Isrc -Itests/fuzz -o "$OUT/$name" "$source" $(sed -n 's|^// sources: ||p' "$source") \
        $(sed -n 's|^// libs: ||p' "$source") -lm -lpthread; then
        echo "not ok - $name does not build"
        return 1
    fi
    mkdir -p "$OUT/$name.run"
    if (cd "$OUT/$name.run" && timeout $((${seconds%.*} + 60)) "$OUT/$name" "$seconds") >"$log" 2>&1; then
        echo "ok - $name: $(tr '\n' ' ' <"$log")"
        rm -rf "$OUT/$name.run"
    else
        # One write: targets that run at the same time must not mix their lines.
        printf '%s\nnot ok - %s: its input is %s\n' "$(cat "$log")" "$name" "$OUT/$name.run/fuzz-crash.bin"
        return 1
    fi
}
export -f fuzz

seconds=${1:-60}
shift || true
OUT=$(mktemp -d)
export OUT
[ $# -gt 0 ] || set -- tests/fuzz/fuzz_*.c
printf '%s\0' "$@" | xargs -0 -P "$(nproc)" -I{} bash -c 'fuzz "$1" "$2"' _ "$seconds" {} || exit 1
rm -rf "$OUT"
