#!/usr/bin/env bash
# make bench: a table of speed and memory on this machine's CPU. Nothing here passes or fails; each line can
# be repeated by the command it prints. PYTHON=path/to/python with PyTorch adds PyTorch beside ours.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/${BIN:-bin}:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)}

echo "machine: $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors, $OMP_NUM_THREADS threads"
tests/bench/train_cpu.sh "$work"
tests/bench/memory.sh "$work"
[ -x tests/bench/tokenize.sh ] && tests/bench/tokenize.sh
[ -x tests/bench/infer.sh ] && tests/bench/infer.sh
