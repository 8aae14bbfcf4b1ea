#!/usr/bin/env bash
# make bench-serve: many clients against the endpoint. Fails when an answer is lost or is not what the batch tool says.
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
python3 -c 'import json, sys
for i in range(int(sys.argv[1])):
    print(json.dumps({"id": i, "prompt": "client %d writes" % i, "seed": i, "max_new_tokens": int(sys.argv[2]),
                      "temperature": 1.0, "ignore_eos": True, "logprobs": False}))' "${CLIENTS:-64}" "${TOKENS:-32}" >"$work/records"
gpt2-infer generate -q --model "$model" "$work/records" >"$work/answers"
gpt2-infer --serve 0 --model "$model" --queue-limit 4096 2>"$work/log" &
server=$!
port=
for i in $(seq 400); do
    port=$(sed -nE 's/.*ready on http:.*:([0-9]+)$/\1/p' "$work/log")
    [ -n "$port" ] && break
    sleep 0.05
done
[ -n "$port" ] || { cat "$work/log" >&2; exit 1; }
PORT=$port REQUESTS=${REQUESTS:-10} python3 tests/bench/serve.py "$work/records" "$work/answers"
kill -TERM "$server"
wait "$server"
server=
