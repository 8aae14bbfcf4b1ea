# gpt2-tokenize: exact ids, exact bytes back, the same output for any number of threads, clear refusals.

load helper

setup() { cd "$TMP"; }

# u16le: arrays of ids on stdin to little-endian 16-bit.
u16le() { perl -ne 'print pack("v*", /\d+/g)'; }
# text_ids TEXT: its ids as one array.
text_ids() { printf %s "$1" | gpt2-tokenize -q --input-format text --output-format ids; }
# random_bytes N SEED
random_bytes() { perl -e 'srand($ARGV[1]); print pack("C*", map { int rand 256 } 1 .. $ARGV[0])' "$1" "$2"; }

# --- exactness --------------------------------------------------------------------------------------

@test "known ids" {
    [ "$(text_ids 'hello world')" = "[31373,995]" ]
    [ "$(text_ids 'a  b')" = "[64,220,275]" ]
    [ "$(text_ids 'hello  ')" = "[31373,220,220]" ]
    [ "$(text_ids "they'll IT'S")" = "[9930,1183,7283,6,50]" ]
    [ "$(text_ids '<|endoftext|>')" = "[27,91,437,1659,5239,91,29]" ]
    [ "$(text_ids '')" = "[]" ]
}

@test "every case of the reference encoder's edge list" {
    need_shared
    edge=$SHARED/golden/tokens/edge.jsonl
    gpt2-tokenize -q --field text --output-format ids "$edge" >got
    sed -E 's/.*"ids": (\[[^]]*\])\}$/\1/; s/ //g' "$edge" >want
    [ "$(wc -l <want)" -gt 50 ]
    diff got want
}

@test "the corpora have the reference's token counts and hashes" {
    need_shared
    for f in tinyshakespeare udhr_all emoji-test; do
        gpt2-tokenize -q --input-format text --output-format ids "$SHARED/data/corpora/$f.txt" >ids
        sum=$(u16le <ids | sha256sum | cut -d' ' -f1)
        grep "$f" "$SHARED/golden/tokens/corpora.jsonl" | grep -F "\"$sum\"" ||
            { echo "$f: $sum is not the reference's"; false; }
    done
}

@test "SST-2: every variant of the sentences has the reference's hash" {
    need_shared
    for split in train dev test; do
        column=1
        [ "$split" = test ] && column=2
        tail -n +2 "$SHARED/data/sst2/$split.tsv" | cut -f$column >raw
        sed 's/[ \t]*$//' raw >rstrip
        sed 's/^/ /' rstrip >lead_space_rstrip
        for variant in raw rstrip lead_space_rstrip; do
            sum=$(gpt2-tokenize -q --input-format lines --output-format ids $variant | u16le | sha256sum | cut -d' ' -f1)
            grep "$split.tsv sentences $variant\"" "$SHARED/golden/tokens/corpora.jsonl" | grep -qF "\"$sum\"" ||
                { echo "$split $variant: $sum is not the reference's"; false; }
        done
    done
}

@test "<|endoftext|> is text unless allowed, also where a batch ends" {
    run bash -c "printf 'a<|endoftext|>b' | gpt2-tokenize -q --input-format text --allow-special --output-format ids"
    [ "$output" = "[64,50256,65]" ]
    perl -e 'print "x<|endoftext|>" x 100000' >many
    n=$(gpt2-tokenize -q --input-format text --allow-special --output-format ids many | tr ',' '\n' | grep -c 50256)
    [ "$n" -eq 100000 ]
}

# --- there and back ---------------------------------------------------------------------------------

@test "random bytes, NUL bytes and bad UTF-8 come back as they were" {
    for seed in 1 2 3; do
        random_bytes 700000 $seed >in
        gpt2-tokenize -q --input-format text in | gpt2-tokenize -q --decode >back
        cmp in back
    done
    printf 'a\0b\0\0\xff\xc3(\xed\xa0\x80 \xf0\x9f\x98' >in
    gpt2-tokenize -q --input-format text --output-format ids in |
        gpt2-tokenize -q --decode --input-format ids >back
    cmp in back
}

@test "lines and JSON lines come back, empty documents and bytes included" {
    printf 'one\n\n two  \nb\0c\xff\nlast' >lines
    gpt2-tokenize -q --input-format lines lines >l.tok
    gpt2-tokenize -q --decode --decode-format lines l.tok >back
    diff <(cat lines; echo) back
    gpt2-tokenize -q --decode --decode-format jsonl --field text l.tok >back.jsonl
    sed -n 4p back.jsonl | grep -F '{"text":"b\u0000c\udcff"}'
    gpt2-tokenize -q --field text back.jsonl >again.tok
    cmp <(gpt2-tokenize -q --input-format tokens --output-format ids l.tok) \
        <(gpt2-tokenize -q --input-format tokens --output-format ids again.tok)
}

