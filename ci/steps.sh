# What .ci/run and ci/full.sh share: steps that print how long they took, and what each of them runs. To be sourced, in
# the project's root, by a script that lists its steps; its arguments choose some of them by the first word of their
# names. `caller` is its path.
set -euo pipefail

export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
# Flags from outside would be another build than the one that is promised.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
# Likewise, what is tried is what the steps set.
unset SWARM_SEED SWARM_FIRST SWARM_SCHEDULES SWARM_SURPRISES SWARM_EXPLORED SWARM_ADVERSARIES
unset SWARM_HISTORY_ROUNDS SWARM_KILL_CALLS SWARM_SHRINK SWARM_DEEP
target="${CARGO_TARGET_DIR:-target}"
# By now in the root, wherever it was called from.
script="$(basename "$(dirname "$caller")")/$(basename "$caller")"
wanted=" $* "
passed=0

for name; do
    if ! grep -q "^step \"$name[ \"]" "$script"; then
        echo "there is no step of that name: $name" >&2
        exit 2
    fi
done

scratch="$(mktemp -d)"
# Where a script sets it: a folder for what has passed, so that a run that was ended is taken up again.
kept=
declare -A begun
finish() {
    local process
    for process in "${begun[@]}"; do kill -- "-$process" 2> /dev/null || true; done
    if [[ -n $kept ]]; then echo "$SECONDS" >> "$kept/seconds"; fi
    rm -rf "$scratch"
}
trap finish EXIT

# Puts into `spent` the seconds of processor time that all which has ended took.
processor() {
    times > "$scratch/times"
    spent=$(awk -F '[ms ]+' 'NR == 2 { print int($1 * 60 + $2 + $3 * 60 + $4) }' "$scratch/times")
}

is_wanted() { [[ "$wanted" == "  " || "$wanted" == *" ${1%% *} "* ]]; }
# Whether the tree still is what `kept` is named by: somebody may work in it meanwhile.
is_as_committed() {
    [[ -n $kept && "${kept##*/}" == "$(git rev-parse HEAD)" && -z "$(git status --porcelain)" ]]
}
# Whether the step of this name has passed in a run that is taken up again.
has_passed() { [[ -n $kept ]] && grep -qxF "${1%% *}" "$kept/passed" 2> /dev/null; }

step() {
    local name="$1" began=$SECONDS before spent
    shift
    is_wanted "$name" || return 0
    if has_passed "$name"; then
        echo "<== $name: ok, before"
        passed=$((passed + 1))
        return 0
    fi
    processor
    before=$spent
    echo "==> $name: $*"
    if ! "$@"; then
        echo "FAILED: $name, after $((SECONDS - began)) s: $*" >&2
        exit 1
    fi
    processor
    echo "<== $name: ok, $((SECONDS - began)) s, of processors $((spent - before)) s"
    if is_as_committed; then echo "${name%% *}" >> "$kept/passed"; fi
    passed=$((passed + 1))
}

# Begins what a later step of this name takes up by `joined`, beside the steps before that, which
# leave a processor idle at times.
begin() {
    local name="$1"
    shift
    is_wanted "$name" || return 0
    ! has_passed "$name" || return 0
    # In a process group of its own, to be ended as a whole.
    set -m
    nice -n 10 "$@" > "$scratch/$name" 2>&1 &
    begun[$name]=$!
    set +m
}
joined() {
    local status=0
    wait "${begun[$1]}" || status=$?
    unset "begun[$1]"
    cat "$scratch/$1"
    return "$status"
}

