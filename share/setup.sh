#!/usr/bin/env bash
# Installs what building and testing need and this machine lacks, with apt (through sudo when not root).
# Does nothing, quickly, when everything is there.   usage: share/setup.sh [--tests]
set -euo pipefail

packages=(gcc make pkg-config libcurl4-openssl-dev libjansson-dev libarchive-dev zlib1g-dev
    libxxhash-dev libopenmpi-dev openmpi-bin libdnnl-dev libmicrohttpd-dev)
if [ "${1:-}" = --tests ]; then
    packages+=(libutf8proc-dev bats zip gzip python3 man-db iproute2 curl)
fi

missing=()
for p in "${packages[@]}"; do
    state=$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null || true)
    [ "$state" = "install ok installed" ] || missing+=("$p")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "setup: everything needed is installed"
    exit 0
fi

echo "setup: installing ${missing[*]}"
if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here; please install by hand: ${missing[*]}" >&2
    exit 1
fi
sudo=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: not root and no sudo; install: ${missing[*]}" >&2; exit 1; }
    sudo=sudo
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
$sudo apt-get update -qq >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
echo "setup: done"