@test "a document with a line feed is no line" {
    printf '{"sentence":"ok"}\n{"sentence":"a\\nb"}\n' | gpt2-tokenize -q -o t.tok
    run gpt2-tokenize -q --decode --decode-format lines t.tok
    status_is 3
    has "document 2 holds a line feed"
}

@test "--append-eot ends documents; --decode takes the mark away, --keep-eot leaves it" {
    printf 'a\n\nb\n' >in
    run gpt2-tokenize -q --input-format lines --append-eot --output-format ids in
    [ "$output" = $'[64,50256]\n[50256]\n[65,50256]' ]
    gpt2-tokenize -q --input-format lines --append-eot in >e.tok
    gpt2-tokenize -q --decode --decode-format lines e.tok | cmp - in
    [ "$(gpt2-tokenize -q --decode --keep-eot e.tok)" = "a<|endoftext|><|endoftext|>b<|endoftext|>" ]
    run gpt2-tokenize -q --input-format tokens --append-eot -o x.tok e.tok
    status_is 2
    [ ! -e x.tok ]
}

@test "a document over many blocks loses only its own end mark" {
    perl -e 'print "word " x 700000' >in
    gpt2-tokenize -q --input-format text --append-eot in >t.tok
    gpt2-tokenize -q --decode t.tok | cmp - in
    gpt2-tokenize -q --decode --decode-format jsonl t.tok | gpt2-tokenize -q | gpt2-tokenize -q --decode | cmp - in
    [ "$(gpt2-tokenize -q --input-format tokens --output-format ids t.tok | wc -l)" -eq 1 ]
    gpt2-tokenize -q --input-format tokens --output-format ids t.tok | grep -q '^\[4775,1573,.*,220,50256\]$'
}

@test "documents over many blocks without end marks, in every form and on several threads" {
    perl -e 'print "word " x 700000, "\n", "two\n", "again " x 600000' >in
    gpt2-tokenize -q --input-format lines in >t.tok
    gpt2-tokenize -q --input-format lines --output-format ids in >ids
    gpt2-tokenize -q --input-format lines --output-format pieces in >pieces
    { cat in && echo; } >lines
    for n in 1 3; do
        gpt2-tokenize -q --threads $n --decode --decode-format lines t.tok | cmp - lines
        gpt2-tokenize -q --threads $n --decode t.tok t.tok | cmp - <(cat in in | tr -d '\n')
        gpt2-tokenize -q --threads $n --input-format tokens t.tok | gpt2-tokenize -q --decode --decode-format lines | cmp - lines
        gpt2-tokenize -q --threads $n --input-format tokens --output-format ids t.tok | cmp - ids
        gpt2-tokenize -q --threads $n --input-format tokens --output-format pieces t.tok | cmp - pieces
    done
}

@test "ids in, ids out; ids of a vocabulary without text" {
    printf '[1, 2,3]\n\n[]\n [ 511 ]\r\n' >ids
    gpt2-tokenize -q --input-format ids --vocab-size 512 ids >v.tok
    run gpt2-tokenize -q --input-format tokens --output-format ids v.tok
    status_is 0
    [ "$output" = $'[1,2,3]\n[]\n[511]' ]
    run gpt2-tokenize -q --decode v.tok
    status_is 3
    has 512
    has 50257
}

@test "pieces show ids with their text" {
    printf 'a "q"\n\xc3' >in
    run gpt2-tokenize -q --input-format text --output-format pieces in
    [ "${lines[0]}" = $'64\t"a"' ]
    has $'\t" \\""'
    has '"\n"'
    has '"\xC3"'
}

# --- the same output always ---------------------------------------------------------------------------

@test "threads change nothing, in any form" {
    random_bytes 300000 9 >a
    perl -e 'print "the quick brown fox ", $_ % 97, $_ % 7 ? " " : "\n" for 1 .. 60000' >b
    tr -d '\0-\037"\\\177-\377' <a | fold -w 50 | sed 's/.*/{"sentence":"&"}/' >j
    for args in "--input-format text" "--input-format lines --append-eot" "--input-format text --output-format ids" \
        "--input-format lines --output-format pieces"; do
        gpt2-tokenize -q $args --threads 1 a b >one
        for n in 2 3 8; do gpt2-tokenize -q $args --threads $n a b | cmp - one; done
    done
    gpt2-tokenize -q j >one
    gpt2-tokenize -q --threads 4 j | cmp - one
    gpt2-tokenize -q --input-format lines a b >t
    gpt2-tokenize -q --decode --decode-format jsonl t >one
    gpt2-tokenize -q --decode --decode-format jsonl --threads 5 t | cmp - one
}

