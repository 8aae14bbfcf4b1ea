#!/usr/bin/env bats
# sst2-fetch and S3: a server on loopback that verifies signatures with its own code, and moto with the
# aws command as the second client.

load helper

setup_file() {
    command -v python3 >/dev/null || return 0
    export STORE=$BATS_FILE_TMPDIR/store LOG=$BATS_FILE_TMPDIR/log
    mkdir -p "$STORE/data" "$STORE/public"
    { printf 'sentence\tlabel\n'; seq 1 5000 | sed 's/.*/sentence number & of a file \t1/'; } >"$STORE/data/train.tsv"
    cp "$STORE/data/train.tsv" "$STORE/public/train.tsv"
    cp "$STORE/data/train.tsv" "$STORE/data/a b+c&d=é'(1)~.tsv"
    cp "$STORE/data/train.tsv" "$STORE/data/flaky.tsv"
    cp "$STORE/data/train.tsv" "$STORE/data/cut.tsv"
    : >"$LOG"
    start_server s3_server.py "$STORE" "$BATS_FILE_TMPDIR/port"
    echo "$SERVER" >"$BATS_FILE_TMPDIR/pid"
    if command -v moto_server >/dev/null && command -v aws >/dev/null; then
        moto=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
        timeout 900 moto_server -H 127.0.0.1 -p "$moto" >"$BATS_FILE_TMPDIR/moto.out" 2>&1 3>&- &
        echo $! >>"$BATS_FILE_TMPDIR/pid"
        echo "$moto" >"$BATS_FILE_TMPDIR/moto"
    fi
}
teardown_file() {
    [ ! -s "$BATS_FILE_TMPDIR/pid" ] || while read -r pid; do kill "$pid"; done <"$BATS_FILE_TMPDIR/pid"
}

setup() {
    need_command python3
    cd "$TMP" || return
    unset "${!AWS_@}" CURL_CA_BUNDLE SSL_CERT_FILE
    export XDG_CACHE_HOME=$TMP/cache HOME=$TMP/home no_proxy=127.0.0.1
    mkdir -p home/.aws
    URL=http://127.0.0.1:$(cat "$BATS_FILE_TMPDIR/port")
    export AWS_ENDPOINT_URL=$URL
    : >"$LOG"
}

as_user() { export AWS_ACCESS_KEY_ID=AKIDEXAMPLE AWS_SECRET_ACCESS_KEY=wJalr/XUtn+FEMI AWS_REGION=eu-test-1; }
fetch() { timeout 60 sst2-fetch --retry-delay 0.01 "$@"; }
says_no_secret() { [[ "$stderr$output" != *FEMI* && "$stderr$output" != *"the+token"* ]]; }
is_train() { fetch --quiet --source "$STORE/data/train.tsv" | cmp - "$1"; }
try() { run --separate-stderr fetch --source "$@" -o out.jsonl; }

@test "s3: a signed download" {
    as_user
    try s3://data/train.tsv
    status_is 0
    is_train out.jsonl
    says_no_secret
    grep -q '^GET /data/train.tsv' "$LOG"
}

@test "s3: keys that need encoding" {
    as_user
    try "s3://data/a b+c&d=é'(1)~.tsv"
    status_is 0
    is_train out.jsonl
}

@test "s3: a session token is signed and sent" {
    as_user
    AWS_SESSION_TOKEN='the+token/==' try s3://data/train.tsv
    status_is 0
    AWS_SESSION_TOKEN='another' try s3://data/train.tsv --refresh
    status_is 1 && says 'InvalidToken'
    [[ "$stderr" != *another* ]]
}

@test "s3: profiles in ~/.aws, region and endpoint too" {
    unset AWS_ENDPOINT_URL
    cat >home/.aws/credentials <<'END'
[default]
aws_access_key_id = wrong
aws_secret_access_key = wrong
# a comment
[lab]
aws_access_key_id=AKIDEXAMPLE
aws_secret_access_key =   wJalr/XUtn+FEMI
aws_session_token = the+token/==
END
    printf '[default]\nregion = x\n[profile lab]\nregion = eu-test-1\nendpoint_url = %s/\ns3 =\n    region = nested\n' "$URL" >home/.aws/config
    AWS_PROFILE=lab try s3://data/train.tsv
    status_is 0
    is_train out.jsonl
    says_no_secret
    try s3://data/train.tsv --profile lab --refresh
    status_is 0
    try s3://data/train.tsv --profile default --endpoint-url "$URL" --region eu-test-1 --cache=0
    status_is 1 && says 'InvalidAccessKeyId'
    try s3://data/train.tsv --profile nobody
    status_is 2 && says "no profile 'nobody'"
    mv home/.aws elsewhere
    AWS_SHARED_CREDENTIALS_FILE=elsewhere/credentials AWS_CONFIG_FILE=elsewhere/config try s3://data/train.tsv --profile lab --cache=0
    status_is 0
}

