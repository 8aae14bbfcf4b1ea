# make bench-multi's script, tried on processors: its rows, its JSON, its verdict.
load helper

setup() {
    cd "$TMP"
    export DEVICE=cpu MODELS=nano WORLDS="1 2" STEPS=3 PEERS= OUT=$TMP/out.json BARS="faults.stall_ms=60000 faults.kill_s=120"
}

@test "every part has its rows in the table and in the JSON, and the bars are held" {
    [ -z "${SMALL:-}" ] || skip "the plain build runs it"
    run timeout 300 python3 "$ROOT/tests/gpu/bench_multi.py"
    status_is 0
    has "bars passed, 0 failed"
    python3 - out.json <<'PY'
import json, sys
report = json.load(open(sys.argv[1]))
rows = {(r["part"], r["name"]): r for r in report["rows"]}
for name in ("W=2 S=1 b=1", "W=2 S=2 b=8 offload", "resume W=1->2", "resume W=2->1"):
    assert rows["invariance", name]["error"] <= 1e-5 and rows["invariance", name]["same_samples"], name
for name in ("nano W=1 S=1", "nano W=2 S=1", "nano W=2 S=2"):
    row = rows["scaling", name]
    assert row["tokens_per_second_each"] > 0 and row["efficiency"] > 0 and row["exposed_comm_ms"] >= 0, row
assert rows["30b", "nano memory"]["error"] <= 0.02
assert rows["faults", "kill one of 2"]["status"] != 0 and rows["faults", "kill one of 2"]["left"] == 0
assert ("faults", "nano checkpoint stall") in rows and ("faults", "nano ckpt-merge") in rows
assert not report["failed"] and report["passed"] > 20
PY
}

@test "a bar that is missed, or a run that fails, gives status 1 and is named" {
    PARTS=scaling BARS="scaling.nano.efficiency=1000" run timeout 120 python3 "$ROOT/tests/gpu/bench_multi.py"
    status_is 1
    has "FAIL scaling nano W=2 S=2"
    python3 -c 'import json; assert json.load(open("out.json"))["failed"] == ["scaling nano W=2 S=2"]'
    mkdir broken
    printf '#!/bin/sh\necho broken >&2\nexit 4\n' >broken/sdp-train
    chmod +x broken/sdp-train
    PATH=$PWD/broken:$PATH PARTS=scaling run timeout 60 python3 "$ROOT/tests/gpu/bench_multi.py"
    status_is 1
    has "FAIL scaling ended early"
    has "broken"
}

@test "without a GPU it says so, and unknown models and parts are refused" {
    if ! nvidia-smi -L >/dev/null 2>&1; then
        DEVICE=cuda run python3 "$ROOT/tests/gpu/bench_multi.py"
        status_is 77
        has "bench-multi: skipped: no NVIDIA GPU here"
    fi
    MODELS=gpt5 run python3 "$ROOT/tests/gpu/bench_multi.py"
    status_is 2
    has "MODELS are 124m xl 7b 30b nano"
}
