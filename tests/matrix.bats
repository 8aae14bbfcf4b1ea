# One curve for every way to run the same batches: all pairs of choices (make test-matrix: all combinations).
load helper

@test "every pair of ranks, degree, batch, saver, threshold, overlap, nodes and buffers gives one curve" {
    [ -z "${SMALL:-}" ] || skip "the plain build runs it"
    run timeout 1200 "$ROOT/tests/matrix.sh" pairs
    status_is 0
    [ "$(grep -c '^ok ' <<<"$output")" -ge 60 ]
}
