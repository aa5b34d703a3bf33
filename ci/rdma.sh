#!/usr/bin/env bash
# What must hold of swarm-rdma: lints, documents, and its tests on real queue pairs, in one guest that
# has a Soft-RoCE device. Installs what it needs from Debian packages, as root.
set -euo pipefail
cd "$(dirname "$0")/.."

ci/rdma/guest.sh --install

cargo clippy --quiet --locked -p swarm-rdma --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked -p swarm-rdma --no-deps

# On this host, where there may be no device, the rest of the tests runs.
cargo test --quiet --locked -p swarm-rdma

target="$(mktemp -d)"
trap 'rm -rf "$target"' EXIT
cargo test --quiet --locked -p swarm-rdma --no-run --message-format=json > "$target/built"
mapfile -t tests < <(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$target/built" | sort -u)
[[ ${#tests[@]} -ge 4 ]] || {
    echo "rdma.sh: of swarm-rdma's tests only ${#tests[@]} were built" >&2
    exit 1
}

# One test at a time: the guest's two processors are emulated, and clients that wait use one each.
# etcd has its tests on the host; in the guest it would be slow.
run_all='
failed=0
for program in "$@"; do
    case "$program" in */etcd-*) continue ;; esac
    echo "== ${program##*/}"
    SWARM_RDMA_REQUIRED=1 "$program" --test-threads=1 || failed=1
done
exit "$failed"'
GUEST_MEMORY=2G GUEST_SECONDS="${RDMA_SECONDS:-240}" GUEST_OUT="$target" \
    ci/rdma/guest.sh bash -c "$run_all" tests "${tests[@]}"
