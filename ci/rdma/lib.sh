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

say() { echo "== $*"; }

die() {
    echo "FAILED: $*"
    tail -n 20 "$work"/*.log || true
    exit 1
}

# same WHAT EXPECTED FOUND
same() { [[ "$2" == "$3" ]] || die "$1: expected \`$2\`, found \`$3\`"; }

# says WHAT PATTERN TEXT
says() { [[ "$3" == *"$2"* ]] || die "$1: \`$2\` is not in: $3"; }

# Runs a command that must fail with this status, and shows what it says.
# fails STATUS COMMAND...
fails() {
    local wanted="$1" said status=0
    shift
    said="$("$@" 2>&1)" || status=$?
    [[ "$status" == "$wanted" ]] || die "\`$*\` ended with $status, not $wanted, and said: $said"
    echo "$said"
}

# waits SECONDS WHAT COMMAND...
waits() {
    local until=$((SECONDS + $1)) what="$2"
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < until)) || die "waited in vain for $what"
        sleep 0.1
    done
}

# Starts a memory node's daemon and waits until it is ready; its process number is in `node`.
# memnode LOG ARGUMENTS...
memnode() {
    local log="$work/$1.log"
    shift
    "$SWARM" memnode "$@" > "$log" 2>&1 &
    node=$!
    running+=("$node")
    waits 30 "a memory node" grep -q '^ready' "$log"
}

# Whether etcd says that it is well.
answers_health() {
    local answer
    exec 9<> "/dev/tcp/$1/$2" || return 1
    printf 'GET /health HTTP/1.0\r\n\r\n' >&9
    answer="$(timeout 5 cat <&9)"
    exec 9>&-
    [[ "$answer" == *true* ]]
}

# Starts etcd at this address; its process number is in `etcd`.
start_etcd() {
    etcd --data-dir "$work/etcd" --listen-client-urls "http://$1" \
        --advertise-client-urls "http://$1" --listen-peer-urls http://127.0.0.1:0 \
        > "$work/etcd.log" 2>&1 &
    etcd=$!
    running+=("$etcd")
    waits 60 etcd answers_health "${1%:*}" "${1#*:}"
}
