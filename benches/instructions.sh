#!/usr/bin/env bash
# Instructions of one cached get and one cached update, of a client and of a handle (24-byte keys, 64-byte values, 3 nodes),
# of an increment and a get of a counter, and of a lock that is acquired and released, counted by callgrind: the difference of two runs that differ in the number of operations only. The loop around them
# counts as well. A run's count varies by some 300,000 with where its keys hash to and with the work that a client does
# by the clock, so each is the smallest of three, and the runs differ by enough operations that this is below 1 %.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v valgrind > /dev/null; then
    echo "valgrind is not here, which counts the instructions: ci/install.sh valgrind libc6-dbg" >&2
    exit 1
fi
# The command line is named as well, so that the libraries have the features that it has, and are built once for both.
cargo build --release --quiet --locked -p swarm-benches -p swarm-cli --no-default-features \
    --example hot_path --example hot_cell --example hot_handle
programs="${CARGO_TARGET_DIR:-target}/release/examples"
count() {
    for _ in 1 2 3; do
        valgrind --tool=callgrind --callgrind-out-file=/dev/null "$programs/$1" "$2" "$3" 2>&1 |
            awk '/Collected/ { print $4 }'
    done | sort -n | head -n 1
}
# A program, one of its operations, under which name it is printed, and how often it is done.
report() {
    local a b few="${4:-10000}" many="${5:-50000}"
    a=$(count "$1" "$2" "$few") b=$(count "$1" "$2" "$many")
    echo "$3: $(((b - a) / (many - few))) instructions"
}
for operation in get update; do report hot_path "$operation" "$operation"; done
for operation in increment get lock; do report hot_cell "$operation" "cell-$operation" 5000 20000; done
for operation in get read update task-get; do report hot_handle "$operation" "handle-$operation"; done
