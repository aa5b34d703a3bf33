# For the scripts that run memory nodes and clients as processes: what they share. Sourced.
#
# SWARM is the command line, built with the feature rdma. Whatever is started here is ended with the
# script, by its process number.

: "${SWARM:?is to name the command line}"
work="$(mktemp -d)"
# Into a file first: on a terminal there would be progress bars.
exec 2> "$work/errors.log"
running=()

finish() {
    local status=$?
    cat "$work/errors.log"
    for process in "${running[@]:-}"; do
        [[ -z "$process" ]] || kill -KILL "$process" 2>/dev/null || true
    done
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT

announce() { echo "== $*"; }

die() {
    echo "FAILED: $*"
    tail -n 20 "$work"/*.log || true
    exit 1
}

# same WHAT EXPECTED FOUND
same() { [[ "$2" == "$3" ]] || die "$1: expected \`$2\`, found \`$3\`"; }

# contains WHAT PATTERN TEXT
contains() { [[ "$3" == *"$2"* ]] || die "$1: \`$2\` is not in: $3"; }

# Runs a command that must fail with this status, and shows its output.
# fails STATUS COMMAND...
fails() {
    local wanted="$1" output status=0
    shift
    output="$("$@" 2>&1)" || status=$?
    [[ "$status" == "$wanted" ]] || die "\`$*\` ended with $status, not $wanted, and printed: $output"
    echo "$output"
}

# Waits for a command to succeed. The bound counts tries, ten for each second: on a busy host they take
# longer.
# waits SECONDS WHAT COMMAND...
waits() {
    local tries=$(($1 * 10)) what="$2"
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((tries-- > 0)) || die "waited in vain for $what"
        sleep 0.1
    done
}

# Runs commands that must end within so many seconds, and on a busy host within as many times what the
# command line takes to print its version, before and after them, as that is a tenth of a second.
# in_time SECONDS WHAT COMMAND...
in_time() {
    local limit="$1" what="$2" begun moment took
    shift 2
    begun="${EPOCHREALTIME/./}"
    "$SWARM" --version > "$work/version"
    moment=$((${EPOCHREALTIME/./} - begun))
    begun="${EPOCHREALTIME/./}"
    "$@"
    took=$((${EPOCHREALTIME/./} - begun))
    begun="${EPOCHREALTIME/./}"
    "$SWARM" --version > "$work/version"
    moment=$((moment + ${EPOCHREALTIME/./} - begun))
    ((took < limit * 1000000 || took < limit * 5 * moment)) ||
        die "$what took $((took / 1000)) ms, and to print a version $((moment / 2000)) ms"
}

# Starts a memory node's daemon and waits until it is ready; its process number is in `node`.
# memnode LOG ARGUMENTS...
memnode() {
    local log="$work/$1.log"
    shift
    for _ in {1..10}; do
        "$SWARM" memnode "$@" > "$log" 2>&1 &
        node=$!
        running+=("$node")
        waits 30 "a memory node" is_ready_or_ended "$log"
        ! grep -q '^ready' "$log" || return 0
        # On a busy host etcd answers late.
        grep -q 'no answer within' "$log" || break
    done
    die "a memory node does not start"
}

is_ready_or_ended() { grep -q '^ready' "$1" || ! kill -0 "$node"; }

# Whether etcd reports that it is well.
answers_health() {
    local answer
    exec 9<> "/dev/tcp/$1/$2" || return 1
    printf 'GET /health HTTP/1.0\r\n\r\n' >&9
    answer="$(timeout 5 cat <&9)"
    exec 9>&-
    [[ "$answer" == *true* ]]
}

# Runs a command again if etcd did not answer it in time, as on a busy host. Only for commands that may run
# twice.
despite_late_etcd() {
    local status
    for _ in {1..10}; do
        status=0
        "$@" > "$work/output" 2> "$work/output.errors" || status=$?
        [[ "$status" != 0 ]] && grep -q 'no answer within' "$work/output.errors" || break
    done
    cat "$work/output"
    cat "$work/output.errors" >&2
    return "$status"
}

# Starts etcd at this address; its process number is in `etcd`. It has a host of its own elsewhere: here it
# goes before clients, which poll.
start_etcd() {
    nice -n -10 etcd --data-dir "$work/etcd" --listen-client-urls "http://$1" \
        --advertise-client-urls "http://$1" --listen-peer-urls http://127.0.0.1:0 \
        > "$work/etcd.log" 2>&1 &
    etcd=$!
    running+=("$etcd")
    waits 60 etcd answers_health "${1%:*}" "${1#*:}"
}
