# The examples, run as written.
load helper

teardown() { [ -z "${SERVER:-}" ] || kill "$SERVER" 2>/dev/null || true; }

# The number of samples of a shard set.
samples() { shard-pack --list "$1" | grep -oE "[0-9]+ samples" | head -n 1 | cut -d" " -f1; }

@test "examples/sst2: the original's grouping gives 781 and 20 samples of 1024" {
    need_shared
    make -s -C "$ROOT/examples/sst2" BIN="$BIN" SOURCE="$SHARED/data/sst2" WORK="$TMP/work"
    [ "$(samples "$TMP/work/train")" -eq 781 ]
    [ "$(samples "$TMP/work/validation")" -eq 20 ]
}

@test "examples/sst2: through S3, the source is read once and training reads what was uploaded" {
    need_command moto_server
    need_command aws
    [ -z "${SMALL:-}" ] || skip "the plain build runs it"
    export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_DEFAULT_REGION=us-east-1
    local port=$((20000 + $$ % 20000))
    export AWS_ENDPOINT_URL=http://127.0.0.1:$port
    moto_server -H 127.0.0.1 -p "$port" >"$TMP/moto.log" 2>&1 3>&- &
    SERVER=$!
    for _ in $(seq 100); do curl -s -o "$TMP/x" "$AWS_ENDPOINT_URL" && break; sleep 0.2; done
    aws --endpoint-url "$AWS_ENDPOINT_URL" s3 mb s3://bucket
    cp -r "$ROOT/share/sample" "$TMP/source"
    run make -C "$ROOT/examples/sst2" BIN="$BIN" SOURCE="$TMP/source" WORK="$TMP/work" BUCKET=bucket/sst2 RANKS=2 MODEL=gpt2-nano \
        STEPS=1 TRAIN_FLAGS="--max-context-width 1024 --vocab-size 50257" train
    status_is 0
    [ -d "$(cat "$TMP/work/last-checkpoint")" ]
    aws --endpoint-url "$AWS_ENDPOINT_URL" s3 cp s3://bucket/sst2/train.jsonl "$TMP/uploaded"
    cmp "$TMP/uploaded" "$TMP/work/train.jsonl"
}

@test "examples/sagemaker: a hyperparameters file, channels and output folders as SageMaker lays them" {
    base=$TMP/ml
    mkdir -p "$base"/{input/config,input/data,output,model}
    for split in train validation; do
        sst2-fetch --source "$ROOT/share/sample" --split "$split" | gpt2-tokenize |
            shard-pack --block-size 32 --group-documents all -o "$TMP/$split"
    done
    cp -r "$TMP/train" "$base/input/data/train"
    cp -r "$TMP/validation" "$base/input/data/test"
    # The example's file, with a model and a length that this test can afford.
    sed -e 's/"smp-gpt2-xl"/"gpt2-nano"/' -e 's/"max_context_width": "2048"/"max_context_width": "32", "vocab_size": "50257"/' \
        -e 's/"max_steps": "100"/"max_steps": "2"/' -e 's/"sharded_data_parallel_degree": "8"/"sharded_data_parallel_degree": "1"/' \
        "$ROOT/examples/sagemaker/hyperparameters.json" >"$base/input/config/hyperparameters.json"
    SM_BASE=$base SM_NUM_GPUS=1 run timeout 120 "$ROOT/examples/sagemaker/train"
    status_is 0
    [ -f "$base/model/gpt2/model.safetensors" ]
    [ "$(grep -c '"loss"' "$base/output/metrics.jsonl")" -ge 2 ]
}
