# gpt2-infer --serve: the contracts, many clients in one batch, limits, disconnects, stopping.
load helper

setup_file() {
    "$ROOT/tests/fixtures/make_ckpt.sh" "$BATS_FILE_TMPDIR/make_ckpt"
    "$BATS_FILE_TMPDIR/make_ckpt" "$BATS_FILE_TMPDIR/ck" 1 2 2 16 1024 50257 1 3 8dc3eca2ff98ed0a >/dev/null
    ckpt-merge -q --vocab "$ROOT/share/gpt2/vocab.bpe" -o "$BATS_FILE_TMPDIR/model" "$BATS_FILE_TMPDIR/ck"
}
# serve OPTIONS: starts the endpoint on a free port; sets SERVER (pid) and PORT
serve() {
    : >"$TMP/log"
    gpt2-infer --serve 0 --device cpu --model "$BATS_FILE_TMPDIR/model" "$@" 2>"$TMP/log" 3>&- &
    SERVER=$!
    for i in $(seq 200); do
        PORT=$(sed -nE 's/.*ready on http:.*:([0-9]+)$/\1/p' "$TMP/log")
        [ -n "$PORT" ] && return 0
        kill -0 "$SERVER" 2>/dev/null || break
        sleep 0.05
    done
    cat "$TMP/log"
    return 1
}
stop() {
    kill -TERM "$SERVER"
    wait "$SERVER"
}
teardown() {
    if [ -n "${SERVER:-}" ]; then kill -9 "$SERVER" 2>/dev/null || true; fi
}
# client STATEMENTS: Python with post(path, body, type, headers) -> (status, headers, bytes) and json
client() {
    PORT=$PORT timeout 120 python3 -c "
import http.client, json, os, socket, sys, threading, time
port = int(os.environ['PORT'])
def ask(method, path, body=None, type=None, headers={}):
    c = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    c.request(method, path, body, {**({'Content-Type': type} if type else {}), **headers})
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, r.headers, data
def post(path, body, type='application/json', headers={}):
    if not isinstance(body, (bytes, str)): body = json.dumps(body)
    return ask('POST', path, body, type, headers)
def metric(name):
    for l in ask('GET', '/metrics')[2].decode().splitlines():
        if l.startswith(name + ' '): return float(l.split()[1])
def until(condition, seconds=20):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, 'timed out'
        time.sleep(0.02)
$1"
}

@test "the SageMaker contract: /ping, and /invocations in its three types" {
    serve
    client '
assert ask("GET", "/ping")[0] == 200
record = {"prompt": "hello", "max_new_tokens": 6, "temperature": 0}
s, h, b = post("/invocations", record)
one = json.loads(b)
assert s == 200 and h["Content-Type"] == "application/json" and len(one["ids"]) == 6
s, h, b = post("/invocations", [record, {"prompt": 3}, dict(record, max_new_tokens=2, id="x")])
many = json.loads(b)
assert s == 200 and many[0]["ids"] == one["ids"] and "error" in many[1] and many[2]["id"] == "x"
assert many[2]["ids"] == one["ids"][:2]
assert json.loads(post("/invocations", {"instances": [record]})[2])[0]["ids"] == one["ids"]
lines = "\n".join(json.dumps(dict(record, id=i, max_new_tokens=i)) for i in range(20)) + "\n{oops\n\n"
s, h, b = post("/invocations", lines, "application/jsonlines")
rows = [json.loads(l) for l in b.splitlines()]
assert s == 200 and h["Content-Type"] == "application/jsonlines"
assert [len(r["ids"]) for r in rows[:20]] == list(range(20)) and "error" in rows[20] and len(rows) == 21
s, h, b = post("/invocations?max_new_tokens=6&temperature=0", "hello", "text/plain")
assert s == 200 and b.decode("utf-8", "surrogateescape") == one["text"], b
assert post("/invocations", "hello", "image/png")[0] == 415
for bad in (b"", b"{", b"[]", b"3", b"{\"prompt\":\"\"}", json.dumps(dict(record, top_p=2)).encode(),
            json.dumps(dict(record, max_new_tokens=10**6)).encode(), b"\xff\xfe"):
    s, h, b = post("/invocations", bad)
    assert s == 400 and json.loads(b)["error"]["message"], (bad, s, b)
'
    stop
}

