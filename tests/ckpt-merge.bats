# ckpt-merge: a sharded checkpoint becomes a model folder, bit for bit, or a clear error and nothing.
load helper

setup_file() {
    "$ROOT/tests/fixtures/make_ckpt.sh" "$BATS_FILE_TMPDIR/make_ckpt"
}
# make_ckpt STEP RANKS SEED [FINGERPRINT [FAULT]]: a tiny model in $TMP/ck
make_ckpt() {
    "$BATS_FILE_TMPDIR/make_ckpt" "$TMP/ck" "$1" 2 4 64 64 512 "$2" "$3" "${4:-0000000000000000}" "${5:-}" >/dev/null
}

@test "the model does not depend on how many ranks stored it" {
    make_ckpt 1 1 7
    ckpt-merge -q -o "$TMP/m1" "$TMP/ck/step-00000001"
    for ranks in 2 3 5; do
        rm -rf "$TMP/ck"
        make_ckpt 1 "$ranks" 7
        ckpt-merge -q --threads 2 -o "$TMP/m$ranks" "$TMP/ck"
        cmp "$TMP/m1/model.safetensors" "$TMP/m$ranks/model.safetensors"
    done
}

@test "a parent folder means its newest checkpoint; a damaged one is passed over with a warning" {
    make_ckpt 1 2 7
    make_ckpt 2 2 8
    ckpt-merge -q -o "$TMP/new" "$TMP/ck"
    ckpt-merge -q -o "$TMP/new2" "$TMP/ck/step-00000002"
    cmp "$TMP/new/model.safetensors" "$TMP/new2/model.safetensors"
    truncate -s -64 "$TMP/ck/step-00000002/rank-00001-of-00002.ckp"
    run ckpt-merge -o "$TMP/old" "$TMP/ck"
    status_is 0
    has "newer checkpoint is damaged"
    ckpt-merge -q -o "$TMP/old1" "$TMP/ck/step-00000001"
    cmp "$TMP/old/model.safetensors" "$TMP/old1/model.safetensors"
}

@test "files past --max-shard-size have an index, and read as the same tensors" {
    make_ckpt 1 2 7
    ckpt-merge -q -o "$TMP/one" "$TMP/ck"
    ckpt-merge -q --max-shard-size 150kB -o "$TMP/many" "$TMP/ck"
    [ ! -e "$TMP/many/model.safetensors" ]
    [ -f "$TMP/many/model.safetensors.index.json" ]
    [ "$(ls "$TMP"/many/model-*.safetensors | wc -l)" -ge 3 ]
    python3 - "$TMP/many" <<'PY'
import json, os, sys
d = sys.argv[1]
index = json.load(open(d + "/model.safetensors.index.json"))
names, total = {}, 0
for f in sorted(set(index["weight_map"].values())):
    raw = open(os.path.join(d, f), "rb").read()
    n = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:8 + n])
    assert head.pop("__metadata__") == {"format": "pt"}
    for k, v in head.items():
        names[k] = f
        total += v["data_offsets"][1] - v["data_offsets"][0]
    assert sum(v["data_offsets"][1] - v["data_offsets"][0] for v in head.values()) <= 150000
assert names == index["weight_map"], "index and files differ"
assert total == index["metadata"]["total_size"]
PY
    run ckpt-merge -q --diff --tolerance 0 "$TMP/one" "$TMP/many"
    status_is 0
}

