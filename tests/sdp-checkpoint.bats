# Checkpoints of sdp-train: exact and elastic resumption, what is kept, other starting points, failures.
load helper
load sdp

setup() {
    start_in_tmp
    BASE="--model gpt2-nano --vocab-size 512 --training-dir $SHARDS --lr 1e-3 --train-batch-size 1 --global-batch-size 12"
}

@test "stop and resume on the same ranks continues bit for bit, metrics file included" {
    local base="$BASE --max-steps 8 --sharded-data-parallel-degree 2"
    ranks 4 $base --checkpoint-dir whole --checkpoint-freq 4 --metrics whole.jsonl >last
    [ "$(cat last)" = whole/step-00000008 ]
    mkdir parts
    cp -r whole/step-00000004 parts/
    # The file of a run that went further than its last checkpoint, and was cut in the middle of a line.
    head -n 7 whole.jsonl >parts.jsonl
    printf '{"step":7,"lo' >>parts.jsonl
    ranks 4 $base --checkpoint-dir parts --load-partial 1 --metrics parts.jsonl
    same_curve whole.jsonl parts.jsonl
    diff <(tensors_of whole/step-00000008) <(tensors_of parts/step-00000008)
}

@test "8, 6, 3, 1 and 8 ranks hand a run on: tensors bit for bit, the same samples, the same curve" {
    local w before
    ranks 2 $BASE --max-steps 12 --metrics straight.jsonl
    ranks 8 $BASE --max-steps 2 --lr-decay-iters 12 --sharded-data-parallel-degree 4 --checkpoint-dir ck --metrics m.jsonl
    for w in 6:3 3:3 1:1 8:8; do
        before=$(ls -d ck/step-* | tail -n 1)
        # Nothing to do: loads, and writes what it loaded under the same step elsewhere by --load-partial.
        rm -rf copy && mkdir copy && cp -r "$before" copy/
        ranks ${w%:*} $BASE --max-steps $((10#${before: -2} + 1)) --lr 0 --min-lr 0 --weight-decay 0 --lr-decay-style constant \
            --sharded-data-parallel-degree ${w#*:} --checkpoint-dir copy --load-partial 1
        diff <(tensors_of "$before" | sed 's/"m".*//') <(tensors_of "$(ls -d copy/step-* | tail -n 1)" | sed 's/"m".*//')
        ranks ${w%:*} $BASE --max-steps $((10#${before: -2} + 2 + 2 * (${w%:*} == 8))) --lr-decay-iters 12 \
            --sharded-data-parallel-degree ${w#*:} --checkpoint-dir ck --load-partial 1 --metrics m.jsonl
    done
    near_curve straight.jsonl m.jsonl
}

@test "--load-partial auto starts afresh without a checkpoint and resumes with one" {
    ranks 2 $BASE --max-steps 2 --lr-decay-iters 4 --checkpoint-dir ck --load-partial auto --metrics m.jsonl
    ranks 2 $BASE --max-steps 4 --lr-decay-iters 4 --checkpoint-dir ck --load-partial auto --metrics m.jsonl
    ranks 2 $BASE --max-steps 4 --metrics whole.jsonl
    same_curve whole.jsonl m.jsonl
    run ranks 2 $BASE --max-steps 4 --lr-decay-iters 4 --checkpoint-dir ck --load-partial auto # nothing left to do
    status_is 0
    has "ck/step-00000004"
    run ranks 2 $BASE --checkpoint-dir none --load-partial 1
    [ "$status" -ne 0 ]
    has "none"
}

@test "the newest to keep are kept, and old ones go only after the newest is complete" {
    ranks 2 $BASE --max-steps 7 --checkpoint-dir ck --checkpoint-freq 1 --num-kept-checkpoints 2
    [ "$(ls ck | tr '\n' ' ')" = "step-00000006 step-00000007 " ]
    run ranks 1 $BASE --max-steps 7 --checkpoint-dir ck2 --checkpoint-freq 3 --async-checkpoints 0
    status_is 0
    [ "$(ls ck2 | tr '\n' ' ')" = "step-00000003 step-00000006 step-00000007 " ]
}

@test "a damaged newest checkpoint is passed over, a damaged only one is named" {
    ranks 2 $BASE --max-steps 4 --checkpoint-dir ck --checkpoint-freq 2
    rm ck/step-00000004/rank-00001-of-00002.ckp
    run ranks 2 $BASE --max-steps 4 --checkpoint-dir ck --load-partial 1 --metrics m.jsonl
    status_is 0
    has "passed over"
    [ "$(curve m.jsonl | cut -d' ' -f1 | tr '\n' ' ')" = "3 4 " ]
    rm -rf ck/step-00000004
    flip_byte ck/step-00000002/rank-00000-of-00002.ckp 9000
    run ranks 2 $BASE --max-steps 4 --checkpoint-dir ck --load-partial 1
    status_is 3
    has "rank-00000-of-00002.ckp"
}

@test "weights of another model, other data, another seed do not resume" {
    ranks 1 $BASE --max-steps 1 --checkpoint-dir ck
    run ranks 1 $BASE --num-layers 3 --max-steps 2 --checkpoint-dir ck --load-partial 1
    status_is 3
    has "h.2."
    run ranks 1 $BASE --max-steps 2 --checkpoint-dir ck --load-partial 1 --seed 7
    status_is 2
    has "seed"
    ids_of "$TINY" | tail -n 40 | gpt2-tokenize --quiet --input-format ids --vocab-size 512 |
        shard-pack --quiet --block-size 64 -o other
    run ranks 1 $BASE --training-dir other --max-steps 2 --checkpoint-dir ck --load-partial 1
    status_is 3
    has "other samples"
}

@test "--load-full keeps weights and position, --fine-tune only weights" {
    ranks 2 $BASE --max-steps 3 --lr-decay-iters 6 --checkpoint-dir ck
    cp -r ck full
    ranks 1 $BASE --max-steps 4 --lr-decay-iters 6 --checkpoint-dir full --load-full 1 --metrics full.jsonl
    [ "$(curve full.jsonl | cut -d' ' -f1)" = 4 ]
    [ "$(field_of full/step-00000004/manifest.json '["state"]["adam_steps"]')" = 1 ]
    ranks 1 $BASE --max-steps 1 --checkpoint-dir ck --fine-tune 1 --metrics tuned.jsonl
    [ "$(curve tuned.jsonl | cut -d' ' -f1)" = 1 ]
    # From a Hugging Face folder: the same weights however they are named.
    ranks 1 --fine-tune 1 --model-dir "$TINY" --training-dir "$SHARDS" --max-steps 2 --metrics a.jsonl
    ranks 2 --init-from "$TINY/model.safetensors" --training-dir "$SHARDS" --max-steps 2 --train-batch-size 1 --metrics b.jsonl
    near_curve a.jsonl b.jsonl
}

@test "a merged model equals the trained weights and trains on from there" {
    ranks 3 $BASE --max-steps 2 --checkpoint-dir ck >last
    ckpt-merge --quiet -o model "$(cat last)"
    ranks 2 --init-from model --training-dir "$SHARDS" --max-steps 1 --lr 0 --weight-decay 0 --checkpoint-dir again >last2
    diff <(tensors_of "$(cat last)" | sed -E 's/"m".*"master"/"master"/; s/, "v".*//') \
        <(tensors_of "$(cat last2)" | sed -E 's/"m".*"master"/"master"/; s/, "v".*//')
}

@test "the folder that cannot be written, and the disk that fills, leave the old checkpoint" {
    run ranks 2 $BASE --max-steps 1 --checkpoint-dir /proc/nowhere
    status_is 1
    has "/proc/nowhere"
    ranks 2 $BASE --max-steps 1 --lr-decay-iters 4 --checkpoint-dir ck >/dev/null
    # A file size limit stands in for a full disk: writing fails in the middle of a rank's file.
    run bash -c "trap '' XFSZ; ulimit -f 64; timeout 60 sdp-train --quiet $BASE --max-steps 2 --lr-decay-iters 4 --checkpoint-dir ck --load-partial 1"
    status_is 1
    has "step-00000002"
    run ranks 1 $BASE --max-steps 1 --lr-decay-iters 4 --checkpoint-dir ck --load-partial 1
    status_is 0
    has "ck/step-00000001"
}

@test "the same run twice writes the same bytes but for names of the set" {
    local i
    for i in 1 2; do
        ranks 2 $BASE --max-steps 2 --checkpoint-dir ck$i
    done
    diff <(tensors_of ck1/step-00000002) <(tensors_of ck2/step-00000002)
}
