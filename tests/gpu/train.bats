# The tools on one NVIDIA GPU against Hugging Face's numbers and against themselves on the CPU: one rank
# through NCCL, several ranks sharing the GPU through MPI.
load ../helper
load ../sdp

setup_file() {
    shards_of "$TINY" "$BATS_FILE_TMPDIR/tiny"
    if [ -n "$SHARED" ]; then
        for name in deep hd64 hd112; do shards_of "$SHARED/golden/model/$name" "$BATS_FILE_TMPDIR/$name"; done
    fi
}
setup() {
    command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU || skip "no GPU"
    cd "$TMP"
}
model_of() { if [ "$1" = tiny ]; then echo "$TINY"; else echo "$SHARED/golden/model/$1"; fi; }
gpu() { # W NAME METRICS OPTIONS
    local w=$1 name=$2 metrics=$3
    shift 3
    golden "$w" "$(model_of "$name")" "$BATS_FILE_TMPDIR/$name" "$metrics" --device cuda "$@"
}
batch_of() { field_of "$(model_of "$1")/expected.json" '["batches"]["shape"][1]'; }
# follows NAME METRICS TOLERANCE: losses within a relative tolerance of the float64 curve, and falling.
follows() {
    python3 - "$(model_of "$1")/expected.json" "$2" "$3" <<'PY'
import json, sys
want = json.load(open(sys.argv[1]))["adamw"]["curve"]["fp64"]["loss"]
got = [r["loss"] for r in map(json.loads, open(sys.argv[2])) if "loss" in r]
assert len(got) == len(want), (len(got), len(want))
worst = max(abs(g - w) / abs(w) for g, w in zip(got, want))
assert worst <= float(sys.argv[3]), worst
assert got[-1] < got[0]
PY
}
each_model() { if [ -n "$SHARED" ]; then echo tiny deep hd64 hd112; else echo tiny; fi; }

@test "fp32 follows the float64 curve to 1e-4 on every reference model, one rank through NCCL" {
    local name
    for name in $(each_model); do
        gpu 1 "$name" "$name.jsonl" --comm nccl --train-batch-size "$(batch_of "$name")"
        follows "$name" "$name.jsonl" 1e-4
    done
}

@test "ranks from RANK and from Slurm's variables, without MPI, over NCCL" {
    export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
    run gpu 1 tiny none.jsonl --launcher env --comm nccl
    [ "$status" -ne 0 ]
    [[ "$output" == *"RANK"*"is not set"* || "$output" == *"WORLD_SIZE is not set"* ]]
    RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 gpu 1 tiny rank.jsonl --launcher env --comm nccl --train-batch-size "$(batch_of tiny)"
    follows tiny rank.jsonl 1e-4
    SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 gpu 1 tiny slurm.jsonl --launcher env --comm nccl \
        --train-batch-size "$(batch_of tiny)"
    follows tiny slurm.jsonl 1e-4
}

@test "bf16 and fp16 stay within 2e-2 of it" {
    local name precision
    for name in $(each_model); do
        for precision in "bf16" "fp16 --loss-scale 1024"; do
            gpu 1 "$name" m.jsonl --train-batch-size "$(batch_of "$name")" --precision $precision
            follows "$name" m.jsonl 2e-2
        done
    done
}