@test "s3: credentials that a container or an instance hands out" {
    export AWS_REGION=eu-test-1
    export AWS_CONTAINER_CREDENTIALS_FULL_URI=$URL/creds
    AWS_CONTAINER_AUTHORIZATION_TOKEN='let me in' try s3://data/train.tsv
    status_is 0
    is_train out.jsonl
    echo 'let me in' >token
    AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=token try s3://data/train.tsv --refresh
    status_is 0
    says_no_secret
    try s3://data/train.tsv
    status_is 1 && says "the container's credentials" && says 403
    AWS_CONTAINER_CREDENTIALS_FULL_URI=http://example.com/creds try s3://data/train.tsv
    status_is 2 && says 'neither https nor on this machine'
    unset AWS_CONTAINER_CREDENTIALS_FULL_URI
    export AWS_EC2_METADATA_SERVICE_ENDPOINT=$URL
    try s3://data/train.tsv --refresh
    status_is 0
    AWS_EC2_METADATA_DISABLED=true try s3://data/train.tsv --cache=0
    status_is 1 && says 'AccessDenied'
    # An instance without a role: unsigned, which public objects allow.
    AWS_EC2_METADATA_SERVICE_ENDPOINT=$URL/nothing try s3://public/train.tsv
    status_is 0
}

@test "s3: wrong secret, wrong region, no credentials, missing key: said plainly" {
    as_user
    AWS_SECRET_ACCESS_KEY=FEMIx try s3://data/train.tsv
    status_is 1 && says '403' && says 'SignatureDoesNotMatch: said the server' && says 's3://data/train.tsv'
    says_no_secret
    AWS_REGION=us-east-1 try s3://data/train.tsv
    status_is 1 && says 'AuthorizationHeaderMalformed'
    try s3://elsewhere/x
    status_is 1 && says 'region mars-north-1'
    try s3://data/nothing
    status_is 1 && says '404' && says 'NoSuchKey'
    unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
    try s3://data/train.tsv
    status_is 1 && says '403' && says 'AccessDenied'
    try s3://public/train.tsv
    status_is 0
    is_train out.jsonl
    AWS_ACCESS_KEY_ID=x try s3://public/train.tsv
    status_is 2 && says 'no secret access key'
    [ "$(grep -c 'GET /data/nothing' "$LOG")" -eq 1 ]
}

@test "s3: names that are none" {
    as_user
    for u in s3:// s3://data 's3://a b/c' 's3://a b/' s3:///x; do
        try "$u"
        status_is 2 && says "$u"
    done
    AWS_ENDPOINT_URL=127.0.0.1 try s3://data/x
    status_is 2 && says 'http://'
}

@test "s3: 503 is retried, a broken download resumed by range" {
    as_user
    try s3://data/flaky.tsv
    status_is 0 && says 'SlowDown'
    is_train out.jsonl
    try s3://data/cut.tsv
    status_is 0
    is_train out.jsonl
    grep -qE '^GET /data/cut.tsv bytes=[0-9]{4,}-' "$LOG"
}

@test "s3: an object is taken from the cache as long as it has not changed" {
    as_user
    cp "$STORE/data/train.tsv" "$STORE/data/changing.tsv"
    try s3://data/changing.tsv
    try s3://data/changing.tsv
    status_is 0
    is_train out.jsonl
    printf 'other \t0\n' >"$STORE/data/changing.tsv"
    try s3://data/changing.tsv --offline
    is_train out.jsonl
    try s3://data/changing.tsv
    [ "$(cat out.jsonl)" = '{"idx":0,"sentence":"other ","label":0}' ]
}

@test "s3: upload, small and in parts, whole or not at all" {
    as_user
    run --separate-stderr fetch --source "$STORE/data/train.tsv" -o s3://out/dir/train.jsonl
    status_is 0
    is_train "$STORE/out/dir/train.jsonl"
    # 12 MiB in three parts.
    seq 1 170000 | sed 's/.*/a sentence that is long enough to fill & \t0/' >big.tsv
    run --separate-stderr fetch --source big.tsv -o 's3://out/big +.jsonl' --part-size 5MiB
    status_is 0
    fetch --quiet --source big.tsv | cmp - "$STORE/out/big +.jsonl"
    [ "$(grep -c 'PUT /out/big.*partNumber=' "$LOG")" -eq 3 ]
    : >"$LOG"
    run --separate-stderr fetch --source big.tsv -o s3://out/refuse.jsonl --part-size 5MiB
    status_is 1 && says 'uploading: s3://out/refuse.jsonl' && says 'AccessDenied'
    grep -q '^DELETE /out/refuse.jsonl?uploadId=' "$LOG"
    [ ! -e "$STORE/out/refuse.jsonl" ]
    run --separate-stderr fetch --source big.tsv -o s3://out/late.jsonl --part-size 5MiB
    status_is 1 && says 'InternalError'
    run --separate-stderr fetch --source big.tsv -o s3://out/flaky.jsonl --part-size 5MiB
    status_is 0
    cmp "$STORE/out/flaky.jsonl" "$STORE/out/big +.jsonl"
    [ -z "$(find "$TMP" -name '*.upload*' -o -name 'sst2-fetch-*')" ]
}

