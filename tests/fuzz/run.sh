#!/usr/bin/env bash
# run.sh [SECONDS] [TARGET...] - builds every fuzz target with the sanitizers and runs each for SECONDS (60).
# A target names its "sources:" and "libs:" in its first lines. A failure leaves its input as fuzz-crash.bin
# in the folder it names.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
seconds=${1:-60}
shift || true
out=$(mktemp -d)
failed=0
[ $# -gt 0 ] || set -- tests/fuzz/fuzz_*.c
for source in "$@"; do
    name=$(basename "$source" .c)
    # Patterns in "sources:" are meant to expand.
    # shellcheck disable=SC2046
    if ! gcc -std=gnu11 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -Wall -Wextra -Werror \
        -Isrc -Itests/fuzz -o "$out/$name" "$source" $(sed -n 's|^// sources: ||p' "$source") \
        $(sed -n 's|^// libs: ||p' "$source") -lm -lpthread; then
        echo "not ok - $name does not build"
        failed=1
        continue
    fi
    mkdir -p "$out/$name.run"
    if (cd "$out/$name.run" && timeout $((${seconds%.*} + 60)) "$out/$name" "$seconds") >"$out/log" 2>&1; then
        echo "ok - $name: $(tr '\n' ' ' <"$out/log")"
        rm -rf "$out/$name.run"
    else
        cat "$out/log"
        echo "not ok - $name: its input is $out/$name.run/fuzz-crash.bin"
        failed=1
    fi
done
[ $failed -ne 0 ] || rm -rf "$out"
exit $failed
