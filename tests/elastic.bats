# Checkpoints between jobs of other shapes and precisions: everything that is saved comes back, bit for bit, and
# damage of any kind is named or passed over. tests/sdp-checkpoint.bats has the everyday uses.
load helper
load sdp

setup() {
    start_in_tmp
    # Five blocks whose sizes nothing here divides.
    ODD="--model gpt2-nano --num-layers 5 --hidden-width 40 --num-heads 5 --vocab-size 517 --training-dir $SHARDS
        --lr 1e-3 --lr-decay-iters 12 --train-batch-size 1 --global-batch-size 12"
}
newest() { ls -d "$1"/step-* | tail -n 1; }

# A step whose gradient overflows is skipped: master weights and moments are loaded, distributed, and saved again
# by other ranks without a change. The overflow is made by a huge loss scale put into the checkpoint's state.
@test "weights and both moments pass through 8, 6, 3, 1 and 8 ranks bit for bit" {
    local split step=3 splits="6:2 3:3 1:1 8:8"
    [ -n "${SMALL:-}" ] && splits="3:3 1:1"
    ranks 8 $ODD --max-steps 3 --sharded-data-parallel-degree 4 --checkpoint-dir ck >/dev/null
    tensors_of ck/step-00000003 >want
    [ "$(wc -l <want)" -eq 64 ]
    python3 - ck/step-00000003/manifest.json <<'PY'
import json, sys
m = json.load(open(sys.argv[1]))
m["state"]["loss_scale"]["scale"] = 1e38
json.dump(m, open(sys.argv[1], "w"))
PY
    for split in $splits; do
        step=$((step + 1))
        ranks ${split%:*} $ODD --fp16 1 --max-steps $step --sharded-data-parallel-degree ${split#*:} --checkpoint-dir ck \
            --load-partial 1 --metrics m.jsonl >/dev/null
        tensors_of "$(newest ck)" | diff want - || { echo "$split"; return 1; }
        [ "$(field_of "$(newest ck)/manifest.json" '["state"]["adam_steps"]')" = 3 ]
        ckpt-merge --verify --quiet "$(newest ck)" >/dev/null
    done
    [ "$(field_of "$(newest ck)/manifest.json" '["state"]["skipped"]')" = "$(wc -w <<<"$splits")" ]
    [ "$(curve m.jsonl | wc -l)" = "$(wc -w <<<"$splits")" ]
    for kind in master m v; do
        ckpt-merge --diff --tolerance 0 --kind $kind ck/step-00000003 "$(newest ck)" >/dev/null
    done
}

@test "every element is stored once, however many replicas there are" {
    local split elements
    for split in 1:1 4:1 4:2 6:3; do
        [ -n "${SMALL:-}" ] && [ "$split" != 4:2 ] && continue
        rm -rf ck && ranks ${split%:*} $ODD --max-steps 1 --sharded-data-parallel-degree ${split#*:} --checkpoint-dir ck >/dev/null
        python3 - ck/step-00000001/manifest.json ${split%:*} <<'PY'
import json, math, sys
m = json.load(open(sys.argv[1]))
want = 3 * sum(math.prod(t["shape"]) for t in m["tensors"])
each = [sum(s["count"] for s in f["segments"]) for f in m["files"]]
assert len(each) == int(sys.argv[2]) and sum(each) == want, (each, want)
assert max(each) < 1.2 * want / len(each) + 2000, each  # and every rank writes its part
PY
    done
}

@test "any stop and resume on the same ranks is exact, in every precision, with savers and dropout" {
    local options base at w=4
    [ -n "${SMALL:-}" ] && w=2
    base="$ODD --max-steps 7 --sharded-data-parallel-degree 2 --checkpoint-freq 1 --num-kept-checkpoints 0"
    while read -r options <&3; do
        rm -rf whole parts
        ranks $w $base $options --checkpoint-dir whole --metrics whole.jsonl >/dev/null
        for at in 1 6 3; do # past, and back again
            rm -rf parts && mkdir parts && cp -r whole/step-0000000$at parts/
            cp whole.jsonl parts.jsonl
            ranks $w $base $options --checkpoint-dir parts --load-partial 1 --metrics parts.jsonl >/dev/null
            same_curve whole.jsonl parts.jsonl
            [ "$(grep -c '"loss"' parts.jsonl)" -eq 7 ]
            diff <(tensors_of whole/step-00000007) <(tensors_of parts/step-00000007)
            [ -n "${SMALL:-}" ] && break
        done
        diff <(field_of whole/step-00000007/manifest.json '["state"]') <(field_of parts/step-00000007/manifest.json '["state"]')
    done 3<<'LIST'
--bf16 1 --activation-checkpointing 1 --offload-activations 1
--fp16 1 --loss-scale 1.2e7 --loss-scale-window 2 --loss-scale-hysteresis 1
LIST
    # The scale went down and up again, or the second case has shown nothing.
    python3 -c 'import json
s = [json.loads(l)["loss_scale"] for l in open("whole.jsonl") if "\"loss\"" in l]
assert any(b < a for a, b in zip(s, s[1:])) and any(b > a for a, b in zip(s, s[1:])), s'
}

@test "a checkpoint of one precision goes on in another from the same master weights" {
    local p
    ranks 2 $ODD --bf16 1 --max-steps 2 --checkpoint-dir ck >/dev/null
    for p in fp32 fp16; do
        rm -rf other && cp -r ck other
        ranks 3 $ODD --precision $p --max-steps 3 --lr 0 --weight-decay 0 --lr-decay-style constant --warmup 0 \
            --checkpoint-dir other --load-partial 1 >/dev/null
        ckpt-merge --diff --tolerance 0 ck/step-00000002 other/step-00000003 >/dev/null
    done
    run ckpt-merge --diff --tolerance 0 --kind m ck/step-00000002 other/step-00000003 # the comparison can fail
    status_is 3
}

# damage NAME: harms step 4 of ck; returns 1 for an unknown name.
damage() {
    local folder=ck/step-00000004 file=ck/step-00000004/rank-00000-of-00001.ckp size
    size=$(stat -c %s $file)
    case $1 in
    missing-file) rm $file ;;
    empty-file) : >$file ;;
    cut-header) truncate -s 40 $file ;;
    cut-middle) truncate -s $((size / 2)) $file ;;
    cut-last-byte) truncate -s $((size - 1)) $file ;;
    longer) echo >>$file ;;
    header-byte) flip_byte $file 8 ;;
    trailer-byte) flip_byte $file $((size - 9)) ;;
    no-manifest) rm $folder/manifest.json ;;
    empty-manifest) : >$folder/manifest.json ;;
    cut-manifest) truncate -s 1000 $folder/manifest.json ;;
    not-a-manifest) echo '{}' >$folder/manifest.json ;;
    hole) python3 - $folder/manifest.json <<'PY'
