#!/usr/bin/env bash
# Takes each safety line of the protocols away in turn, and demands that the checks notice.
#
#   ci/mutate.sh                    every mutation, with a short budget
#   ci/mutate.sh NAME...            only these
#   ci/mutate.sh --lot N            one mutation in twenty-four, each number others
#   ci/mutate.sh [--lot N] --tested   the same, where all tests have just passed: the checks need not
#                                   show once more that they do without any
#   ci/mutate.sh --kept FOLDER      without what an earlier run at this commit has noted in FOLDER:
#                                   mutations that were caught, checks that pass without any
#   SWARM_SCHEDULES=300000 ci/mutate.sh
#
# A mutation is a patch in swarm-*/tests/mutations: what it breaks, which checks catch it (`caught
# by: CRATE TEST [NAME]`, tried in turn: the quickest first; NAME stands for one of its tests, or as
# `MODULE::` for those of a module), with how many schedules if the usual ones are too few (`schedules:
# N`), and the change. Each check is the only one that some patch names, or nothing would show that it
# can fail. A patch that takes more than four times as many schedules as usual, or checks with a build
# of their own, is left to runs with a larger budget. It is applied to a scratch copy. One that no longer
# applies or does not build fails, as does one that all its checks survive; so do checks that fail without any mutation. One worker
# for each processor, with a copy and a build of its own; all begin with what the first has built.
set -euo pipefail
cd "$(dirname "$0")/.."

lot=
if [[ "${1:-}" == --lot ]]; then
    lot="${2:-}"
    if ! [[ "$lot" =~ ^(0|[1-9][0-9]{0,9})$ ]]; then
        echo "usage: ci/mutate.sh [--lot NUMBER] [--tested] [NAME...]" >&2
        exit 2
    fi
    shift 2
fi
tested=
if [[ "${1:-}" == --tested ]]; then
    tested=yes
    shift
fi
kept=
if [[ "${1:-}" == --kept ]]; then
    kept="$(realpath -m "${2:?a folder}")"
    shift 2
    if [[ -n $lot || $# -gt 0 ]]; then
        echo "only what a run of every mutation notes can be left out: --kept goes without --lot and names" >&2
        exit 2
    fi
    mkdir -p "$kept"
    touch "$kept/caught" "$kept/sound"
fi
# Notes $2 for later runs as `caught` or `sound`; whether an earlier one has.
keep() { [[ -z $kept ]] || echo "$2" >> "$kept/$1"; }
was_kept() { [[ -n $kept ]] && grep -qxF "$2" "$kept/$1"; }
usual="${SWARM_SCHEDULES:-20000}"
if ! [[ "$usual" =~ ^[1-9][0-9]{0,9}$ ]]; then
    echo "SWARM_SCHEDULES is a number of schedules, not $usual" >&2
    exit 2
fi
# Others choose schedules too, and would change what a run without them shows.
unset SWARM_SEED SWARM_FIRST SWARM_SURPRISES SWARM_EXPLORED SWARM_ADVERSARIES
# What only deep races and many histories show is to be shown.
export SWARM_DEEP=all SWARM_HISTORY_ROUNDS=60000
scratch="$(realpath -m "${CARGO_TARGET_DIR:-target}")/mutants"
workers=$(nproc)
workers=$((workers > 4 ? 4 : workers))
# Longer than this, a check hangs. What computes for ten minutes takes an hour where the machine is busy.
limit=$((3600 + usual / 10))
# A mutation changes a few lines: what it costs to build them is what counts.
export CARGO_INCREMENTAL=1 CARGO_PROFILE_PROVE_DEBUG=0 CARGO_PROFILE_PROVE_CODEGEN_UNITS=256
# Nobody reads the stories of what is broken on purpose.
export RUST_BACKTRACE=0 SWARM_SHRINK=0 RUSTFLAGS="--cap-lints allow"
unset CARGO_ENCODED_RUSTFLAGS

# A scratch copy in directory $1. Its files are as new as it is: what an earlier one built of them
# may be of a mutation. It is a repository, or patches would apply to this one.
copy() {
    rm -rf "$1"
    mkdir -p "$1"
    git ls-files -z --cached --others --exclude-standard \
        | tar --null --ignore-failed-read -cT - 2> /dev/null | tar -xmC "$1"
    git -C "$1" init --quiet
}

# Schedules by the thousand are played by what is optimised; of all else the build costs most.
# Under loom the words are other types, so it has a build of its own, and a level that no other test of
# its crate has.
level() {
    case $1 in
        *_sim | loom) echo 1 ;;
        *) echo 0 ;;
    esac
}
# `lib` stands for the unit tests.
target() { if [[ $1 == lib ]]; then echo --lib; else echo "--test $1"; fi; }
# cargo test for crate $1, optimised as $2 says, of the targets that follow. The store never is: it is
# generic, and with a mutation its schedules fail soon, so that its build costs most. Nor are libraries but
# those that schedules spend time in, so that all levels share them.
optimised() {
    local crate="$1" level="$2" others=0 package levels=()
    shift 2
    if [[ " $* " == *" --test loom "* ]]; then
        local -x RUSTFLAGS="$RUSTFLAGS --cfg loom" CARGO_TARGET_DIR="$CARGO_TARGET_DIR/loom"
        others=1
    fi
    for package in swarm-core="$level" swarm-shm="$level" swarm-kv=0 fastrand=1 hashbrown=1 xxhash-rust=1; do
        levels+=(--config "profile.prove.package.${package/=/.opt-level=}")
    done
    (cd "$tree" && CARGO_PROFILE_PROVE_OPT_LEVEL="$others" \
        ${within:+timeout "$within"} cargo test --quiet --profile prove "${levels[@]}" -p "swarm-$crate" "$@")
}
# The same for test $2 of crate $1.
# shellcheck disable=SC2046 # the target is two words
tests() {
    local crate="$1" test="$2"
    shift 2
    optimised "$crate" "$(level "$test")" $(target "$test") "$@"
}
build() { tests "$1" "$2" --no-run; }
# Runs test $2 of crate $1 with $3 schedules; of its functions only those with one of the words that
# follow in their names, if any do.
check() { SWARM_SCHEDULES="$3" within="$limit" tests "$1" "$2" -- "${@:4}"; }
# Schedules for test $2 of crate $1: one of the store's costs as much as many of a register's, and
# what store_sim is to catch shows in few.
budget() {
    case "$1 $2" in
        "kv-long store_sim") echo "$((usual / 20))" ;;
        kv*) echo "$((usual / 5))" ;;
        *) echo "$usual" ;;
    esac
}
field() { sed -n "/^diff /q; s/^$1: //p" "$2"; }

