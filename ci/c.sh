#!/usr/bin/env bash
# The library for C and C++: its header and its exported symbols are those that are checked in; installed by make, its examples and tests
# are built by gcc and by clang, with sanitizers, against the shared and the static library, and run on one pool with processes in
# Rust, and in Python where the package is there (ci/python.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
crate="$PWD/swarm-kv/bindings/c"
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
sanitize=(-fsanitize=address,undefined -fno-sanitize-recover=all)

sanitizes() { command -v "$1" > /dev/null && echo 'int main() { return 0; }' | "$1" -x c++ "${sanitize[@]}" -o /dev/null - 2> /dev/null; }
sanitizes g++ || ci/install.sh gcc g++
sanitizes clang++ || ci/install.sh clang libclang-rt-dev
command -v make > /dev/null || ci/install.sh make
command -v pkg-config > /dev/null || ci/install.sh pkg-config

scratch="$(mktemp -d)"
finish() { rm -rf "$scratch"; }
trap finish EXIT

cargo build --quiet --locked -p swarm-cli
swarm="$target/debug/swarm"
export CARGO_TARGET_DIR="$target/c"
cargo fmt --check --manifest-path "$crate/Cargo.toml"
cargo clippy --quiet --locked --manifest-path "$crate/Cargo.toml" --all-targets -- -D warnings
cargo test --quiet --locked --manifest-path "$crate/Cargo.toml"
# With its assertions on, and of what the tests are built of.
make --silent -C "$crate" install PREFIX="$scratch/installed" PROFILE=dev
export PKG_CONFIG_PATH="$scratch/installed/lib/pkgconfig" LD_LIBRARY_PATH="$scratch/installed/lib"

nm -D --defined-only "$scratch/installed/lib/libswarm.so" | awk '{ print $3 }' | LC_ALL=C sort > "$scratch/exports"
if ! diff "$crate/exports.txt" "$scratch/exports"; then
    echo "FAILED: the library exports other symbols than $crate/exports.txt" >&2
    exit 1
fi

