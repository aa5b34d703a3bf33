#!/usr/bin/env bash
# What must hold of swarm-rdma, and of the command line with it: lints, documents, and tests on real
# queue pairs, in guests that have a Soft-RoCE device. Installs what it needs from Debian packages, as
# root. Not here, as it takes long: ci/rdma/four-guests.sh and ci/rdma/dax.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

ci/rdma/guest.sh --install

lints=(--quiet --locked --all-targets)
cargo clippy "${lints[@]}" -p swarm-rdma -- -D warnings
cargo clippy "${lints[@]}" -p swarm-kv --features rdma -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked -p swarm-rdma --no-deps

# On this host, where there may be no device, the rest of the tests runs.
cargo test --quiet --locked -p swarm-rdma

target="$(mktemp -d)"
trap 'rm -rf "$target"' EXIT
cargo test --quiet --locked -p swarm-rdma --lib --tests --no-run --message-format=json > "$target/built"
mapfile -t tests < <(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$target/built" | sort -u)
[[ ${#tests[@]} -ge 4 ]] || {
    echo "rdma.sh: of swarm-rdma's tests only ${#tests[@]} were built" >&2
    exit 1
}

# One test at a time: the guest's two processors are emulated, and clients that wait use one each.
# The control plane and etcd have their tests on the host; in the guest they would be slow.
run_all='
failed=0
for program in "$@"; do
    case "$program" in */control*) continue ;; esac
    echo "== ${program##*/}"
    SWARM_RDMA_REQUIRED=1 "$program" --test-threads=1 --color=never || failed=1
done
exit "$failed"'
GUEST_MEMORY=2G GUEST_SECONDS="${RDMA_SECONDS:-240}" GUEST_OUT="$target" \
    ci/rdma/guest.sh bash -c "$run_all" tests "${tests[@]}"

# Everything that the command line does, with nodes, etcd and clients as processes of one guest.
cargo build --quiet --locked -p swarm-kv --features rdma
SWARM="$target/swarm"
strip -o "$SWARM" "${CARGO_TARGET_DIR:-target}/debug/swarm"
mkdir "$target/out"
SWARM="$SWARM" GUEST_MEMORY=1G GUEST_SECONDS="${RDMA_SECONDS:-400}" GUEST_OUT="$target/out" \
    ci/rdma/guest.sh bash ci/rdma/cluster.sh
