#!/usr/bin/env bats
# sst2-fetch over HTTP: real servers on loopback that behave well and badly.

load helper

setup_file() {
    command -v python3 >/dev/null || return 0
    export SITE=$BATS_FILE_TMPDIR/site LOG=$BATS_FILE_TMPDIR/log
    mkdir -p "$SITE"
    # Large enough that a cut falls into several reads.
    {
        printf 'sentence\tlabel\n'
        seq 1 5000 | sed 's/.*/sentence number & of a file \t1/'
    } >"$SITE/train.tsv"
    sed 's/number/version/' "$SITE/train.tsv" >"$SITE/train.tsv.new"
    head -n 251 "$SITE/train.tsv" >"$SITE/dev.tsv"
    { printf 'index\tsentence\n'; seq 0 99 | sed 's/.*/&\ttest &/'; } >"$SITE/test.tsv"
    gzip -c "$SITE/train.tsv" >"$SITE/train.tsv.gz"
    : >"$SITE/empty.tsv"
    : >"$LOG"
    start_server http_server.py "$SITE" "$BATS_FILE_TMPDIR/port"
    echo "$SERVER" >"$BATS_FILE_TMPDIR/pid"
}
teardown_file() { [ ! -s "$BATS_FILE_TMPDIR/pid" ] || kill "$(cat "$BATS_FILE_TMPDIR/pid")"; }

setup() {
    need_command python3
    cd "$TMP" || return
    export XDG_CACHE_HOME=$TMP/cache
    unset "${!AWS_@}" "${!http_@}" "${!https_@}" HTTPS_PROXY ALL_PROXY all_proxy HF_TOKEN CURL_CA_BUNDLE SSL_CERT_FILE
    export no_proxy=127.0.0.1
    PORT=$(cat "$BATS_FILE_TMPDIR/port")
    URL=http://127.0.0.1:$PORT
    : >"$LOG"
}

# Quick retries; everything else as users have it.
fetch() { timeout 60 sst2-fetch --retry-delay 0.01 "$@"; }
requests() { wc -l <"$LOG"; }
# is_train FILE: it is the server's training file.
is_train() { fetch --quiet --source "$SITE/train.tsv" | cmp - "$1"; }
try() { run --separate-stderr fetch --source "$URL/$1" -o out.jsonl "${@:2}"; }

@test "a file, and from the cache with no request at all" {
    try file/train.tsv
    status_is 0
    is_train out.jsonl
    try file/train.tsv
    status_is 0
    is_train out.jsonl
    [ "$(requests)" -eq 1 ]
    try file/train.tsv --offline
    status_is 0
    try file/dev.tsv --offline
    status_is 1 && says 'not in the cache' && says '--offline'
    [ "$(requests)" -eq 1 ]
}

@test "gzip, chunked answers, redirects" {
    for u in file/train.tsv.gz chunked/train.tsv redirect/train.tsv; do
        try $u
        status_is 0
        is_train out.jsonl
    done
    try loop/train.tsv
    status_is 1 && says 'redirects'
}