@test "bf16 and fp16 are the nearest values" {
    make_ckpt 1 2 7
    ckpt-merge -q -o "$TMP/f32" "$TMP/ck"
    ckpt-merge -q --dtype bf16 -o "$TMP/bf16" "$TMP/ck"
    ckpt-merge -q --dtype fp16 -o "$TMP/fp16" "$TMP/ck"
    grep -q '"torch_dtype": "bfloat16"' "$TMP/bf16/config.json"
    grep -q '"torch_dtype": "float16"' "$TMP/fp16/config.json"
    python3 - "$TMP" <<'PY'
import json, struct, sys
def load(path):
    raw = open(path + "/model.safetensors", "rb").read()
    n = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:8 + n]); head.pop("__metadata__")
    return {k: (v["dtype"], raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in head.items()}
a, b, h = (load(sys.argv[1] + "/" + d) for d in ("f32", "bf16", "fp16"))
assert a.keys() == b.keys() == h.keys()
def nearest_even(bits):
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) & 0xffff
for k in a:
    assert (a[k][0], b[k][0], h[k][0]) == ("F32", "BF16", "F16")
    words = struct.unpack("<%dI" % (len(a[k][1]) // 4), a[k][1])
    floats = struct.unpack("<%df" % len(words), a[k][1])
    assert b[k][1] == struct.pack("<%dH" % len(words), *map(nearest_even, words)), k
    assert h[k][1] == struct.pack("<%de" % len(words), *floats), k
PY
}

@test "tokenizer files come with GPT-2's vocabulary, and only with it" {
    make_ckpt 1 2 7
    ckpt-merge -q -o "$TMP/ids" "$TMP/ck"
    [ ! -e "$TMP/ids/tokenizer.json" ] # ids without a text
    rm -rf "$TMP/ck"
    make_ckpt 1 2 7 0123456789abcdef
    run ckpt-merge -q --vocab "$ROOT/share/gpt2/vocab.bpe" -o "$TMP/wrong" "$TMP/ck"
    status_is 3
    [ ! -e "$TMP/wrong" ]
    run ckpt-merge -q --tokenizer none -o "$TMP/none" "$TMP/ck"
    status_is 0
    [ ! -e "$TMP/none/tokenizer.json" ]
}

@test "a missing or doubled element range is named before anything is written" {
    for fault in gap twice; do
        rm -rf "$TMP/ck"
        make_ckpt 1 5 7 0000000000000000 "$fault"
        run ckpt-merge -q -o "$TMP/model" "$TMP/ck/step-00000001"
        status_is 3
        has "transformer.h.0.attn.c_attn.weight"
        has "elements"
        [ ! -e "$TMP/model" ]
        run ckpt-merge -q --verify "$TMP/ck/step-00000001"
        status_is 3
    done
}

@test "a tensor that the model needs and the checkpoint lacks is named" {
    make_ckpt 1 2 7 0000000000000000 missing
    run ckpt-merge -q -o "$TMP/model" "$TMP/ck"
    status_is 3
    has "transformer.h.0.attn.c_proj.weight"
    [ ! -e "$TMP/model" ]
}

@test "a wrong digest, a flipped bit and a cut file leave no model" {
    make_ckpt 1 2 7 0000000000000000 digest
    run ckpt-merge -q -o "$TMP/model" "$TMP/ck"
    status_is 3
    has "digest"
    rm -rf "$TMP/ck"
    make_ckpt 1 2 7
    file=$TMP/ck/step-00000001/rank-00000-of-00002.ckp
    cp "$file" "$TMP/good"
    size=$(stat -c %s "$file")
    for at in 0 20 $((size / 4)) $((size / 2)) $((size - 60)); do
        flip_byte "$file" "$at"
        run ckpt-merge -q -o "$TMP/model" "$TMP/ck/step-00000001"
        if [ "$status" -eq 0 ]; then # the byte was one of m or v: --verify must see it
            rm -rf "$TMP/model"
            run ckpt-merge -q --verify "$TMP/ck/step-00000001"
        fi
        status_is 3
        has "rank-00000-of-00002.ckp"
        [ ! -e "$TMP/model" ]
        cp "$TMP/good" "$file"
    done
    truncate -s $((size / 3)) "$file"
    run ckpt-merge -q -o "$TMP/model" "$TMP/ck/step-00000001"
    status_is 3
    rm "$file"
    run ckpt-merge -q -o "$TMP/model" "$TMP/ck/step-00000001"
    status_is 3
    has "missing"
    [ -z "$(ls -A "$TMP" | grep model)" ] # no hidden leftovers either
}

@test "--list counts NaN, --verify refuses them, on checkpoints and model folders" {
    make_ckpt 1 2 7 0000000000000000 nan
    ckpt-merge -q -o "$TMP/model" "$TMP/ck"
    for what in "$TMP/ck" "$TMP/model" "$TMP/model/model.safetensors"; do
        run --separate-stderr ckpt-merge -q --list "$what"
        status_is 0
        [ "$(echo "$output" | awk -F'\t' '$1 == "transformer.h.0.attn.c_attn.weight" { print $7 }')" = 1 ]
        [ "$(echo "$output" | awk -F'\t' 'NR > 1 { n += $7 } END { print n }')" = 1 ]
        run ckpt-merge -q --verify "$what"
        status_is 3
        has "NaN"
    done
}

@test "--list prints true norms" {
    make_ckpt 1 3 7
    ckpt-merge -q -o "$TMP/model" "$TMP/ck"
    ckpt-merge -q --list "$TMP/model" >"$TMP/list"
    ckpt-merge -q --list "$TMP/ck" >"$TMP/list-ck"
    cmp "$TMP/list" "$TMP/list-ck"
    python3 - "$TMP" <<'PY'
import json, math, struct, sys
raw = open(sys.argv[1] + "/model/model.safetensors", "rb").read()
n = int.from_bytes(raw[:8], "little")
head = json.loads(raw[8:8 + n])
rows = [l.split("\t") for l in open(sys.argv[1] + "/list").read().splitlines()[1:]]
assert len(rows) == 28
for name, dtype, shape, elements, norm, largest, nan, inf in rows:
    a, b = head[name]["data_offsets"]
    x = struct.unpack("<%df" % ((b - a) // 4), raw[8 + n + a:8 + n + b])
    assert json.loads(shape) == head[name]["shape"] and int(elements) == len(x)
    assert abs(float(norm) - math.sqrt(math.fsum(v * v for v in x))) <= 1e-8 * float(norm) + 1e-12
    assert abs(float(largest) - max(map(abs, x))) <= 1e-8
PY
}

@test "--diff finds the largest difference and where it is" {
    make_ckpt 1 2 7
    ckpt-merge -q -o "$TMP/a" "$TMP/ck"
    cp -r "$TMP/a" "$TMP/b"
    # the last element of the file is the last of ln_f.bias, 0: make it 2.0
    size=$(stat -c %s "$TMP/b/model.safetensors")
    printf '\x00\x00\x00\x40' | dd of="$TMP/b/model.safetensors" bs=1 seek=$((size - 4)) conv=notrunc status=none
    run --separate-stderr ckpt-merge -q --diff "$TMP/a" "$TMP/b"
    status_is 0
    echo "$output" | grep -qxF "$(printf 'transformer.ln_f.bias\t2\t63\t0\t2')"
    run ckpt-merge -q --diff --tolerance 1.5 "$TMP/ck" "$TMP/b"
    status_is 3
    run ckpt-merge -q --diff --tolerance 2 "$TMP/ck" "$TMP/b"
    status_is 0
}

@test "--verify accepts what is whole" {
    make_ckpt 4 3 7
    ckpt-merge -q -o "$TMP/model" "$TMP/ck"
    run --separate-stderr ckpt-merge -q --verify "$TMP/ck"
    status_is 0
    has "step 4, 3 files, 28 tensors, 136960 elements"
    run --separate-stderr ckpt-merge -q --verify "$TMP/model"
    status_is 0
    has "28 tensors"
    truncate -s -4 "$TMP/model/model.safetensors"
    run ckpt-merge -q --verify "$TMP/model"
    status_is 3
}

@test "memory stays below 64 MB, however many files and whatever the size" {
    if grep -q __asan_init "$BIN/ckpt-merge"; then skip "sanitizers take memory of their own"; fi
    "$ROOT/tests/fixtures/make_ckpt.sh" "$TMP/sparse_ckpt" "$ROOT/tests/bench/sparse_ckpt.c"
    cc -o "$TMP/peak" "$ROOT/tests/bench/peak.c"
    echo '{"n_layer":48,"n_head":3,"n_embd":192,"n_positions":64,"vocab_size":50257}' >"$TMP/config.json"
    "$TMP/sparse_ckpt" "$TMP/ck" "$TMP/config.json" 512 # 78,000 segments; the model has 125 MB
    merge() { timeout 120 "$TMP/peak" "$TMP/took" ckpt-merge -q --threads 4 "$@" && [ "$(cut -d' ' -f2 "$TMP/took")" -lt 62500 ]; }
    merge -o "$TMP/model" "$TMP/ck"
    merge --verify "$TMP/ck"
    merge --list "$TMP/model" >/dev/null
    merge --verify "$TMP/model"
    merge --diff --tolerance 0 "$TMP/ck" "$TMP/model" >/dev/null
    # a byte changed in a hole is found like any other
    printf '\1' | dd of="$TMP/ck/step-00000001/rank-00007-of-00512.ckp" bs=1 seek=300000 conv=notrunc status=none
    run ckpt-merge -q --overwrite -o "$TMP/model" "$TMP/ck"
    status_is 3
    has "rank-00007-of-00512.ckp"
}

@test "an existing folder is replaced only when told, and only if it is a model" {
    make_ckpt 1 2 7
    mkdir "$TMP/model"
    ckpt-merge -q -o "$TMP/model" "$TMP/ck" # empty: nothing to lose
    run ckpt-merge -q -o "$TMP/model" "$TMP/ck"
    status_is 2
    has "--overwrite"
    make_ckpt 2 2 8
    ckpt-merge -q --overwrite -o "$TMP/model/" "$TMP/ck"
    ckpt-merge -q -o "$TMP/other" "$TMP/ck"
    cmp "$TMP/model/model.safetensors" "$TMP/other/model.safetensors"
    mkdir "$TMP/precious"
    echo data >"$TMP/precious/file"
    run ckpt-merge -q --overwrite -o "$TMP/precious" "$TMP/ck"
    status_is 2
    [ -f "$TMP/precious/file" ]
    [ "$(ls -A "$TMP" | sort | tr '\n' ' ')" = "ck model other precious " ]
}

@test "what an interrupted run left is cleared by the next" {
    make_ckpt 1 2 7
    mkdir "$TMP/.model.partial"
    echo junk >"$TMP/.model.partial/model-00009-of-00009.safetensors"
    ckpt-merge -q -o "$TMP/model" "$TMP/ck"
    [ ! -e "$TMP/.model.partial" ]
    [ ! -e "$TMP/model/model-00009-of-00009.safetensors" ]
}

@test "usage errors, missing input and an unwritable folder" {
    make_ckpt 1 1 7
    run ckpt-merge "$TMP/ck"
    status_is 2
    has "--output"
    run ckpt-merge -o "$TMP/m"
    status_is 2
    run ckpt-merge --diff "$TMP/ck"
    status_is 2
    run ckpt-merge --verify --list "$TMP/ck"
    status_is 2
    run ckpt-merge -o "$TMP/m" --dtype int8 "$TMP/ck"
    status_is 2
    run ckpt-merge -o "$TMP/m" "$TMP/nothing"
    status_is 1
    mkdir "$TMP/empty"
    run ckpt-merge -o "$TMP/m" "$TMP/empty"
    status_is 3
    touch "$TMP/file"
    run ckpt-merge -o "$TMP/file/m" "$TMP/ck"
    status_is 1
    run bash -c "ckpt-merge -q --list '$TMP/ck' >/dev/full"
    status_is 1
}

@test "a full disk is an error that leaves nothing" {
    [ "$(id -u)" -eq 0 ] || skip "mounting a small file system needs root"
    make_ckpt 1 2 7
    mkdir "$TMP/small"
    mount -t tmpfs -o size=256k tmpfs "$TMP/small" 2>/dev/null || skip "no tmpfs here"
    run ckpt-merge -q -o "$TMP/small/model" "$TMP/ck"
    left=$(ls -A "$TMP/small")
    umount "$TMP/small"
    status_is 1
    has "No space left"
    [ -z "$left" ]
}

@test "Hugging Face opens the folder and computes the same logits" {
    PYTHON=${PYTHON:-/tmp/venv/bin/python}
    [ -x "$PYTHON" ] && "$PYTHON" -c "import torch, transformers" 2>/dev/null || skip "no Python with transformers"
    "$BATS_FILE_TMPDIR/make_ckpt" "$TMP/ck" 1 2 4 64 64 50257 2 7 8dc3eca2ff98ed0a
    ckpt-merge -q --vocab "$ROOT/share/gpt2/vocab.bpe" -o "$TMP/model" "$TMP/ck"
    echo '{"text":"Hello world, it'"'"'s  fine"}' | gpt2-infer logits -q --device cpu --model "$TMP/model" -o "$TMP/logits"
    HF_HUB_OFFLINE=1 timeout 300 "$PYTHON" - "$TMP" <<'PY'
import sys, torch, numpy
from transformers import AutoTokenizer, GPT2LMHeadModel
d = sys.argv[1]
model, tokenizer = GPT2LMHeadModel.from_pretrained(d + "/model"), AutoTokenizer.from_pretrained(d + "/model")
ids = tokenizer("Hello world, it's  fine", return_tensors="pt").input_ids
with torch.no_grad():
    want = model.float()(ids).logits[0].numpy()
got = numpy.fromfile(d + "/logits", dtype="<f4").reshape(want.shape)
assert abs(got - want).max() < 1e-5, abs(got - want).max()
PY
}