# The names of the functions of test $2 of crate $1 that are to catch something; none if all are.
names() {
    caught_by | awk -v check="$1 $2" \
        '$1 " " $2 == check { if (NF > 2) names[$3]; else all = 1 }
        END { if (!all) for (name in names) print name }'
}

# Check number $1 passes without any mutation: a quarter of the schedules, most mutations show in fewer.
sound() {
    local crate test only at=$SECONDS
    was_kept sound "${checks[$1]}" && return
    read -r crate test <<< "${checks[$1]}"
    readarray -t only < <(names "$crate" "$test")
    if ! build "$crate" "$test" > "$log" 2>&1 \
        || ! check "$crate" "$test" "$((1 + $(budget "$crate" "$test") / 4))" "${only[@]}" > "$log" 2>&1; then
        tail -40 "$log"
        echo "FAILED: $crate $test, with no mutation at all" >&2
        return 1
    fi
    keep sound "${checks[$1]}"
    echo "  $crate $test, $((SECONDS - at)) s"
}

# Whether a check notices patch number $1: the first line of its result says how, or why not.
mutate() {
    local patch="${patches[$1]}" at=$SECONDS result=survived name schedules crate test only status most done
    name=$(basename "$patch" .patch)
    schedules=$(field schedules "$patch")
    git -C "$tree" apply "$patch"
    while read -r crate test only <&3; do
        if ! build "$crate" "$test" > "$log" 2>&1; then
            result="does not build"
            break
        fi
        status=0 most=$(budget "$crate" "$test")
        most=$((most > ${schedules:-0} ? most : schedules))
        check "$crate" "$test" "$most" ${only:+"$only"} > "$log" 2>&1 || status=$?
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
    if [[ $result == caught* ]]; then
        echo "$name" >> "$scratch/caught"
        keep caught "$name"
    else
        echo "$name: $result: $(head -1 "$patch")" >> "$scratch/bad"
        cp "$log" "$scratch/$name.log"
    fi
    done=$(cat "$scratch/caught" "$scratch/bad" | wc -l)
    echo "[$done/${#patches[@]}] $name: $result, $((SECONDS - at)) s"
}

# Worker number $1's copy, and what it builds of it.
as_worker() {
    tree="$scratch/tree-$1" log="$scratch/log-$1"
    export CARGO_TARGET_DIR="$scratch/build-$1"
}

# Worker $1 does $2 with every number below $3 that no other worker has taken.
work() {
    local number
    as_worker "$1"
    for ((number = 0; number < $3; number++)); do
        if mkdir "$scratch/taken/$2-$number" 2> /dev/null; then
            "$2" "$number"
        fi
    done
}

# Has the workers do $1 with every number below $2, and waits for them all.
share() {
    local worker failed=0 at=()
    for ((worker = 0; worker < workers; worker++)); do
        work "$worker" "$1" "$2" &
        at+=("$!")
    done
    for worker in "${at[@]}"; do
        wait "$worker" || failed=1
    done
    return "$failed"
}

