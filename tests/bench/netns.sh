#!/usr/bin/env bash
# "Nodes" on one machine: network namespaces joined by a bridge, with a bandwidth (and, where the kernel has
# netem, a latency) on every node's link. Sourced by benchmarks and tests.
#   netns_up N RATE DELAY     creates N nodes (RATE as tc writes it, "1gbit"; DELAY "0" or "100us")
#   netns_mpirun N PER ARGS   mpirun with PER ranks on each of N nodes; ranks reach each other by TCP across nodes
#   netns_down                removes everything (call it in a trap)
# netns_up returns 1 with a reason on stderr where namespaces are not permitted.

NETNS_TAG=sdp$$
NETNS_NODES=0

netns_up() {
    local nodes=$1 rate=$2 delay=$3 i
    command -v ip >/dev/null && command -v tc >/dev/null || { echo "iproute2 is not installed" >&2; return 1; }
    ip link add "${NETNS_TAG}b" type bridge 2>/dev/null || { echo "network namespaces are not permitted here" >&2; return 1; }
    ip addr add 10.213.0.254/24 dev "${NETNS_TAG}b" && ip link set "${NETNS_TAG}b" up || return 1
    NETNS_DIR=$(mktemp -d)
    for ((i = 0; i < nodes; i++)); do
        ip netns add "$NETNS_TAG-$i" || return 1
        NETNS_NODES=$((i + 1))
        ip link add "${NETNS_TAG}v$i" type veth peer name eth0 netns "$NETNS_TAG-$i" || return 1
        ip link set "${NETNS_TAG}v$i" master "${NETNS_TAG}b" && ip link set "${NETNS_TAG}v$i" up || return 1
        ip -n "$NETNS_TAG-$i" addr add "10.213.0.$((i + 1))/24" dev eth0 || return 1
        ip -n "$NETNS_TAG-$i" link set eth0 up && ip -n "$NETNS_TAG-$i" link set lo up || return 1
        # Shape what the node sends (inside) and what it receives (the bridge side of its link).
        netns_shape "$delay" "$rate" ip netns exec "$NETNS_TAG-$i" tc qdisc replace dev eth0 || return 1
        netns_shape 0 "$rate" tc qdisc replace dev "${NETNS_TAG}v$i" || return 1
    done
    # mpirun starts its daemon on a "host" with this instead of ssh.
    cat >"$NETNS_DIR/agent" <<AGENT
#!/bin/sh
# \$1 is 10.213.0.K: node K-1
node=\$((\${1##*.} - 1))
shift
# A node has its own host name and shared memory, or Open MPI's segments of two "nodes" would collide.
exec ip netns exec "$NETNS_TAG-\$node" unshare --mount --uts sh -c \
    "hostname node\$node; mount -t tmpfs tmpfs /dev/shm; \$*"
AGENT
    chmod +x "$NETNS_DIR/agent"
}

netns_shape() { # DELAY RATE tc-command...
    local delay=$1 rate=$2
    shift 2
    if [ "$delay" != 0 ]; then
        "$@" root netem delay "$delay" rate "$rate" limit 100000 2>/dev/null && return 0
        [ -n "${NETNS_SAID:-}" ] || echo "netns: this kernel has no netem: bandwidth only" >&2
        NETNS_SAID=1
    fi
    "$@" root tbf rate "$rate" burst 256kb latency 200ms
}

netns_mpirun() { # NODES PER_NODE mpirun-args...
    local nodes=$1 per=$2 hosts= i
    shift 2
    for ((i = 0; i < nodes; i++)); do hosts+=${hosts:+,}10.213.0.$((i + 1)):$per; done
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --host "$hosts" -n $((nodes * per)) \
        --map-by "ppr:$per:node" --oversubscribe --bind-to none \
        --mca plm_rsh_agent "$NETNS_DIR/agent" --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include 10.213.0.0/24 \
        --mca btl tcp,vader,self --mca btl_tcp_if_include 10.213.0.0/24 --mca pml ob1 \
        --mca btl_vader_single_copy_mechanism none --mca mpi_yield_when_idle 1 -x PATH "$@"
}

netns_down() {
    local i
    for ((i = 0; i < NETNS_NODES; i++)); do ip netns del "$NETNS_TAG-$i" 2>/dev/null; done
    ip link del "${NETNS_TAG}b" 2>/dev/null
    [ -n "${NETNS_DIR:-}" ] && rm -rf "$NETNS_DIR"
    return 0
}
