#!/usr/bin/env bash
# Fails on an #include that goes against the layers of the design: a folder may include its own headers
# and those of the folders listed for it, and a tool's folder is nobody's library.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A allowed=(
    [base]="base"
    [format]="format base"
    [bpe]="bpe base"
    [device]="device base"
    [comm]="comm device base"
    [gpt2]="gpt2 device format base"
    [sdp]="sdp comm gpt2 device format base"
    [sst2-fetch]="sst2-fetch format base"
    [gpt2-tokenize]="gpt2-tokenize bpe format base"
    [shard-pack]="shard-pack bpe format base"
    [sdp-train]="sdp-train sdp comm gpt2 device bpe format base"
    [ckpt-merge]="ckpt-merge gpt2 bpe format base"
    [gpt2-infer]="gpt2-infer gpt2 device bpe format base"
)
bad=0
while IFS=: read -r file line text; do
    from=${file#src/}
    from=${from%%/*}
    to=${text#*\"}
    to=${to%%\"*}
    case "$to" in */*) to=${to%%/*} ;; *)
        echo "$file:$line: include \"$to\" by its path from src/, not by bare name"; bad=1; continue ;;
    esac
    case " ${allowed[$from]:-} " in *" $to "*) ;; *)
        echo "$file:$line: $from must not include $to/ (allowed: ${allowed[$from]:-nothing})"; bad=1 ;;
    esac
done < <(grep -rnoE '^#include "[^"]+"' src --include='*.[ch]' --include='*.cu' --include='*.cuh')

# Libraries never print, exit, or read the environment; only tools do (base/log and base/options print by
# purpose, base/progress draws).
while IFS=: read -r file line text; do
    echo "$file:$line: a library must not call this: $text"; bad=1
done < <(grep -rnE '(^|[^_a-zA-Z.>])(printf|puts|exit|_exit|getenv|perror)\(' src/base src/format src/bpe \
    src/device src/comm src/gpt2 src/sdp --include='*.c' --include='*.cu' |
    grep -vE 'src/base/(log|options|progress)\.c|src/comm/[a-z_]*\.c:[0-9]*:.*_exit\(' || true)
[ "$bad" -eq 0 ] && echo "layers: ok"
exit "$bad"
