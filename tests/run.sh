#!/usr/bin/env bash
# Installs what is missing, builds everything, runs every unit test and every .bats file, and ends with
# one line: N passed, N failed, N skipped. Exit status 0 only when nothing failed.
#   tests/run.sh [--no-setup]      BIN=DIR BUILD=DIR CUDA=0|1 are passed to make
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" != --no-setup ]; then
    share/setup.sh --tests
fi
echo "build: make all unit"
make -j"$(nproc)" --no-print-directory -s all unit
exec tests/run-tests.sh
