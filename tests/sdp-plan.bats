# sdp-train --plan: what it promises is what a run takes.
load helper
load sdp

@test "measured memory and bytes sent equal the plan, for every saver, degree and option" {
    local w options n=0
    while read -r w options; do
        options="--model gpt2-nano --hidden-width 128 --num-heads 4 --num-layers 4 --vocab-size 512 $options"
        sdp-train --plan --json --world-size $w --training-dir "$SHARDS" $options >plan.json
        # The second of two steps: the first one gathers what a step leaves behind for the next.
        ranks $w $options --training-dir "$SHARDS" --max-steps 2 --metrics m.jsonl >/dev/null
        python3 - plan.json m.jsonl "$w $options" <<'PY'
import json, sys
plan = json.load(open(sys.argv[1]))
run = [r for r in map(json.loads, open(sys.argv[2])) if "loss" in r][-1]
for key, got in (("device_bytes", run["memory_bytes"]), ("host_bytes", run["host_memory_bytes"])):
    assert abs(got - plan[key]) <= 0.02 * plan[key] + 65536, (sys.argv[3], key, plan[key], got)
sent = sum(plan["communication_bytes"].values())
assert abs(sent - run["comm_bytes"]) <= 64, (sys.argv[3], sent, run["comm_bytes"])
PY
        n=$((n + 1))
    done <<'LIST'
1 --train-batch-size 4
2 --sharded-data-parallel-degree 1 --gradient-accumulation 2
2 --sharded-data-parallel-degree 2 --gradient-accumulation 3 --train-batch-size 3
4 --sharded-data-parallel-degree 2 --bf16 1 --activation-checkpointing 1
4 --sharded-data-parallel-degree 4 --ranks-per-node 2 --activation-checkpointing 1 --activation-strategy group_2
3 --sharded-data-parallel-degree 3 --activation-checkpointing 1 --activation-strategy sublayer --overlap 0
2 --sharded-data-parallel-degree 2 --offload-activations 1 --activation-loading-horizon 2 --sdp-unit-buffers 4
2 --sharded-data-parallel-degree 2 --sdp-param-persistence-threshold 1000 --reduce-dtype bf16 --checkpoint-dir ck
LIST
    [ $n -eq 8 ]
}

@test "30B parameters on 128 ranks, and thousands of ranks, are planned without memory" {
    local limit=16000000
    [ -n "${SMALL:-}" ] && limit=unlimited # sanitizers reserve address space
    run bash -c "ulimit -v $limit; sdp-train --plan --json --model gpt2-30b --world-size 128 --ranks-per-node 8 \
        --sharded-data-parallel-degree 32 --train-batch-size 4 --bf16 1 --activation-checkpointing 1 --device-memory 80GiB"
    status_is 0
    python3 - <<PY
import json
p = json.loads('''$output''')
assert p["parameters"] == 29974418432 and (p["replicas"], p["degree"], p["group_nodes"]) == (4, 32, 4) and p["hierarchical"]
state = p["parameters"] / 32
assert abs(p["memory"]["optimizer"] - 8 * state) < 0.01 * 8 * state
assert abs(p["memory"]["parameters"] - 6 * state) < 0.01 * 6 * state
assert p["device_bytes"] == sum(v for k, v in p["memory"].items() if k not in ("offload", "staging", "host"))
assert 1 <= p["fit"]["degree"] <= 32 and p["fit"]["ranks"] == p["fit"]["degree"] and 128 % p["fit"]["degree_here"] == 0
assert p["fit"]["degree_here"] >= p["fit"]["degree"]
assert p["step_ms"] >= p["compute_ms"]
PY
    run sdp-train --plan --model gpt2-xl --world-size 4096 --ranks-per-node 8 --sharded-data-parallel-degree 64
    status_is 0
    has "64 replicas of degree 64"
}

@test "a plan that fits is the smallest that fits" {
    local degree bytes
    run sdp-train --plan --json --model gpt2-medium --world-size 12 --device-memory 4GiB --train-batch-size 1
    status_is 0
    degree=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["fit"]["degree"])' <<<"$output")
    [ "$degree" -gt 1 ]
    for d in $((degree - 1)) "$degree"; do
        bytes=$(sdp-train --plan --json --model gpt2-medium --world-size "$d" --train-batch-size 1 |
            python3 -c 'import json, sys; print(json.load(sys.stdin)["device_bytes"])')
        if [ "$d" -lt "$degree" ]; then [ "$bytes" -gt 4294967296 ]; else [ "$bytes" -le 4294967296 ]; fi
    done
    run sdp-train --plan --model gpt2-medium --world-size 12 --device-memory 64MiB
    status_is 0
    has "No number of ranks fits"
}

@test "the predicted schedule behaves: overlap hides, groups inside a node send less between nodes" {
    plan() { sdp-train --plan --json --model gpt2-xl --world-size 16 --ranks-per-node 8 --bf16 1 --comm nccl "$@"; }
    plan --sharded-data-parallel-degree 8 >node.json
    plan --sharded-data-parallel-degree 16 >all.json
    plan --sharded-data-parallel-degree 16 --overlap 0 >serial.json
    plan --sharded-data-parallel-degree 1 >plain.json
    python3 - <<'PY'
import json
node, all_, serial, plain = (json.load(open(n + ".json")) for n in ("node", "all", "serial", "plain"))
assert node["exposed_comm_ms"] < all_["exposed_comm_ms"] < serial["exposed_comm_ms"]
assert abs(serial["step_ms"] - serial["compute_ms"] - serial["exposed_comm_ms"]) < 0.01 * serial["step_ms"]
assert plain["communication_bytes"]["gather"] == plain["communication_bytes"]["scatter"] == 0
assert node["communication_bytes"]["replica"] > 0 == all_["communication_bytes"]["replica"]
assert all_["executed_flops"] == node["executed_flops"]
PY
}

@test "a plan says what cannot work" {
    run sdp-train --plan --model gpt2-xl --world-size 10 --sharded-data-parallel-degree 4
    status_is 2
    has "nearest valid degrees: 2 and 5"
    run sdp-train --plan --model gpt2-xl --block-size 4096
    status_is 2
    has "context of 1024"
}
