#!/usr/bin/env bash
# The Rust examples (examples/rust): formatted, without warnings, and each runs to its end on a pool and prints what it
# should. Those in Python are run by ci/python.sh.
#
#   ci/examples.sh [KILLS]    the queue of jobs has so many workers killed, 30 by default
set -euo pipefail
kills="${1:-30}"
if ! [[ "$kills" =~ ^[1-9][0-9]{0,5}$ ]]; then
    echo "usage: ci/examples.sh [KILLS]" >&2
    exit 2
fi
cd "$(dirname "$0")/.."
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
cargo build --quiet --locked -p swarm-cli
swarm="$target/debug/swarm"
cargo fmt --manifest-path examples/Cargo.toml --check
export CARGO_TARGET_DIR="$target/examples"
cargo clippy --quiet --locked --manifest-path examples/Cargo.toml -- -D warnings
cargo build --quiet --locked --manifest-path examples/Cargo.toml
built="$CARGO_TARGET_DIR/debug"

directory=$(mktemp -d -p "$([[ -w /dev/shm ]] && echo /dev/shm || echo "${TMPDIR:-/tmp}")" swarm-examples.XXXXXX)
started=()
finish() {
    [[ ${#started[@]} -eq 0 ]] || kill "${started[@]}" 2> /dev/null || true
    rm -rf "$directory"
}
trap finish EXIT
pool="$directory/pool"
"$swarm" create "$pool" --capacity 32MiB > /dev/null

# expect PATTERN PROGRAM ARGUMENT...: runs the program, whose output has to match.
expect() {
    local pattern="$1" output
    shift
    output=$(timeout 120 "$@")
    if [[ "$output" != $pattern ]]; then
        echo "FAILED: $*: printed '$output', and not '$pattern'" >&2
        exit 1
    fi
    echo "$output"
}

expect "the sum is 49995000;*" "$built/tokio" "$pool"
expect "the sum of 10000 rows is 49995000" "$built/rayon" "$pool"
expect "*PUT /color: HTTP/1.1 200 OK*GET /color: HTTP/1.1 200 OK green*DELETE*200 OK*GET /color: HTTP/1.1 404*" \
    "$built/axum" "$pool"

# Until Ctrl-C.
"$built/axum" "$pool" 127.0.0.1:0 > "$directory/address" &
server=$!
started+=("$server")
for _ in {1..600}; do
    [[ ! -s "$directory/address" ]] || break
    sleep 0.1
done
kill -INT "$server"
wait "$server"
started=()

for reader in 1 2; do
    timeout 120 "$built/market-data" read "$pool" > "$directory/reader-$reader" &
    started+=("$!")
done
expect "wrote 50000 quotes*" "$built/market-data" write "$pool"
for reader in "${started[@]}"; do wait "$reader"; done
started=()
cat "$directory"/reader-*

# What processes coordinate by. Each of them checks itself.
expect "*5 leaders were killed, and each was followed by another one" "$built/leader-election" "$pool"
expect "$kills workers were killed, and each of * jobs has its result once" "$built/job-queue" "$pool" "$kills"
expect "4 clients made * requests, * at most;*" "$built/rate-limiter" "$pool"
expect "9 watchers saw the last of 200 configurations,*" "$built/config-watch" "$pool"