# build COMPILER shared|static SOURCE [FLAGS...]: makes $scratch/built/NAME-COMPILER-LINKAGE, with the sanitizers if there are no flags.
build() {
    local name="${3##*/}" std=-std=c11 flags linked with=("${@:4}")
    if [[ ${#with[@]} == 0 ]]; then with=("${sanitize[@]}"); fi
    if [[ "$name" == *.cpp ]]; then std=-std=c++17; fi
    read -ra flags <<< "$(pkg-config --cflags swarm)"
    read -ra linked <<< "$(pkg-config --libs swarm)"
    if [[ "$2" == static ]]; then
        read -ra linked <<< "$(pkg-config --libs --static swarm)"
        linked=("${linked[@]/#-lswarm/-l:libswarm.a}")
    fi
    "$1" "$std" -D_GNU_SOURCE -pthread -g -O1 -Wall -Wextra -Wpedantic -Werror "${with[@]}" \
        "${flags[@]}" "$3" "${linked[@]}" -o "$scratch/built/$name-$1-$2"
}

pool() {
    rm -rf "$scratch/pool"
    "$swarm" create "$scratch/pool" --capacity 16MiB --max-clients 40 > /dev/null
}

# Puts each round's number under `shell` once the peer has put the one before, with a process for each look.
swarm_counts() {
    local round began=$SECONDS
    for ((round = 1; round <= $1; round++)); do
        "$swarm" put "$scratch/pool" shell "$round" > /dev/null
        until [[ "$("$swarm" get "$scratch/pool" peer 2> /dev/null || true)" == "$round" ]]; do
            # The other one may have failed, and reports it.
            ((SECONDS - began < 120)) || return
            sleep 0.01
        done
    done
}

# The same in Python.
python_counts() {
    timeout 120 "$python" - "$scratch/pool" "$1" << 'END'
import sys, time
import swarm

with swarm.open(sys.argv[1], clients=1) as db:
    for round in range(1, int(sys.argv[2]) + 1):
        db[b"python"] = b"%d" % round
        while db.get(b"peer") != b"%d" % round:
            time.sleep(0.0001)
END
}

mkdir "$scratch/built"
# Where the sanitizers' own locks are not in the way, with threads at work while it forks.
build gcc shared "$crate/tests/store.c" -O2
pool
"$scratch/built/store.c-gcc-shared" "$scratch/pool"
for compiler in gcc clang; do
    if [[ $compiler == gcc ]]; then beside=g++; else beside=clang++; fi
    for linkage in shared static; do
        for source in examples/{hello,leader}.c tests/{store,objects,values,peer}.c; do build $compiler $linkage "$crate/$source"; done
        for source in examples/hello.cpp tests/{store,objects,values}.cpp; do build $beside $linkage "$crate/$source"; done
        echo "$compiler, $linkage library:"

        pool
        "$scratch/built/store.c-$compiler-$linkage" "$scratch/pool"
        pool
        "$scratch/built/store.cpp-$beside-$linkage" "$scratch/pool"
        pool
        timeout 300 "$scratch/built/objects.c-$compiler-$linkage" "$scratch/pool"
        pool
        timeout 300 "$scratch/built/objects.cpp-$beside-$linkage" "$scratch/pool"
        pool
        timeout 300 "$scratch/built/values.c-$compiler-$linkage" "$scratch/pool"
        pool
        timeout 300 "$scratch/built/values.cpp-$beside-$linkage" "$scratch/pool"

        pool
        "$scratch/built/hello.c-$compiler-$linkage" "$scratch/pool" | grep -q "the color is still green"
        [[ "$("$swarm" get "$scratch/pool" color)" == green ]]
        "$swarm" put "$scratch/pool" user:7 "of the command line" > /dev/null
        "$scratch/built/hello.cpp-$beside-$linkage" "$scratch/pool" | grep -q "user:7 has value 7"
        [[ "$("$swarm" get "$scratch/pool" user:7)" == "value 7" ]]

        # Of two that would lead the one that waits leads once the other one is killed.
        pool
        leader="$scratch/built/leader.c-$compiler-$linkage"
        "$leader" "$scratch/pool" &
        killed=$!
        until [[ "$("$swarm" get "$scratch/pool" leader 2> /dev/null || true)" == "process $killed, with token 1" ]]; do
            kill -0 $killed || exit
            sleep 0.05
        done
        "$leader" "$scratch/pool" > "$scratch/output" &
        next=$!
        until [[ -s "$scratch/output" ]] || ! kill -0 $killed 2> /dev/null; do sleep 0.05; done
        kill -KILL $killed 2> /dev/null || true
        wait $killed 2> /dev/null || true
        wait $next
        [[ "$("$swarm" get "$scratch/pool" leader)" == "process $next, with token 2" ]]

        peer="$scratch/built/peer.c-$compiler-$linkage"
        timeout 120 "$peer" "$scratch/pool" peer shell 20 &
        swarm_counts 20
        wait $!

        # What was acknowledged to a process is there when it is killed.
        : > "$scratch/output"
        "$peer" "$scratch/pool" killed > "$scratch/output" &
        until [[ -s "$scratch/output" ]]; do
            kill -0 $! || exit
            sleep 0.05
        done
        sleep 0.2
        kill -KILL $!
        wait $! 2> /dev/null || true
        last="$(tail -n 1 "$scratch/output")"
        is="$("$swarm" get "$scratch/pool" killed)"
        # The last line may be cut short.
        if [[ "$is" -lt "$last" ]]; then
            echo "FAILED: $last was acknowledged to a killed process, and $is is" >&2
            exit 1
        fi
    done
done

python="$target/python/environment/bin/python"
if "$python" -c 'import swarm' 2> /dev/null || { python=python3 && python3 -c 'import swarm' 2> /dev/null; }; then
    pool
    timeout 120 "$scratch/built/peer.c-gcc-shared" "$scratch/pool" peer python 500 &
    python_counts 500
    wait $!
    echo "beside Python: 500 rounds"
else
    echo "SKIPPED: beside Python, whose package is not there (ci/python.sh)" >&2
fi
echo "the library for C and C++ is well"
