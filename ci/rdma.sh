#!/usr/bin/env bash
# What must hold of swarm-rdma, and of the command line with it: lints, documents, and tests on real
# queue pairs, in a guest that has a Soft-RoCE device. Installs what it needs from Debian packages, as
# root. Not here, as it takes long: ci/rdma/four-guests.sh and ci/rdma/dax.sh.
#
#   ci/rdma.sh              all of it
#   ci/rdma.sh --slice N    in the guest one test in eight, each number others, and no command line
#   ci/rdma.sh --prepare    only installs and builds what it needs
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
    '' | --prepare) [[ $# -le 1 ]] ;;
    --slice) [[ $# -eq 2 && "$2" =~ ^(0|[1-9][0-9]{0,9})$ ]] ;;
    *) false ;;
esac || {
    echo "usage: ci/rdma.sh [--prepare | --slice NUMBER]" >&2
    exit 2
}
slice=
[[ "${1:-}" != --slice ]] || slice="$2"
ci/rdma/guest.sh --install

scratch="$(mktemp -d)"
aside=()
finish() {
    local status=$? process
    for process in "${aside[@]}"; do kill "$process" 2> /dev/null || true; done
    rm -rf "$scratch"
    exit "$status"
}
trap finish EXIT

# The tests and the command line share their libraries, built once: with the same features.
quiet=(--quiet --locked)
cargo test "${quiet[@]}" -p swarm-rdma --lib --tests --no-run --message-format=json > "$scratch/built"
[[ -n "$slice" ]] || cargo build "${quiet[@]}" -p swarm-cli --features rdma,swarm-core/sim
mapfile -t tests < <(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$scratch/built" | sort -u)
[[ ${#tests[@]} -ge 4 ]] || {
    echo "rdma.sh: of swarm-rdma's tests only ${#tests[@]} were built" >&2
    exit 1
}
[[ "${1:-}" != --prepare ]] || exit 0
# Those that run in the guest, each as a line: program and tests, of which a slice has those whose turn it is. What needs
# no device has its turn on this host.
guests=() number=0
for program in "${tests[@]}"; do
    case "$program" in */control*) continue ;; esac
    if [[ -z "$slice" ]]; then
        guests+=("$program")
        continue
    fi
    case "$program" in */epochs*) continue ;; esac
    chosen=()
    while read -r name; do
        (((number++ + slice) % 8 != 0)) || chosen+=("$name")
    done < <("$program" --list --format=terse | sed -n 's/: test$//p')
    [[ ${#chosen[@]} -eq 0 ]] || guests+=("$program --exact ${chosen[*]}")
done
[[ ${#guests[@]} -gt 0 ]] || {
    echo "rdma.sh: no test was found for the guest" >&2
    exit 1
}
[[ -n "$slice" ]] || strip -o "$scratch/swarm" "${CARGO_TARGET_DIR:-target}/debug/swarm"

lint() {
    cargo clippy --quiet --locked --all-targets -p swarm-rdma -p swarm-kv -p swarm-worker -p swarm-cli \
        --features swarm-cli/rdma \
        -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked -p swarm-rdma --no-deps
}

# The control plane and etcd have their tests on this host, which wait for leases most of the time.
# Of the rest those run here that need no device.
on_host() {
    local program
    cd swarm-rdma
    for program in "${tests[@]}"; do "$program" --color=never; done
}

# Both while the guest runs. What they print comes at the end.
(set -e; on_host) > "$scratch/host.log" 2>&1 &
aside+=("$!")
(set -e; renice -n 5 "$BASHPID" > /dev/null; lint) > "$scratch/lint.log" 2>&1 &
aside+=("$!")

# One test at a time: the guest's two processors are emulated, and clients that wait use one each.
# Then everything that the command line does, with nodes, etcd and clients as processes.
run_all='
for tests in "$@"; do
    read -ra words <<< "$tests"
    echo "== ${words[0]##*/}"
    SWARM_RDMA_REQUIRED=1 "${words[@]}" --test-threads=1 --color=never || exit
done
[[ ! -x "$SWARM" ]] || exec bash ci/rdma/cluster.sh'
mkdir "$scratch/out"
SWARM="$scratch/swarm" GUEST_MEMORY=2G GUEST_SECONDS="${RDMA_SECONDS:-1200}" GUEST_OUT="$scratch/out" \
    ci/rdma/guest.sh bash -c "$run_all" tests "${guests[@]}"

for part in host lint; do
    status=0
    wait "${aside[0]}" || status=$?
    aside=("${aside[@]:1}")
    [[ "$status" == 0 ]] || {
        cat "$scratch/$part.log"
        echo "rdma.sh: $part ended with $status" >&2
        exit "$status"
    }
done