# A number that the commit decides: each commit has another slice of what is too much for all.
lot() {
    local commit
    commit=$(git rev-parse --verify --quiet HEAD) || commit=0
    echo $((16#${commit:0:7}))
}

# With the features that docs.rs shows.
docs() {
    RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-deps --features swarm-kv/serde,swarm-kv/zerocopy
}

# Under loom the words are other types, so it has a build of its own. With a number it leaves out two of three tests of a
# whole register, which take longer than all others: each number other ones.
loom() {
    local -x RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$target/loom"
    local tests=(cargo test --quiet --locked --profile prove -p swarm-shm --test loom --) long=() skipped=()
    if [[ $# -gt 0 ]]; then
        "${tests[@]}" --list --format=terse > "$scratch/loom" || return
        mapfile -t long < <(sed -n '/^register::/s/: test$//p' "$scratch/loom")
        unset "long[$1 % ${#long[@]}]"
        skipped=("${long[@]/#/--skip=}")
    fi
    "${tests[@]}" --exact "${skipped[@]}"
}

demo() {
    local output
    output=$(cargo run --release --locked --quiet -- demo --json) || return
    echo "$output"
    [[ "$output" == *'"ok":true'* ]]
}

# Instructions are counted on whatever machine this is, beside whatever else runs there.
guard() { ci/install.sh valgrind && benches/guard.sh; }

# What it measures in so short a time means nothing. Servers that are not installed it leaves out: to install them would
# start them.
peers() {
    cargo run --quiet --locked --release -p swarm-benches --no-default-features --features lmdb --example peers -- \
        --rounds 1 --keys 1000 --seconds 0.05
}

# Times are of code as it is used: with the assertions of the other builds it takes twice as long. The command line is
# named as well, so that the libraries have the features that it has, and are built once for both.
kills() {
    cargo build --quiet --locked --release -p swarm-benches -p swarm-cli --no-default-features --example kills || return
    "$target/release/examples/kills" "$@"
}

# What plain tests play a part of. The store's races take longest by far, and optimised they take a third; what is built
# for them would be more than that saves elsewhere.
races() {
    local -x SWARM_DEEP=all SWARM_HISTORY_ROUNDS=60000
    cargo test --quiet --locked --lib evacuate::stories || return
    cargo test --quiet --locked --test harness history:: || return
    cargo test --quiet --locked --test register --test cell --test move_stories --test store_stories \
        --test recycle_sim --test full || return
    cargo test --quiet --locked --profile prove --test store_explore
}

# Read-modify-writes of real processes, for long.
changes() {
    cargo test --quiet --locked --release -p swarm-kv --test accounts --test increments -- --ignored --nocapture
}

# Clients on hot keys, some of them killed, while one node after the other is lost and replaced, and half of the processes
# that replace are killed: for so many seconds, and longer where hardly any node was replaced in that time. With a second
# number, as often, each time others.
torture() {
    local seed
    for ((seed = 1; seed <= ${2:-1}; seed++)); do torture_once "$1" "$seed" || return; done
}
torture_once() {
    local seconds output
    for seconds in "$1" "$((2 * $1))" "$((4 * $1))"; do
        output=$(cargo run --release --locked --quiet -- torture --seconds "$seconds" --replace-nodes --kill-clients \
            --stop-clients --seed "$2" --json) || return
        echo "$output"
        [[ "$output" == *'"linearizable":true'* ]] || return
        [[ "$output" =~ \"replaced\":([0-9]+) ]] && ((BASH_REMATCH[1] < 3)) || return 0
    done
    echo "torture: hardly any node was replaced" >&2
    return 1
}

# Random schedules of all simulators, so many as follow, from number $1 on. A failure names its seed, and the command
# that plays it again. No package is named: those of the tests, and what they share is built with the same features.
schedules() {
    local first="$1" registers="$2" stores="$3"
    echo "schedules from $first on: $registers of registers and cells, $stores of stores"
    SWARM_FIRST=$first SWARM_SCHEDULES=$registers \
        cargo test --quiet --locked --test register_sim --test cell_sim || return
    SWARM_FIRST=$first SWARM_SCHEDULES=$stores \
        cargo test --quiet --locked --test store_sim --test recycle_sim --test locks_sim
}
