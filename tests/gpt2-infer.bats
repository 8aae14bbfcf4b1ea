# gpt2-infer in batches: other software's numbers, order, errors, resuming, long texts.
load helper

TINY=$FIXTURES/golden-tiny

# One tiny model with GPT-2's vocabulary for all tests that need text.
setup_file() {
    "$ROOT/tests/fixtures/make_ckpt.sh" "$BATS_FILE_TMPDIR/make_ckpt"
    "$BATS_FILE_TMPDIR/make_ckpt" "$BATS_FILE_TMPDIR/ck" 1 2 2 16 64 50257 1 3 8dc3eca2ff98ed0a >/dev/null
    ckpt-merge -q --vocab "$ROOT/share/gpt2/vocab.bpe" -o "$BATS_FILE_TMPDIR/model" "$BATS_FILE_TMPDIR/ck"
}
infer() { timeout 120 gpt2-infer "$1" -q --device cpu --model "$BATS_FILE_TMPDIR/model" "${@:2}"; }
tiny() { timeout 120 gpt2-infer "$1" -q --device cpu --model "$TINY" "${@:2}"; }
# check PYTHON-STATEMENTS: rows = the answers in $TMP/out, one object each
check() { python3 -c "
import json, sys
rows = [json.loads(l) for l in open('$TMP/out')]
$1"; }

golden() {
    python3 - "$1" "$TMP" <<'PY'
import array, json, subprocess, sys
model, tmp = sys.argv[1:]
want = json.load(open(model + "/expected.json"))
def run(task, records, *options):
    text = "".join(json.dumps(r) + "\n" for r in records)
    return subprocess.run(["gpt2-infer", task, "-q", "--device", "cpu", "--model", model, *options],
                          input=text.encode(), stdout=subprocess.PIPE, check=True, timeout=120).stdout
steps, batch, T = want["batches"]["shape"]
ids = array.array("H")
ids.frombytes(open(model + "/batches.u16", "rb").read())
got, exact = array.array("f"), array.array("f")
got.frombytes(run("logits", [{"ids": list(ids[i * T:(i + 1) * T])} for i in range(batch)]))
exact.frombytes(open(model + "/" + want["logits"]["file"], "rb").read())
assert len(got) == len(exact)
worst = max(abs(a - b) for a, b in zip(got, exact))
assert worst < 1e-4, ("logits", worst)
out = run("generate", [{"prompt_ids": g["prompt"], "max_new_tokens": len(g["greedy"])} for g in want["greedy"]],
          "--temperature", "0", "--ignore-eos")
rows = [json.loads(l) for l in out.splitlines()]
assert len(rows) == len(want["greedy"])
for r, g in zip(rows, want["greedy"]):
    assert r["ids"] == g["greedy"] and r["finish_reason"] == "length"
    assert max(abs(a - b) for a, b in zip(r["logprobs"], g["logprob"])) < 1e-4
rows = [json.loads(l) for l in run("score", [{"ids": s["tokens"]} for s in want["score"]]).splitlines()]
assert len(rows) == len(want["score"])
for r, s in zip(rows, want["score"]):
    assert r["tokens"] == s["tokens_scored"] and abs(r["logprob"] - s["sum_logprob"]) < 1e-4
PY
}

@test "logits, greedy text and scores equal Hugging Face's (committed model)" {
    golden "$TINY"
}

@test "logits, greedy text and scores equal Hugging Face's (all shapes)" {
    need_shared
    for m in tiny deep hd64 hd112; do golden "$SHARED/golden/model/$m"; done
}

@test "records that are wrong get an error object on their own line, and exit status 3" {
    cat >"$TMP/in" <<'JSON'
{"id":"a","prompt":"one"}
{"id":"b","prompt":7}

not json
{"id":{"deep":[1]},"prompt":"two","top_k":-1}
{"id":"e"}
{"id":null,"prompt_ids":[1,99999999]}
{"prompt_ids":[]}
{"id":"h","prompt":"three","stop":["",1]}
[1,2]
{"id":"z","prompt":"four","max_new_tokens":0}
JSON
    run infer generate --max-new-tokens 3 -o "$TMP/out" "$TMP/in"
    status_is 3
    has "8 records failed"
    check '
assert [r["id"] for r in rows] == ["a", "b", 2, {"deep": [1]}, "e", None, 6, "h", 8, "z"], rows
assert ["error" in r for r in rows] == [0, 1, 1, 1, 1, 1, 1, 1, 1, 0]
assert len(rows[0]["ids"]) == 3 and rows[9]["ids"] == [] and rows[9]["text"] == ""
assert rows[2]["error"]["line"] == 4 and "not a JSON" in rows[2]["error"]["message"]
assert "top_k" in rows[3]["error"]["message"] and "vocabulary" in rows[5]["error"]["message"] or "below" in rows[5]["error"]["message"]'
}

@test "--strict ends at the first wrong record; what was answered is kept" {
    printf '{"prompt":"one"}\n{"prompt":3}\n{"prompt":"two"}\n' >"$TMP/in"
    run infer generate --strict --max-new-tokens 2 -o "$TMP/out" "$TMP/in"
    status_is 3
    has "line 2"
    [ ! -e "$TMP/out" ]
}

@test "order is the input's, whatever finishes first, and every text is its own whatever the company" {
    python3 -c '
import json
for i in range(40):
    print(json.dumps({"id": i, "prompt": "word " * (1 + i * 7 % 13), "max_new_tokens": (i * 5) % 23, "seed": i, "temperature": i % 3}))' >"$TMP/in"
    infer generate --sequences 8 "$TMP/in" >"$TMP/out"
    check 'assert [r["id"] for r in rows] == list(range(40)) and [len(r["ids"]) for r in rows] == [(i * 5) % 23 for i in range(40)]'
    infer generate --sequences 1 "$TMP/in" >"$TMP/alone"
    cmp "$TMP/out" "$TMP/alone"
    infer generate --sequences 5 --page-tokens 3 --cache-size 1 "$TMP/in" >"$TMP/small-cache"
    cmp "$TMP/out" "$TMP/small-cache"
    tac "$TMP/in" | infer generate | tac >"$TMP/reversed"
    cmp "$TMP/out" "$TMP/reversed"
}

@test "a record without a seed draws from --seed and its number" {
    for i in 1 2 3; do echo '{"prompt":"same"}'; done >"$TMP/in"
    infer generate --max-new-tokens 8 "$TMP/in" >"$TMP/out"
    check 'assert len({tuple(r["ids"]) for r in rows}) == 3'
    infer generate --max-new-tokens 8 "$TMP/in" | cmp - "$TMP/out"
    infer generate --max-new-tokens 8 --seed 1 "$TMP/in" >"$TMP/other"
    run cmp -s "$TMP/out" "$TMP/other"
    status_is 1
}

@test "options of a record win over the command line's" {
    cat >"$TMP/in" <<'JSON'
{"prompt":"x","temperature":0,"max_new_tokens":5}
{"prompt":"x","top_k":1,"max_new_tokens":5}
{"prompt":"x","top_p":0,"max_new_tokens":5,"logprobs":false}
JSON
    infer generate --temperature 1.5 --max-new-tokens 2 "$TMP/in" >"$TMP/out"
    check '
assert rows[0]["ids"] == rows[1]["ids"] == rows[2]["ids"] and len(rows[0]["ids"]) == 5
assert "logprobs" in rows[0] and "logprobs" not in rows[2]'
}

@test "stop texts end before themselves, also across tokens; eos ends and is not text" {
    infer generate --max-new-tokens 30 --seed 5 <<<'{"prompt":"a b c"}' >"$TMP/out"
    python3 - "$TMP" <<'PY'
import json, subprocess, sys
full = json.loads(open(sys.argv[1] + "/out").read())
text = full["text"]
stop = text[10:14]
at = text.index(stop)
record = {"prompt": "a b c", "stop": ["\u0000never", stop], "id": 0}
open(sys.argv[1] + "/stop", "w").write(json.dumps(record) + "\n")
open(sys.argv[1] + "/want", "w").write(text[:at])
PY
    infer generate --max-new-tokens 30 --seed 5 "$TMP/stop" >"$TMP/out"
    python3 - "$TMP" <<'PY'
import json, sys
r = json.loads(open(sys.argv[1] + "/out").read())
assert r["text"] == open(sys.argv[1] + "/want").read() and r["finish_reason"] == "stop"
assert len(r["ids"]) < 30
PY
    # the committed model: make its first greedy token the eos by asking for a model whose eos it is
    cp -r "$TINY" "$TMP/tiny"
    chmod -R u+w "$TMP/tiny"
    first=$(python3 -c "import json; print(json.load(open('$TINY/expected.json'))['greedy'][0]['greedy'][6])")
    prompt=$(python3 -c "import json; print(json.dumps(json.load(open('$TINY/expected.json'))['greedy'][0]['prompt']))")
    sed -i "s/\"eos_token_id\": 511/\"eos_token_id\": $first/" "$TMP/tiny/config.json"
    echo "{\"prompt_ids\":$prompt}" | gpt2-infer generate -q --device cpu --model "$TMP/tiny" --temperature 0 --max-new-tokens 24 >"$TMP/out"
    check "
want = json.load(open('$TINY/expected.json'))['greedy'][0]['greedy']
assert rows[0]['finish_reason'] == 'eos' and rows[0]['ids'] == want[:want.index($first)], rows"
}

@test "texts survive byte for byte: bad UTF-8, NUL, lone surrogates, special text" {
    cat >"$TMP/in" <<'JSON'
{"prompt":"\u0000 a\udcff\udc80 \ud83d\ude00 \"q\" \\u0041"}
{"prompt":"<|endoftext|>"}
JSON
    infer generate --max-new-tokens 1 "$TMP/in" >"$TMP/out"
    check 'assert all("error" not in r for r in rows)'
    printf 'caf\xe9 \xff\x00z\n' | infer score --input-format lines >"$TMP/out"
    check 'assert rows[0]["tokens"] >= 5'
    echo '{"text":"<|endoftext|>"}' >"$TMP/in"
    infer score "$TMP/in" >"$TMP/out"
    check 'assert rows[0]["tokens"] == 6, rows' # <, |, endo, ft, ext, |, > as text: 7 ids
    infer score --allow-special "$TMP/in" >"$TMP/out"
    check 'assert rows[0]["tokens"] == 0'
    printf '{"text":"no end of line"}' | infer score >"$TMP/out"
    check 'assert len(rows) == 1'
}

@test "an interrupted run continues with --resume as if nothing had happened" {
    for i in $(seq 30); do echo "{\"id\":\"r$i\",\"prompt\":\"number $i\"}"; done >"$TMP/in"
    infer generate --max-new-tokens 6 -o "$TMP/out" "$TMP/in"
    cp "$TMP/out" "$TMP/whole"
    for cut in 0 1 57 1000 $(($(stat -c %s "$TMP/whole") - 1)); do
        rm -f "$TMP/out"
        head -c "$cut" "$TMP/whole" >"$TMP/out.partial"
        infer generate --resume --max-new-tokens 6 -o "$TMP/out" "$TMP/in"
        cmp "$TMP/out" "$TMP/whole"
        [ ! -e "$TMP/out.partial" ]
    done
    # a complete output and a longer input: only the new records are computed
    echo '{"id":"new","prompt":"more"}' >>"$TMP/in"
    run infer generate --resume --max-new-tokens 6 --stats "$TMP/stats" -o "$TMP/out" "$TMP/in"
    status_is 0
    grep -q '"records":1,' "$TMP/stats"
    [ "$(wc -l <"$TMP/out")" -eq 31 ]
    # another input is refused
    sed -i 's/r7/other/' "$TMP/in"
    run infer generate --resume --max-new-tokens 6 -o "$TMP/out" "$TMP/in"
    status_is 3
    has "does not answer"
    run infer generate --resume
    status_is 2
}

@test "kill -9 keeps the answers so far" {
    for i in $(seq 400); do echo "{\"id\":$i,\"prompt\":\"number $i\"}"; done >"$TMP/in"
    gpt2-infer generate -q --device cpu --model "$BATS_FILE_TMPDIR/model" --max-new-tokens 30 -o "$TMP/out" "$TMP/in" &
    pid=$!
    for i in $(seq 200); do [ -s "$TMP/out.partial" ] && break; sleep 0.05; done
    kill -9 $pid
    wait $pid || true
    [ ! -e "$TMP/out" ]
    before=$(grep -c . "$TMP/out.partial")
    [ "$before" -ge 1 ]
    infer generate --resume --max-new-tokens 30 --stats "$TMP/stats" -o "$TMP/out" "$TMP/in"
    check 'assert [r["id"] for r in rows] == list(range(1, 401))'
    python3 -c "import json; s = json.load(open('$TMP/stats')); assert s['resumed'] >= $before - 1 and s['records'] + s['resumed'] == 400, s"
}

@test "progress: a bar on a terminal, a plain last line elsewhere, nothing with -q; and the totals add up" {
    for i in $(seq 300); do echo "{\"prompt\":\"number $i\",\"ignore_eos\":true}"; done >"$TMP/in"
    timeout 120 gpt2-infer generate --device cpu --model "$BATS_FILE_TMPDIR/model" --max-new-tokens 15 --sequences 16 --stats "$TMP/stats" \
        "$TMP/in" >"$TMP/out" 2>"$TMP/plain"
    python3 "$ROOT/tests/servers/terminal.py" "$TMP/bar" timeout 120 gpt2-infer generate --device cpu --model "$BATS_FILE_TMPDIR/model" \
        --max-new-tokens 15 --sequences 16 -o "$TMP/out2" "$TMP/in"
    # how much is left is known of a file, redirected or not, and not of a pipe
    python3 "$ROOT/tests/servers/terminal.py" "$TMP/redirected" timeout 120 gpt2-infer generate --device cpu \
        --model "$BATS_FILE_TMPDIR/model" --max-new-tokens 15 --sequences 16 -o "$TMP/out3" <"$TMP/in"
    cat "$TMP/in" | python3 "$ROOT/tests/servers/terminal.py" "$TMP/pipe" timeout 120 gpt2-infer generate --device cpu \
        --model "$BATS_FILE_TMPDIR/model" --max-new-tokens 15 --sequences 16 -o "$TMP/out4"
    cmp "$TMP/out" "$TMP/out2"
    cmp "$TMP/out" "$TMP/out3"
    cmp "$TMP/out" "$TMP/out4"
    python3 - "$TMP" <<'PY'
import json, re, sys
read = lambda name: open(sys.argv[1] + "/" + name, newline="").read()
stats = json.loads(read("stats"))
prompt, new = stats["prompt_tokens"], stats["new_tokens"]
assert (stats["records"], new) == (300, 300 * 15), stats
for name in ("plain", "bar", "redirected", "pipe"):
    text = read(name)
    assert re.search(r"generate: 4\.50k tokens, [\d.]+k? tokens/s, \d+:\d\d, ", text), (name, text)
    records, seconds, rate, p, n = re.search(
        r"(\d+) records in ([\d.]+) s, (\d+) tokens/s \((\d+) prompt, (\d+) new\)", text).groups()
    assert (int(records), int(p), int(n)) == (300, prompt, new), (name, text)
    assert abs(float(seconds) - (prompt + new) / float(rate)) < 0.02 + float(seconds) / float(rate), (name, text)
    bars = [(len(bar), int(percent), int(records)) for bar, percent, records in re.findall(
        r"\rgenerate: \[(=*) *\] (\d+)%, [\d.]+k? tokens, [\d.]+k? tokens/s, (?:ETA )?\d+:\d\d, (\d+) records", text)]
    assert bool(bars) == (name in ("bar", "redirected")), (name, text)
    for cells, percent, records in bars:  # records are of nearly one length
        assert abs(cells - percent * 24 / 100) < 1.3 and abs(percent - records / 3) < 4, (name, bars)
    assert name == "plain" or re.search(r"\rgenerate: .*ETA" if bars else r"\rgenerate: [\d.]+k? tokens", text), (name, text)
PY
    run infer generate --max-new-tokens 1 "$TMP/in"
    ! grep -q "tokens/s" <<<"$output"
}

@test "answers leave while the input is still open" {
    mkfifo "$TMP/in"
    infer generate --max-new-tokens 2 "$TMP/in" >"$TMP/out" &
    exec 7>"$TMP/in"
    echo '{"prompt":"first"}' >&7
    for i in $(seq 100); do [ -s "$TMP/out" ] && break; sleep 0.05; done
    [ "$(wc -l <"$TMP/out")" -eq 1 ]
    echo '{"prompt":"second"}' >&7
    exec 7>&-
    wait
    [ "$(wc -l <"$TMP/out")" -eq 2 ]
}

@test "endless input: answers come, and a reader that leaves ends the run quietly" {
    yes '{"prompt":"again and again"}' | timeout 60 gpt2-infer generate -q --device cpu --model "$BATS_FILE_TMPDIR/model" --max-new-tokens 1 2>"$TMP/err" | head -n 300 >"$TMP/out"
    [ "$(wc -l <"$TMP/out")" -eq 300 ]
    [ ! -s "$TMP/err" ]
}

@test "memory does not grow with the number of records" {
    if grep -q __asan_init "$BIN/gpt2-infer"; then skip "sanitizers take memory of their own"; fi
    cc -o "$TMP/peak" "$ROOT/tests/bench/peak.c"
    peak() { # RECORDS TASK OPTIONS...: KiB
        yes '{"prompt":"again and again","text":"and again","label":0}' | head -n "$1" |
            "$TMP/peak" "$TMP/took" timeout 200 gpt2-infer "${@:2}" -q --device cpu --model "$BATS_FILE_TMPDIR/model" >"$TMP/out"
        [ "$(wc -l <"$TMP/out")" -eq "$1" ]
        cut -d' ' -f2 "$TMP/took"
    }
    for task in "generate --max-new-tokens 1" score "classify --labels a,b"; do
        few=$(peak 1000 $task)
        many=$(peak 8000 $task)
        echo "$task: $few KiB for 1000 records, $many KiB for 8000"
        [ "$many" -lt $((few + 2048)) ] # a leak of 300 bytes a record would show
    done
}

@test "long prompts slide or are refused" {
    python3 -c 'import json; print(json.dumps({"prompt_ids": [i % 50000 for i in range(300)], "max_new_tokens": 100}))' >"$TMP/in"
    infer generate --ignore-eos "$TMP/in" >"$TMP/out"
    check 'assert len(rows[0]["ids"]) == 100'
    run infer generate --long-prompt refuse "$TMP/in"
    status_is 3
    has "300 tokens"
}

@test "score: context, continuation, windows over a long text, perplexity" {
    cat >"$TMP/in" <<'JSON'
{"context":"The film was","text":" great fun"}
{"prompt":"The film was","continuation":" great fun"}
{"context_ids":[1,2,3],"ids":[4,5]}
{"ids":[1,2,3,4,5]}
{"ids":[1]}
JSON
    infer score --stats "$TMP/stats" "$TMP/in" >"$TMP/out"
    check '
import math
assert [r["tokens"] for r in rows] == [2, 2, 2, 4, 0]
assert rows[0]["logprob"] == rows[1]["logprob"] and rows[4]["perplexity"] is None
assert rows[3]["logprob"] < rows[2]["logprob"]
assert abs(rows[3]["perplexity"] - math.exp(-rows[3]["logprob"] / 4)) < 1e-3
s = json.load(open("'"$TMP"'/stats"))
assert s["scored_tokens"] == 10 and abs(s["logprob"] - sum(r["logprob"] for r in rows)) < 1e-6'
    # a window over 200 tokens equals the same windows scored one by one
    python3 - "$TMP" <<'PY'
import json, sys
ids = [(i * 37) % 50000 for i in range(200)]
with open(sys.argv[1] + "/in", "w") as f:
    f.write(json.dumps({"ids": ids}) + "\n")
    done, end = 1, 64
    while True:
        begin = max(0, end - 64)
        f.write(json.dumps({"context_ids": ids[begin:done], "ids": ids[done:end]}) + "\n")
        done = end
        if end == 200: break
        end = min(200, end + 20)
PY
    infer score --stride 20 "$TMP/in" >"$TMP/out"
    check 'assert rows[0]["tokens"] == 199 == sum(r["tokens"] for r in rows[1:]); assert abs(rows[0]["logprob"] - sum(r["logprob"] for r in rows[1:])) < 1e-3'
    run infer score --stride 64 "$TMP/in"
    status_is 2
    run infer score --long-prompt refuse "$TMP/in"
    status_is 3
    printf 'one line\nand another\n' | infer score --input-format text --prepend-eot >"$TMP/out"
    check 'assert len(rows) == 1 and rows[0]["tokens"] == 6, rows'
}

@test "score does not depend on what is scored beside it" {
    for i in $(seq 60); do echo "{\"text\":\"$(yes word | head -n $((i % 17 + 2)) | tr '\n' ' ')\"}"; done >"$TMP/in"
    infer score "$TMP/in" >"$TMP/out"
    while read -r line; do infer score <<<"$line" | sed 's/"id":0/"id":N/'; done < <(head -n 8 "$TMP/in") >"$TMP/alone"
    python3 - "$TMP" <<'PY'
import json, sys
rows = [json.loads(l) for l in open(sys.argv[1] + "/out")]
alone = [json.loads(l.replace("N", "0")) for l in open(sys.argv[1] + "/alone")]
assert len(rows) == 60 and len(alone) == 8
for a, b in zip(rows, alone):
    assert a["tokens"] == b["tokens"] and abs(a["logprob"] - b["logprob"]) < 1e-4
PY
}

@test "classify: the likeliest label by the sums that score gives, and accuracy" {
    python3 -c '
import json
for i, (text, label) in enumerate([("good", 1), ("bad film", 0), ("so so", "positive"), ("none", -1), ("fine", " negative")]):
    print(json.dumps({"id": i, "text": text, "label": label}))' >"$TMP/in"
    infer classify --labels " negative, positive, a mixed bag" --template "Review: {} It was" --stats "$TMP/stats" "$TMP/in" >"$TMP/out"
    python3 - "$TMP" >"$TMP/score" <<'PY'
import json, sys
for l in open(sys.argv[1] + "/in"):
    r = json.loads(l)
    for label in (" negative", " positive", " a mixed bag"):
        print(json.dumps({"context": "Review: " + r["text"] + " It was", "text": label}))
PY
    infer score "$TMP/score" >"$TMP/scores"
    check '
import math
s = [json.loads(l)["logprob"] for l in open("'"$TMP"'/scores")]
names = ["negative", "positive", "a mixed bag"]
gold = [1, 0, 1, None, 0]
right = 0
for i, r in enumerate(rows):
    want = s[3 * i:3 * i + 3]
    assert max(abs(a - b) for a, b in zip(r["logprobs"], want)) < 1e-4, (r, want)
    assert r["index"] == want.index(max(want)) and r["label"] == names[r["index"]]
    assert abs(sum(r["probabilities"]) - 1) < 1e-6
    right += r["index"] == gold[i]
stats = json.load(open("'"$TMP"'/stats"))
assert stats["with_label"] == 4 and stats["correct"] == right and abs(stats["accuracy"] - right / 4) < 1e-9'
    echo '{"text":"x","label":"neutral"}' >"$TMP/in"
    run infer classify --labels " negative, positive" "$TMP/in"
    status_is 3
    has "neutral"
    run infer classify --labels "one" "$TMP/in"
    status_is 2
    run infer classify "$TMP/in"
    status_is 2
    run infer classify --labels "a,b" --template "no hole" "$TMP/in"
    status_is 2
}

@test "plain lines in; a chosen field; the vocabulary from elsewhere" {
    printf 'first line\nsecond line\n' | infer generate --input-format lines --max-new-tokens 2 >"$TMP/out"
    check 'assert [len(r["ids"]) for r in rows] == [2, 2]'
    echo '{"sentence":"a fine film"}' | infer score --field sentence >"$TMP/out"
    check 'assert rows[0]["tokens"] == 2'
    mkdir "$TMP/bare"
    cp "$BATS_FILE_TMPDIR"/model/{config.json,model.safetensors} "$TMP/bare"
    run gpt2-infer score -q --device cpu --model "$TMP/bare" <<<'{"text":"x y"}'
    status_is 3
    has "--vocab"
    gpt2-infer score -q --device cpu --model "$TMP/bare" --vocab "$ROOT/share/gpt2/vocab.bpe" <<<'{"text":"x y"}' >"$TMP/out"
    check 'assert rows[0]["tokens"] == 1'
    run gpt2-infer score -q --device cpu --model "$TINY" --vocab "$ROOT/share/gpt2/vocab.bpe" <<<'{"text":"x y"}'
    status_is 3
    has "50257"
}

@test "bf16 and fp16 weights, files in half precision and in pieces" {
    "$BATS_FILE_TMPDIR/make_ckpt" "$TMP/ck" 1 2 4 64 64 512 2 7 >/dev/null
    for t in fp32 bf16 fp16; do ckpt-merge -q --dtype $t --max-shard-size 100kB -o "$TMP/$t" "$TMP/ck"; done
    echo '{"ids":[1,2,3,4,5,6,7,8]}' >"$TMP/in"
    for t in fp32 bf16 fp16; do
        for w in fp32 bf16; do
            gpt2-infer score -q --device cpu --weights $w --model "$TMP/$t" "$TMP/in"
        done
    done >"$TMP/out"
    check '
x = [r["logprob"] for r in rows]
assert len(x) == 6 and max(abs(v - x[0]) for v in x) < 0.1 and len(set(x)) >= 3, x'
}

@test "models that are not the ones we compute are refused by name" {
    cp -r "$TINY" "$TMP/m"
    chmod -R u+w "$TMP/m"
    for c in 's/"gelu_new"/"relu"/' 's/"model_type": "gpt2"/"model_type": "bert"/' 's/"n_layer": 2/"n_layer": 3/' 's/"n_embd": 64/"n_embd": 72/' 's/"n_positions": 64/"n_positions": 65/' 's/{/[/'; do
        sed "$c" "$TINY/config.json" >"$TMP/m/config.json"
        run gpt2-infer score -q --device cpu --model "$TMP/m" <<<'{"ids":[1,2]}'
        status_is 3
    done
    cp "$TINY/config.json" "$TMP/m/config.json"
    truncate -s -100 "$TMP/m/model.safetensors"
    run gpt2-infer score -q --device cpu --model "$TMP/m" <<<'{"ids":[1,2]}'
    status_is 3
    has "model.safetensors"
    rm "$TMP/m/model.safetensors"
    run gpt2-infer score -q --device cpu --model "$TMP/m" <<<'{"ids":[1,2]}'
    status_is 3
}

@test "usage errors, unreadable input, closed output" {
    run infer dream
    status_is 2
    has "generate, score, classify, logits"
    run gpt2-infer generate
    status_is 2
    has "--model"
    run infer generate "$TMP/nothing"
    status_is 1
    run infer generate --temperature -1
    status_is 2
    run bash -c "echo '{\"prompt\":\"x\"}' | gpt2-infer generate -q --device cpu --model '$BATS_FILE_TMPDIR/model' --max-new-tokens 1 >/dev/full"
    status_is 1
    run bash -c "echo '{\"prompt\":\"x\"}' | gpt2-infer generate -q --device cpu --model '$BATS_FILE_TMPDIR/model' --max-new-tokens 1 >&-"
    status_is 1
    run bash -c "echo '{\"ids\":[1]}' | gpt2-infer logits -q --device cpu --model '$TINY' >/dev/full"
    status_is 1
    if ! nvidia-smi >/dev/null 2>&1; then
        run gpt2-infer score -q --device cuda --model "$TINY" <<<'{"ids":[1,2]}'
        [ "$status" -eq 4 ] || [ "$status" -eq 2 ]
        has "cuda"
    fi
}
