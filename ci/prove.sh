#!/usr/bin/env bash
# The long version of what .ci/run checks in a few minutes: all schedules, mutations, fuzzing.
#
#   ci/prove.sh [MILLIONS]      random schedules in all, in millions (10: about two hours on two cores)
#   SWARM_FIRST=N ci/prove.sh   from schedule N on, so that another run plays others
#   SWARM_REHEARSE=1 ci/prove.sh   every part with next to nothing to do, to see that all of it works
set -euo pipefail
cd "$(dirname "$0")/.."
millions="${1:-10}"
if [[ $# -gt 1 ]] || ! [[ "$millions" =~ ^[1-9][0-9]{0,5}$ ]]; then
    echo "usage: ci/prove.sh [MILLIONS]" >&2
    exit 2
fi
if ! [[ "${SWARM_FIRST:-0}" =~ ^[0-9]{1,18}$ ]]; then
    echo "SWARM_FIRST is the number of a schedule, not $SWARM_FIRST" >&2
    exit 2
fi
# What each part plays is set here.
unset SWARM_SEED SWARM_SCHEDULES SWARM_SURPRISES SWARM_EXPLORED SWARM_ADVERSARIES SWARM_SHRINK
export SWARM_DEEP=all
began=$SECONDS
parts=()
# A register's schedule is the cheapest and a store's the dearest. Registers have two protocols.
register=$((millions * 200000)) cell=$((millions * 440000)) store=$((millions * 80000))
explored=$((millions * 50000)) explored_store=$((millions * 2000))
adversaries=100000 mutated=100000 fuzzed=120 tortured=60
mutations=()
if [[ -n "${SWARM_REHEARSE:-}" ]]; then
    register=400 cell=500 store=20
    explored=200 explored_store=50 adversaries=5 mutated=1000 fuzzed=1 tortured=2
    mutations=(cell-promise-minority)
fi

# Runs a part, named first, and keeps how long it took.
part() {
    local name="$1" at=$SECONDS
    shift
    echo "==> $name: $*"
    if ! "$@"; then
        echo "FAILED: $name, after $((SECONDS - at)) s; passed before: ${parts[*]:-nothing}" >&2
        exit 1
    fi
    echo "<== $name: ok, $((SECONDS - at)) s"
    parts+=("$name ($((SECONDS - at)) s)")
}
checks() { cargo test --quiet --locked --profile prove "$@" -- --nocapture; }
# The first $1 schedules of a test, a share of them for each processor.
schedules() {
    local all="$1" at="${SWARM_FIRST:-0}" worker share workers running=() failed=0
    shift
    checks "$@" --no-run
    workers=$(nproc)
    for ((worker = 0; worker < workers; worker++)); do
        share=$((all / workers + (worker < all % workers)))
        SWARM_FIRST=$at SWARM_SCHEDULES=$share checks "$@" &
        running+=("$!")
        at=$((at + share))
    done
    for worker in "${running[@]}"; do wait "$worker" || failed=1; done
    return "$failed"
}

part "registers, twice $register schedules from ${SWARM_FIRST:-0} on" \
    schedules "$register" -p swarm-core --test register_sim
part "cells, $cell schedules" schedules "$cell" -p swarm-core --test cell_sim
part "the store, $store schedules" schedules "$store" -p swarm-kv-long --test store_sim
part "locks, $store schedules" schedules "$store" -p swarm-kv-long --test locks_sim
part "memory that comes back, $store schedules" schedules "$store" -p swarm-kv-long --test recycle_sim
SWARM_SURPRISES=2 SWARM_EXPLORED=$explored part "every schedule of small races, deeper" \
    checks -p swarm-core --test register --test cell explore::
SWARM_SURPRISES=1 SWARM_EXPLORED=$explored_store part "every schedule of the store's, deeper" \
    checks -p swarm-kv-long --test store_explore
SWARM_ADVERSARIES=$adversaries part "bounds, against $adversaries adversaries" \
    checks -p swarm-core --test register bounds::
SWARM_SCHEDULES=$mutated part "mutations" ci/mutate.sh "${mutations[@]}"
part "fuzzing" ci/fuzz.sh "$fuzzed"
# Clients of near memory do several times as much, and all of it is to be judged.
for run in "$tortured --kill-node --freeze-node" "$tortured --stop-clients --roll-nodes" \
    "$((1 + tortured / 4)) --stop-clients --near"; do
    # shellcheck disable=SC2086 # these are several words
    part "real processes, seconds $run" cargo run --release --locked --quiet -- torture --clients 8 --keys 4 \
        --kill-clients --seconds $run
done
printf '%s\n' "${parts[@]}"
echo "all ${#parts[@]} parts passed, $((2 * register + cell + 2 * store)) random schedules, in $(((SECONDS - began) / 60)) minutes"