@test "endpoint and batch give the same text" {
    serve
    for i in 1 2 3 4 5; do echo "{\"id\":$i,\"prompt\":\"text number $i\",\"seed\":$i,\"max_new_tokens\":20}"; done >"$TMP/in"
    gpt2-infer generate -q --device cpu --model "$BATS_FILE_TMPDIR/model" "$TMP/in" >"$TMP/batch"
    curl -s -m 60 -H 'Content-Type: application/jsonlines' --data-binary "@$TMP/in" "http://127.0.0.1:$PORT/invocations" >"$TMP/served"
    cmp "$TMP/batch" "$TMP/served"
    stop
}

@test "/v1/completions: prompts, n, echo, stop, log-probabilities, usage, streaming" {
    serve --model-name mine
    client '
base = {"prompt": "hello there", "max_tokens": 12, "temperature": 0}
s, h, b = post("/v1/completions", base)
full = json.loads(b)
text = full["choices"][0]["text"]
assert full["object"] == "text_completion" and full["model"] == "mine" and full["id"].startswith("cmpl-")
assert full["usage"] == {"prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14}, full
assert full["choices"][0]["finish_reason"] == "length" and full["choices"][0]["logprobs"] is None
assert json.loads(post("/v1/completions", {"prompt": "hello there", "temperature": 0})[2])["usage"]["completion_tokens"] == 16
s, h, b = post("/v1/completions", dict(base, stream=True))
assert h["Content-Type"] == "text/event-stream"
events = b.decode().split("\n\n")
assert events[-2:] == ["data: [DONE]", ""]
chunks = [json.loads(e[6:]) for e in events[:-2]]
assert "".join(c["choices"][0]["text"] for c in chunks) == text and len(chunks) >= 6
assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
n = json.loads(post("/v1/completions", dict(base, n=3, temperature=1.0, seed=4, echo=True, logprobs=2))[2])
assert [c["index"] for c in n["choices"]] == [0, 1, 2] and len({c["text"] for c in n["choices"]}) == 3
assert all(c["text"].startswith("hello there") and len(c["logprobs"]["token_logprobs"]) == 12 for c in n["choices"])
again = json.loads(post("/v1/completions", dict(base, n=3, temperature=1.0, seed=4, echo=True, logprobs=2))[2])
assert again["choices"] == n["choices"]
two = json.loads(post("/v1/completions", dict(base, prompt=["hello there", [31373, 612]]))[2])
assert [c["text"] for c in two["choices"]] == [text, text]
stop = text[8:11]
cut = json.loads(post("/v1/completions", dict(base, stop=[stop]))[2])["choices"][0]
assert cut["text"] == text[:text.index(stop)] and cut["finish_reason"] == "stop"
s, h, b = post("/v1/completions", dict(base, stop=[stop], stream=True))
chunks = [json.loads(e[6:]) for e in b.decode().split("\n\n")[:-2]]
assert "".join(c["choices"][0]["text"] for c in chunks) == cut["text"], "a stop text leaked into the stream"
assert post("/v1/completions", {"max_tokens": 3})[0] == 400
assert post("/v1/completions", dict(base, prompt=[{}]))[0] == 400
assert json.loads(ask("GET", "/v1/models")[2])["data"][0]["id"] == "mine"
'
    stop
}

@test "64 clients at once: every answer is its own" {
    serve --queue-limit 1000
    client '
def text(i):
    return json.loads(post("/invocations", {"id": i, "prompt": "client %d says" % i, "seed": i, "max_new_tokens": 5 + i % 11})[2])
alone = {i: text(i) for i in range(0, 64, 7)}
got, failures = {}, []
def run(i):
    try:
        for _ in range(3):
            r = text(i)
            assert r["id"] == i and len(r["ids"]) == 5 + i % 11, r
            got.setdefault(i, set()).add(json.dumps(r))
    except Exception as x:
        failures.append((i, repr(x)))
threads = [threading.Thread(target=run, args=(i,)) for i in range(64)]
for t in threads: t.start()
for t in threads: t.join()
assert not failures, failures[:3]
assert len(got) == 64 and all(len(v) == 1 for v in got.values())
for i, r in alone.items(): assert got[i] == {json.dumps(r)}
until(lambda: metric("gpt2_texts_in_flight") == 0 and metric("gpt2_cache_pages") == metric("gpt2_cache_pages_free"))
'
    stop
}

@test "a full queue answers 429, a large body 413, and the server goes on" {
    serve --queue-limit 2 --max-body-size 2000 --sequences 1 --max-request-tokens 100000
    client '
busy = []
def hold():
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 100000, "stream": True}))
    r = c.getresponse()
    busy.append((c, r))
