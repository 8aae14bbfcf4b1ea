#!/usr/bin/env bash
# Several nodes with Open MPI: one rank a GPU, a model's shards inside a node, replicas across nodes.
#   examples/mpi/train.sh hosts.txt SHARDS [sdp-train options]      hosts.txt: "node01 slots=8" a line
set -euo pipefail
hosts=$1 shards=$2
shift 2
per_node=$(awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^slots=/) { sub("slots=", "", $i); print $i; exit } }' "$hosts")
ranks=$(awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^slots=/) { sub("slots=", "", $i); n += $i } } END { print n }' "$hosts")
exec mpirun --hostfile "$hosts" -n "$ranks" --map-by "ppr:$per_node:node" --bind-to none \
    -x PATH -x LD_LIBRARY_PATH -x NCCL_DEBUG=WARN \
    sdp-train --training-dir "$shards" --sharded-data-parallel-degree "$per_node" "$@"