@test "two and four ranks share the GPU through MPI and follow the same curve" {
    local name split
    name=tiny
    [ -z "$SHARED" ] || name=hd64
    for split in 2:1 2:2 4:2 4:4; do
        gpu ${split%:*} "$name" m.jsonl --comm mpi --sharded-data-parallel-degree ${split#*:} --train-batch-size 1 \
            --global-batch-size "$(batch_of "$name")"
        follows "$name" m.jsonl 1e-4
    done
}

@test "overlap, buffers and buckets change no digit" {
    gpu 2 tiny a.jsonl --comm mpi --train-batch-size 2 --overlap 0
    gpu 2 tiny b.jsonl --comm mpi --train-batch-size 2 --overlap 1 --sdp-unit-buffers 2
    gpu 2 tiny c.jsonl --comm mpi --train-batch-size 2 --sdp-reduce-bucket-size 1000 --sdp-unit-buffers 4
    same_curve a.jsonl b.jsonl
    same_curve a.jsonl c.jsonl
}

@test "checkpointing and offloading change no digit, with dropout" {
    local drop="--resid-pdrop 0.1 --embd-pdrop 0.1 --attn-pdrop 0.1 --train-batch-size 4 --precision bf16"
    gpu 1 tiny a.jsonl $drop
    gpu 1 tiny b.jsonl $drop --activation-checkpointing 1
    gpu 1 tiny c.jsonl $drop --activation-checkpointing 1 --activation-strategy sublayer --offload-activations 1
    gpu 1 tiny d.jsonl $drop --offload-activations 1 --activation-loading-horizon 1
    same_curve a.jsonl b.jsonl
    same_curve a.jsonl c.jsonl
    same_curve a.jsonl d.jsonl
}

@test "resuming is bit-exact, and a checkpoint of the GPU goes on on the CPU" {
    gpu 1 tiny whole.jsonl --train-batch-size 4
    STEPS=10 gpu 1 tiny m.jsonl --train-batch-size 4 --checkpoint-dir ck --checkpoint-freq 10
    cp -r ck ck2
    cp m.jsonl cpu.jsonl
    local again="--model $TINY/config.json --training-dir $BATS_FILE_TMPDIR/tiny --shuffle 0 --lr 1e-3 --lr-decay-style constant
        --warmup 0 --weight-decay 0.1 --beta2 0.95 --grad-clip 1 --max-steps 20 --train-batch-size 4 --load-partial 1"
    ranks 1 $again --device cuda --checkpoint-dir ck --metrics m.jsonl
    same_curve whole.jsonl m.jsonl
    ranks 1 $again --device cpu --checkpoint-dir ck2 --metrics cpu.jsonl
    near_curve whole.jsonl cpu.jsonl
}

@test "peak memory is what the plan printed, within 2%" {
    local options="--model gpt2-small --precision bf16 --train-batch-size 4 --resid-pdrop 0 --embd-pdrop 0 --attn-pdrop 0"
    seq 8 | awk '{ printf "["; for (i = 0; i < 1024; i++) printf "%s%d", i ? "," : "", (i * 7919 + $1) % 50257; print "]" }' |
        gpt2-tokenize --quiet --input-format ids --vocab-size 50257 | shard-pack --quiet --block-size 1024 -o shards
    local saver
    for saver in "" "--activation-checkpointing 1" "--activation-checkpointing 1 --offload-activations 1"; do
        sdp-train --plan --json --device cuda --world-size 1 --block-size 1024 $options $saver >plan.json
        sdp-train --quiet --device cuda --training-dir shards --max-steps 2 --metrics m.jsonl $options $saver
        python3 - plan.json m.jsonl <<'PY'
import json, sys
plan = json.load(open(sys.argv[1]))
planned = plan["device_bytes"]
measured = [r["memory_bytes"] for r in map(json.loads, open(sys.argv[2])) if "loss" in r]
assert measured[0] == measured[-1], measured
assert abs(planned - measured[-1]) <= 0.02 * planned, (planned, measured)
PY
    done
}

@test "generation and scores on the GPU equal the CPU's" {
    local name
    for name in $(each_model); do
        python3 -c 'import json, sys
e = json.load(open(sys.argv[1] + "/expected.json"))
for g in e["greedy"]: print(json.dumps({"prompt_ids": g["prompt"], "max_new_tokens": 24, "temperature": 0, "ignore_eos": True}))' \
            "$(model_of "$name")" >in.jsonl
        gpt2-infer generate --quiet --device cuda --weights fp32 --model "$(model_of "$name")" in.jsonl >gpu.jsonl
        gpt2-infer generate --quiet --device cpu --model "$(model_of "$name")" in.jsonl >cpu.jsonl
        python3 - gpu.jsonl cpu.jsonl <<'PY'
import json, sys
a, b = ([json.loads(l) for l in open(p)] for p in sys.argv[1:3])
assert len(a) == len(b) == 3
for x, y in zip(a, b):
    assert x["ids"] == y["ids"], (x, y)
    assert max(abs(p - q) for p, q in zip(x["logprobs"], y["logprobs"])) < 1e-4
PY
    done
}

@test "what the GPU cannot do is said before step 1" {
    # two ranks on one GPU: NCCL refuses, so do we, by name
    [ "$(nvidia-smi -L | wc -l)" -gt 1 ] || {
        run gpu 2 tiny m.jsonl --comm nccl --train-batch-size 1
        [ "$status" -ne 0 ]
        has "nccl"
    }
    run sdp-train --quiet --device cuda --model smp-gpt2-30b --training-dir "$BATS_FILE_TMPDIR/tiny" --train-batch-size 64 --max-steps 1
    [ "$status" -ne 0 ]
    CUDA_VISIBLE_DEVICES= run gpu 1 tiny m.jsonl
    [ "$status" -eq 4 ]
    has "cuda"
}