hold(); hold()
until(lambda: metric("gpt2_texts_in_flight") == 2)
s, h, b = post("/v1/completions", {"prompt": "y"})
assert s == 429 and h["Retry-After"] and json.loads(b)["error"]["type"] == "rate_limit_error"
for c, r in busy: r.close(); c.close()
until(lambda: metric("gpt2_texts_in_flight") == 0)
assert post("/v1/completions", {"prompt": "y", "max_tokens": 1})[0] == 200
assert post("/invocations", "x" * 3000, "text/plain")[0] == 413
def chunks():
    for _ in range(30): yield b"y" * 100
c = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
c.request("POST", "/invocations", chunks(), {"Content-Type": "text/plain"}, encode_chunked=True)
assert c.getresponse().status == 413
assert post("/invocations", [{"prompt": "z"}] * 3)[0] == 400
assert post("/v1/completions", {"prompt": "y", "max_tokens": 1})[0] == 200
'
    stop
}

@test "a client that leaves cancels its text, streaming or waiting" {
    serve --max-request-tokens 1000000
    client '
for stream in (True, False):
    before = metric("gpt2_cancelled_total")
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1000000, "stream": stream}))
    until(lambda: metric("gpt2_texts_running") == 1)
    c.sock.close() if stream is False else c.getresponse().close()
    c.close()
    until(lambda: metric("gpt2_texts_in_flight") == 0)
    assert metric("gpt2_cancelled_total") == before + 1, (stream, before, metric("gpt2_cancelled_total"))
until(lambda: metric("gpt2_cache_pages") == metric("gpt2_cache_pages_free"))
'
    stop
}

@test "SIGTERM: what runs is finished, new requests are refused, exit 0" {
    serve --drain-seconds 100 --max-request-tokens 10000000
    client '
import subprocess, signal
results = []
def work():
    results.append(post("/v1/completions", {"prompt": "x", "max_tokens": 1500, "ignore_eos": True}))
t = threading.Thread(target=work); t.start()
keep = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
keep.request("GET", "/ping"); assert keep.getresponse().read() == b"ok\n"
held = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
held.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 10000000, "ignore_eos": True, "stream": True}))
endless = held.getresponse() # runs for as long as this client stays
until(lambda: metric("gpt2_texts_running") == 2)
os.kill('"$SERVER"', signal.SIGTERM)
def refused():
    try: socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError: return True
until(refused)
endless.close(); held.close()
t.join()
s, h, b = results[0]
assert s == 200 and json.loads(b)["usage"]["completion_tokens"] == 1500
'
    wait "$SERVER"
    grep -q "stopped" "$TMP/log"
}

@test "what does not finish in time is given up" {
    serve --drain-seconds 0 --max-request-tokens 10000000
    client '
import signal
results = []
def work(stream):
    try: results.append(post("/v1/completions", {"prompt": "x", "max_tokens": 10000000, "ignore_eos": True, "stream": stream})[0])
    except Exception as x: results.append(repr(x))
threads = [threading.Thread(target=work, args=(s,)) for s in (True, False)]
for t in threads: t.start()
until(lambda: metric("gpt2_texts_running") == 2)
os.kill('"$SERVER"', signal.SIGTERM)
for t in threads: t.join()
assert 503 in results, results
'
    wait "$SERVER"
}

