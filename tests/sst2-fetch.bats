#!/usr/bin/env bats
# sst2-fetch on files, folders, archives and pipes. The network has its own files.

load helper

setup() {
    cd "$TMP" || return
    export XDG_CACHE_HOME=$TMP/cache
    unset "${!AWS_@}" HF_TOKEN
}

fetch() { timeout 60 sst2-fetch "$@"; }
# rows TEXT: what sst2-fetch makes of a file with this content (printf escapes).
rows() {
    printf "$1" >in.tsv
    shift
    run --separate-stderr fetch --quiet --source in.tsv "$@"
}
# gives LINE...: the last run ended well and printed exactly these lines.
gives() {
    status_is 0 || { echo "$stderr"; return 1; }
    [ "$output" = "$(printf '%s\n' "$@")" ] || { printf 'got:  %s\nwant: %s\n' "$output" "$*"; return 1; }
}
# glue_zip FOLDER ZIP: packs three TSV files as GLUE does, with the other members it has.
glue_zip() {
    need_command zip
    mkdir -p pack/SST-2/original
    cp "$1"/{train,dev,test}.tsv pack/SST-2/
    printf 'sentence_index\tsentence\n1\tThe Rock\n' >pack/SST-2/original/datasetSentences.txt
    echo "read me" >pack/SST-2/original/README.txt
    (cd pack && zip -qr ../packed.zip SST-2) && mv packed.zip "$2"
}

A='{"idx":0,"sentence":"good fun ","label":1}'
B='{"idx":1,"sentence":"no fun ","label":0}'

# --- the sample ---------------------------------------------------------------------------------

@test "the sample data set is what its generator makes" {
    timeout 60 "$ROOT/share/sample/generate.sh" -o again
    for f in train dev test; do cmp "again/$f.tsv" "$ROOT/share/sample/$f.tsv"; done
}

@test "another seed gives other sentences, and no sentence occurs twice" {
    timeout 60 "$ROOT/share/sample/generate.sh" -o other -s 7 500 50 50
    ! cmp -s other/train.tsv <(head -n 501 "$ROOT/share/sample/train.tsv")
    cd "$ROOT/share/sample"
    doubles=$( (tail -qn +2 train.tsv dev.tsv | cut -f1 | sed 's/ $//'; tail -n +2 test.tsv | cut -f2) | sort | uniq -d)
    [ -z "$doubles" ]
}

@test "the sample's splits have their rows" {
    run --separate-stderr fetch --source "$ROOT/share/sample" --all -o out
    status_is 0
    says "train: 4000 rows"
    [ "$(wc -l <out/train.jsonl)" -eq 4000 ] && [ "$(wc -l <out/validation.jsonl)" -eq 400 ]
    [ "$(wc -l <out/test.jsonl)" -eq 400 ]
    ! grep -q label out/test.jsonl
}

# --- the real data ------------------------------------------------------------------------------

@test "SST-2 from a folder: 67,349, 872 and 1,821 rows, byte for byte" {
    need_shared
    for pair in train:train dev:validation test:test; do
        fetch --quiet --source "$SHARED/data/sst2" --split "${pair#*:}" -o out.jsonl
        [ "$(wc -l <out.jsonl)" -eq $(($(wc -l <"$SHARED/data/sst2/${pair%:*}.tsv") - 1)) ]
        # Back as TSV it is the published file again.
        fetch --quiet --source out.jsonl --split "${pair#*:}" --format tsv | cmp - "$SHARED/data/sst2/${pair%:*}.tsv"
    done
}

@test "SST-2 as JSON reads the same by another parser" {
    need_shared
    need_command python3
    for pair in train:train:67349 dev:validation:872 test:test:1821; do
        IFS=: read -r file split count <<<"$pair"
        fetch --quiet --source "$SHARED/data/sst2" --split "$split" | timeout 60 python3 -c '
import json, sys
lines = open(sys.argv[1], "rb").read().split(b"\n")[1:-1]
rows = [json.loads(line) for line in sys.stdin.buffer]
assert len(rows) == len(lines) == int(sys.argv[3]), len(rows)
for i, (line, row) in enumerate(zip(lines, rows)):
    a, b = line.split(b"\t")
    want = {"idx": int(a), "sentence": b.decode()} if sys.argv[2] == "test" else \
           {"idx": i, "sentence": a.decode(), "label": int(b)}
    assert row == want, (row, want)
' "$SHARED/data/sst2/$file.tsv" "$split" "$count"
    done
}

