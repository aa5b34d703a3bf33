#!/usr/bin/env bash
# Four emulated machines on one network: three are memory nodes, one runs the clients. Half-way through
# torture one of the memory nodes' machines is killed.
#
#   SWARM=…/swarm ci/rdma/four-guests.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ "${1:-}" == --clients ]]; then # within the fourth
    source ci/rdma/lib.sh
    pool="rdma:$OUT/nodes.toml"
    waits 120 "three memory nodes" "$SWARM" create "$pool" --capacity 64MiB
    "$SWARM" put "$pool" greeting hello
    "$SWARM" info "$pool"
    (sleep 12; touch "$OUT/half") &
    announce "torture; a memory node's machine is killed meanwhile"
    "$SWARM" torture "$pool" --seconds 30 --clients 2 --keys 3 --kill-clients \
        --history "$work/history"
    "$SWARM" check "$work/history"
    [[ -e "$OUT/killed" ]] || die "no machine was killed"
    same get hello "$("$SWARM" get "$pool" greeting)"
    "$SWARM" put "$pool" still there
    same get there "$("$SWARM" get "$pool" still)"
    "$SWARM" info "$pool"
    announce "all is well"
    exit 0
fi

: "${SWARM:?is to name the command line}"
export SWARM GUEST_MEMORY=640M GUEST_SECONDS="${GUEST_SECONDS:-400}"
GUEST_NET="socket,mcast=230.0.0.1:$((4000 + RANDOM % 2000)),localaddr=127.0.0.1"
export GUEST_NET
work="$(mktemp -d)"
guests=()

# A process and what it has started, children last.
family() {
    local child
    echo "$1"
    for child in $(pgrep -P "$1" || true); do family "$child"; done
}

kill_family() {
    # Word by word: these are numbers.
    # shellcheck disable=SC2046
    kill -KILL $(family "$1") 2>/dev/null || true
}

finish() {
    local status=$? guest
    for guest in "${guests[@]:-}"; do
        [[ -z "$guest" ]] || kill_family "$guest"
    done
    [[ "$status" == 0 ]] || tail -n 5 "$work"/*/log
    rm -rf "$work"
}
trap finish EXIT

list='nodes = ["10.99.0.1:7471", "10.99.0.2:7471", "10.99.0.3:7471"]'
for number in 1 2 3 4; do
    mkdir -p "$work/$number"
    echo "$list" > "$work/$number/nodes.toml"
done
for number in 1 2 3; do
    GUEST_IP="10.99.0.$number" GUEST_OUT="$work/$number" ci/rdma/guest.sh "$SWARM" memnode \
        --listen "10.99.0.$number:7471" --capacity 64MiB --static /run/out/nodes.toml \
        > "$work/$number/log" 2>&1 &
    guests+=("$!")
done
GUEST_MEMORY="${CLIENTS_MEMORY:-1G}" GUEST_IP=10.99.0.4 GUEST_OUT="$work/4" ci/rdma/guest.sh bash ci/rdma/four-guests.sh --clients &
clients=$!
guests+=("$clients")
until [[ -e "$work/4/half" ]]; do
    kill -0 "$clients" 2>/dev/null || break
    sleep 0.2
done
kill_family "${guests[1]}"
touch "$work/4/killed"
wait "$clients"
