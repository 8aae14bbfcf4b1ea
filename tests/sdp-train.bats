# sdp-train: the same curve for every way of splitting the work, precision, schedules, reports, refusals.
# Checkpoints and faults have files of their own.
load helper
load sdp

NANO="--model gpt2-nano --vocab-size 512"

@test "AdamW follows the float64 curve on every number of ranks, degree and split of the batch" {
    local w s b
    [ -n "${SMALL:-}" ] && export STEPS=4
    for w in 1 2 3 4; do
        for s in 1 2 3 4; do
            [ $((w % s)) -eq 0 ] || continue
            for b in 1 3; do # 4 samples a step in micro-batches that fit, or not
                golden $w "$TINY" "$SHARDS" m.jsonl --sharded-data-parallel-degree $s --train-batch-size $b \
                    --global-batch-size 4
                curve_close "$TINY" m.jsonl
            done
        done
    done
    golden 2 "$TINY" "$SHARDS" m.jsonl --train-batch-size 1 --gradient-accumulation 2
    curve_close "$TINY" m.jsonl
}

@test "six and eight ranks follow it too" {
    local split
    [ -n "${SMALL:-}" ] && export STEPS=2
    for split in 6:2 6:3 6:6 8:2 8:8; do
        golden ${split%:*} "$TINY" "$SHARDS" m.jsonl --sharded-data-parallel-degree ${split#*:} --train-batch-size 1 \
            --global-batch-size 4
        curve_close "$TINY" m.jsonl
    done
}

@test "every gradient equals Hugging Face's within 1e-4 of the tensor's largest" {
    local w
    for w in 1 3; do
        STEPS=1 golden $w "$TINY" "$SHARDS" m.jsonl --train-batch-size 4 --global-batch-size 4 --dump-gradients "grads$w"
        python3 - "$TINY/grads_batch0.safetensors" "grads$w/gradients.safetensors" <<'PY'
import array, json, struct, sys
def read(path):
    f = open(path, "rb")
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    body = f.read()
    return {k: array.array("f", body[v["data_offsets"][0] : v["data_offsets"][1]]) for k, v in head.items() if k != "__metadata__"}
want, got = read(sys.argv[1]), read(sys.argv[2])
assert len(want) == 28 and set(want) == set(got), set(want) ^ set(got)
for name, w in want.items():
    error = max(abs(a - b) for a, b in zip(w, got[name])) / max(map(abs, w))
    assert len(w) == len(got[name]) and error <= 1e-4, (name, error)
PY
    done
}

@test "deeper and wider models follow their curves" {
    need_shared
    [ -z "${SMALL:-}" ] || skip "the plain build runs it"
    local name batch
    for name in deep hd64 hd112; do
        shards_of "$SHARED/golden/model/$name" "$name"
        batch=$(field_of "$SHARED/golden/model/$name/expected.json" '["batches"]["shape"][1]')
        golden 1 "$SHARED/golden/model/$name" "$name" m.jsonl --train-batch-size "$batch"
        curve_close "$SHARED/golden/model/$name" m.jsonl
        golden 2 "$SHARED/golden/model/$name" "$name" m.jsonl --train-batch-size 1 --global-batch-size "$batch"
        curve_close "$SHARED/golden/model/$name" m.jsonl
    done
}

@test "overlap, buffers, buckets and the route of a gather change no digit" {
    local base="--model gpt2-nano --num-layers 5 --vocab-size 512 --training-dir $SHARDS --max-steps 4 --train-batch-size 1
        --global-batch-size 6 --sharded-data-parallel-degree 4"
    ranks 4 $base --metrics a.jsonl
    ranks 4 $base --metrics b.jsonl --overlap 0
    ranks 4 $base --metrics c.jsonl --sdp-unit-buffers 1 --overlap 0
    ranks 4 $base --metrics d.jsonl --sdp-unit-buffers 5
    ranks 4 $base --metrics e.jsonl --ranks-per-node 2 --sdp-hierarchical-allgather 0
    ranks 4 $base --metrics f.jsonl --ranks-per-node 2 --sdp-hierarchical-allgather 1
    ranks 4 $base --metrics g.jsonl --sdp-max-live-parameters 1
    for m in b c d e f g; do same_curve a.jsonl $m.jsonl; done
    # Two replicas of two, reduced whole and in pieces.
    base="${base/degree 4/degree 2}"
    ranks 4 $base --metrics h.jsonl
    ranks 4 $base --metrics i.jsonl --sdp-reduce-bucket-size 1000
    same_curve h.jsonl i.jsonl
    near_curve a.jsonl h.jsonl
    # A ring as long as the model gathers each unit once a step, so fewer bytes move.
    [ "$(field_of <(tail -n 1 d.jsonl) '["comm_bytes"]')" -lt "$(field_of <(tail -n 1 c.jsonl) '["comm_bytes"]')" ]
}

@test "tensors below the persistence threshold stay gathered and change nothing" {
    local t
    for t in 0 1000 1e9; do
        golden 3 "$TINY" "$SHARDS" $t.jsonl --train-batch-size 1 --global-batch-size 4 --sdp-param-persistence-threshold $t
        curve_close "$TINY" $t.jsonl
    done
    near_curve 0.jsonl 1e9.jsonl
}

@test "checkpointing and offloading change no digit, with dropout, and take less memory" {
    local base="--model gpt2-nano --num-layers 5 --vocab-size 512 --training-dir $SHARDS --max-steps 3 --train-batch-size 2
        --gradient-accumulation 2" m
    memory() { field_of <(tail -n 1 "$1") '["memory_bytes"]'; }
    ranks 2 $base --metrics all.jsonl
    ranks 2 $base --metrics each.jsonl --activation-checkpointing 1
    ranks 2 $base --metrics half.jsonl --activation-checkpointing 1 --activation-strategy sublayer
    ranks 2 $base --metrics pair.jsonl --activation-checkpointing 1 --activation-strategy group_2
    ranks 2 $base --metrics far.jsonl --offload-activations 1 --activation-loading-horizon 1
    ranks 2 $base --metrics farpair.jsonl --offload-activations 1 --activation-loading-horizon 1 \
        --activation-checkpointing 1 --activation-strategy group_2
    ranks 2 $base --metrics serial.jsonl --offload-activations 1 --activation-checkpointing 1 --overlap 0
    for m in each half pair far farpair serial; do
        same_curve all.jsonl $m.jsonl
        [ "$(memory $m.jsonl)" -lt "$(memory all.jsonl)" ]
    done
    [ "$(memory each.jsonl)" -lt "$(memory half.jsonl)" ]
}

@test "dropout is the same for every number of ranks and degree" {
    local base="$NANO --training-dir $SHARDS --max-steps 4 --train-batch-size 1 --global-batch-size 6" w
    ranks 1 $base --metrics 1.jsonl
    ranks 1 $base --metrics none.jsonl --resid-pdrop 0 --embd-pdrop 0 --attn-pdrop 0
    run near_curve 1.jsonl none.jsonl
    [ "$status" -ne 0 ]
    for w in 2 3 4; do
        ranks $w $base --metrics $w.jsonl
        near_curve 1.jsonl $w.jsonl
    done
}

@test "bf16 and fp16 follow fp32 loosely and each other's ranks closely" {
    local base="$NANO --training-dir $SHARDS --max-steps 6 --train-batch-size 2 --global-batch-size 8 --lr 1e-3" p
    ranks 1 $base --metrics fp32.jsonl
    for p in bf16 fp16; do
        ranks 1 $base --precision $p --metrics $p.1.jsonl
        ranks 4 $base --$p 1 --sharded-data-parallel-degree 2 --metrics $p.4.jsonl
        python3 - fp32.jsonl $p.1.jsonl $p.4.jsonl <<'PY'
import json, sys
fp32, one, four = ([r["loss"] for r in map(json.loads, open(p)) if "loss" in r] for p in sys.argv[1:])
assert len(fp32) == len(one) == len(four) == 6
assert all(abs(a - b) <= 5e-3 * a for a, b in zip(fp32, one)), (fp32, one)
assert all(abs(a - b) <= 1e-4 * a for a, b in zip(one, four)), (one, four)
assert fp32 != one
PY
    done
    ranks 2 $base --bf16 1 --reduce-dtype bf16 --metrics wire.jsonl
    ranks 2 $base --bf16 1 --metrics full.jsonl
    [ "$(field_of <(tail -n 1 wire.jsonl) '["comm_bytes"]')" -lt "$(field_of <(tail -n 1 full.jsonl) '["comm_bytes"]')" ]
}

@test "an overflow skips the step on every rank, is logged and counted, and lowers the loss scale" {
    run ranks 3 $NANO --training-dir "$SHARDS" --max-steps 5 --train-batch-size 1 --fp16 1 --loss-scale 1e12 --metrics m.jsonl \
        --checkpoint-dir ck
    status_is 0
    has "step 1 skipped"
    python3 - m.jsonl ck/step-00000005/manifest.json <<'PY'
import json, sys
rows = [r for r in map(json.loads, open(sys.argv[1])) if "loss" in r]
assert [r["loss_scale"] for r in rows[:4]] == [1e12, 1e12, 5e11, 2.5e11], rows  # hysteresis 2
assert rows[-1]["skipped"] == 4, rows[-1]
state = json.load(open(sys.argv[2]))["state"]
assert state["adam_steps"] == 0 and state["skipped_in_row"] == 5, state
PY
    run ranks 2 $NANO --training-dir "$SHARDS" --max-steps 20 --train-batch-size 1 --fp16 1 --loss-scale 1e30 --abort-after-skips 3
    status_is 1
    has "3 steps in a row were skipped"
}

@test "a diverged fp32 run skips and then ends" {
    run ranks 2 $NANO --training-dir "$SHARDS" --max-steps 30 --train-batch-size 1 --lr 1e30 --warmup 0 --abort-after-skips 4 \
        --metrics m.jsonl
    status_is 1
    has "4 steps in a row were skipped"
    [[ "$(tail -n 1 m.jsonl)" == *'"grad_norm":"'* ]] # a line with a word where JSON has no number
}

@test "parameter norms do not depend on the degree" {
    local w
    for w in 1 3; do
        ranks $w $NANO --training-dir "$SHARDS" --max-steps 2 --train-batch-size 1 --global-batch-size 3 --log-param-norms 1 \
            --metrics $w.jsonl
    done
    python3 - 1.jsonl 3.jsonl <<'PY'
import json, sys
a, b = ([r for r in map(json.loads, open(p)) if "loss" in r][-1] for p in sys.argv[1:])
assert len(a["param_norms"]) == 28 and set(a["param_norms"]) == set(b["param_norms"])
for name, v in a["param_norms"].items():
    assert abs(v - b["param_norms"][name]) <= 1e-5 * v + 1e-12, name
total = sum(v * v for v in a["param_norms"].values()) ** 0.5
assert abs(total - a["param_norm"]) < 1e-6 * total
PY
}

@test "validation reports loss and perplexity of whole samples, at its frequency and at the end" {
    ranks 2 $NANO --training-dir "$SHARDS" --test-dir "$SHARDS" --max-steps 5 --train-batch-size 1 --val-batch-size 3 \
        --validation-freq 2 --validation-batches 100 --metrics m.jsonl
    ranks 1 $NANO --training-dir "$SHARDS" --test-dir "$SHARDS" --max-steps 5 --train-batch-size 2 --val-batch-size 7 \
        --validation-freq 2 --validation-batches 100 --metrics n.jsonl
    python3 - m.jsonl n.jsonl <<'PY'
import json, math, sys
a, b = ([r for r in map(json.loads, open(p)) if "validation_loss" in r] for p in sys.argv[1:])
assert [r["step"] for r in a] == [2, 4, 5] == [r["step"] for r in b]
for x, y in zip(a, b):
    assert x["validation_samples"] == y["validation_samples"] == 80
    assert abs(x["validation_loss"] - y["validation_loss"]) <= 1e-5 * x["validation_loss"]
    assert abs(math.exp(x["validation_loss"]) - x["validation_perplexity"]) < 1e-3
PY
}

@test "metrics have every field, and memory is flat after step 1" {
    ranks 2 $NANO --hidden-width 128 --num-heads 4 --training-dir "$SHARDS" --test-dir "$SHARDS" --max-steps 6 --train-batch-size 1 --checkpoint-dir ck --checkpoint-freq 2 \
        --validation-freq 3 --enable-memory-profiling 1 --metrics m.jsonl
    python3 - m.jsonl <<'PY'
import json, sys
everything = list(map(json.loads, open(sys.argv[1])))
rows = [r for r in everything if "loss" in r]
want = "step epoch samples tokens loss lr grad_norm tokens_per_second tflops step_ms exposed_comm_ms comm_bytes memory_bytes".split()
assert all(k in r for r in rows for k in want), rows[0]
assert len({(r["memory_bytes"], r["host_memory_bytes"]) for r in rows}) == 1, rows
parts = rows[0]["memory"]
named = sum(v for k, v in parts.items() if k not in ("offload", "staging", "host"))
assert named <= rows[0]["memory_bytes"] <= 1.02 * named, (named, rows[0]["memory_bytes"])  # kernels' own scratch
assert [r["tokens"] for r in rows] == [128 * i for i in range(1, 7)]
times = [r["seconds"] for r in everything]
assert times == sorted(times) and 0 < times[0] and times[-1] < 150, times
PY
}

@test "the next step begins before the last one's outcome is looked at, but for the first and where something needs the model" {
    local run
    for run in 0 1; do
        ranks 1 $NANO --training-dir "$SHARDS" --max-steps 40 --train-batch-size 1 --log-param-norms $run --metrics m$run.jsonl
    done
    python3 - m0.jsonl m1.jsonl <<'PY'
import json, sys
# Between the end of a step and the beginning of the next: two events in a row, or a report with norms of all
# parameters. The least of many, because the machine may be busy.
rows = [[r for r in map(json.loads, open(path))] for path in sys.argv[1:]]
ahead, waits = (min(r["step_ms"] - r["device_ms"] for r in run[1:]) for run in rows)
assert 0 <= ahead < waits / 5, (ahead, waits)
second = rows[0][1]  # begun when the first step's line was written
assert second["step_ms"] - second["device_ms"] > 5 * ahead, (second, ahead)
assert all(a[k] == b[k] for a, b in zip(*rows) for k in ("step", "loss", "grad_norm", "samples_digest"))
for run in rows:
    for r in run:
        assert abs(r["tokens_per_second"] * r["step_ms"] / 1e3 - 64) < 1e-6, r
PY
}

@test "training to the end of the data takes every sample once an epoch, the last step what is left" {
    ranks 3 $NANO --training-dir "$SHARDS" --epochs 1 --train-batch-size 3 --metrics m.jsonl # 80 samples, 9 a step
    python3 - m.jsonl <<'PY'
import json, sys
rows = [r for r in map(json.loads, open(sys.argv[1])) if "loss" in r]
assert len(rows) == 9 and rows[-1]["samples"] == 80 and rows[-1]["epoch"] == 1.0, rows[-1]
assert rows[-1]["tokens"] == 80 * 64
PY
    run sdp-train $NANO --training-dir "$SHARDS" --epochs 2 --max-steps 3 --train-batch-size 3
    status_is 0
    has "step 3/3"
}

@test "a configuration file gives options, strings as numbers too, and the command line wins" {
    echo '{"model":"gpt2-nano","vocab_size":"512","max_steps":"2","train_batch_size":1,"bf16":"1","lr":"2.e-4"}' >h.json
    run sdp-train --config h.json --training-dir "$SHARDS" --max-steps 1 --warmup 0 --metrics -
    status_is 0
    has "step 1/1"
    has '"lr":0.0002'
    run --separate-stderr sdp-train --config h.json --print-config
    status_is 0
    has '"train_batch_size": 1'
}

@test "hyperparameters of other schemes are refused with what replaces them" {
    run sdp-train --training-dir "$SHARDS" --pipeline_parallel_degree 2
    status_is 2
    has "--sharded-data-parallel-degree"
    run sdp-train --training-dir "$SHARDS" --microbatches=4
    status_is 2
    has "--gradient-accumulation"
    run sdp-train $NANO --training-dir "$SHARDS" --pipeline_parallel_degree 1 --ddp True --max-steps 1 # asks for what we do
    status_is 0
    # The same from a file, whatever the library's and the SDK's parameters look like there.
    refused_key() { # KEY VALUE TEXT
        echo "{\"max_steps\": 1, \"$1\": $2}" >h.json
        run sdp-train $NANO --training-dir "$SHARDS" --config h.json
        status_is 2
        has "h.json: \"$1\" is not an option here: "
        has "$3"
    }
    refused_key pipeline_parallel_degree '"2"' "--sharded-data-parallel-degree"
    refused_key microbatches 4 "--gradient-accumulation"
    refused_key ddp false "--sharded-data-parallel-degree 1 is plain data parallelism"
    refused_key sdp_gradient_clipping 1.0 "--grad-clip"
    refused_key _fp32_grad_accumulation 0 "always accumulated in fp32"
    refused_key mp_parameters '{"partitions": 2}' "each of the model-parallel library's parameters is an option"
    refused_key mp_parameters '"{\"partitions\": 2}"' "each of the model-parallel library's parameters is an option"
    refused_key sagemaker_mpi_num_of_processes_per_host 8 "leave it out"
    echo '{"max_steps": 1, "ddp": true, "pipeline-parallel-degree": 1, "optimize": "memory", "skip_tracing": "True"}' >h.json
    run sdp-train $NANO --training-dir "$SHARDS" --config h.json
    status_is 0
    echo '{"max_stepz": 1}' >h.json
    run sdp-train $NANO --training-dir "$SHARDS" --config h.json
    status_is 2
    has 'unknown key "max_stepz"; the nearest known one is "max-steps"'
}

# bad STATUS TEXT W OPTIONS: refused with that, once for all ranks.
bad() {
    local want=$1 text=$2 w=$3
    shift 3
    run ranks "$w" "$@"
    status_is "$want"
    has "$text"
    [ "$(grep -c 'error:' <<<"$output")" -eq 1 ] || { echo "$output"; return 1; }
}

@test "combinations that cannot work are refused before data is looked for" {
    none() { bad "$@" --training-dir "$TMP/no-such-data"; }
    none 2 "degree 3 does not divide 4 ranks (1 ranks are left over); nearest valid degrees: 2 and 4" 4 $NANO \
        --sharded-data-parallel-degree 3
    none 2 "nearest valid degree: 1" 1 $NANO --sharded-data-parallel-degree 2
    none 2 "nearest widths: 32, 34" 2 $NANO --hidden-width 33
    none 2 "--global-batch-size 13 on 2 ranks x 3 samples takes 3 micro-steps, --gradient-accumulation says 2; nearest \
valid: --gradient-accumulation 3, or --global-batch-size 7 to 12" 2 $NANO --train-batch-size 3 --global-batch-size 13 \
        --gradient-accumulation 2
    none 2 "bf16 and fp16" 2 $NANO --bf16 1 --fp16 1
    none 2 "--checkpoint-freq 5 needs --checkpoint-dir" 2 $NANO --checkpoint-freq 5
    none 2 "needs --test-dir" 1 $NANO --validation-freq 5
    none 2 "groups of 9 blocks in a model of 2" 1 $NANO --activation-checkpointing 1 --activation-strategy group_9
    none 2 "not each, group_N or sublayer" 1 $NANO --activation-strategy some
    none 2 "no model is called \"gpt3\"; there are" 1 --model gpt3
    none 2 "min-lr 1 is above lr" 1 $NANO --min-lr 1
    none 2 "train-batch-size" 2 $NANO --train-batch-size 0
    none 2 "unexpected argument" 1 $NANO stray
    none 2 "--json belongs to --plan" 1 $NANO --json
    none 2 "more than one" 1 $NANO --fine-tune 1 --model-dir x --init-from y
    none 2 "more than the whole schedule" 1 $NANO --warmup 0.5 --plateau 0.6 --lr-decay-style plateau
    none 4 "cuda" 1 $NANO --device cuda
    none 2 "self" 2 $NANO --comm self
    # A checkpoint that cannot be read is not looked at either.
    mkdir ck
    none 2 "nearest valid degree: 1" 1 $NANO --sharded-data-parallel-degree 2 --checkpoint-dir ck --load-partial 1
    # And when nothing clashes, the data is missed; the two ways to give the micro-steps may agree.
    none 1 "no-such-data" 2 $NANO --train-batch-size 3 --global-batch-size 13 --gradient-accumulation 3
}

@test "data that does not fit the model or the ranks is refused, once for all ranks" {
    bad 2 "do not fit the model's context of 32" 2 $NANO --max-context-width 32 --training-dir "$SHARDS"
    bad 3 "vocabulary is 300" 2 --model gpt2-nano --vocab-size 300 --training-dir "$SHARDS"
    bad 3 "80 samples, fewer than the 162 of one step" 2 $NANO --train-batch-size 81 --training-dir "$SHARDS"
    bad 1 "missing" 1 $NANO --test-dir "$TMP/missing" --training-dir "$SHARDS"
}

@test "ranks that share processors divide them, and OMP_NUM_THREADS wins" {
    local cpus
    # team OPTIONS: the largest OpenMP team of one rank of two that nobody binds.
    team() {
        timeout 100 mpirun -n 2 --bind-to none -x OMP_DISPLAY_AFFINITY=TRUE -x OMP_AFFINITY_FORMAT="team of %N" "$@" \
            sdp-train $NANO --quiet --training-dir "$SHARDS" --max-steps 1 --train-batch-size 4 --launcher mpi </dev/null 2>&1 |
            awk '/^team of/ && $3 > n { n = $3 } END { print n ? n : 1 }'
    }
    [ "$(team -x OMP_NUM_THREADS=3)" = 3 ]
    unset OMP_NUM_THREADS
    cpus=$(nproc)
    [ "$(team)" = $((cpus > 1 ? cpus / 2 : 1)) ]
}

@test "damaged shards are named" {
    cp -r "$SHARDS" bad
    flip_byte bad/shard-00000.shd 1500
    run ranks 2 $NANO --training-dir bad --max-steps 20 --train-batch-size 2
    status_is 3
    has "shard-00000.shd"
    rm bad/index.json
    run ranks 2 $NANO --training-dir bad --max-steps 1
    [ "$status" -ne 0 ]
    has "index.json"
}

@test "weights of another shape or with a missing tensor are named" {
    run sdp-train --model gpt2-nano --vocab-size 512 --init-from "$TINY" --training-dir "$SHARDS"
    status_is 3
    has "transformer.wte.weight"
    run sdp-train --init-from "$TINY/grads_batch0.safetensors" --model "$TINY/config.json" --num-layers 3 --training-dir "$SHARDS"
    status_is 3
    has "h.2."
}

@test "replicas that start different are found before step 1" {
    run timeout 60 mpirun -n 1 sdp-train $NANO --quiet --training-dir "$SHARDS" --sharded-data-parallel-degree 1 --seed 1 --max-steps 1 : \
        -n 1 sdp-train $NANO --quiet --training-dir "$SHARDS" --sharded-data-parallel-degree 1 --seed 2 --max-steps 1
    status_is 1
    has "replicas start from different parameters: rank 0"
}

@test "a metrics file or stdout that cannot be written is an error" {
    run ranks 2 $NANO --training-dir "$SHARDS" --max-steps 1 --metrics "$TMP/no/such/m.jsonl"
    status_is 1
    has "no/such/m.jsonl"
    run bash -c "sdp-train --quiet $NANO --training-dir '$SHARDS' --max-steps 1 --checkpoint-dir ck >&-"
    [ "$status" -ne 0 ]
}

@test "parameters after the AdamW run equal PyTorch's within 1e-4, through checkpoint and merge" {
    need_shared
    [ -z "${SMALL:-}" ] || skip "the plain build runs it"
    local name model
    for name in tiny deep; do
        model=$SHARED/golden/model/$name
        shards_of "$model" "$name"
        golden 2 "$model" "$name" m.jsonl --train-batch-size 2 --global-batch-size \
            "$(field_of "$model/expected.json" '["batches"]["shape"][1]')" --checkpoint-dir "$name-ck"
        ckpt-merge --quiet -o "$name-model" "$name-ck"
        # Key biases have no true gradient: what AdamW makes of rounding noise there is not compared.
        python3 - "$model/params_after.safetensors" "$name-model/model.safetensors" <<'PY'
import array, json, struct, sys
def read(path):
    f = open(path, "rb")
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    body = f.read()
    return {k: array.array("f", body[v["data_offsets"][0] : v["data_offsets"][1]]) for k, v in head.items() if k != "__metadata__"}
want, got = read(sys.argv[1]), read(sys.argv[2])
assert set(want) == set(got), set(want) ^ set(got)
for name, w in want.items():
    g = got[name]
    assert len(w) == len(g)
    third = len(w) // 3
    skip = range(third, 2 * third) if name.endswith("attn.c_attn.bias") else ()
    worst = max(abs(a - b) for i, (a, b) in enumerate(zip(w, g)) if i not in skip)
    assert worst <= 1e-4, (name, worst)
PY
    done
}
