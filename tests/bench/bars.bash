# bars.bash - sourced by the benchmarks that have bars: a PASS or FAIL line each; the script ends with `exit "$failed"`.
failed=0

seconds() { # COMMAND...: how long it takes, output thrown away
    local began=$EPOCHREALTIME
    "$@" >/dev/null
    awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.4f", b - a }'
}
least() { awk -v a="$1" -v b="${2:-1e9}" 'BEGIN { print a < b ? a : b }'; }
holds() { awk "BEGIN { exit !($1) }"; } # an arithmetic expression
value() { awk "BEGIN { printf \"%.${2:-0}f\", $1 }"; }

# bar NAME VALUE UNIT RELATION LIMIT: PASS when VALUE RELATION LIMIT, an expression of awk, holds.
bar() {
    local verdict=PASS
    # shellcheck disable=SC2034 # failed is for the script that sources this
    holds "$2 $4 $5" || { verdict=FAIL && failed=1; }
    printf '%s  %-50s %8s %-5s (bar: %s %s)\n' "$verdict" "$1" "$2" "$3" "$4" "$5"
}
