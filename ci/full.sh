#!/usr/bin/env bash
# All of what .ci/run has a slice of: every race as deep as it goes, every mutation, everything that runs in guests,
# long soaks. Meant to run for long, at low priority beside other work (CONTRIBUTING.md has how). Its last line is what
# docs/CORRECTNESS.md has of its last run.
#
#   ci/full.sh             all steps
#   ci/full.sh STEP...     only these, by the first word of their names
#
# A run that was ended, or in which a step failed, is taken up again by the next one, where the tree is as it was
# committed, all the time: steps that have passed at this commit, and mutations that were caught, are not repeated. So
# run it in a clone of its own, beside other work. The step package needs such a tree. Steps that are asked for are run.
caller="$(realpath "$0")"
cd "$(dirname "$caller")/.." || exit
source ci/steps.sh
commit=$(git rev-parse HEAD)
if [[ $# -eq 0 && -z "$(git status --porcelain)" ]]; then
    kept="$target/full/$commit"
    mkdir -p "$kept"
fi

# What takes longest builds in folders of its own, and goes on beside all other steps.
begin mutations env SWARM_SCHEDULES=20001 ci/mutate.sh --kept "${kept:-$scratch/kept}"
step "package (the crates can be published)" cargo package --quiet --workspace --locked --no-verify
step "test (the README's second command)" env SWARM_RIGHTS_REQUIRED=1 cargo test --locked
step "races (as deep as they go, and stories at each point of an operation)" races
step "claims (a pool that is filled up by 64 clients at once)" \
    cargo test --quiet --locked -p swarm-kv-full --test full -- --ignored at_once_fill
step "guard (instructions, roundtrips, verbs and bytes of cached operations are what they were)" guard
step "schedules (random ones)" schedules 1000 5000 1000
step "kills (what a client that is killed costs the others, in a pool that is nearly full as well)" kills
step "torture (ten minutes in which nodes are lost and replaced beside clients that are killed)" torture 60 10
step "changes (accounts over ten thousand kills and stops, a million increments)" changes
step "soak (everything that may wear out)" \
    cargo test --quiet --locked --release -p swarm-cli --test cli -- --ignored nothing_wears_out
step "turnover (a pool that is written fifty times over, by clients that die)" ci/soak.sh 1 50
step "loom (the fabric's words under the memory model)" loom
step "peers (the README's table of others can be made)" peers
step "c (the library for C and C++, its header, symbols, examples and tests, beside other processes)" ci/c.sh
step "python (the package, installed by pip, and its tests)" ci/python.sh
step "examples (programs to copy; a queue of jobs over a thousand kills of its workers)" ci/examples.sh 1000
step "threads (multi-threaded tests under the thread sanitizer)" ci/threads.sh
step "fuzz (damaged files, hostile nodes, bad formats)" ci/fuzz.sh 60
step "rdma (the transport, the store and the command line on real queue pairs, in a guest)" ci/rdma.sh
step "mutations (the checks notice each safety line that is missing)" joined mutations
before=$(paste -sd + "${kept:-$scratch}/seconds" 2> /dev/null || echo 0)
echo "| $(git rev-parse --short "$commit") | $(date -u +%F) | $passed steps | $((SECONDS + before)) s |"
