#!/bin/sh
# generate.sh - write the sample data set: labelled review-like sentences in the layout of GLUE's SST-2.
#
#   ./generate.sh [-o DIR] [-s SEED] [TRAIN [DEV [TEST]]]
#
# Expands grammar.txt at random, with a random generator of its own (MINSTD), so that the same seed gives the
# same bytes with every awk. No sentence occurs twice in the three files together.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
dir=. seed=2002
while getopts o:s: option; do
    case $option in
    o) dir=$OPTARG ;;
    s) seed=$OPTARG ;;
    *) echo "usage: $0 [-o DIR] [-s SEED] [TRAIN [DEV [TEST]]]" >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
for number in "$seed" "${1:-1}" "${2:-1}" "${3:-1}"; do
    case $number in
    '' | *[!0-9]*) echo "$0: '$number' is not a whole number" >&2 && exit 2 ;;
    esac
done
mkdir -p "$dir"

LC_ALL=C awk -v dir="$dir" -v seed="$seed" -v n_train="${1:-4000}" -v n_dev="${2:-400}" -v n_test="${3:-400}" '
# Park and Miller, "Random number generators: good ones are hard to find" (1988), with multiplier 48271:
# the product stays below 2^53, so it is exact in the doubles of every awk.
function random_below(n)
{
    state = state * 48271 % 2147483647
    return int(state / 2147483647 * n)
}

function trim(s)
{
    gsub(/^[ \t]+|[ \t]+$/, "", s)
    return s
}

function add_alternatives(name, text,    parts, n, i)
{
    n = split(text, parts, /\|/)
    for (i = 1; i <= n; i++)
        if (trim(parts[i]) != "")
            rule[name, ++alternatives[name]] = trim(parts[i])
}

# Replaces the leftmost <name> or <name/P> until none is left.
function expand(text,    name, percent, slash, chosen)
{
    while (match(text, /<[^>]*>/)) {
        name = substr(text, RSTART + 1, RLENGTH - 2)
        percent = 100
        slash = index(name, "/")
        if (slash) {
            percent = substr(name, slash + 1) + 0
            name = substr(name, 1, slash - 1)
        }
        if (!(name in alternatives)) {
            print "grammar.txt: no rule named " name > "/dev/stderr"
            failed = 1
            exit 1
        }
        chosen = ""
        if (percent == 100 || random_below(100) < percent)
            chosen = rule[name, 1 + random_below(alternatives[name])]
        # Not sub(): its replacement would treat & specially.
        text = substr(text, 1, RSTART - 1) chosen substr(text, RSTART + RLENGTH)
    }
    return text
}

# One space between words, "an" before a vowel, and no adjective or noun beside itself.
function polish(text,    words, n, i, out)
{
    n = split(text, words, /[ ]+/)
    out = ""
    for (i = 1; i <= n; i++) {
        if (words[i] == "")
            continue
        if (words[i] == "a" && i < n && words[i + 1] ~ /^[aeio]|^honest|^un|^ug|^ut|^ov/)
            words[i] = "an"
        out = out (out == "" ? "" : " ") words[i]
    }
    return out
}

# A review names a word of praise or blame once: "funny and funny" is drawn again.
function repeats_itself(text,    words, n, i, seen_word)
{
    n = split(text, words, " ")
    for (i = 1; i <= n; i++)
        if (length(words[i]) > 4 && seen_word[words[i]]++)
            return 1
    return 0
}

function new_sentence(label,    text)
{
    do
        text = polish(expand(label ? "<positive>" : "<negative>"))
    while (text in used || repeats_itself(text))
    used[text] = 1
    return text
}

/^[ \t]*(#|$)/ { next }
/^\|/ { add_alternatives(current, $0); next }
{
    current = trim(substr($0, 1, index($0, ":") - 1))
    add_alternatives(current, substr($0, index($0, ":") + 1))
}

END {
    if (failed)
        exit 1
    state = seed % 2147483646 + 1
    for (i = 0; i < 10; i++)
        random_below(2)

    train = dir "/train.tsv"
    print "sentence\tlabel" > train
    for (i = 0; i < n_train; i++) {
        label = random_below(100) < 56 # SST-2 has 55.8 % positive
        print new_sentence(label) " \t" label > train
    }
    dev = dir "/dev.tsv"
    print "sentence\tlabel" > dev
    for (i = 0; i < n_dev; i++) {
        label = random_below(2)
        print new_sentence(label) " \t" label > dev
    }
    test = dir "/test.tsv"
    print "index\tsentence" > test
    for (i = 0; i < n_test; i++)
        print i "\t" new_sentence(random_below(2)) > test
}' "$here/grammar.txt"