import json, sys
m = json.load(open(sys.argv[1]))
m["files"][0]["segments"].pop(3)
json.dump(m, open(sys.argv[1], "w"))
PY
        ;;
    folder) rm -r $folder && mkdir $folder ;;
    data-byte) flip_byte $file $((size / 2)) ;;
    *) return 1 ;;
    esac
}

@test "damage that opening shows is passed over for the newest valid checkpoint, with a word" {
    local what
    ranks 1 $ODD --max-steps 4 --checkpoint-freq 2 --checkpoint-dir whole --metrics straight.jsonl >/dev/null
    for what in missing-file empty-file cut-header cut-middle cut-last-byte longer header-byte trailer-byte no-manifest \
        empty-manifest cut-manifest not-a-manifest hole folder; do
        rm -rf ck && cp -r whole ck && cp straight.jsonl m.jsonl
        damage $what
        run ranks 1 $ODD --max-steps 4 --checkpoint-dir ck --load-partial auto --metrics m.jsonl
        [ "$status" -eq 0 ] || { echo "$what: $status"; echo "$output"; return 1; }
        case $what in
        no-manifest | folder) ;; # no checkpoint at all
        *) has "passed over" || { echo "$what"; return 1; } ;;
        esac
        same_curve straight.jsonl m.jsonl || { echo "$what: other curve"; return 1; }
        diff <(tensors_of whole/step-00000004) <(tensors_of ck/step-00000004) || { echo "$what"; return 1; }
    done
}