@test "SST-2 out of the zip equals SST-2 out of the folder, from a file and from a pipe" {
    need_shared
    glue_zip "$SHARED/data/sst2" SST-2.zip
    fetch --quiet --source "$SHARED/data/sst2" --all -o folder
    fetch --quiet --source SST-2.zip --all -o zip
    cat SST-2.zip | fetch --quiet --source - --all -o pipe
    for s in train validation test; do
        cmp folder/$s.jsonl zip/$s.jsonl
        cmp folder/$s.jsonl pipe/$s.jsonl
    done
}

@test "an archive is not unpacked to disk" {
    need_shared
    need_command strace
    glue_zip "$SHARED/data/sst2" SST-2.zip
    ASAN_OPTIONS=detect_leaks=0 timeout 60 strace -f -e trace=openat,creat,mkdir -o trace sst2-fetch --quiet --source SST-2.zip -o out.jsonl
    ! grep -E 'O_WRONLY|O_RDWR' trace | grep -v out.jsonl | grep -vE '"\."|/dev/|O_TMPFILE'
}

# --- the forms of TSV ---------------------------------------------------------------------------

@test "header and label" {
    rows 'sentence\tlabel\ngood fun \t1\nno fun \t0\n'
    gives "$A" "$B"
}

@test "no header" {
    rows 'good fun \t1\nno fun \t0\n'
    gives "$A" "$B"
}

@test "columns swapped, with and without a header" {
    rows 'label\tsentence\n1\tgood fun \n0\tno fun \n'
    gives "$A" "$B"
    rows '1\tgood fun \n0\tno fun \n'
    gives "$A" "$B"
}

@test "three columns, named and not" {
    rows 'idx\tsentence\tlabel\n0\tgood fun \t1\n1\tno fun \t0\n'
    gives "$A" "$B"
    rows '0\tgood fun \t1\n1\tno fun \t0\n2\tso so\t-1\n'
    gives "$A" "$B" '{"idx":2,"sentence":"so so"}'
}

@test "CRLF, a byte order mark, no line end at the end" {
    rows '\xef\xbb\xbfsentence\tlabel\r\ngood fun \t1\r\nno fun \t0'
    gives "$A" "$B"
    rows '\xef\xbb\xbfgood fun \t1\r\nno fun \t0\r\n'
    gives "$A" "$B"
}

@test "quotes and backslashes are just characters" {
    rows 'sentence\tlabel\n"good" \\ fun\t1\n"\t0\n'
    gives '{"idx":0,"sentence":"\"good\" \\ fun","label":1}' '{"idx":1,"sentence":"\"","label":0}'
}

@test "label -1 and no label mean none" {
    rows 'sentence\tlabel\ngood fun \t-1\nno fun \t\n'
    gives '{"idx":0,"sentence":"good fun "}' '{"idx":1,"sentence":"no fun "}'
}

@test "GLUE's test file: index and sentence, with and without a header" {
    rows 'index\tsentence\n0\tgood fun \n1\tno fun \n' --split test
    gives '{"idx":0,"sentence":"good fun "}' '{"idx":1,"sentence":"no fun "}'
    rows '0\tgood fun \n1\tno fun \n' --split test
    gives '{"idx":0,"sentence":"good fun "}' '{"idx":1,"sentence":"no fun "}'
    rows '0\tgood fun \n1\tno fun \n2\tso so \n' --split train
    gives '{"idx":0,"sentence":"good fun "}' '{"idx":1,"sentence":"no fun "}' '{"idx":2,"sentence":"so so "}'
}

@test "one column: sentences only, numbers too" {
    rows 'good fun \nno fun \n'
    gives '{"idx":0,"sentence":"good fun "}' '{"idx":1,"sentence":"no fun "}'
    rows '1\n0\n'
    gives '{"idx":0,"sentence":"1"}' '{"idx":1,"sentence":"0"}'
}

@test "a sentence that is a header's word is still a sentence" {
    rows 'text\t1\nlabel\t0\n'
    gives '{"idx":0,"sentence":"text","label":1}' '{"idx":1,"sentence":"label","label":0}'
}

