# --debug-nonfinite: the first NaN or infinity is named, with its step, rank, unit, operation and element.
load helper
load sdp

# weights_with [TENSOR ELEMENT VALUE]...: a copy of the reference model in ./bad with some elements changed.
weights_with() {
    rm -rf bad
    cp -r "$TINY" bad
    chmod -R u+w bad
    python3 - bad/model.safetensors "$@" <<'PY'
import json, struct, sys
f = open(sys.argv[1], "r+b")
size = struct.unpack("<Q", f.read(8))[0]
head = json.loads(f.read(size))
for name, element, value in zip(*[iter(sys.argv[2:])] * 3):
    assert head[name]["dtype"] == "F32"
    f.seek(8 + size + head[name]["data_offsets"][0] + 4 * int(element))
    f.write(struct.pack("<f", float(value)))
PY
}
# debugged W OPTIONS: a few steps from ./bad with the option on.
debugged() {
    local w=$1
    shift
    ranks "$w" --init-from bad --training-dir "$BATS_FILE_TMPDIR/shards" --shuffle 0 --lr 1e-3 --warmup 0 --max-steps 3 \
        --train-batch-size 1 --debug-nonfinite 1 "$@"
}
one_message() { [ "$(grep -c "rank [0-9]*, " <<<"$output")" -eq 1 ] || { echo "$output"; return 1; }; }

@test "a NaN among the weights is found before the block runs, on every number of ranks and degree" {
    local split
    weights_with transformer.h.1.mlp.c_fc.weight 261 nan
    for split in 1:1 2:1 2:2; do
        run debugged ${split%:*} --sharded-data-parallel-degree ${split#*:} --gradient-accumulation 2
        status_is 4
        one_message
        has "weights: step 1, micro-step 1, rank "
        has "before forward: transformer.h.1.mlp.c_fc.weight is nan at element 261 (row 1, column 5)"
    done
    weights_with transformer.ln_f.bias 7 -inf
    run debugged 1
    status_is 4
    has "transformer.ln_f.bias is -inf at element 7 (row 0, column 7)"
}

@test "an overflow in a forward pass names the operation that made it" {
    local saver
    # 60,000 is finite in fp16; times a normalised activation above 1.1 it is not
    weights_with transformer.h.1.attn.c_attn.weight 3 6e4
    for saver in "" "--activation-checkpointing 1" "--offload-activations 1"; do
        run debugged 1 --fp16 1 --loss-scale 1 $saver
        status_is 4
        one_message
        has "attn.c_attn: step 1, micro-step 1, rank 0, forward of transformer.h.1: output [64 x 192] is "
        has "column 3)"
    done
}

@test "an overflow in a backward pass names the operation and the block" {
    # Channel 8 of the norm is 0 in every row, so that forward does not feel what it is multiplied with.
    weights_with transformer.h.0.ln_2.weight 8 0 transformer.h.0.ln_2.bias 8 0 \
        transformer.h.0.mlp.c_fc.weight $((8 * 256 + 5)) 6e4
    for saver in "" "--activation-checkpointing 1"; do
        run debugged 1 --fp16 1 $saver
        status_is 4
        one_message
        has "mlp.c_fc: step 1, micro-step 1, rank 0, backward of transformer.h.0: input gradient [64 x 64] is "
        has "column 8)"
    done
    weights_with
    run debugged 1 --fp16 1 --loss-scale 1e38
    status_is 4
    has "cross-entropy: step 1, micro-step 1, rank 0, backward of the head: logits' gradient [64 x 512] is "
}

@test "nothing is found where nothing is wrong, and no digit changes" {
    weights_with
    debugged 2 --metrics on.jsonl --gradient-accumulation 2 --activation-checkpointing 1
    debugged 2 --metrics off.jsonl --gradient-accumulation 2 --activation-checkpointing 1 --debug-nonfinite 0
    same_curve on.jsonl off.jsonl
}
