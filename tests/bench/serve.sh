#!/usr/bin/env bash
# make bench-serve: many clients against the endpoint. Fails when an answer is lost or is another's.
# CLIENTS (64), REQUESTS (10, of each client), TOKENS (32), MODEL (a small one is made).
set -euo pipefail
cd "$(dirname "$0")/../.."
export BUILD=${BUILD:-$PWD/build} PATH=${BIN:-$PWD/bin}:$PATH SDP_GPT2_SHARE=${SDP_GPT2_SHARE:-$PWD/share}
work=$(mktemp -d "${TMPDIR:-/tmp}/bench-serve.XXXXXX")
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi; rm -rf "$work"' EXIT

model=${MODEL:-}
if [ -z "$model" ]; then
    tests/fixtures/make_ckpt.sh "$work/make_ckpt"
    "$work/make_ckpt" "$work/ck" 1 4 4 128 256 50257 1 3 8dc3eca2ff98ed0a >/dev/null
    ckpt-merge -q -o "$work/model" "$work/ck"
    model=$work/model
fi
gpt2-infer --serve 0 --model "$model" --queue-limit 4096 2>"$work/log" &
server=$!
port=
for i in $(seq 400); do
    port=$(sed -nE 's/.*ready on http:.*:([0-9]+)$/\1/p' "$work/log")
    [ -n "$port" ] && break
    sleep 0.05
done
[ -n "$port" ] || { cat "$work/log" >&2; exit 1; }
PORT=$port CLIENTS=${CLIENTS:-64} REQUESTS=${REQUESTS:-10} TOKENS=${TOKENS:-32} python3 tests/bench/serve.py
kill -TERM "$server"
wait "$server"
server=