@test "bytes that are not UTF-8 and NUL survive" {
    printf 'sentence\tlabel\nbad \xff\xe9 \t1\nnul \0 in\t0\nclich\xc3\xa9s \t0\n' >in.tsv
    fetch --quiet --source in.tsv -o out.jsonl
    fetch --quiet --source out.jsonl --format tsv | cmp - in.tsv
    grep -q 'clichés ' out.jsonl
}

@test "blank lines at the end are nothing" {
    rows 'sentence\tlabel\ngood fun \t1\nno fun \t0\n\n \n\n'
    gives "$A" "$B"
}

@test "a sentence of a megabyte" {
    head -c 1000000 /dev/zero | tr '\0' x >long
    printf 'sentence\tlabel\n%s\t1\n' "$(cat long)" >in.tsv
    [ "$(fetch --quiet --source in.tsv | wc -c)" -eq 1000034 ]
}

# --- JSON lines and formats ----------------------------------------------------------------------

@test "JSON lines: other names, order, escapes, labels" {
    cat >in.jsonl <<'END'
{"text": "good fun ", "label": 1, "more": {"x": [1, 2]}}
{"label": 0, "sentence": "no fun ", "idx": 9}
{"sentence": "caf\u00e9 \ud83d\ude00 \\ \" \/", "label": null}
{"sentence": "a\u0000b\udcff", "label": -1}
{"sentence": "s", "label": "positive"}
END
    run --separate-stderr fetch --quiet --source in.jsonl
    gives '{"idx":0,"sentence":"good fun ","label":1}' '{"idx":9,"sentence":"no fun ","label":0}' \
        '{"idx":2,"sentence":"café 😀 \\ \" /"}' '{"idx":3,"sentence":"a\u0000b\udcff"}' \
        '{"idx":4,"sentence":"s","label":1}'
}

@test "a TSV sentence may start with a brace" {
    rows '{"good" fun \t1\n'
    [ "$status" -eq 3 ] # it reads as a broken object, and says so
    rows '{ good } fun \t1\nno fun \t0\n'
    gives '{"idx":0,"sentence":"{ good } fun ","label":1}' "$B"
}

@test "--format tsv and text" {
    rows 'good fun \t1\nno fun \t0\n' --format tsv
    gives "$(printf 'sentence\tlabel')" "$(printf 'good fun \t1')" "$(printf 'no fun \t0')"
    rows 'good fun \t1\nno fun \t0\n' --format text
    gives 'good fun ' 'no fun '
    rows '0\tgood fun \n1\tno fun \n' --format tsv --split test
    gives "$(printf 'index\tsentence')" "$(printf '0\tgood fun ')" "$(printf '1\tno fun ')"
}

@test "a tab in a sentence does not fit TSV, a line end not text" {
    printf '{"sentence":"a\\tb","label":1}\n{"sentence":"c","label":1}\n' >in.jsonl
    run --separate-stderr fetch --quiet --source in.jsonl --format tsv
    status_is 3 && says 'in.jsonl:1' && says 'tab at byte 1'
    run --separate-stderr fetch --quiet --source in.jsonl --format text
    gives "$(printf 'a\tb')" c
    printf '{"sentence":"a\\nb"}\n' >in.jsonl
    run --separate-stderr fetch --quiet --source in.jsonl --format text
    status_is 3 && says 'line end at byte 1'
}

# --- archives ------------------------------------------------------------------------------------

@test "gzip, also of several members" {
    printf 'sentence\tlabel\ngood fun \t1\n' | gzip >in.gz
    printf 'no fun \t0\n' | gzip >>in.gz
    run --separate-stderr fetch --quiet --source in.gz
    gives "$A" "$B"
    cat in.gz | fetch --quiet --source - | cmp - <(printf '%s\n' "$A" "$B")
}

@test "a gzip cut at any byte, or with a flipped bit, is refused and leaves no file" {
    seq 1 300 | sed 's/.*/sentence number & \t1/' >in.tsv
    gzip -n <in.tsv >in.gz
    size=$(stat -c %s in.gz)
    for at in 3 9 12 100 $((size / 2)) $((size - 9)) $((size - 8)) $((size - 4)) $((size - 1)); do
        head -c "$at" in.gz >cut.gz
        run fetch --quiet --source cut.gz -o out.jsonl
        status_is 3
        [ ! -e out.jsonl ]
    done
    for at in 20 $((size / 2)) $((size - 7)) $((size - 3)); do
        cp in.gz bad.gz
        flip_byte bad.gz "$at"
        run fetch --quiet --source bad.gz -o out.jsonl
        status_is 3
        has "bad.gz: corrupt gzip data"
        [ ! -e out.jsonl ]
    done
}

