#!/usr/bin/env bash
# make bench: speed and memory on this machine's CPU. Every benchmark runs; the exit status is 1 when a bar of one of
# them is missed (its FAIL lines say which). PYTHON=path/to/python with PyTorch, tiktoken or tokenizers adds them
# beside ours.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=$(realpath "${BIN:-bin}")
export BIN PATH=$BIN:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)}
status=0

echo "machine: $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors, $OMP_NUM_THREADS threads"
tests/bench/train_cpu.sh "$work" || status=1
tests/bench/tokenize.sh || status=1
tests/bench/pack.sh || status=1
tests/bench/memory.sh "$work" || status=1
SCALE=${SCALE:-0} tests/bench/merge.sh || status=1
tests/bench/infer.sh || status=1
exit "$status"
