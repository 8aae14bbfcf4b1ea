# shard-pack: grouping, every input form, shuffling, looking, and bad input of every kind.
load helper

# tokens FILE [VOCAB]: a token stream from lines "[1,2,3]" on stdin.
tokens() { gpt2-tokenize -q --input-format ids --vocab-size "${2:-512}" -o "$1"; }
# samples DIR: all samples, one JSON array a line (the sets here have no text).
samples() {
    local i n
    n=$(grep -oE '"samples": [0-9]+,?$' "$1/index.json" | head -n 1 | tr -dc 0-9)
    for ((i = 0; i < n; i++)); do shard-pack -q --sample $i "$1"; done
}
# digest DIR: of all samples in order.
digest() { sed -nE '1,20s/^ "digest": "([0-9a-f]+)".*/\1/p' "$1/index.json"; }
# payload FILE...: the DATA payloads of containers.
payload() {
    local f at tag bytes
    for f; do
        at=64
        while tag=$(tail -c +$((at + 1)) "$f" | head -c 4) && [ "$tag" != TEND ]; do
            bytes=$(od -An -tu8 -j $((at + 8)) -N 8 "$f" | tr -d ' ')
            if [ "$tag" = DATA ]; then tail -c +$((at + 65)) "$f" | head -c "$bytes"; fi
            at=$((at + 64 + (bytes + 63) / 64 * 64))
        done
    done
}
# no_set DIR: nothing of a set is there.
no_set() { [ ! -e "$1" ] || { echo "left behind:"; find "$1"; return 1; }; }
# peak_kb CMD...: runs it and prints the peak of resident memory.
peak_kb() {
    python3 - "$@" <<'PY'
import resource, subprocess, sys
rc = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(rc)
PY
}
# le BYTES NUMBER...: little-endian integers.
le() { python3 -c 'import sys
for v in sys.argv[2:]: sys.stdout.buffer.write(int(v).to_bytes(int(sys.argv[1]), "little"))' "$@"; }

five() { printf '[1,2,3]\n[]\n[4,5,6,7]\n[8]\n[9,10]\n'; }

@test "documents are concatenated and cut; the remainder is dropped" {
    cd "$TMP"
    five | tokens a.tok
    run shard-pack --block-size 4 -o s a.tok
    status_is 0
    has "2 samples of 4 tokens in 1 shard; 10 tokens of 5 documents, 0 separators, 2 tokens dropped"
    run samples s
    [ "$output" = $'[1,2,3,4]\n[5,6,7,8]' ]
}

@test "groups of documents drop their own remainder" {
    cd "$TMP"
    five | tokens a.tok
    shard-pack -q --block-size 2 --group-documents 2 -o s a.tok # (1 2 3) (4 5 6 7 8) (9 10)
    run samples s
    [ "$output" = $'[1,2]\n[4,5]\n[6,7]\n[9,10]' ]
    shard-pack -q --block-size 3 --group-documents 1 -o t a.tok
    run samples t
    [ "$output" = $'[1,2,3]\n[4,5,6]' ]
    run shard-pack --block-size 2 --group-documents 0 -o u a.tok
    status_is 2
    has "neither a number from 1 nor \"all\""
}

@test "separators follow each document, and are not put twice" {
    cd "$TMP"
    printf '{"input_ids":[1,2,3]}\n{"input_ids":[]}\n{"input_ids":[4]}\n' >a.jsonl
    shard-pack -q --block-size 7 --vocab-size 512 --eot-id 511 --separator eot -o s a.jsonl
    run samples s
    [ "$output" = '[1,2,3,511,511,4,511]' ]
    run shard-pack -q --block-size 7 --vocab-size 512 --separator eot -o t a.jsonl
    status_is 2
    has "no end-of-text id"
    no_set t
    printf 'one\ntwo\n' | gpt2-tokenize -q --input-format lines --append-eot -o e.tok
    shard-pack -q --block-size 4 --separator eot -o u e.tok
    [ "$(payload u/shard-00000.shd | od -An -tu2 | tr -s ' ')" = " 505 50256 11545 50256" ]
}

@test "separators at every place of a sample and a group, at both widths of ids" {
    need_command python3
    cd "$TMP"
    cat >want.py <<'PY'
import random, struct, sys
vocab, block, group = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
random.seed(7)
documents = [[random.randrange(vocab - 1) for _ in range(random.choice((0, 1, 2, 3, 5, block - 2, block - 1, block, 40)))]
             for _ in range(900)]
with open("in.jsonl", "w") as f:
    for d in documents:
        print(str(d).replace(" ", ""), file=f)
samples, run = [], []
for number, d in enumerate(documents, 1):
    run += d + [vocab - 1]
    if group and number % group == 0 or number == len(documents):
        samples += run[:len(run) // block * block]
        run = []
with open("want", "wb") as f:
    f.write(struct.pack("<%d%s" % (len(samples), "H" if vocab <= 65536 else "I"), *samples))
PY
    for vocab in 512 70000; do
        for group in 0 1 2 7; do
            python3 want.py $vocab 16 $group
            g=$group
            [ $group -gt 0 ] || g=all
            shard-pack -q --overwrite --block-size 16 --vocab-size $vocab --eot-id $((vocab - 1)) --separator eot \
                --group-documents $g -o s in.jsonl
            payload s/*.shd | cmp - want
        done
    done
}

@test "SST-2 in the grouping of the original example" {
    need_shared
    cd "$TMP"
    for s in train dev; do
        tail -n +2 "$SHARED/data/sst2/$s.tsv" | sed 's/\t[01]$//' |
            gpt2-tokenize -q --input-format lines -o $s.tok
    done
    shard-pack -q --group-documents 1000 -o a train.tok
    [ "$(payload a/*.shd | wc -c)" -eq $((781 * 2048)) ]
    [[ $(payload a/*.shd | sha256sum) == c7db258362c5135e* ]]
    shard-pack -q --group-documents all -o b train.tok
    [ "$(payload b/*.shd | wc -c)" -eq $((812 * 2048)) ]
    shard-pack -q --group-documents all --separator eot -o c train.tok
    [ "$(payload c/*.shd | wc -c)" -eq $((878 * 2048)) ]
    shard-pack -q --group-documents 1000 -o d dev.tok
    [ "$(payload d/*.shd | wc -c)" -eq $((20 * 2048)) ]
    [[ $(payload d/*.shd | sha256sum) == 5079786e2ebe1714* ]]
    run shard-pack --sample 0 d
    status_is 0
    has "it 's a charming and often affecting journey ."
}

@test "every form of input gives the same samples" {
    cd "$TMP"
    for ((i = 0; i < 300; i++)); do echo "[$i,$((i * 7 % 512)),$((511 - i))]"; done >a.ids
    args=(-q --block-size 16 --vocab-size 512 --shard-size 1KiB)
    tokens a.tok <a.ids
    sed -E 's/(.*)/{"idx":3, "x":{"input_ids":[9]}, "input_ids": \1 ,"attention_mask":[1,1,1],"t":"a \\"]"}/' a.ids >a.jsonl
    gzip -k a.jsonl
    { head -n 100 a.jsonl | gzip; tail -n +101 a.jsonl | gzip; } >members.json.gz
    payload a.tok >a.bin
    { le 4 20240520 1 900; head -c 1012 /dev/zero; cat a.bin; } >llmc.bin
    { le 4 20240801 7 900; head -c 1012 /dev/zero; le 4 $(od -An -v -tu2 a.bin); } >wide.bin
    head -n 123 a.ids | tokens one.tok
    tail -n +124 a.ids >two.jsonl
    shard-pack "${args[@]}" -o want a.tok
    [ "$(ls want/*.shd | wc -l)" -ge 3 ]
    for f in a.jsonl a.ids a.jsonl.gz members.json.gz a.bin llmc.bin wide.bin; do
        shard-pack "${args[@]}" --overwrite -o got $f
        [ "$(digest got)" = "$(digest want)" ] || { echo "$f differs"; false; }
    done
    shard-pack "${args[@]}" --overwrite -o got <a.tok
    [ "$(digest got)" = "$(digest want)" ]
    cat a.tok | shard-pack "${args[@]}" --overwrite -o got -
    [ "$(digest got)" = "$(digest want)" ]
    shard-pack "${args[@]}" --overwrite -o got one.tok - <two.jsonl
    [ "$(digest got)" = "$(digest want)" ]
}

@test "the end-of-text id bounds the documents of .bin files" {
    cd "$TMP"
    le 2 1 2 9 3 9 4 5 6 >a.bin # ends: (1 2 9) (3 9) (4 5 6); begins: (1 2) (9 3) (9 4 5 6)
    args=(-q --block-size 2 --group-documents 1 --vocab-size 10 --eot-id 9)
    shard-pack "${args[@]}" --split eot-ends -o s a.bin
    run samples s
    [ "$output" = $'[1,2]\n[3,9]\n[4,5]' ]
    shard-pack "${args[@]}" --split eot-begins -o t a.bin
    run samples t
    [ "$output" = $'[1,2]\n[9,3]\n[9,4]\n[5,6]' ]
    shard-pack "${args[@]}" -o u a.bin
    run samples u
    [ "$output" = $'[1,2]\n[9,3]\n[9,4]\n[5,6]' ]
}

@test "shuffling is a permutation, a function of the seed, and independent of memory" {
    cd "$TMP"
    for ((i = 0; i < 8000; i++)); do echo "[$i,$i,$i,$i]"; done | tokens a.tok 65536
    { seq 1 100000 | sed 's/.*/7,/' | tr -d '\n'; echo; } | sed 's/^\(.*\),$/[\1]/' | tokens long.tok 65536
    args=(-q --block-size 4 --shard-size 1MiB)
    shard-pack "${args[@]}" --shuffle-documents 5 -o big a.tok
    shard-pack "${args[@]}" --shuffle-documents 5 --shuffle-memory 64KiB -o small a.tok
    diff -r big small
    shard-pack "${args[@]}" --shuffle-documents 6 -o other a.tok
    [ "$(digest big)" != "$(digest other)" ]
    shard-pack "${args[@]}" -o plain a.tok
    [ "$(digest big)" != "$(digest plain)" ]
    payload plain/*.shd | od -An -v -tu2 -w8 >plain.txt
    payload big/*.shd | od -An -v -tu2 -w8 >big.txt
    diff <(sort plain.txt) <(sort big.txt)
    # Far from the old order: hardly a document is near its place.
    near=$(paste plain.txt big.txt | awk '{d = $1 - $5; if (d * d < 10000) n++} END {print n + 0}')
    [ "$near" -lt 400 ]
    # A document larger than the memory, among small ones.
    shard-pack "${args[@]}" --shuffle-documents 1 --shuffle-memory 64KiB -o l1 a.tok long.tok a.tok
    shard-pack "${args[@]}" --shuffle-documents 1 -o l2 a.tok long.tok a.tok
    [ "$(digest l1)" = "$(digest l2)" ]
    [ "$(payload l1/*.shd | od -An -v -tu2 -w2 | grep -c '^ *7$')" -eq $((100000 + 8)) ]
    [ -z "$(find . -name '.shuffle*')" ]
}

@test "the same input and options give the same bytes" {
    cd "$TMP"
    five | tokens a.tok
    shard-pack -q --block-size 2 -o s a.tok
    shard-pack -q --block-size 2 -o t a.tok
    diff -r s t
}

@test "memory stays small: packing, shuffling, verifying" {
    cd "$TMP"
    head -c 150000000 /dev/zero >zeros.bin
    printf '\x07\x00' >>zeros.bin
    kb=$(peak_kb shard-pack -q --split eot-ends --vocab-size 8 --eot-id 7 -o s zeros.bin)
    [ "$kb" -lt 65536 ] || { echo "$kb KiB"; false; }
    kb=$(peak_kb shard-pack -q --verify s)
    [ "$kb" -lt 65536 ] || { echo "$kb KiB"; false; }
    kb=$(peak_kb shard-pack -q --shuffle-documents 1 --overwrite -o s zeros.bin zeros.bin)
    [ "$kb" -lt 65536 ] || { echo "$kb KiB"; false; }
    yes '{"input_ids":[1,2,3,4,5]}' | head -n 400000 >many.jsonl
    kb=$(peak_kb shard-pack -q --shuffle-documents 1 --overwrite -o s many.jsonl)
    [ "$kb" -lt 65536 ] || { echo "$kb KiB"; false; }
}

@test "verify, list and sample" {
    cd "$TMP"
    five | tokens a.tok
    shard-pack -q --block-size 2 --shard-size 1KiB -o s a.tok
    run shard-pack --verify s
    status_is 0
    has "s: ok, 5 samples of 2 tokens"
    run shard-pack --verify a.tok s
    status_is 0
    has "a.tok: ok, 10 tokens in 5 documents"
    run --separate-stderr shard-pack --list s
    status_is 0
    has "# 5 samples of 2 tokens, 10 tokens as u16; documents grouped by all, separator none"
    [ "$(echo "$output" | tail -n 1 | cut -f 1)" = shard-00000.shd ]
    run shard-pack --sample 5 s
    status_is 2
    has "has 5 samples, wanted number 5"
    run shard-pack --list --verify s
    status_is 2
    run shard-pack --verify -o t s
    status_is 2
}

@test "an existing set is kept unless --overwrite, and until the new one is complete" {
    cd "$TMP"
    five | tokens a.tok
    shard-pack -q --block-size 2 -o s a.tok
    before=$(digest s)
    run shard-pack --block-size 3 -o s a.tok
    status_is 1
    has "s already holds a shard set"
    head -c 300 a.tok >cut.tok
    run shard-pack --overwrite --block-size 3 -o s cut.tok
    status_is 3
    shard-pack -q --verify s
    [ "$(digest s)" = "$before" ]
    shard-pack -q --overwrite --block-size 3 -o s a.tok
    [ "$(digest s)" != "$before" ]
    [ "$(ls -A s)" = $'index.json\nshard-00000.shd' ]
}

@test "bad input: every cut of a token stream at a block boundary and between" {
    cd "$TMP"
    bytes=$(stat -c %s "$FIXTURES/format/small.tok")
    for ((n = 0; n < bytes; n += 32)); do
        head -c $n "$FIXTURES/format/small.tok" >cut.tok
        run shard-pack --input-format tokens --block-size 2 -o s cut.tok
        status_is 3
        has "cut.tok"
        no_set s
    done
}

@test "bad input: a flipped byte anywhere in a token stream" {
    cd "$TMP"
    bytes=$(stat -c %s "$FIXTURES/format/small.tok")
    for ((n = 0; n < bytes; n += 37)); do
        cp "$FIXTURES/format/small.tok" bad.tok
        flip_byte bad.tok $n
        run shard-pack --input-format tokens --block-size 2 -o s bad.tok
        status_is 3
        has "bad.tok"
        no_set s
    done
}

@test "bad input: a flipped byte, a cut or a missing file of a shard set" {
    cd "$TMP"
    bytes=$(stat -c %s "$FIXTURES/format/shards/shard-00000.shd")
    for ((n = 0; n < bytes; n += 37)); do
        rm -rf s && cp -r "$FIXTURES/format/shards" s
        flip_byte s/shard-00000.shd $n
        run shard-pack --verify s
        status_is 3
        has "s/shard-00000.shd"
    done
    for ((n = 0; n < bytes; n += 64)); do
        head -c $n "$FIXTURES/format/shards/shard-00000.shd" >s/shard-00000.shd
        run shard-pack --verify s
        status_is 3
        has "s/shard-00000.shd"
    done
    rm s/shard-00000.shd
    run shard-pack --verify s
    status_is 3
    has "is missing"
    rm s/index.json
    run shard-pack --verify s
    status_is 3
    has "is not a shard set"
    run shard-pack --verify nowhere
    status_is 1
}

@test "bad input: files of other kinds are named" {
    cd "$TMP"
    echo "hello there" >a.txt
    run shard-pack -o s a.txt
    status_is 3
    has "a.txt looks like text"
    : >empty
    run shard-pack -o s empty
    status_is 3
    has "empty is empty"
    run shard-pack -o s "$FIXTURES/format/shards/shard-00000.shd"
    status_is 3
    has "is a shard of samples, expected a token stream"
    cat "$FIXTURES/format/small.tok" "$FIXTURES/format/small.tok" >two.tok
    run shard-pack --block-size 2 -o s two.tok
    status_is 3
    has "give each as its own argument"
    run shard-pack -o s none.tok
    status_is 1
    has "none.tok"
    no_set s
}

@test "bad input: vocabularies that differ" {
    cd "$TMP"
    five | tokens a.tok 512
    five | tokens b.tok 600
    run shard-pack --block-size 2 -o s a.tok b.tok
    status_is 3
    has "a.tok has a vocabulary of 512 ids, b.tok one of 600"
    no_set s
    run shard-pack --block-size 2 --vocab "$ROOT/share/gpt2/vocab.bpe" -o s a.tok
    status_is 3
    has "512"
    no_set s
    echo '[1,2,600]' >c.jsonl
    run shard-pack --block-size 2 --vocab-size 600 -o s c.jsonl
    status_is 3
    has "c.jsonl line 1 column 9: token id 600, but the vocabulary has 600 ids"
    le 2 1 2 600 >d.bin
    run shard-pack --block-size 2 --vocab-size 600 -o s d.bin
    status_is 3
    has "id 600 at byte 4"
    no_set s
}

@test "bad input: JSON lines" {
    cd "$TMP"
    check() { # LINE WORDS
        printf '[1,2]\n%s\n' "$1" >bad.jsonl
        run shard-pack --input-format jsonl --block-size 2 -o s bad.jsonl
        status_is 3
        has "bad.jsonl line 2 column"
        has "$2"
        no_set s
    }
    check '{"input_ids":[1,2' "expected ',' or ']'"
    check '{"input_ids":[1,,2]}' "expected a token id"
    check '{"input_ids":[1,-2]}' "expected a token id"
    check '{"input_ids":[1.5]}' "whole number"
    check '{"input_ids":[1e3]}' "whole number"
    check '{"input_ids":[99999999999999999999]}' "vocabulary"
    check '{"input_ids":"x"}' "not an array"
    check '{"input_ids":[1],"input_ids":[2]}' "twice"
    check '{"text":"x"}' 'no field "input_ids"'
    check '{"input_ids":[1]' "expected ',' or '}'"
    check '{"input_ids":[1]} x' "text after"
    check '{"a":"x' "ends inside a string"
    check 'hello' "expected a JSON object"
    printf '[1,2]\nx\n[3,4]\n{"input_ids":[5,x]}\n[6,7]\n' >bad.jsonl
    run shard-pack --block-size 2 --vocab-size 9 --skip-bad 1 -o s bad.jsonl
    status_is 3
    has "line 4"
    no_set s
    run shard-pack --block-size 2 --vocab-size 9 --skip-bad 2 -o s bad.jsonl
    status_is 0
    has "2 bad lines left out"
    run samples s
    [ "$output" = $'[1,2]\n[3,4]\n[6,7]' ]
}

@test "bad input: .bin and gzip" {
    cd "$TMP"
    printf 'abc' >odd.bin
    run shard-pack --block-size 2 -o s odd.bin
    status_is 3
    has "ends inside the id at byte 2"
    { le 4 20240520 1 10; head -c 1012 /dev/zero; le 2 1 2 3; } >short.bin
    run shard-pack --block-size 2 -o s short.bin
    status_is 3
    has "counts 10 ids, found 3"
    { le 4 20240520 2 3; head -c 1012 /dev/zero; le 2 1 2 3; } >version.bin
    run shard-pack --block-size 2 -o s version.bin
    status_is 3
    has "version 2"
    { le 4 20240520 1 3; head -c 100 /dev/zero; } >head.bin
    run shard-pack --block-size 2 -o s head.bin
    status_is 3
    has "cut inside its header"
    for ((i = 0; i < 500; i++)); do echo "[$i,$((i * 31 % 997))]"; done | gzip >good.gz
    bytes=$(stat -c %s good.gz)
    for n in 2 9 100 $((bytes / 2)) $((bytes - 8)) $((bytes - 1)); do
        head -c "$n" good.gz >cut.gz
        run shard-pack --block-size 2 -o s cut.gz
        status_is 3
        has "gzip data"
        cp good.gz bad.gz
        flip_byte bad.gz "$n"
        [ "$n" -eq 9 ] && continue # the operating system's number, which means nothing
        run shard-pack --block-size 2 -o s bad.gz
        status_is 3
    done
    no_set s
}

@test "too little data is an error" {
    cd "$TMP"
    five | tokens a.tok
    run shard-pack --block-size 11 -o s a.tok
    status_is 3
    has "too little data: 10 tokens in 5 documents make no block of 11 tokens"
    no_set s
    run shard-pack --block-size 6 --group-documents 2 -o s a.tok
    status_is 3
    has "grouped by 2"
    : | tokens none.tok
    run shard-pack -o s none.tok
    status_is 3
    has "0 tokens"
    no_set s
}

@test "places that cannot be written" {
    cd "$TMP"
    five | tokens a.tok
    run shard-pack --block-size 2 -o a.tok/s a.tok
    status_is 1
    has "cannot create folder a.tok"
    run shard-pack --block-size 2 -o /proc/s a.tok
    status_is 1
    has "/proc/s"
    run shard-pack --block-size 2 --shuffle-documents 1 --shuffle-memory 64KiB --temporary-dir nowhere -o s a.tok
    status_is 0 # nothing had to leave memory
    for ((i = 0; i < 3000; i++)); do echo "[1,2,3,4,5,6,7,8,9]"; done | tokens many.tok
    run shard-pack --block-size 2 --shuffle-documents 1 --shuffle-memory 64KiB --temporary-dir nowhere -o u many.tok
    status_is 1
    has "nowhere"
    no_set u
    # A file size limit stands for a full disk.
    head -c 4000000 /dev/zero >zeros.bin
    run bash -c 'trap "" XFSZ; ulimit -f 2000; exec shard-pack -o t zeros.bin'
    status_is 1
    has "File too large"
    no_set t
    [ -e /dev/full ] || skip "no /dev/full"
    run bash -c 'shard-pack --list s >/dev/full'
    status_is 1
    has "No space left"
    run bash -c 'shard-pack --sample 0 s >&-'
    status_is 1
    has "standard output"
    # A reader that goes away ends the tool quietly.
    mkfifo pipe
    sleep 0.2 <pipe &
    run bash -c 'exec >pipe; sleep 0.5; exec shard-pack --list s'
    status_is 141
    [ -z "$output" ]
}

@test "a killed run leaves no set, and the next one clears up" {
    cd "$TMP"
    mkfifo pipe
    head -c 5000000 /dev/zero >zeros.bin
    shard-pack -q --shard-size 1MiB -o s --input-format bin pipe &
    pid=$!
    exec 7>pipe
    cat zeros.bin >&7
    for ((i = 0; i < 100; i++)); do
        [ -e s/.partial/shard-00002.shd ] && break
        sleep 0.1
    done
    [ -e s/.partial/shard-00002.shd ]
    run shard-pack -q -o s zeros.bin # while the first still writes
    status_is 1
    has "another program is writing"
    kill -9 $pid
    wait $pid || true
    exec 7>&-
    [ ! -e s/index.json ]
    run shard-pack --verify s
    status_is 3
    has "is not a shard set"
    shard-pack -q -o s zeros.bin
    shard-pack -q --verify s
    [ "$(ls -A s)" = $'index.json\nshard-00000.shd' ]
}

@test "options: help names defaults, unknown and impossible values are usage errors" {
    run shard-pack --help
    status_is 0
    has "default 1024"
    run shard-pack --block-sise 3
    status_is 2
    has "--block-size"
    run shard-pack --block-size 1 -o s
    status_is 2
    has "2 to 1048576"
    run shard-pack "$FIXTURES/format/small.tok"
    status_is 2
    has "--output DIR is missing"
    run shard-pack --split eot-ends --vocab-size 9 -o s
    status_is 2
    has "--eot-id"
    run shard-pack --print-config --block-size 7
    status_is 0
    [ "$(echo "$output" | python3 -c 'import json,sys; print(json.load(sys.stdin)["block_size"])')" = 7 ]
}
