#!/usr/bin/env bash
# The multi-threaded tests under the thread sanitizer: all memory that threads share is shared by
# atomic words. Needs no nightly toolchain; the standard library is not instrumented, so what it
# does by itself is left out (ci/tsan-suppressions.txt).
set -euo pipefail
cd "$(dirname "$0")/.."
target="$(rustc -vV | sed -n 's/^host: //p')"
export RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0
unset CARGO_ENCODED_RUSTFLAGS
export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"
export TSAN_OPTIONS="suppressions=$PWD/ci/tsan-suppressions.txt halt_on_error=0 exitcode=66"
CARGO_TARGET_DIR="$(realpath -m "${CARGO_TARGET_DIR:-target}")/tsan"
export CARGO_TARGET_DIR
# Always of the same packages: with others, what they depend on would be built with other features.
tests() {
    cargo test --quiet --locked --target "$target" -p swarm-shm -p swarm-kv "$@"
}

# The sanitizer must be on, and what is left out must not be everything.
if output=$(tests --test canary -- --ignored 2>&1); then
    echo "FAILED: the sanitizer does not notice a race that is there" >&2
    exit 1
elif [[ "$output" != *"ThreadSanitizer: data race"* ]]; then
    echo "$output" >&2
    exit 1
fi
tests --test conformance --test fabric --test clock --test threads