@test "keys: required where they must be, from a file" {
    printf 'first-key\r\nsecond key\n' >"$TMP/keys"
    serve --api-key-file "$TMP/keys"
    client '
def status(key): return post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"Authorization": key} if key else {})[0]
assert [status(k) for k in (None, "Bearer first-key", "Bearer second key", "Bearer first-ke", "Bearer first-keyy", "Bearer ", "Basic first-key")] == [401, 200, 200, 401, 401, 401, 401]
assert ask("GET", "/metrics")[0] == 401 and ask("GET", "/ping")[0] == 200 and ask("GET", "/")[0] == 200
'
    stop
    : >"$TMP/keys"
    run gpt2-infer --serve 0 --device cpu --model "$BATS_FILE_TMPDIR/model" --api-key-file "$TMP/keys"
    status_is 3
}

@test "no text of a request is in the log; other paths and methods are refused" {
    serve --log-requests
    client '
post("/v1/completions", {"prompt": "secret words", "max_tokens": 2})
post("/invocations?stop=secretstop", "secret words", "text/plain")
post("/secretpath?secretquery", "secret")
assert ask("GET", "/secretpath")[0] == 404 and ask("GET", "/invocations")[0] == 405
assert ask("PUT", "/ping", "x")[0] == 405
page = ask("GET", "/")[2].decode()
assert "v1/completions" in page and "<textarea" in page
s = socket.create_connection(("127.0.0.1", port)); s.sendall(b"\x16\x03\x01 not http\r\n\r\n"); s.settimeout(10); s.recv(100); s.close()
assert ask("GET", "/ping")[0] == 200
'
    stop
    grep -q "/v1/completions 200" "$TMP/log"
    run grep secret "$TMP/log"
    status_is 1
}

@test "loopback unless told; a port in use and a wrong address are errors" {
    serve
    run gpt2-infer --serve "$PORT" --device cpu --model "$BATS_FILE_TMPDIR/model"
    status_is 1
    has "cannot listen"
    address=$(hostname -I 2>/dev/null | awk '{ print $1 }')
    if [ -n "$address" ]; then
        run curl -s -m 5 "http://$address:$PORT/ping"
        [ "$status" -ne 0 ]
    fi
    stop
    run gpt2-infer --serve 70000 --device cpu --model "$BATS_FILE_TMPDIR/model"
    status_is 2
    run gpt2-infer --serve x:y --device cpu --model "$BATS_FILE_TMPDIR/model"
    status_is 2
    run gpt2-infer --serve 0 generate --device cpu --model "$BATS_FILE_TMPDIR/model"
    status_is 2
}

@test "the page shows tokens as they arrive (headless Chromium)" {
    browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || skip "no Chromium"
    serve
    timeout 200 python3 "$ROOT/tests/servers/page.py" "$browser" "http://127.0.0.1:$PORT/"
    stop
}

@test "the load test notices an answer that is lost, another's or not the whole" {
    serve --queue-limit 1000
    for i in 1 2 3 4; do echo "{\"id\":$i,\"prompt\":\"client $i\",\"seed\":$i,\"max_new_tokens\":8}"; done >"$TMP/records"
    gpt2-infer generate -q --device cpu --model "$BATS_FILE_TMPDIR/model" "$TMP/records" >"$TMP/answers"
    load() { PORT=$PORT REQUESTS=3 timeout 120 python3 "$ROOT/tests/bench/serve.py" "$TMP/records" "$1"; }
    run load "$TMP/answers"
    status_is 0
    has "PASS  answers as the batch tool gives them: 12 of 12"
    # the same answers, but the texts of clients 2 and 3 in each other's place, or an answer short of a token
    python3 - "$TMP" <<'PY'
import json, sys
rows = [json.loads(l) for l in open(sys.argv[1] + "/answers")]
def write(name, rows): open(sys.argv[1] + "/" + name, "w").writelines(json.dumps(r) + "\n" for r in rows)
write("mixed", [rows[0], dict(rows[2], id=2), dict(rows[1], id=3), rows[3]])
write("short", rows[:3] + [dict(rows[3], ids=rows[3]["ids"][:-1])])
PY
    run load "$TMP/mixed"
    status_is 1
    has "FAIL  answers as the batch tool gives them: 6 of 12"
    run load "$TMP/short"
    status_is 1
    has "9 of 12"
    stop
    run load "$TMP/answers" # nobody answers
    status_is 1
    has "0 of 12"
}
