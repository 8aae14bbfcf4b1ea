# Documentation that can be wrong is tested: man pages against --help, README's commands by running them.
load helper

TOOLS="sst2-fetch gpt2-tokenize shard-pack sdp-train ckpt-merge gpt2-infer"

help_options() { "$1" --help | grep -oE '^ +(-[a-zA-Z], )?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | sort -u; }
man_options() { grep -oE '^\.It (Fl [a-zA-Z0-9] , )?Fl Fl [a-z0-9-]+' "$ROOT/share/man/man1/$1.1" | sed -E 's/.*Fl Fl /--/' | sort -u; }

@test "every tool prints --help and --version to stdout and exits 0" {
    for t in $TOOLS; do
        run --separate-stderr "$t" --help
        status_is 0
        has "$t"
        [ -z "$stderr" ]
        run "$t" --version
        status_is 0
        has "$t 0."
    done
}

@test "every man page lists exactly the options of --help" {
    for t in $TOOLS; do
        diff <(help_options "$t") <(man_options "$t") || { echo "$t: < in --help, > in the man page"; return 1; }
    done
}

@test "man pages of six tools and three formats exist and render" {
    need_command man
    for page in $(for t in $TOOLS; do echo "man1/$t.1"; done) man5/sdp-tokens.5 man5/sdp-shards.5 man5/sdp-checkpoint.5; do
        run --separate-stderr man --warnings -E UTF-8 -l -Tutf8 -Z "$ROOT/share/man/$page"
        status_is 0
        [[ "$stderr" != *"warning"* ]] || { echo "$page: $stderr" | grep -m5 warning; return 1; }
    done
}

@test "an unknown option is a usage error that names the nearest one" {
    run gpt2-tokenize --append-eof
    status_is 2
    has "--append-eot"
    run sdp-train --train-batchsize 4
    status_is 2
    has "train-batch-size"
}

@test "README's commands work when pasted" {
    awk '/^<!-- tested -->/ {want = 1; next} want && /^```sh/ {on = 1; want = 0; next} /^```/ {on = 0} on' \
        "$ROOT/README.md" >"$TMP/commands.sh"
    [ -s "$TMP/commands.sh" ]
    cp -r "$ROOT/share" "$TMP/share" # the commands run in a checkout; keep its files out of ours
    cd "$TMP"
    run timeout 300 bash -euo pipefail commands.sh
    status_is 0
}
