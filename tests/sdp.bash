# sdp.bash - what tests of sdp-train share: small shard sets, runs on several ranks, and reading curves.

export SDP_GPT2_SHARE=${SDP_GPT2_SHARE:-$ROOT/share} # the executables may stand anywhere

TINY=${FIXTURES:-}/golden-tiny

# What a .bats file that loads this starts with, unless it says otherwise: the reference model's shards, and an empty
# folder.
setup_file() {
    shards_of "$TINY" "$BATS_FILE_TMPDIR/shards"
}
start_in_tmp() {
    SHARDS=$BATS_FILE_TMPDIR/shards
    cd "$TMP" || return
}
setup() { start_in_tmp; }

# ids_of MODEL_DIR: the batches of a reference model, one JSON array of ids a line.
ids_of() {
    python3 - "$1" <<'PY'
import json, struct, sys
folder = sys.argv[1]
steps, batch, time = json.load(open(folder + "/expected.json"))["batches"]["shape"]
data = open(folder + "/batches.u16", "rb").read()
ids = struct.unpack("<%dH" % (len(data) // 2), data)
for i in range(len(ids) // time):
    print(json.dumps(ids[i * time : (i + 1) * time]))
PY
}
field_of() { python3 -c 'import json, sys; print(eval("json.load(open(sys.argv[1]))" + sys.argv[2]))' "$1" "$2"; }
# shards_of MODEL_DIR OUT: the same as a shard set.
shards_of() {
    local vocab time
    vocab=$(field_of "$1/config.json" '["vocab_size"]')
    time=$(field_of "$1/expected.json" '["batches"]["shape"][2]')
    ids_of "$1" | gpt2-tokenize --quiet --input-format ids --vocab-size "$vocab" |
        shard-pack --quiet --block-size "$time" -o "$2"
}

# ranks W OPTIONS: sdp-train on W ranks (no launcher for 1); quiet, at most a minute or two.
ranks() {
    local w=$1
    shift
    if [ "$w" = 1 ]; then
        timeout "${RANKS_TIMEOUT:-150}" sdp-train --quiet "$@"
    else
        timeout "${RANKS_TIMEOUT:-150}" mpirun -n "$w" sdp-train --quiet "$@" </dev/null
    fi
}
# golden W MODEL_DIR SHARDS METRICS OPTIONS: the reference run of that model.
golden() {
    local w=$1 model=$2 shards=$3 metrics=$4
    shift 4
    ranks "$w" --init-from "$model" --training-dir "$shards" --shuffle 0 --lr 1e-3 --lr-decay-style constant \
        --warmup 0 --weight-decay 0.1 --beta2 0.95 --grad-clip 1 --metrics "$metrics" \
        --max-steps "${STEPS:-$(field_of "$model/expected.json" '["adamw"]["steps"]')}" "$@"
}
# curve_close MODEL_DIR METRICS: losses and norms within 1e-5 relative of the float64 curve, all steps there.
curve_close() {
    python3 - "$1/expected.json" "$2" "${STEPS:-0}" <<'PY'
import json, sys
run = json.load(open(sys.argv[1]))["adamw"]
want = run["curve"]["fp64"]
rows = [r for r in map(json.loads, open(sys.argv[2])) if "loss" in r]
steps = int(sys.argv[3]) or run["steps"]
assert [r["step"] for r in rows] == list(range(1, steps + 1)), [r["step"] for r in rows]
for r in rows:
    for key in ("loss", "grad_norm"):
        w = want[key][r["step"] - 1]
        assert abs(r[key] - w) <= 1e-5 * abs(w), (sys.argv[2], r["step"], key, r[key], w)
PY
}
# curve METRICS: step, loss, gradient norm and digest of samples of every logged step, in full precision.
curve() {
    python3 - "$1" <<'PY'
import json, sys
for r in map(json.loads, open(sys.argv[1])):
    if "loss" in r:
        print(r["step"], r["loss"], r["grad_norm"], r["samples_digest"])
PY
}
# same_curve A B: equal in every digit. near_curve A B: within 1e-5 relative, the same samples.
same_curve() { diff <(curve "$1") <(curve "$2"); }
near_curve() {
    paste <(curve "$1") <(curve "$2") | awk -v name="$2" '
        function far(a, b) { return (a > b ? a - b : b - a) > 1e-5 * (a < 0 ? -a : a) }
        NF != 8 || $1 != $5 || $4 != $8 || far($2, $6) || far($3, $7) { print name ": " $0; bad = 1 }
        END { exit bad || NR == 0 }'
}
# tensors_of CHECKPOINT: name and digest of every tensor and kind: equal text is equal bits.
tensors_of() {
    python3 - "$1/manifest.json" <<'PY'
import json, sys
for t in sorted(json.load(open(sys.argv[1]))["tensors"], key=lambda t: t["name"]):
    print(t["name"], json.dumps(t["digest"], sort_keys=True))
PY
}
