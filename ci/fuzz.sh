#!/usr/bin/env bash
# Fuzzing with cargo-fuzz, on the stable toolchain.
#
#   ci/fuzz.sh [SECONDS [TARGET...]]     so long each (15), these or all
#
# Begins with fuzz/seeds, keeps what it learns in fuzz/corpus, and what it breaks in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${1:-15}"
shift || true
# Nothing, or no number, would mean for ever.
if ! [[ "$seconds" =~ ^[1-9][0-9]{0,6}$ ]]; then
    echo "usage: ci/fuzz.sh [SECONDS [TARGET...]]" >&2
    exit 2
fi
for name; do
    if [[ ! -f "fuzz/fuzz_targets/$name.rs" ]]; then
        echo "there is no fuzz/fuzz_targets/$name.rs" >&2
        exit 2
    fi
done
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
export CARGO_TARGET_DIR="$target/fuzz"
if ! command -v c++ > /dev/null; then
    # The fuzzing engine is C++.
    ci/install.sh g++
fi
export PATH="$PATH:$target/tools/bin"
if ! command -v cargo-fuzz > /dev/null; then
    cargo install --quiet --locked --version 0.13.2 --root "$target/tools" cargo-fuzz
fi
targets=("$@")
if [[ $# -eq 0 ]]; then
    listed="$(cargo fuzz list)"
    readarray -t targets <<< "$listed"
fi
# No sanitizer: there is next to no unsafe code, and what is looked for are panics and endless loops.
cargo fuzz build --sanitizer none
# Nothing that a target has is dropped when it ends: its pools go here. In memory, as disks are slow.
if [[ -w /dev/shm ]]; then export TMPDIR=/dev/shm; fi
TMPDIR="$(mktemp -d)"
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
# One at a time would leave the other processors idle. Each says how it ended in a file of its own.
logs="$target/fuzz-logs"
mkdir -p "$logs"
fuzz() {
    mkdir -p "fuzz/corpus/$1" "fuzz/seeds/$1"
    if ! cargo fuzz run --sanitizer none "$1" "fuzz/corpus/$1" "fuzz/seeds/$1" -- \
        -max_total_time="$seconds" -timeout=10 -max_len=4096 -len_control=10 > "$logs/$1" 2>&1; then
        grep -v "^#" "$logs/$1" | tail -60
        grep -a "^Base64" "$logs/$1" || true
        # What is read first, and perhaps alone.
        echo "FAILED: fuzzing $1: $(grep -am 1 -A 1 "panicked at" "$logs/$1" | tr '\n' ' ')" >&2
        return 1
    fi
    echo "$1: $(grep "^Done" "$logs/$1")"
}
running=() failed=0
for name in "${targets[@]}"; do
    if [[ ${#running[@]} -eq $(nproc) ]]; then
        wait "${running[0]}" || failed=1
        running=("${running[@]:1}")
    fi
    fuzz "$name" &
    running+=("$!")
done
for pid in "${running[@]}"; do
    wait "$pid" || failed=1
done
if [[ $failed -ne 0 ]]; then
    echo "what broke them is in fuzz/artifacts, and above in base 64" >&2
fi
exit "$failed"
