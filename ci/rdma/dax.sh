#!/usr/bin/env bash
# One memory under two kernels: three DAX devices that two emulated machines share, as hosts share a
# CXL pool. Both run torture on one pool at the same time, and race to insert the same keys.
#
#   SWARM=…/swarm ci/rdma/dax.sh         also needs ndctl and python3
#
# Kernel locks do not cross from one machine to the other, so who may have which client slot is
# decided here, by somebody who knows: the second machine has a copy of the control file in which the
# first 32 slots are locked and the incarnations begin elsewhere.
set -euo pipefail
cd "$(dirname "$0")/../.."

races=20
taken=32

# In a guest: makes the DAX devices known.
devices() {
    modprobe -a nfit nd_pmem device_dax dax_pmem
    if [[ "$1" == 1 ]]; then
        for region in 0 1 2; do
            ndctl create-namespace -f -e "namespace$region.0" --mode=devdax --map=mem > /dev/null
        done
    fi
    for device in /dev/dax0.0 /dev/dax1.0 /dev/dax2.0; do
        waits 20 "$device" test -c "$device"
    done
}

# Waits for the other machine, by way of the host.
meet() {
    touch "$OUT/$1"
    waits 120 "the other machine ($1)" test -e "$OUT/$1.both"
}

if [[ "${1:-}" == --guest ]]; then
    number="$2"
    source ci/rdma/lib.sh
    pool="$work/pool"
    [[ "$number" == 1 ]] || waits 120 "the pool" test -e "$OUT/control"
    devices "$number"
    if [[ "$number" == 1 ]]; then
        "$SWARM" create "$pool" --capacity 192MiB --node-path /dev/dax0.0 \
            --node-path /dev/dax1.0 --node-path /dev/dax2.0
        "$SWARM" put "$pool" greeting "from the first"
        cp "$pool/control" "$OUT/control.new"
        mv "$OUT/control.new" "$OUT/control"
    else
        mkdir "$pool"
        for node in 0 1 2; do ln -s "/dev/dax$node.0" "$pool/node-$node"; done
        cp "$OUT/control" "$pool/control"
        python3 - "$pool/control" "$taken" "$work/locked" << 'LOCK' &
import fcntl, os, struct, sys, time
path, taken, done = sys.argv[1], int(sys.argv[2]), sys.argv[3]
file = os.open(path, os.O_RDWR)
os.pwrite(file, struct.pack("<Q", 1 << 20), 64 * 8)
# An open-file-description lock for writing on the words of the slots.
fcntl.fcntl(file, 37, struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, 0, 256 * 8, taken * 8, 0))
open(done, "w").close()
time.sleep(3600)
LOCK
        running+=("$!")
        waits 20 "the locks" test -e "$work/locked"
        same "what the other machine stored" "from the first" "$("$SWARM" get "$pool" greeting)"
    fi
    meet ready
    announce "machine $number: torture"
    "$SWARM" torture "$pool" --seconds 10 --clients 2 --keys 3 --kill-clients \
        --history "$work/history"
    "$SWARM" check "$work/history"
    meet tortured
    for key in $(seq "$races"); do
        if "$SWARM" insert "$pool" "race-$key" "$number" 2> /dev/null; then
            echo "$key" >> "$OUT/won"
        fi
    done
    meet raced
    for key in $(seq "$races"); do
        echo "$key $("$SWARM" get "$pool" "race-$key")" >> "$OUT/seen"
    done
    "$SWARM" info "$pool"
    meet seen
    exit 0
fi

: "${SWARM:?is to name the command line}"
export SWARM GUEST_MEMORY=1G,slots=4,maxmem=4G GUEST_SECONDS="${GUEST_SECONDS:-400}"
unset GUEST_NET
shared="$(mktemp -d /dev/shm/swarm-dax-XXXXXX)"
work="$(mktemp -d)"
guests=()
trap 'status=$?; for g in "${guests[@]:-}"; do [[ -z "$g" ]] || kill "$g" 2> /dev/null || true; done
    rm -rf "$shared" "$work"; exit "$status"' EXIT

GUEST_QEMU="-machine nvdimm=on"
for number in 0 1 2; do
    truncate -s 256M "$shared/$number"
    GUEST_QEMU+=" -object memory-backend-file,id=nv$number,share=on,mem-path=$shared/$number,size=256M"
    GUEST_QEMU+=" -device nvdimm,memdev=nv$number"
done
export GUEST_QEMU
mkdir "$work/1" "$work/2"
for number in 1 2; do
    # The second one finds the devices as the first one has made them.
    [[ "$number" == 1 ]] || until [[ -e "$work/1/control" ]]; do
        kill -0 "${guests[0]}" 2> /dev/null || exit 1
        sleep 0.2
    done
    [[ "$number" == 1 ]] || cp "$work/1/control" "$work/2/control"
    GUEST_IP="10.99.0.$number" GUEST_OUT="$work/$number" \
        ci/rdma/guest.sh bash ci/rdma/dax.sh --guest "$number" > "$work/$number.log" 2>&1 &
    guests+=("$!")
done
while kill -0 "${guests[0]}" 2> /dev/null && kill -0 "${guests[1]}" 2> /dev/null; do
    for point in ready tortured raced seen; do
        if [[ -e "$work/1/$point" && -e "$work/2/$point" && ! -e "$work/2/$point.both" ]]; then
            touch "$work/1/$point.both" "$work/2/$point.both"
        fi
    done
    sleep 0.1
done
status=0
for guest in "${guests[@]}"; do wait "$guest" || status=$?; done
guests=()
cat "$work"/*.log
[[ "$status" == 0 ]] || { echo "FAILED: a machine ended with $status"; exit 1; }
cmp "$work/1/seen" "$work/2/seen" || { echo "FAILED: the machines see different winners"; exit 1; }
winners="$(cat "$work"/*/won | sort -n | uniq -c | awk '$1 == 1' | wc -l)"
[[ "$winners" == "$races" ]] || { echo "FAILED: $winners of $races keys have one winner"; exit 1; }
for number in 1 2; do
    while read -r key; do
        grep -qx "$key $number" "$work/1/seen" ||
            { echo "FAILED: machine $number won key $key, and another value is there"; exit 1; }
    done < <(cat "$work/$number/won" 2> /dev/null)
    echo "machine $number won $(cat "$work/$number/won" 2> /dev/null | wc -l) of $races races"
done
echo "== all is well"