@test "the same damage to the only checkpoint, or to the one that is asked for, is an error that names it" {
    local what
    ranks 1 $ODD --max-steps 4 --checkpoint-dir whole >/dev/null
    for what in missing-file empty-file cut-header cut-middle cut-last-byte longer header-byte trailer-byte no-manifest \
        empty-manifest cut-manifest not-a-manifest hole data-byte; do
        rm -rf ck && cp -r whole ck
        damage $what
        run ranks 1 $ODD --max-steps 6 --checkpoint-dir ck --load-partial 1
        { [ "$status" -eq 3 ] || [ "$status" -eq 1 ]; } || { echo "$what: $status"; echo "$output"; return 1; }
        has "ck" || { echo "$what"; return 1; }
        [ "$(grep -c 'error:' <<<"$output")" -eq 1 ] || { echo "$what"; echo "$output"; return 1; }
        case $what in no-manifest) ;; *-manifest | hole) has manifest || { echo "$what"; return 1; } ;;
        *) has rank-00000-of-00001.ckp || { echo "$what"; return 1; } ;; esac
        [ ! -e ck/step-00000006 ]
    done
}

# Opening reads no data: auto proves it before it takes a checkpoint, what is asked for fails when a block is read.
@test "a flipped byte of the data is never trained on: auto goes back to the checkpoint before, with file and place" {
    local w file
    ranks 3 $ODD --max-steps 6 --checkpoint-freq 2 --checkpoint-dir whole --metrics straight.jsonl >/dev/null
    for file in rank-00001-of-00003.ckp rank-00002-of-00003.ckp; do
        for w in 1 3; do # fewer ranks than files, and as many
            rm -rf ck && cp -r whole ck && cp straight.jsonl m.jsonl
            flip_byte ck/step-00000006/$file "$(($(stat -c %s ck/step-00000006/$file) / 2))"
            run ranks $w $ODD --max-steps 6 --checkpoint-dir ck --load-partial auto --metrics m.jsonl
            status_is 0
            grep -E "warning.*passed over.*step-00000006/$file.*byte [0-9]+" <<<"$output"
            near_curve straight.jsonl m.jsonl
            [ $w = 1 ] || same_curve straight.jsonl m.jsonl
            ckpt-merge --verify --quiet ck/step-00000006 >/dev/null # written anew
            [ -n "${SMALL:-}" ] && return
        done
    done
    # Step 4 is damaged, too: back to 2, and no step is pruned for those that were passed over.
    rm -rf ck && cp -r whole ck && cp straight.jsonl m.jsonl
    flip_byte ck/step-00000006/$file "$(($(stat -c %s ck/step-00000006/$file) / 2))"
    truncate -s 100 ck/step-00000004/$file
    run ranks 2 $ODD --max-steps 3 --checkpoint-dir ck --load-partial auto --metrics m.jsonl --num-kept-checkpoints 1
    status_is 0
    [ "$(grep -c "passed over" <<<"$output")" -eq 2 ] || { echo "$output"; return 1; }
    [ "$(ls ck | tr '\n' ' ')" = "step-00000003 step-00000004 step-00000006 " ]
    # Nothing is left: all are named, and nothing is started afresh.
    truncate -s 100 ck/step-00000003/rank-00001-of-00002.ckp
    run ranks 2 $ODD --max-steps 3 --checkpoint-dir ck --load-partial auto
    status_is 3
    [ "$(grep -c 'error:' <<<"$output")" -eq 1 ] || { echo "$output"; return 1; }
    grep -E "error:.*no valid checkpoint in ck: .*step-00000006/.*step-00000004/.*step-00000003/rank-00001" <<<"$output"
    # What is asked for is not exchanged for something older.
    run ranks 2 $ODD --max-steps 7 --checkpoint-dir ck/step-00000006 --load-partial 1
    status_is 3
    has "$file"
}

@test "a job that has nothing left to do says where its checkpoint is and changes nothing" {
    ranks 2 $ODD --max-steps 3 --checkpoint-dir ck --metrics m.jsonl >/dev/null
    cp m.jsonl before.jsonl
    run --separate-stderr ranks 3 $ODD --max-steps 3 --checkpoint-dir ck --load-partial 1 --metrics m.jsonl
    status_is 0
    [ "$output" = ck/step-00000003 ]
    diff before.jsonl m.jsonl
    run ranks 1 $ODD --max-steps 2 --checkpoint-dir ck --load-partial 1
    status_is 0
}