@test "s3: --all below a prefix; bad data uploads nothing" {
    as_user
    run --separate-stderr fetch --source "$ROOT/share/sample" --all -o s3://all/sst2
    status_is 0
    fetch --quiet --source "$ROOT/share/sample" --all -o want
    for s in train validation test; do cmp want/$s.jsonl "$STORE/all/sst2/$s.jsonl"; done
    printf 'good \t1\nbad\n' >bad.tsv
    : >"$LOG"
    run --separate-stderr fetch --source bad.tsv -o s3://all/bad.jsonl
    status_is 3
    [ ! -s "$LOG" ]
    run --separate-stderr fetch --source bad.tsv -o s3://nokey
    status_is 2 && says 's3://BUCKET/KEY'
    run --separate-stderr fetch --source bad.tsv -o s3://a/b --offline
    status_is 2
}

@test "s3: a prefix is a folder" {
    as_user
    mkdir -p "$STORE/data/p & q" "$STORE/data/many"
    fetch --quiet --source "$ROOT/share/sample" --all -o want
    cp want/*.jsonl "$STORE/data/p & q/"
    echo x >"$STORE/data/p & q/a&b.txt"
    run --separate-stderr fetch --source 's3://data/p & q/' --all -o got
    status_is 0
    diff -r want got
    rm "$STORE/data/p & q/test.jsonl"
    run --separate-stderr fetch --source 's3://data/p & q/' --split test
    status_is 3 && says 'has no test split (found: train, validation)'
    run --separate-stderr fetch --source s3://data/many/
    status_is 3 && says 'more than a thousand'
    run --separate-stderr fetch --source 's3://data/p & q/' --offline
    status_is 1 && says 'has to be listed'
}

# --- moto and aws ------------------------------------------------------------------------------------

with_moto() {
    need_command moto_server
    need_command aws
    export AWS_ENDPOINT_URL=http://127.0.0.1:$(cat "$BATS_FILE_TMPDIR/moto")
    export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_DEFAULT_REGION=us-east-1 AWS_PAGER=
    for _ in $(seq 300); do
        (exec 4<>"/dev/tcp/127.0.0.1/$(cat "$BATS_FILE_TMPDIR/moto")") 2>/dev/null && return
        sleep 0.1
    done
}
aws_() { timeout 60 aws --endpoint-url "$AWS_ENDPOINT_URL" "$@"; }

@test "moto: what aws uploads is read, what sst2-fetch uploads is read by aws" {
    with_moto
    aws_ s3 mb s3://bench
    aws_ s3 cp --quiet "$STORE/data/train.tsv" "s3://bench/in/a b.tsv"
    try "s3://bench/in/a b.tsv"
    status_is 0
    is_train out.jsonl
    fetch --quiet --source "$STORE/data/train.tsv" -o 's3://bench/out/t +é.jsonl'
    aws_ s3 cp --quiet 's3://bench/out/t +é.jsonl' back.jsonl
    is_train back.jsonl
    try s3://bench/nothing
    status_is 1 && says '404' && says 'NoSuchKey'
    run --separate-stderr fetch --source "$STORE/data/train.tsv" -o s3://nobucket/x
    status_is 1 && says 'NoSuchBucket'
}

@test "moto: multipart upload, ETag and parts as aws sees them" {
    with_moto
    aws_ s3 mb s3://parts
    seq 1 170000 | sed 's/.*/a sentence that is long enough to fill & \t0/' >big.tsv
    fetch --quiet --source big.tsv -o s3://parts/big.jsonl --part-size 5MiB
    [[ "$(aws_ s3api head-object --bucket parts --key big.jsonl --query ETag --output text)" == *-3\" ]]
    aws_ s3 cp --quiet s3://parts/big.jsonl back.jsonl
    fetch --quiet --source big.tsv | cmp - back.jsonl
    try s3://parts/big.jsonl
    cmp out.jsonl back.jsonl
    [ "$(aws_ s3api list-multipart-uploads --bucket parts --query 'length(Uploads || `[]`)')" = 0 ]
}

@test "moto: SST-2 up and down" {
    need_shared
    with_moto
    aws_ s3 mb s3://sst2
    fetch --quiet --source "$SHARED/data/sst2" --all -o s3://sst2/v1/
    for pair in train:train dev:validation test:test; do
        fetch --quiet --source "s3://sst2/v1/${pair#*:}.jsonl" --split "${pair#*:}" --format tsv |
            cmp - "$SHARED/data/sst2/${pair%:*}.tsv"
    done
    fetch --quiet --source s3://sst2/v1/ --all -o got
    fetch --quiet --source "$SHARED/data/sst2" --all -o want
    diff -r want got
}
