# The stages together, as a newcomer and a Makefile run them.
load helper

@test "quickstart runs the whole job and the loss falls" {
    cd "$ROOT"
    run timeout 240 examples/quickstart.sh --no-setup --steps "$([ -n "${SMALL:-}" ] && echo 10 || echo 40)" --work "$TMP/quick"
    status_is 0
    has "loss "
    has "seconds after the build"
    [ -s "$TMP/quick/model/model.safetensors" ]
    [ "$(grep -c '"text"' "$TMP/quick/generated.jsonl")" -eq 3 ]
}

@test "quickstart takes real SST-2 from a folder" {
    need_shared
    [ -z "${SMALL:-}" ] || skip "the plain build runs it"
    cd "$ROOT"
    run timeout 300 examples/quickstart.sh --no-setup --source "$SHARED/data/sst2" --steps 20 --work "$TMP/quick"
    status_is 0
    [ "$(wc -l <"$TMP/quick/train.jsonl")" -eq 67349 ]
}

@test "stages compose in one shell pipeline" {
    cd "$TMP"
    sst2-fetch --source "$ROOT/share/sample" --split train | gpt2-tokenize | shard-pack --block-size 32 -o shards
    run shard-pack --verify shards
    status_is 0
    sdp-train --model gpt2-tiny --max-context-width 32 --training-dir shards --train-batch-size 2 --max-steps 2 \
        --checkpoint-dir ck --checkpoint-freq 2 --metrics m.jsonl >last
    ckpt-merge -o model "$(cat last)"
    echo '{"prompt":"the film"}' | gpt2-infer generate --model model --max-new-tokens 3 --temperature 0 >out.jsonl
    run cat out.jsonl
    has '"finish_reason":"length"'
}

@test "the same input, options and seed give the same bytes out" {
    cd "$TMP"
    for i in 1 2; do
        sst2-fetch --source "$ROOT/share/sample" --split train -o "t$i.jsonl"
        gpt2-tokenize --threads "$i" -o "t$i.tok" "t1.jsonl"
        sdp_args=(--model gpt2-tiny --max-context-width 32 --train-batch-size 2 --max-steps 3 --checkpoint-freq 3)
        [ "$i" = 1 ] && shard-pack --block-size 32 -o shards t1.tok
        sdp-train "${sdp_args[@]}" --training-dir shards --checkpoint-dir "ck$i" >"last$i"
        ckpt-merge -o "model$i" "$(cat "last$i")"
    done
    cmp t1.jsonl t2.jsonl
    cmp t1.tok t2.tok
    cmp model1/model.safetensors model2/model.safetensors
}

@test "make install puts a working tree under PREFIX" {
    [ -z "${SMALL:-}" ] || skip "the plain build runs it"
    cd "$ROOT"
    make -s install BIN="$BIN" BUILD="${BUILD:-build}" DESTDIR="$TMP/root" PREFIX=/usr
    [ -f "$TMP/root/usr/share/man/man1/sdp-train.1" ]
    run bash -c "echo '{\"sentence\":\"hi\"}' | $TMP/root/usr/bin/gpt2-tokenize --output-format ids"
    status_is 0
    has "[5303]"
}

@test "make check-layers passes, and fails on an include against the layers" {
    run "$ROOT/tests/check-layers.sh"
    status_is 0
    mkdir -p "$TMP/copy/tests"
    cp -r "$ROOT/src" "$TMP/copy/"
    cp "$ROOT/tests/check-layers.sh" "$TMP/copy/tests/"
    echo '#include "sdp/plan.h"' >>"$TMP/copy/src/base/error.c"
    run "$TMP/copy/tests/check-layers.sh"
    status_is 1
    has "base must not include sdp"
}
