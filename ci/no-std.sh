#!/usr/bin/env bash
# Shows that swarm-core, with all that it links, needs neither std nor alloc.
#
# Checks it against a sysroot that holds nothing but core and compiler_builtins. Because the target
# is named, that sysroot and its flags are the target's alone: proc macros and build scripts run on
# the host and keep its std.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(rustc -vV | sed -n "s/^host: //p")
out="${CARGO_TARGET_DIR:-target}/no-std"
sysroot="$(mkdir -p "$out" && cd "$out" && pwd)/sysroot"
libraries="lib/rustlib/$target/lib"
rm -rf "$sysroot" "$out/build"
mkdir -p "$sysroot/$libraries"
for library in core compiler_builtins rustc_std_workspace_core; do
    cp "$(rustc --print sysroot)/$libraries/lib$library-"*.r* "$sysroot/$libraries/"
done

check() {
    cargo check --quiet --locked --target "$target" --target-dir "$out/build" \
        --config "target.$target.rustflags=['--sysroot', '$sysroot']" \
        -p swarm-core --lib "$@"
}

check
# A check that cannot fail is no check: the simulator does need std.
if check --features sim 2>"$out/sim.log"; then
    echo "the sim feature was built without std, so this check shows nothing" >&2
    exit 1
fi
if ! grep -q "can't find crate for \`std\`" "$out/sim.log"; then
    echo "the sim feature failed for another reason than std:" >&2
    cat "$out/sim.log" >&2
    exit 1
fi
echo "swarm-core needs neither std nor alloc"
