# helper.bash - what every .bats file loads.
# BIN: folder of the executables. FIXTURES: committed test data. SHARED: the reference data beside the
# checkout, empty when absent (tests that need it skip). TMP: a fresh folder per test.

bats_require_minimum_version 1.5.0
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BIN=${BIN:-$ROOT/bin}
FIXTURES=$ROOT/tests/fixtures
if [ -z "${SHARED+x}" ]; then
    if [ -d "$ROOT/../shared/golden" ]; then SHARED=$(cd "$ROOT/../shared" && pwd); else SHARED=; fi
fi
TMP=$BATS_TEST_TMPDIR
export PATH=$BIN:$PATH SDP_GPT2_SHARE=${SDP_GPT2_SHARE:-$ROOT/share}
# Tests start several ranks on few cores, as any user, without a network.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_MCA_btl_base_warn_component_unused=0
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

need_shared() { [ -n "$SHARED" ] || skip "reference data not beside the checkout"; }
need_command() { command -v "$1" >/dev/null || skip "$1 is not installed"; }
# status_is N: the last `run` ended with N; prints its output when not.
status_is() { [ "$status" -eq "$1" ] || { echo "exit status $status, want $1"; echo "$output"; return 1; }; }
# has TEXT: the last `run` printed TEXT.
has() { [[ "$output" == *"$1"* ]] || { echo "missing: $1"; echo "got: $output"; return 1; }; }
# says TEXT: the last `run --separate-stderr` printed TEXT on stderr.
says() { [[ "$stderr" == *"$1"* ]] || { echo "missing: $1"; echo "got: $stderr"; return 1; }; }
# start_server PROGRAM DIR PORT_FILE [ARGUMENT...]: a server of tests/servers over DIR that notes requests in $LOG. Its
# port is in PORT_FILE when this returns, its process in SERVER.
start_server() {
    timeout 900 python3 "$ROOT/tests/servers/$1" "$2" "$3" "$LOG" "${@:4}" >"$3.out" 2>&1 3>&- &
    SERVER=$!
    for _ in $(seq 600); do [ ! -s "$3" ] || return 0; sleep 0.05; done
    echo "$1 has not started:" && cat "$3.out" && return 1
}
# flip_byte FILE OFFSET: inverts every bit of one byte.
flip_byte() {
    local b
    b=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
    printf "$(printf '\\%03o' $((b ^ 255)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
