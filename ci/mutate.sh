#!/usr/bin/env bash
# Takes each safety line of the protocols away in turn, and demands that the checks notice.
#
#   ci/mutate.sh                    every mutation, with a short budget
#   ci/mutate.sh NAME...            only these
#   SWARM_SCHEDULES=300000 ci/mutate.sh
#
# A mutation is a patch in swarm-*/tests/mutations: what it breaks, which checks catch it (`caught
# by: CRATE TEST`, tried in turn), with how many schedules if the usual ones are too few
# (`schedules: N`), and the change. It is applied to a scratch copy. A patch that no longer applies
# or does not build fails, as does one that all its checks survive; so do checks that fail without
# any mutation.
set -euo pipefail
cd "$(dirname "$0")/.."

usual="${SWARM_SCHEDULES:-20000}"
# Others choose schedules too, and would change what a run without them shows.
unset SWARM_SEED SWARM_FIRST SWARM_SURPRISES SWARM_EXPLORED SWARM_ADVERSARIES
scratch="$(realpath -m "${CARGO_TARGET_DIR:-target}")/mutants"
tree="$scratch/tree"
# Longer than this, a check hangs. On a busy machine, a store's schedule takes 20 ms.
limit=$((600 + usual / 50))

rm -rf "$tree"
mkdir -p "$tree"
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -cT - | tar -xmC "$tree"
# (Files are as new as this copy: what an earlier one built of them may be of a mutation.)
# A repository of its own, or patches would apply to this one.
git -C "$tree" init --quiet
export CARGO_TARGET_DIR="$scratch/build" CARGO_INCREMENTAL=0 RUST_BACKTRACE=0
export RUSTFLAGS="--cap-lints allow"
unset CARGO_ENCODED_RUSTFLAGS

# `lib` stands for the unit tests.
target() { if [[ $1 == lib ]]; then echo --lib; else echo "--test $1"; fi; }
# shellcheck disable=SC2046 # the target is two words
build() {
    (cd "$tree" && cargo test --quiet --profile prove --no-default-features -p "swarm-$1" $(target "$2") --no-run)
}
# shellcheck disable=SC2046
check() {
    (cd "$tree" && SWARM_SCHEDULES="$3" timeout "$limit" \
        cargo test --quiet --profile prove --no-default-features -p "swarm-$1" $(target "$2"))
}
field() { sed -n "/^diff /q; s/^$1: //p" "$2"; }

patches=()
for patch in swarm-*/tests/mutations/*.patch; do
    name=$(basename "$patch" .patch)
    if [[ $# -eq 0 || " $* " == *" $name "* ]]; then
        patches+=("$PWD/$patch")
    fi
done
if [[ ${#patches[@]} -eq 0 ]]; then
    echo "there is no mutation of that name" >&2
    exit 2
fi

log="$scratch/log"
began=$SECONDS
echo "without any mutation, the checks pass:"
for patch in "${patches[@]}"; do field "caught by" "$patch"; done | sort -u > "$scratch/checks"
while read -r crate test <&3; do
    at=$SECONDS
    if ! build "$crate" "$test" > "$log" 2>&1 || ! check "$crate" "$test" "$usual" > "$log" 2>&1; then
        tail -40 "$log"
        echo "FAILED: $crate $test, with no mutation at all" >&2
        exit 1
    fi
    echo "  $crate $test, $((SECONDS - at)) s"
done 3< "$scratch/checks"

bad=()
number=0
for patch in "${patches[@]}"; do
    name=$(basename "$patch" .patch)
    number=$((number + 1))
    at=$SECONDS
    result=survived
    if ! git -C "$tree" apply "$patch" 2> "$log"; then
        result="does not apply"
    else
        schedules=$(field schedules "$patch")
        while read -r crate test <&3; do
            if ! build "$crate" "$test" > "$log" 2>&1; then
                result="does not build"
                break
            fi
            status=0
            check "$crate" "$test" "$((usual > ${schedules:-0} ? usual : schedules))" > "$log" 2>&1 || status=$?
            # 101: a test failed. Anything else says nothing of the mutation.
            if [[ $status -eq 101 ]]; then
                result="caught by $test"
                break
            elif [[ $status -ne 0 ]]; then
                result="no verdict: $test ended with status $status"
                break
            fi
        done 3< <(field "caught by" "$patch")
        git -C "$tree" apply -R "$patch"
    fi
    echo "[$number/${#patches[@]}] $name: $result, $((SECONDS - at)) s"
    if [[ $result != caught* ]]; then
        bad+=("$name: $result: $(head -1 "$patch")")
        cp "$log" "$scratch/$name.log"
    fi
done
echo "$((${#patches[@]} - ${#bad[@]})) of ${#patches[@]} mutations caught, in $((SECONDS - began)) s"
if [[ ${#bad[@]} -gt 0 ]]; then
    printf 'NOT CAUGHT: %s\n' "${bad[@]}" >&2
    exit 1
fi
