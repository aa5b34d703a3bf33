#!/usr/bin/env bash
# Processor time of cached operations at another commit and here, in turn: for each kind the median of the rounds, and its
# share of the other commit's (`benches/examples/paces.rs` says what the kinds are). Each is built as its release profile says.
#
#   benches/compare.sh COMMIT [KEYS [ROUNDS]]     1,000 keys and 7 rounds, unless said otherwise
set -euo pipefail
cd "$(dirname "$0")/.."
commit="${1:?a commit}" keys="${2:-1000}" rounds="${3:-7}"
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")/compare"
mkdir -p "$target"
rm -rf "$target/tree"
git worktree prune
git worktree add --quiet --detach --force "$target/tree" "$commit"
trap 'git worktree remove --force "$target/tree"' EXIT
cp benches/examples/paces.rs "$target/tree/benches/examples/"
cp benches/src/zipf.rs "$target/tree/benches/src/"
build() {
    (cd "$1" && CARGO_TARGET_DIR="$target/$2" cargo build --release --quiet -p swarm-benches --no-default-features --example paces)
    cp "$target/$2/release/examples/paces" "$target/paces-$2"
}
build "$target/tree" base
build . new
rm -f "$target"/{base,new}.times
for ((round = 0; round < rounds; round++)); do
    order=(base new)
    ((round % 2)) && order=(new base)
    for which in "${order[@]}"; do "$target/paces-$which" "$keys" >> "$target/$which.times"; done
done
median() { awk -v kind="$2" '$1 == kind { print $2 }' "$target/$1.times" | sort -n | sed -n "$((rounds / 2 + 1))p"; }
echo "ns of processor time an operation, $keys keys, medians of $rounds rounds: $commit, here, share"
awk '!seen[$1]++ { print $1 }' "$target/new.times" | while read -r kind; do
    base=$(median base "$kind") new=$(median new "$kind")
    awk -v kind="$kind" -v base="$base" -v new="$new" 'BEGIN { printf "%-17s %8.1f %8.1f  %.3f\n", kind, base, new, new / base }'
done
