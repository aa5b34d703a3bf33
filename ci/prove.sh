#!/usr/bin/env bash
# The long version of what .ci/run checks in a few minutes: all schedules, mutations, fuzzing.
#
#   ci/prove.sh [MILLIONS]      random schedules in all, in millions (10: about an hour on two cores)
#   SWARM_FIRST=N ci/prove.sh   from schedule N on, so that another run plays others
set -euo pipefail
cd "$(dirname "$0")/.."
millions="${1:-10}"
if ! [[ "$millions" =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: ci/prove.sh [MILLIONS]" >&2
    exit 2
fi
unset SWARM_SEED
began=$SECONDS
# A register's schedule is the cheapest and a store's the dearest.
register=$((millions * 400000)) cell=$((millions * 500000)) store=$((millions * 100000))

play() {
    local crate="$1" test="$2" schedules="$3" at=$SECONDS
    echo "==> $test, $schedules schedules from ${SWARM_FIRST:-0} on"
    SWARM_SCHEDULES="$schedules" cargo test --quiet --locked --profile prove \
        --no-default-features -p "$crate" --test "$test" -- --nocapture
    echo "<== $test: ok, $((SECONDS - at)) s"
}

play swarm-core register_sim "$register"
play swarm-core cell_sim "$cell"
play swarm-kv store_sim "$store"
echo "==> every schedule of small races, deeper"
SWARM_SURPRISES=3 SWARM_EXPLORED=2000000 cargo test --quiet --locked --profile prove -p swarm-core \
    --test register_explore --test cell_explore -- --nocapture
SWARM_SURPRISES=2 SWARM_EXPLORED=200000 cargo test --quiet --locked --profile prove \
    --no-default-features -p swarm-kv --test store_explore -- --nocapture
echo "==> bounds, against more adversaries"
SWARM_ADVERSARIES=100000 cargo test --quiet --locked --profile prove -p swarm-core \
    --test register_bounds -- --nocapture
echo "==> mutations"
SWARM_SCHEDULES=100000 ci/mutate.sh
echo "==> fuzzing"
ci/fuzz.sh 600
echo "==> real processes"
cargo run --release --locked --quiet -- torture --clients 8 --keys 4 --seconds 60 \
    --kill-clients --kill-node --freeze-node
echo "all of it passed, in $(((SECONDS - began) / 60)) minutes"