@test "how a pipe delivers its bytes changes nothing" {
    perl -e 'print "some words, and more\n" x 40000' >in
    gpt2-tokenize -q --input-format text <in >one
    perl -e '$| = 1; local $/; $_ = <STDIN>; while (length) { print substr($_, 0, 7777, "") }' <in |
        gpt2-tokenize -q --input-format text | cmp - one
}

@test "empty input" {
    : >empty
    for f in jsonl lines ids; do
        run gpt2-tokenize -q --input-format $f --output-format ids empty
        status_is 0
        [ -z "$output" ]
    done
    run gpt2-tokenize -q --input-format text --output-format ids empty empty
    [ "$output" = $'[]\n[]' ]
    gpt2-tokenize -q empty | gpt2-tokenize -q --decode >back
    [ ! -s back ]
}

@test "vocabularies: merges with and without last line end, a folder, another vocabulary" {
    vocab=$ROOT/share/gpt2/vocab.bpe
    printf 'hello world\n' >in
    gpt2-tokenize -q --input-format lines in >want
    head -c -1 "$vocab" >cut.txt
    sed 's/$/\r/' "$vocab" >crlf.txt
    mkdir folder
    cp "$vocab" folder/merges.txt
    for v in cut.txt crlf.txt folder; do gpt2-tokenize -q --vocab $v --input-format lines in | cmp - want; done
    head -n 300 "$vocab" >small.txt
    run gpt2-tokenize -q --decode --vocab small.txt want
    status_is 3
    has "small.txt"
    run gpt2-tokenize -q --vocab small.txt --input-format lines --output-format ids in
    status_is 0
    [ "$output" != "[31373,995]" ]
    printf 'zz yy\n' >bad.txt
    run gpt2-tokenize -q --vocab bad.txt in
    status_is 3
    has "bad.txt: line 1"
}

@test "vocabularies: vocab.json with merges.txt, and a tokenizer.json, as others publish them" {
    need_shared
    need_command python3
    mkdir pair
    cp "$SHARED/data/gpt2/encoder.json" pair/vocab.json # OpenAI's own ids
    cp "$ROOT/share/gpt2/vocab.bpe" pair/merges.txt
    python3 - "$SHARED/data/gpt2/encoder.json" "$ROOT/share/gpt2/vocab.bpe" <<'PY'
import json, sys
vocab = json.load(open(sys.argv[1], encoding="utf-8"))
merges = open(sys.argv[2], encoding="utf-8", newline="\n").read().split("\n")[1:-1]
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
for name, form in ("old", merges), ("new", [m.split(" ") for m in merges]): # both are in use
    json.dump({"version": "1.0", "pre_tokenizer": level, "decoder": level,
               "added_tokens": [{"id": 50256, "content": "<|endoftext|>", "special": True}],
               "model": {"type": "BPE", "vocab": vocab, "merges": form}}, open(name + "-tokenizer.json", "w"))
PY
    for v in pair pair/vocab.json old-tokenizer.json new-tokenizer.json; do
        gpt2-tokenize -q --vocab $v --input-format text -o t.tok "$SHARED/data/corpora/udhr_all.txt"
        gpt2-tokenize -q --input-format text "$SHARED/data/corpora/udhr_all.txt" | cmp - t.tok
        gpt2-tokenize -q --vocab $v --decode t.tok | cmp - "$SHARED/data/corpora/udhr_all.txt"
    done
    # One id changed places with another: other ids, and a stream that GPT-2's vocabulary does not fit.
    sed -i 's/"hello": 31373/"hello": 995/; s/"\\u0120world": 995/"\\u0120world": 31373/' pair/vocab.json
    [ "$(printf 'hello world' | gpt2-tokenize -q --vocab pair --input-format text --output-format ids)" = "[995,31373]" ]
    printf 'hello world' | gpt2-tokenize -q --vocab pair --input-format text -o t.tok
    run gpt2-tokenize -q --decode t.tok
    status_is 3
}

# --- size ---------------------------------------------------------------------------------------------

@test "10 MB without a break: one letter, random letters, spaces" {
    for make in 'print "a" x 1e7' 'srand 5; print chr(97 + rand 26) for 1 .. 1e7' 'print " " x 1e7'; do
        perl -e "$make" >in
        timeout 60 gpt2-tokenize -q --input-format text in >t.tok
        gpt2-tokenize -q --decode t.tok | cmp - in
    done
}

@test "memory does not grow with the input" {
    [ -z "${SMALL:-}" ] || skip "the sanitizer's memory is not ours"
    perl -e 'print "all work and no play makes a dull text, 42 times a day. " x 1200000' >in # 67 MB in one line
    for f in text lines; do
        (ulimit -v 60000 && gpt2-tokenize -q --input-format $f in >t.tok)
        (ulimit -v 60000 && gpt2-tokenize -q --decode t.tok >back)
        [ "$f" = text ] && cmp in back
        [ "$f" = lines ] && cmp <(cat in) back
    done
}

