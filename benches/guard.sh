#!/usr/bin/env bash
# Fails if a cached operation costs other than benches/baseline.txt says: roundtrips, verbs and bytes exactly, instructions
# and sizes of futures (of this project's compiler, on x86-64) within 3 %. Less is another cost, too: write it down.
#
#   benches/guard.sh            compares
#   benches/guard.sh --write    makes the baseline anew
set -euo pipefail
cd "$(dirname "$0")/.."
baseline=benches/baseline.txt
now="$(mktemp)"
trap 'rm -f "$now"' EXIT
benches/instructions.sh | awk '{ sub(":", "", $1); print "near-" $1 "-instructions " $2 }' > "$now"
# Counts are the same without optimising, which takes longer than all that this does. All that `cargo test` builds is named
# as well, so that the libraries have the same features, and are built once for both.
cargo build --quiet --locked --no-default-features -p swarm-benches -p swarm-core -p swarm-shm -p swarm-kv -p swarm-cli \
    -p swarm-worker -p swarm-kv-full -p swarm-kv-long --example costs
"${CARGO_TARGET_DIR:-target}/debug/examples/costs" >> "$now"
if [[ "${1:-}" == --write ]]; then
    cp "$now" "$baseline"
    echo "$(wc -l < "$baseline") costs written to $baseline"
    exit
fi
awk -v baseline="$baseline" '
    FNR == NR { before[$1] = $2; next }
    !($1 in before) { print "new: " $1 " is " $2; bad = 1; next }
    {
        allowed = $1 ~ /-(instructions|future-bytes)$/ ? 0.03 * before[$1] : 0
        by = $2 - before[$1]
        if (by > allowed || -by > allowed) {
            change = by > 0 ? "dearer" : "cheaper"
            printf("%s: %s is %d, was %d (%+.1f %%)\n", change, $1, $2, before[$1], 100 * by / before[$1])
            bad = 1
        }
        delete before[$1]
    }
    END {
        for (name in before) { print "gone: " name; bad = 1 }
        if (bad) print "if that is meant: benches/guard.sh --write, and commit " baseline
        exit bad
    }' "$baseline" "$now"
echo "$(wc -l < "$now") costs are as $baseline says"
