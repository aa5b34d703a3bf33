#!/usr/bin/env bash
# Shows that swarm-core, with all that it links, needs neither std nor alloc: and that a program which
# uses it, swarm-core/examples/bare, needs them neither, and runs.
#
# Builds both against a sysroot that holds nothing but core and compiler_builtins. Because the target
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
# The linker is no library.
ln -s "$(rustc --print sysroot)/lib/rustlib/$target/bin" "$sysroot/lib/rustlib/$target/bin"
for library in core compiler_builtins rustc_std_workspace_core; do
    cp "$(rustc --print sysroot)/$libraries/lib$library-"*.r* "$sysroot/$libraries/"
done

cargo_bare() {
    local command="$1"
    shift
    cargo "$command" --quiet --locked --target "$target" --target-dir "$out/build" \
        --config "target.$target.rustflags=['--sysroot', '$sysroot']" "$@"
}

cargo_bare check -p swarm-core --lib
# A check that cannot fail is no check: the simulator does need std.
if cargo_bare check -p swarm-core --lib --features sim 2>"$out/sim.log"; then
    echo "the sim feature was built without std, so this check shows nothing" >&2
    exit 1
fi
if ! grep -q "can't find crate for \`std\`" "$out/sim.log"; then
    echo "the sim feature failed for another reason than std:" >&2
    cat "$out/sim.log" >&2
    exit 1
fi
echo "swarm-core needs neither std nor alloc"

example=swarm-core/examples/bare
cargo fmt --check --manifest-path "$example/Cargo.toml"
cargo_bare clippy --manifest-path "$example/Cargo.toml" -- -D warnings
cargo_bare build --manifest-path "$example/Cargo.toml"
bare="$out/build/$target/debug/bare"
# It prints what its assertions found.
"$bare"
# Of the C library it has what starts it, prints and stops, and what the compiler copies bytes with.
foreign="$(nm --undefined-only --format=just-symbols "$bare" | sed 's/@.*//' | sort)"
expected='^(abort|write|bcmp|mem(cmp|cpy|move|set)|__libc_start_main|__cxa_finalize|__gmon_start__|_ITM_.*)$'
if grep -qvE "$expected" <<<"$foreign"; then
    echo "the example calls what it should not need:" >&2
    grep -vE "$expected" <<<"$foreign" >&2
    exit 1
fi
# A check that cannot fail is no check: it does print.
grep -qx write <<<"$foreign"
if nm --demangle "$bare" | grep -E '__(rust|rdl|rg)_(re)?alloc|[ <](std|alloc)::'; then
    echo "the example has code of std or alloc" >&2
    exit 1
fi
echo "a program with a register and a cell needs neither std nor alloc"
