#!/usr/bin/env bash
# Fuzzing with libFuzzer, on the stable toolchain.
#
#   ci/fuzz.sh [SECONDS [TARGET...]]     so long each (15), these or all
#   ci/fuzz.sh --slice N [SECONDS]       one target, each number another one
#
# Begins with fuzz/seeds, keeps what it learns in fuzz/corpus, and what it breaks in fuzz/artifacts. What it builds are
# the targets of cargo-fuzz, with its flags: `cargo fuzz run TARGET` does the same, but has to be installed.
set -euo pipefail
cd "$(dirname "$0")/.."
usage() {
    echo "usage: ci/fuzz.sh [SECONDS [TARGET...]] | --slice NUMBER [SECONDS]" >&2
    exit 2
}
slice=
if [[ "${1:-}" == --slice ]]; then
    slice="${2:-}"
    [[ $# -le 3 && "$slice" =~ ^(0|[1-9][0-9]{0,9})$ ]] || usage
    shift 2
fi
seconds="${1:-15}"
shift || true
# Nothing, or no number, would mean for ever.
[[ "$seconds" =~ ^[1-9][0-9]{0,6}$ ]] || usage
targets=("$@")
[[ $# -gt 0 ]] || mapfile -t targets < <(basename -s .rs fuzz/fuzz_targets/*.rs)
[[ -z "$slice" ]] || targets=("${targets[slice % ${#targets[@]}]}")
bins=()
for name in "${targets[@]}"; do
    if [[ ! -f "fuzz/fuzz_targets/$name.rs" ]]; then
        echo "there is no fuzz/fuzz_targets/$name.rs" >&2
        exit 2
    fi
    bins+=(--bin "$name")
done
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
export CARGO_TARGET_DIR="$target/fuzz"
if ! command -v c++ > /dev/null; then
    # The fuzzing engine is C++.
    ci/install.sh g++
fi
# Each edge is counted and each comparison seen. No sanitizer: there is next to no unsafe code, and what is looked for
# are panics and endless loops.
flags="-Cpasses=sancov-module -Ccodegen-units=1 --cfg fuzzing"
for flag in sanitizer-coverage-{level=4,inline-8bit-counters,pc-table,trace-compares,stack-depth} \
    simplifycfg-branch-fold-threshold=0; do
    flags+=" -Cllvm-args=-$flag"
done
# With its name, the host is a target of its own: what runs while others are built gets none of these flags.
host="$(rustc -vV | sed -n 's/^host: //p')"
unset CARGO_ENCODED_RUSTFLAGS
RUSTFLAGS="$flags" cargo build --quiet --locked --release --manifest-path fuzz/Cargo.toml --target "$host" "${bins[@]}"
# Nothing that a target has is dropped when it ends: its pools go here. In memory, as disks are slow.
if [[ -w /dev/shm ]]; then export TMPDIR=/dev/shm; fi
TMPDIR="$(mktemp -d)"
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
# One at a time would leave the other processors idle. Each writes how it ended to a file of its own.
logs="$target/fuzz-logs"
mkdir -p "$logs"
fuzz() {
    mkdir -p fuzz/{corpus,seeds,artifacts}/"$1"
    if ! "$CARGO_TARGET_DIR/$host/release/$1" -artifact_prefix="fuzz/artifacts/$1/" -max_total_time="$seconds" \
        -timeout=10 -max_len=4096 -len_control=10 "fuzz/corpus/$1" "fuzz/seeds/$1" > "$logs/$1" 2>&1; then
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
