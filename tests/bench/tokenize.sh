#!/usr/bin/env bash
# make bench-tokenize: gpt2-tokenize by the whole process (start, vocabulary, reading and writing included, page
# cache warm, best of RUNS=5), beside tiktoken and Hugging Face tokenizers by their encode call alone, when
# PYTHON=path/to/python has them. English and 47 languages need the reference data beside the checkout (SHARED).
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${BIN:-bin}
tool=$bin/gpt2-tokenize
shared=${SHARED-../shared}
runs=${RUNS:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

repeat() { # FILE TIMES: its text that many times over
    for _ in $(seq "$2"); do cat "$1"; done
}
corpus() { # NAME FILE MEGABYTES
    local size
    size=$(stat -c %s "$2")
    repeat "$2" $(($3 * 1000000 / size + 1)) >"$work/$1.txt"
    corpora+=("$1")
}
# best COMMAND...: the least seconds of the runs, output thrown away
best() {
    local began end least=
    for _ in $(seq "$runs"); do
        began=$(date +%s.%N)
        "$@" >/dev/null
        end=$(date +%s.%N)
        least=$(awk -v a="$began" -v b="$end" -v m="${least:-1e9}" 'BEGIN { t = b - a; printf "%.4f", t < m ? t : m }')
    done
    echo "$least"
}
rate() { awk -v b="$1" -v s="$2" 'BEGIN { printf "%7.0f", b / 1e6 / s }'; }

corpora=()
if [ -d "$shared/data/corpora" ]; then
    corpus english "$shared/data/corpora/tinyshakespeare.txt" 71
    corpus languages "$shared/data/corpora/udhr_all.txt" 59
else
    echo "no reference data at $shared: English and 47 languages are left out"
fi
cat src/*/*.[ch] src/*/*/*.[ch] >"$work/source"
corpus source "$work/source" 60

printf '%-10s %6s %9s %9s %9s %6s %9s\n' MB/s MB '1 thread' 2 'decode' 'x2' 'MB peak'
for c in "${corpora[@]}"; do
    file=$work/$c.txt
    bytes=$(stat -c %s "$file")
    one=$(best "$tool" -q --input-format text "$file")
    two=$(best "$tool" -q --threads 2 --input-format text "$file")
    "$tool" -q --input-format text -o "$work/t.tok" "$file"
    back=$(best "$tool" -q --decode "$work/t.tok")
    peak=-
    if [ -x /usr/bin/time ]; then
        peak=$(/usr/bin/time -f %M "$tool" -q --input-format text -o "$work/t.tok" "$file" 2>&1 | awk '{ printf "%.0f", $1 / 1000 }')
    fi
    printf '%-10s %6.0f %9s %9s %9s %6.2f %9s\n' "$c" "$(awk -v b="$bytes" 'BEGIN { print b / 1e6 }')" "$(rate "$bytes" "$one")" \
        "$(rate "$bytes" "$two")" "$(rate "$bytes" "$back")" "$(awk -v a="$one" -v b="$two" 'BEGIN { print a / b }')" "$peak"
done
if [ -n "${PYTHON:-}" ]; then
    for c in "${corpora[@]}"; do
        "$PYTHON" tests/bench/tokenize_peers.py share/gpt2/vocab.bpe "$c" "$work/$c.txt"
    done
else
    echo "PYTHON=path/to/python with tiktoken or tokenizers adds them"
fi