# --- bad input ------------------------------------------------------------------------------------------

@test "bad JSON lines: place, reason, exit 3, no file" {
    printf '{"sentence":"a"}\n{"sentence":"b"\n' >in
    run gpt2-tokenize -o out.tok in
    status_is 3
    has "in line 2"
    [ ! -e out.tok ]
    printf '{"sentence":"a"}\n{"text":"b"}\n' >in
    run gpt2-tokenize -o out.tok in
    status_is 3
    has "line 2"
    has "sentence"
    printf '[1]\n{"sentence":5}\n' >in
    run gpt2-tokenize in
    status_is 3
    has "line 1"
    [ -z "$(ls -A | grep -v '^in$')" ]
}

@test "--skip-bad leaves out that many lines and counts them" {
    for i in $(seq 1 10); do echo "{\"sentence\":\"n$i\"}"; [ $((i % 3)) -ne 0 ] || echo "{oops"; done >in
    run --separate-stderr gpt2-tokenize --skip-bad 3 --output-format ids in
    status_is 0
    [ "${#lines[@]}" -eq 10 ]
    [[ "$stderr" == *"left out 3 bad lines"*"line 4"* ]]
    run gpt2-tokenize --skip-bad 2 -o out in
    status_is 3
    has "--skip-bad allows 2"
    [ ! -e out ]
    run gpt2-tokenize --skip-bad 1 --input-format text in
    status_is 2
}

@test "bad ids: place and reason" {
    check() { # LINE TEXT-OF-MESSAGE
        printf '[0]\n%s\n' "$1" >in
        run gpt2-tokenize --input-format ids --vocab-size 512 -o out in
        status_is 3
        has "in line 2"
        has "$2"
        [ ! -e out ]
    }
    check '[512]' "token id 512, but the vocabulary has 512 ids"
    check '[-1]' "found '-'"
    check '[1.5]' "found '.'"
    check '[1 2]' "found '2'"
    check '[1,]' "expected a token id"
    check '[1' "the line ends"
    check '[01]' "leading zero"
    check '1' "expected '['"
    check '[1] x' "expected the end of the line"
    check '[99999999999999999999]' "but the vocabulary has"
}

@test "damaged token streams are refused" {
    perl -e 'print "some words\n" x 3000' | gpt2-tokenize -q --input-format lines -o t.tok
    size=$(stat -c %s t.tok)
    for cut in 0 10 63 64 100 200 $((size / 2)) $((size - 65)) $((size - 1)); do
        head -c "$cut" t.tok >cut.tok
        run gpt2-tokenize -q --decode -o back cut.tok
        status_is 3
        has "cut.tok"
        [ ! -e back ]
    done
    for at in 0 70 300 $((size / 2)) $((size - 20)); do
        cp t.tok flip.tok
        flip_byte flip.tok "$at"
        run gpt2-tokenize -q --decode -o back flip.tok
        status_is 3
        has "flip.tok"
        [ ! -e back ]
    done
    run gpt2-tokenize -q --decode "$ROOT/README.md"
    status_is 3
}

@test "usage errors" {
    for args in "--decode --input-format text" "--decode --output-format ids" "--decode-format text" "--vocab-size 5" \
        "--input-format ids --vocab-size 9 --append-eot" "--input-format ids --allow-special" "--input-format csv" \
        "--threads x" "--keep-eot" "--input-format ids --vocab-size 9 --vocab v" "--no-such-option"; do
        run gpt2-tokenize $args </dev/null
        status_is 2
    done
}

@test "missing input, unwritable output, full disk, closed stdout" {
    run gpt2-tokenize none.jsonl
    status_is 1
    has "none.jsonl"
    echo '{"sentence":"a"}' >in
    run gpt2-tokenize -o no/folder/out in
    status_is 1
    has "no/folder"
    run bash -c "gpt2-tokenize -q in >/dev/full"
    status_is 1
    run bash -c "gpt2-tokenize -q --output-format ids in >&-"
    status_is 1
    run bash -c "perl -e 'print qq(word \n) x 500000' | gpt2-tokenize -q --input-format lines --output-format ids | head -n 1"
    status_is 0
    [ "$output" = "[4775,220]" ]
}

@test "binary tokens do not go to a terminal" {
    need_command script
    echo '{"sentence":"a"}' >in
    run script -qec "$BIN/gpt2-tokenize in" /dev/null
    has "terminal"
}

@test "--stats counts documents, bytes, tokens and the longest piece" {
    printf 'hello world\nabcdefghijklmnopqrstuvwxyz\n' >in
    run --separate-stderr gpt2-tokenize -q --stats --input-format lines -o out in
    status_is 0
    [[ "$stderr" == *"documents: 2"*"bytes: 37"*"tokens: "*"bytes per token: "*"longest piece: 26 bytes"* ]]
}