@test "a cut zip and a zip with a flipped bit are refused and leave no file" {
    need_command zip
    mkdir z
    seq 1 2000 | sed 's/.*/sentence number & \t1/' >z/train.tsv
    (cd z && zip -qX ../in.zip train.tsv)
    fetch --quiet --source in.zip -o good.jsonl
    size=$(stat -c %s in.zip)
    for at in 10 60 $((size / 2)) $((size - 30)) $((size - 1)); do
        head -c "$at" in.zip >cut.zip
        run fetch --quiet --source cut.zip -o out.jsonl
        status_is 3
        has "cut.zip"
        [ ! -e out.jsonl ]
    done
    # In the compressed data, in its checksum (byte 14), and in stored data, which only the checksum covers.
    (cd z && zip -qX0 ../stored.zip train.tsv)
    for at in in:200 in:$((size / 2)) in:14 stored:3000; do
        cp ${at%:*}.zip bad.zip
        at=${at#*:}
        flip_byte bad.zip "$at"
        run fetch --quiet --source bad.zip -o out.jsonl
        status_is 3
        [ ! -e out.jsonl ]
    done
}

@test "a zip: other members and resource forks are tolerated, the file nearest the top is taken" {
    need_command zip
    mkdir -p z/SST-2/original z/__MACOSX/SST-2
    printf 'good fun \t1\nno fun \t0\n' >z/SST-2/train.tsv
    printf 'wrong\t1\n' | tee z/SST-2/original/train.tsv >z/__MACOSX/SST-2/._train.tsv
    (cd z && zip -qr ../in.zip .)
    run --separate-stderr fetch --quiet --source in.zip
    gives "$A" "$B"
    printf 'wrong\t1\n' >z/SST-2/train.txt
    (cd z && zip -q ../in.zip SST-2/train.txt)
    run --separate-stderr fetch --quiet --source in.zip
    status_is 3 && says 'holds both' && says 'train.txt'
}

@test "stored and empty zips" {
    need_command zip
    printf 'good fun \t1\nno fun \t0\n' >train.tsv
    zip -q0 in.zip train.tsv
    run --separate-stderr fetch --quiet --source in.zip
    gives "$A" "$B"
    printf 'PK\005\006\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' >empty.zip
    run --separate-stderr fetch --quiet --source empty.zip
    status_is 3 && says 'empty.zip: opening the zip'
}

@test "a folder: names of splits, gzip inside, GLUE's own folder" {
    mkdir -p d/SST-2
    printf 'good fun \t1\nno fun \t0\n' >d/SST-2/train.tsv
    printf 'good fun \t1\nno fun \t0\n' | gzip >d/val.tsv.gz
    echo "$A" >d/test.jsonl
    for s in train validation; do
        run --separate-stderr fetch --quiet --source d --split $s
        gives "$A" "$B"
    done
    run --separate-stderr fetch --quiet --source "file://$PWD/d" --split test
    gives "$A"
}

# --- splits made from train ----------------------------------------------------------------------

@test "--holdout makes the missing split, disjoint, deterministic, the same in any order" {
    need_command shuf
    cp "$ROOT/share/sample/train.tsv" .
    fetch --quiet --source train.tsv --holdout 5% --split train -o t.jsonl
    fetch --quiet --source train.tsv --holdout 0.05 --split validation -o v.jsonl
    fetch --quiet --source train.tsv --holdout 5% --split test -o e.jsonl
    # All three together are the file again, no row twice.
    fetch --quiet --source train.tsv | sort | cmp - <(sort t.jsonl v.jsonl e.jsonl)
    n=$(wc -l <v.jsonl)
    [ "$n" -gt 140 ] && [ "$n" -lt 260 ] # 200 expected; five standard deviations are 69
    tail -n +2 train.tsv | shuf --random-source=train.tsv >shuffled.tsv
    fetch --quiet --source shuffled.tsv --holdout 5% --split validation --format text | sort |
        cmp - <(fetch --quiet --source v.jsonl --format text | sort)
}

@test "--holdout: equal sentences stay on one side, and --all makes three files" {
    for i in 1 2 3 4 5; do tail -n +2 "$ROOT/share/sample/dev.tsv"; done >in.tsv
    run --separate-stderr fetch --source in.tsv --holdout 10% --all -o out
    status_is 0 && says 'held out from train'
    for s in train validation test; do
        fetch --quiet --source out/$s.jsonl --format text | sort -u >$s.txt
        [ -s $s.txt ]
        [ "$(sort out/$s.jsonl | wc -l)" -eq $((5 * $(wc -l <$s.txt))) ]
    done
    [ "$(cat out/*.jsonl | wc -l)" -eq 2000 ]
    [ "$(sort train.txt validation.txt test.txt | uniq -d | wc -l)" -eq 0 ]
}

@test "--holdout from a pipe and from a zip" {
    need_command zip
    head -n 1001 "$ROOT/share/sample/train.tsv" >train.tsv
    fetch --quiet --source train.tsv --holdout 10% --all -o want
    cat train.tsv | fetch --quiet --source - --holdout 10% --all -o pipe
    zip -q s.zip train.tsv
    cat s.zip | fetch --quiet --source - --holdout 10% --all -o zip
    diff -r want pipe
    diff -r want zip
}

@test "--holdout leaves a source that has the split alone" {
    fetch --quiet --source "$ROOT/share/sample" --split train | cmp - <(fetch --quiet --source "$ROOT/share/sample" --holdout 5%)
    mkdir d
    cp "$ROOT/share/sample/train.tsv" "$ROOT/share/sample/test.tsv" d
    run --separate-stderr fetch --source d --all -o out
    status_is 3 && says 'd has no validation split (found: train, test)' && says '--holdout'
    [ ! -e out/train.jsonl ] # not a part of the three either
}

# --- bad rows ------------------------------------------------------------------------------------

@test "bad rows name file and line, what was found and expected; exit 3" {
    rows 'sentence\tlabel\ngood fun \t1\nno fun \n' -o out.jsonl
    status_is 3 && says 'in.tsv:3: found 1 tab-separated fields, expected 2'
    [ ! -e out.jsonl ]
    rows 'sentence\tlabel\ngood fun \t2\n'
    status_is 3 && says "in.tsv:2: label '2' is not 0, 1 or -1"
    rows 'sentence\tlabel\n\t1\n'
    status_is 3 && says 'in.tsv:2: the sentence is empty'
    rows 'index\tsentence\nx\tgood\n' --split test
    status_is 3 && says "in.tsv:2: index 'x'"
    rows 'good fun \t1\n\nno fun \t0\n'
    status_is 3 && says 'in.tsv:2: a blank line'
    rows 'good\tfun\nno\tfun\n'
    status_is 3 && says 'found 2 columns of text and no header'
    rows 'sentence\tsentence\ngood\tfun\n'
    status_is 3 && says 'name the same'
    rows '{"sentence":"good","label":1}\n{"sentence":"bad"\n'
    status_is 3 && says 'in.tsv' && says '2'
    rows '{"sentence":"good","label":1}\n{"label":1}\n{"sentence":7}\n'
    status_is 3 && says 'in.tsv:2: the object has no field "sentence"'
    rows '{"sentence":"good","label":3}\n'
    status_is 3 && says 'in.tsv:1: label 3 is not 0, 1 or -1'
    rows '{"sentence":"good","idx":-3}\n'
    status_is 3 && says '"idx" is not a whole number'
}

@test "files that are something else are named" {
    rows ''
    status_is 3 && says 'in.tsv: the file is empty'
    rows 'sentence\tlabel\n'
    status_is 3 && says 'in.tsv: found no row'
    rows '<!DOCTYPE html>\n<p>sentence</p>\n'
    status_is 3 && says 'web page'
    rows 'PAR1....'
    status_is 3 && says 'Parquet'
    rows '[{"sentence":"good"}]\n'
    status_is 3 && says 'JSON array'
    head -c 4096 /dev/zero >in.tsv
    run --separate-stderr fetch --quiet --source in.tsv
    status_is 3 && says 'binary file'
    head -c 17000000 /dev/zero | tr '\0' x >in.tsv
    run --separate-stderr fetch --quiet --source in.tsv
    status_is 3 && says 'longer than the limit'
}

@test "--skip-bad tolerates and counts, up to its number" {
    bad='sentence\tlabel\ngood fun \t1\nx\ty\tz\n\nno fun \t0\nw\t7\n'
    printf "$bad" >in.tsv
    run --separate-stderr fetch --source in.tsv --skip-bad 3
    status_is 0 && says 'skipped 3 bad rows; the first: in.tsv:3'
    [ "$output" = "$(printf '%s\n' "$A" '{"idx":3,"sentence":"no fun ","label":0}')" ]
    run --separate-stderr fetch --source in.tsv --skip-bad 2 -o out.jsonl
    status_is 3 && says 'more than 2 bad rows' && says 'in.tsv:6'
    [ ! -e out.jsonl ]
}

# --- files and options ----------------------------------------------------------------------------

@test "nothing half-written: an old file stays when the new one fails" {
    echo old >out.jsonl
    rows 'good fun \t1\nno fun\n' -o out.jsonl
    status_is 3
    [ "$(cat out.jsonl)" = old ]
    [ "$(ls -A | grep -c tmp)" -eq 0 ]
}

@test "missing file, unwritable folder, closed and full output" {
    run --separate-stderr fetch --source nowhere.tsv
    status_is 1 && says 'nowhere.tsv: No such file'
    rows 'good fun \t1\n' -o /proc/out.jsonl
    status_is 1 && says '/proc/out.jsonl'
    run bash -c 'timeout 60 sst2-fetch --quiet --source in.tsv >&-'
    status_is 1
    run bash -c 'timeout 60 sst2-fetch --quiet --source in.tsv >/dev/full'
    status_is 1
    has 'No space left'
}

@test "a reader that goes away ends it quietly" {
    run bash -c "timeout 60 sst2-fetch --quiet --source '$ROOT/share/sample' | head -n 1; echo \${PIPESTATUS[0]}"
    [ "${lines[1]}" -eq 141 ] || [ "${lines[1]}" -eq 0 ]
    [ "${#lines[@]}" -eq 2 ]
}

@test "--sha256 of a file, a pipe; wrong and malformed" {
    printf 'good fun \t1\nno fun \t0\n' >in.tsv
    sum=$(sha256sum in.tsv | cut -d' ' -f1)
    run --separate-stderr fetch --quiet --source in.tsv --sha256 "${sum^^}"
    gives "$A" "$B"
    cat in.tsv | fetch --quiet --source - --sha256 "$sum" | cmp - <(printf '%s\n' "$A" "$B")
    run --separate-stderr fetch --quiet --source in.tsv --sha256 "${sum//[0-9]/0}" -o out.jsonl
    status_is 3 && says "SHA-256 is $sum, expected"
    [ ! -e out.jsonl ]
    run --separate-stderr fetch --source in.tsv --sha256 abc
    status_is 2 && says '64 hexadecimal digits'
}

@test "usage errors end with 2 and say what is meant" {
    run --separate-stderr fetch --splitt train
    status_is 2 && says '--split'
    run --separate-stderr fetch --split dev
    status_is 2 && says 'validation'
    run --separate-stderr fetch --all
    status_is 2 && says '-o DIR'
    run --separate-stderr fetch --source ftp://x/y
    status_is 2 && says 'unknown kind of URL'
    run --separate-stderr fetch in.tsv
    status_is 2 && says '--source'
    for h in 0 50% 0.5 x -3%; do
        run --separate-stderr fetch --source in.tsv --holdout "$h"
        status_is 2 && says '--holdout'
    done
    run --separate-stderr fetch --offline --refresh
    status_is 2
    run --separate-stderr fetch --source d --sha256 "$(printf '%064d' 0)" --source hub
    status_is 2 && says 'hub'
}

@test "--help, --version, --print-config" {
    run --separate-stderr fetch --help
    status_is 0
    has '--holdout'
    run --separate-stderr fetch --version
    status_is 0
    run --separate-stderr fetch --print-config --split test
    status_is 0
    has '"split": "test"'
    has '"source": "glue"'
}

@test "--all without the network leaves every file or none" {
    glue_zip "$ROOT/share/sample" s.zip
    printf 'broken\n' >>pack/SST-2/test.tsv
    (cd pack && zip -q ../s.zip SST-2/test.tsv)
    run --separate-stderr fetch --source s.zip --all -o out
    status_is 3 && says 'test.tsv:402'
    [ -z "$(ls -A out)" ]
}