# Whether so few schedules show what patch $1 breaks that this budget is too small for it, or its checks
# take a build of their own, which costs as much as twenty other patches, or libraries that are not there.
is_rare() {
    local schedules crate test
    schedules=$(field schedules "$1")
    read -r crate test _ < <(field "caught by" "$1")
    [[ $test == loom || $crate == rdma || $test == store_explore ]] && ((usual <= 20000)) && return
    [[ $crate == rdma ]] && ! pkg-config --exists libibverbs librdmacm && return
    [[ -n "$schedules" ]] && ((schedules > 4 * $(budget "$crate" "$test")))
}

# Whether it is this mutation's turn.
is_in_lot() {
    local sum
    read -r sum _ < <(cksum <<< "$1")
    (((sum + lot) % 24 == 0))
}

# The patches of these names, or all: first the store's, which take longest, and of those first
# what changes the protocols beneath it, since the store is built anew behind each.
chosen() {
    local patch name
    for patch in $(grep -l "^+++ b/swarm-core" swarm-kv/tests/mutations/*.patch) \
        $(grep -L "^+++ b/swarm-core" swarm-kv/tests/mutations/*.patch) \
        swarm-{core,shm,rdma}/tests/mutations/*.patch; do
        name=$(basename "$patch" .patch)
        if [[ $# -eq 0 && -n $lot ]] && ! is_in_lot "$name"; then
            continue
        elif [[ $# -eq 0 ]] && is_rare "$patch"; then
            echo "left to a larger budget, or to be named: $name" >&2
        elif [[ $# -eq 0 ]] && was_kept caught "$name"; then
            continue
        elif [[ $# -eq 0 || " $* " == *" $name "* ]]; then
            echo "$PWD/$patch"
        fi
    done
}

# Those that are left to a larger budget are not to rot meanwhile.
rotten=0
for patch in swarm-*/tests/mutations/*.patch; do
    git apply --check "$patch" || {
        echo "FAILED: $patch does not apply any more" >&2
        rotten=1
    }
done
[[ $rotten -eq 0 ]] || exit 1
readarray -t patches < <(chosen "$@")
if [[ ${#patches[@]} -eq 0 && -n $kept ]]; then
    echo "all $(wc -l < "$kept/caught") mutations were caught before"
    exit 0
fi
if [[ ${#patches[@]} -eq 0 || $# -gt ${#patches[@]} ]]; then
    echo "not all of these are mutations in swarm-*/tests/mutations: $*" >&2
    exit 2
fi
caught_by() { for patch in "${patches[@]}"; do field "caught by" "$patch"; done; }
readarray -t checks < <(caught_by | cut -d ' ' -f 1,2 | sort -ru)
workers=$((workers > ${#patches[@]} ? ${#patches[@]} : workers))

began=$SECONDS
mkdir -p "$scratch"
# What an earlier run has begun holds the lock too, as long as it goes on: it would check other mutations than these.
exec 9> "$scratch/lock"
flock -w 1200 9 || {
    echo "another ci/mutate.sh is at work in $scratch" >&2
    exit 1
}
rm -rf "$scratch/taken" "$scratch"/*.log
mkdir "$scratch/taken"
: > "$scratch/caught" > "$scratch/bad"
for ((worker = 0; worker < workers; worker++)); do copy "$scratch/tree-$worker"; done
# All that are built alike at once.
(
    as_worker 0
    declare -A alike
    for check in "${checks[@]}"; do
        read -r crate test <<< "$check"
        alike["$crate $(level "$test")"]+=" $(target "$test")"
    done
    for group in "${!alike[@]}"; do
        # shellcheck disable=SC2086 # both are lists of words
        optimised $group ${alike[$group]} --no-run
    done
)
# What is built incrementally is of use at its own place only.
for ((worker = 1; worker < workers; worker++)); do
    rm -rf "$scratch/build-$worker"
    mkdir "$scratch/build-$worker"
    tar -cC "$scratch/build-0" --exclude=incremental . | tar -xpC "$scratch/build-$worker"
done
echo "built, in $((SECONDS - began)) s"
if [[ -n $tested ]]; then
    # Races were explored less deep, and stories played in part.
    readarray -t checks < <(caught_by | grep -E '_explore|explore::|_stories|recycle_sim' | cut -d ' ' -f 1,2 | sort -ru || true)
    [[ -n "${checks[0]:-}" ]] || checks=()
fi
if [[ ${#checks[@]} -gt 0 ]]; then
    echo "without any mutation, the checks pass:"
    share sound "${#checks[@]}"
fi
share mutate "${#patches[@]}"
echo "$(wc -l < "$scratch/caught") of ${#patches[@]} mutations caught, in $((SECONDS - began)) s"
if [[ -n $kept ]]; then echo "with those that were caught before, $(wc -l < "$kept/caught")"; fi
if [[ -s "$scratch/bad" ]]; then
    sed 's/^/NOT CAUGHT: /' "$scratch/bad" >&2
    exit 1
fi
if [[ $(wc -l < "$scratch/caught") -ne ${#patches[@]} ]]; then
    echo "FAILED: some mutations were not tried" >&2
    exit 1
fi