@test "SST-2's zip over HTTP: three splits, one download, then none" {
    need_shared
    need_command zip
    mkdir -p pack/SST-2/original
    cp "$SHARED"/data/sst2/*.tsv pack/SST-2/
    echo "read me" >pack/SST-2/original/README.txt
    (cd pack && zip -qr "$SITE/SST-2.zip" SST-2)
    fetch --quiet --source glue --glue-url "$URL/file/SST-2.zip" --all -o out
    fetch --quiet --source "$SHARED/data/sst2" --all -o want
    for s in train:67349 validation:872 test:1821; do
        cmp out/${s%:*}.jsonl want/${s%:*}.jsonl
        [ "$(wc -l <out/${s%:*}.jsonl)" -eq "${s#*:}" ]
    done
    fetch --quiet --source glue --glue-url "$URL/file/SST-2.zip" --all -o again --offline
    cmp out/train.jsonl again/train.jsonl
    [ "$(requests)" -eq 1 ]
}

@test "proxies come from the environment" {
    # Our server plays the proxy: it is asked for the whole URL, and finds the file below http:/.
    mkdir -p "$SITE/http:/example.invalid"
    cp "$SITE/train.tsv" "$SITE/http:/example.invalid/"
    run --separate-stderr env http_proxy="$URL" timeout 60 sst2-fetch --retries 0 \
        --source http://example.invalid/train.tsv -o out.jsonl
    status_is 0
    is_train out.jsonl
    grep -q '^GET http://example.invalid/train.tsv' "$LOG"
    # The default source too; this proxy is not there.
    run --separate-stderr env https_proxy=http://127.0.0.1:1 timeout 60 sst2-fetch --retries 0
    status_is 1 && says 'https://dl.fbaipublicfiles.com/glue/data/SST-2.zip' && says '127.0.0.1'
}

@test "dropped connections are resumed where they broke" {
    try drop/50000/train.tsv
    status_is 0
    is_train out.jsonl
    says 'retry'
    size=$(stat -c %s "$SITE/train.tsv")
    [ "$(requests)" -eq $(((size + 49999) / 50000)) ]
    [ "$(grep -c 'range=bytes=50000- if-range="' "$LOG")" -eq 1 ]
}

@test "an interrupted download goes on in the next run" {
    try drop/50000/train.tsv --retries 0
    status_is 1 && says '/drop/50000/train.tsv'
    [ ! -e out.jsonl ]
    try drop/50000/train.tsv
    status_is 0 && says 'going on with' && says 'at byte 50000'
    is_train out.jsonl
    [ "$(sed -n 2p "$LOG" | grep -c 'range=bytes=50000-')" -eq 1 ]
}

@test "kill -9 in the middle of a download, then again" {
    timeout 60 sst2-fetch --quiet --source "$URL/stall/train.tsv" -o out.jsonl 3>&- &
    pid=$!
    for _ in $(seq 100); do
        [ -n "$(find cache -name '*.part' -size +20k 2>/dev/null)" ] && break
        sleep 0.05
    done
    pkill -9 -P $pid
    wait $pid || true
    [ ! -e out.jsonl ]
    try file/train.tsv
    status_is 0
    is_train out.jsonl
}

@test "without a validator nothing is joined: the file is fetched from its start" {
    try noetag/50000/train.tsv --retries 2
    status_is 1 && says 'giving up after 3 attempts'
    [ ! -e out.jsonl ]
    ! grep -q range= "$LOG"
    try weak/train.tsv
    status_is 0
    is_train out.jsonl
    ! grep -q range= "$LOG"
}

@test "a server that ignores ranges, and one that sends the wrong one" {
    try ignore/60000/train.tsv
    status_is 0
    is_train out.jsonl
    try wrong/60000/train.tsv
    status_is 0 && says 'asked for the bytes from 60000 on'
    is_train out.jsonl
    rm out.jsonl
    try always206/train.tsv --retries 2
    status_is 1 && says 'starts at 1'
    [ ! -e out.jsonl ]
}

@test "a file that changes during the download is taken whole in its new version" {
    try change/60000/train.tsv
    status_is 0
    fetch --quiet --source "$SITE/train.tsv.new" | cmp - out.jsonl
}

@test "lies about the length" {
    try long/train.tsv --retries 2
    status_is 1 && says 'giving up' && says 'remaining'
    [ ! -e out.jsonl ]
    cut=$(head -c -1000 "$SITE/train.tsv" | sha256sum | cut -d' ' -f1)
    try short/train.tsv --sha256 "$(sha256sum <"$SITE/train.tsv" | cut -d' ' -f1)"
    status_is 3 && says "SHA-256 of the file is $cut, expected"
    [ ! -e out.jsonl ]
}

@test "403, 404 and web pages are said plainly, not parsed" {
    try forbidden/train.tsv
    status_is 1 && says '403 (Forbidden' && says '/forbidden/train.tsv'
    [ "$(requests)" -eq 1 ]
    try missing/train.tsv
    status_is 1 && says '404 (Not Found'
    try file/nothing.tsv
    status_is 1 && says '404'
    try page/train.tsv
    status_is 3 && says 'web page'
    try gzip/train.tsv
    status_is 1 && says 'Content-Encoding'
    [ ! -e out.jsonl ]
}

@test "an empty answer is an empty file" {
    try file/empty.tsv
    status_is 3 && says 'the file is empty'
}

@test "429 and 503: waits as long as the server asks, then goes on" {
    begin=$(date +%s%N)
    try busy/2/train.tsv
    status_is 0 && says '429 (Too Many Requests)'
    is_train out.jsonl
    [ $((($(date +%s%N) - begin) / 1000000)) -ge 2000 ]
    try down/3/train.tsv
    status_is 0 && says 'retry 3 of 5'
    try down/9/train.tsv --retries 3
    status_is 1 && says 'giving up after 4 attempts' && says '503'
    try later/train.tsv
    status_is 1 && says 'come back in 3600 s'
}

@test "silence ends by the time-out" {
    begin=$(date +%s)
    try stall/train.tsv --stall-timeout 1 --retries 0
    status_is 1 && says 'not a byte for 1 s'
    [ $(($(date +%s) - begin)) -lt 30 ]
}

@test "nobody listens" {
    run --separate-stderr fetch --source http://127.0.0.1:1/x --retries 1
    status_is 1 && says 'giving up after 2 attempts' && says '127.0.0.1'
}

@test "user and password of a URL are used and never printed" {
    run --separate-stderr fetch --source "http://ann:s3cret@127.0.0.1:$PORT/auth/train.tsv" -o out.jsonl
    status_is 0
    is_train out.jsonl
    [[ "$stderr$output" != *s3cret* ]]
    ! grep -rq s3cret cache
    run --separate-stderr fetch --source "http://ann:wr0ng@127.0.0.1:$PORT/auth/train.tsv?key=t0ken"
    status_is 1 && says '401'
    [[ "$stderr$output" != *wr0ng* && "$stderr$output" != *t0ken* ]]
}

@test "--refresh asks, and takes a new version" {
    cp "$SITE/train.tsv" "$SITE/r.tsv"
    try file/r.tsv
    try file/r.tsv --refresh
    status_is 0
    [ "$(grep -c if-none-match= "$LOG")" -eq 1 ]
    is_train out.jsonl
    cp "$SITE/train.tsv.new" "$SITE/r.tsv"
    try file/r.tsv
    is_train out.jsonl # kept
    try file/r.tsv --refresh
    fetch --quiet --source "$SITE/train.tsv.new" | cmp - out.jsonl
}

@test "a damaged cache is noticed and fetched again" {
    try file/train.tsv
    flip_byte cache/sst2-fetch/*.data 1000
    try file/train.tsv --offline
    status_is 1 && says 'damaged'
    try file/train.tsv
    status_is 0
    is_train out.jsonl
    truncate -s 100 cache/sst2-fetch/*.data
    try file/train.tsv
    status_is 0
    is_train out.jsonl
}

@test "a wrong digest leaves nothing in the cache" {
    try file/train.tsv --sha256 "$(printf '%064d' 0)"
    status_is 3 && says 'expected 0000'
    [ -z "$(find cache -name '*.data' -o -name '*.part')" ]
}

@test "two at once download once" {
    for i in 1 2 3; do
        timeout 60 sst2-fetch --quiet --source "$URL/file/train.tsv" -o $i.jsonl 3>&- &
    done
    wait
    for i in 1 2 3; do is_train $i.jsonl; done
    [ "$(requests)" -eq 1 ]
}

@test "no cache: --cache=0, and an environment without HOME" {
    try file/train.tsv --cache=0
    status_is 0
    is_train out.jsonl
    [ ! -e cache ]
    run env -u HOME -u XDG_CACHE_HOME timeout 60 sst2-fetch --quiet --source "$URL/file/train.tsv" -o o2.jsonl
    status_is 0
    is_train o2.jsonl
    [ "$(requests)" -eq 2 ]
}

@test "a cache that cannot be written is done without, with a word" {
    try file/train.tsv --cache-dir /proc/nowhere
    status_is 0 && says '/proc/nowhere' && says 'not kept'
    is_train out.jsonl
}

@test "a full disk: said plainly, nothing half-written" {
    run --separate-stderr bash -c "ulimit -f 100; trap '' XFSZ; timeout 60 sst2-fetch --quiet --source $URL/file/train.tsv -o out.jsonl"
    status_is 1 && says '.part' && says 'File too large'
    [ ! -e out.jsonl ]
    try file/train.tsv
    status_is 0
    is_train out.jsonl
}

@test "HTTPS is verified, and does not fall back to HTTP" {
    need_command openssl
    openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 \
        -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 2>/dev/null
    start_server http_server.py "$SITE" tls-port cert.pem key.pem
    S=https://127.0.0.1:$(cat tls-port)
    run --separate-stderr fetch --source "$S/file/train.tsv" --retries 0 -o out.jsonl
    status_is 1 && says 'certificate'
    run --separate-stderr fetch --source "$S/file/train.tsv" --ca-file cert.pem -o out.jsonl
    status_is 0
    is_train out.jsonl
    run --separate-stderr env SSL_CERT_FILE=cert.pem timeout 60 sst2-fetch --cache=0 --source "$S/file/train.tsv" -o o2.jsonl
    status_is 0
    run --separate-stderr fetch --source "$S/tohttp/train.tsv" --ca-file cert.pem --retries 0
    status_is 1 && says 'rotocol'
    kill "$SERVER"
}

# --- the hub's rows API ---------------------------------------------------------------------------

hub() { run --separate-stderr fetch --source hub --hub-url "$URL/$1" -o out.jsonl "${@:2}"; }

@test "hub: pages of 100 in parallel, in order, then from the cache" {
    hub hub
    status_is 0
    is_train out.jsonl
    [ "$(requests)" -eq 50 ]
    grep -q 'dataset=stanfordnlp%2Fsst2&config=default&split=train&offset=4900&length=100' "$LOG"
    hub hub --offline
    is_train out.jsonl
    hub hub --split validation
    [ "$(wc -l <out.jsonl)" -eq 250 ]
    [ "$(requests)" -eq 53 ]
    hub hub --split test --parallel 1
    status_is 0
    [ "$(head -n 1 out.jsonl)" = '{"idx":0,"sentence":"test 0"}' ]
    ! grep -q label out.jsonl
    [ "$(requests)" -eq 54 ]
}

@test "hub: SST-2's own sentences" {
    need_shared
    mkdir site
    cp "$SHARED"/data/sst2/*.tsv site
    start_server http_server.py site hub-port
    run --separate-stderr fetch --source hub --hub-url "http://127.0.0.1:$(cat hub-port)/hub" --all -o out
    status_is 0
    for pair in train:train dev:validation test:test; do
        fetch --quiet --source out/${pair#*:}.jsonl --format tsv --split ${pair#*:} | cmp - site/${pair%:*}.tsv
    done
    kill "$SERVER"
}

@test "hub: 429 is waited out" {
    hub hub-busy
    status_is 0 && says '429'
    is_train out.jsonl
}

@test "hub: goes on after an interruption" {
    hub hub-die --retries 1
    status_is 1 && says 'train rows from' && says '500'
    [ ! -e out.jsonl ]
    touch "$SITE/healed"
    : >"$LOG"
    hub hub-die
    rm "$SITE/healed"
    status_is 0 && says 'going on with train at row'
    is_train out.jsonl
    # Up to four of the five pages may still have been on their way when the sixth failed.
    row=$(sed -nE 's/.*at row ([1-5]00)$/\1/p' <<<"$stderr")
    [ "$(requests)" -eq $(((5000 - row) / 100)) ]
}

@test "hub: answers that do not fit together" {
    hub hub-total --parallel 1
    status_is 3 && says 'num_rows_total is 5001, other pages said 5000'
    hub hub-gap
    status_is 3 && says 'found row_idx 208, expected 207'
    hub hub-cut
    status_is 3 && says 'cut row 207 short'
    hub hub-less
    status_is 3 && says 'found 99 rows, expected 100 of 5000'
    hub hub-partial
    status_is 3 && says 'only a part'
    hub hub-page
    status_is 3 && says 'not JSON (text/html)'
    hub hub-nosuch
    status_is 1 && says '404' && says 'The dataset does not exist.'
    [ ! -e out.jsonl ]
    [ -z "$(find cache -name '*.data')" ]
}

@test "hub: the access token is sent and not printed" {
    HF_TOKEN=hf_t0psecret hub hub --split validation
    status_is 0
    grep -q 'authorization=Bearer hf_t0psecret' "$LOG"
    [[ "$stderr" != *t0psecret* ]]
    ! grep -rq t0psecret cache
}
