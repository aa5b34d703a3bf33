#!/usr/bin/env bash
# Instructions of one cached get and one cached update (24-byte keys, 64-byte values, 3 nodes),
# counted by callgrind: the difference of two runs that differ in the number of operations only. The loop around them
# counts as well.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v valgrind > /dev/null; then
    echo "valgrind is not here, which counts the instructions: ci/install.sh valgrind libc6-dbg" >&2
    exit 1
fi
cargo build --release --quiet --locked -p swarm-benches --no-default-features --example hot_path
program="${CARGO_TARGET_DIR:-target}/release/examples/hot_path"
count() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
        awk '/Collected/ { print $4 }'
}
few=10000 many=30000
for operation in get update; do
    a=$(count "$operation" "$few") b=$(count "$operation" "$many")
    echo "$operation: $(((b - a) / (many - few))) instructions"
done
