#!/usr/bin/env bash
# Memory nodes, etcd and clients as processes of one host with an RDMA device: everything that the
# command line does on pools behind RDMA cards, and what happens when nodes, clients and etcd die.
#
#   SWARM=…/swarm ci/rdma/cluster.sh [ADDRESS] [STEP...]
#
# ADDRESS is the device's (10.99.0.1, as in guest.sh); without steps all of them run: static, lone,
# torture, nodes, evict, etcd, device.
set -euo pipefail
cd "$(dirname "$0")/../.."
source ci/rdma/lib.sh

address="${1:-10.99.0.1}"
[[ $# -gt 0 ]] && shift
steps=" ${*:-static lone torture nodes evict etcd device} "
wants() { [[ "$steps" == *" $1 "* ]]; }
capacity=64MiB
file="$work/nodes.toml"
pool="rdma:$file"
nodes=()

# The first node's memory is this file, if one is named.
start_nodes() {
    local memory="${1:-}" port
    nodes=()
    for port in 7471 7472 7473; do
        memnode "node-$port" --listen "$address:$port" --capacity "$capacity" --static "$file" \
            ${memory:+--memory "$memory"}
        memory=
        nodes+=("$node")
    done
}

# A client that stays: an import that goes on reading lines from descriptor 7. Its process number is
# in `client`.
# stays POOL
stays() {
    rm -f "$work/lines"
    mkfifo "$work/lines"
    "$SWARM" import "$1" "$work/lines" > "$work/import.log" 2>&1 &
    client=$!
    running+=("$client")
    exec 7> "$work/lines"
    printf 'before\tyes\n' >&7
    waits 20 "the client's first write" "$SWARM" get "$1" before
}

# Asked to end, they end well; but for one that a step has killed.
stop_nodes() {
    local process status
    for process in "${nodes[@]}"; do
        kill -TERM "$process" 2>/dev/null || true
        status=0
        wait "$process" 2>/dev/null || status=$?
        [[ "$status" == 0 || "$status" == 137 ]] || die "a memory node ended with $status"
    done
}

# How many queue pairs a node has fenced, as its daemon reported last.
# fenced LOG
fenced() { sed -n 's/.* \([0-9]*\) fenced.*/\1/p' "$work/$1.log" | tail -n 1 | grep . || echo 0; }

# How many clients the pool has.
clients() { "$SWARM" info "$pool" --json | sed -n 's/.*"clients":\([0-9]*\).*/\1/p'; }

# Evicts client 0, and goes on until no daemon lists it: one that a busy host lets answer late is passed
# over. As it may be late again, none must list it three times.
evict_everywhere() {
    local output absent=0
    "$SWARM" evict "$pool" 0
    for _ in {1..50}; do
        if output="$("$SWARM" evict "$pool" 0 2>&1)"; then absent=0; continue; fi
        [[ "$output" == *"has no client 0"* ]] || die "an eviction: $output"
        ((++absent < 3)) || return 0
    done
    die "client 0 is listed after 50 evictions"
}

# The client slot of a client that held a lock when it was killed is in `slot`; `waiter` waits for that lock.
# holder_dies POOL
holder_dies() {
    local holder
    rm -f "$work/command" "$work/inside"
    "$SWARM" lock "$1" door -- bash -c "echo \$\$ > '$work/command'; exec sleep 600" &
    holder=$!
    running+=("$holder")
    waits 30 "a command under the lock" test -s "$work/command"
    running+=("$(< "$work/command")")
    contains "who holds the lock" ":$holder, attached, token" "$("$SWARM" locks "$1")"
    slot="$("$SWARM" locks "$1" --json | sed -n 's/.*"holders":\[{"client":\([0-9]*\).*/\1/p')"
    kill -KILL "$holder"
    kill -KILL "$(< "$work/command")"
    "$SWARM" lock "$1" door --timeout 300s -- echo inside > "$work/inside" &
    waiter=$!
    running+=("$waiter")
}

# Nobody reaches what listens on this TCP port of this host any more; queue pairs go on.
cut_off() {
    tc qdisc add dev lo clsact
    tc filter add dev lo egress protocol ip u32 match ip protocol 6 0xff match ip dport "$1" 0xffff \
        action drop
}

reconnect() { tc qdisc del dev lo clsact; }

fresh() { # a pool without clients, of nodes that are all there
    "$SWARM" destroy --force "$pool" > /dev/null 2>&1 || true
    "$SWARM" create "$pool" --capacity "$capacity" "$@" > /dev/null
}

echo "nodes = [\"$address:7471\", \"$address:7472\", \"$address:7473\"]" > "$file"
# A busy host may let nodes and clients wait for a processor. What dies is noticed all the same: the
# system reports it to all that are connected.
export SWARM_NODE_TIMEOUT="${SWARM_NODE_TIMEOUT:-7s}"
SWARM_GID_INDEX="${SWARM_GID_INDEX:-}"
[[ -n "$SWARM_GID_INDEX" ]] || unset SWARM_GID_INDEX

if wants static; then
    announce "no nodes, no pool: errors within seconds that say what to do"
    contains "no nodes" "does not answer" "$(fails 3 "$SWARM" get "$pool" a)"
    truncate -s "${capacity%iB}" "$work/memory"
    start_nodes "$work/memory"
    contains "no pool" "swarm create" "$(fails 3 "$SWARM" get "$pool" a)"
    contains "not listed" "does not list" \
        "$(fails 2 "$SWARM" memnode --listen "$address:7480" --capacity 64MiB --static "$file")"
    contains "twice at one address" "is another \`swarm memnode\` running there" \
        "$(fails 3 "$SWARM" memnode --listen "$address:7471" --capacity 64MiB --static "$file")"
    contains "listening everywhere" "is no address that clients could reach" "$(fails 2 "$SWARM" memnode \
        --listen 0.0.0.0:7480 --capacity 64MiB --etcd 127.0.0.1:2379 --name a)"
    contains "a wrong GID" "GID index 77" "$(fails 3 "$SWARM" memnode --gid-index 77 \
        --listen "$address:7471" --capacity 64MiB --static "$file")"

    announce "the everyday commands"
    "$SWARM" create "$pool" --capacity "$capacity"
    contains "twice" "is a pool already" "$(fails 3 "$SWARM" create "$pool" --capacity "$capacity")"
    "$SWARM" put "$pool" greeting hello
    same get hello "$("$SWARM" get "$pool" greeting)"
    # An insert goes to all nodes, an update to a majority.
    "$SWARM" insert "$pool" another one-for-all-nodes
    waits 5 "what is in a node's memory to be in its file" grep -qa one-for-all-nodes "$work/memory"
    fails 1 "$SWARM" insert "$pool" another two > /dev/null
    "$SWARM" update "$pool" another three
    same get three "$("$SWARM" get "$pool" another)"
    "$SWARM" delete "$pool" another
    fails 1 "$SWARM" get "$pool" another > /dev/null
    head -c 300000 /dev/urandom | base64 -w 0 > "$work/large"
    "$SWARM" put "$pool" large - < "$work/large"
    "$SWARM" get "$pool" large | cmp - "$work/large" || die "a large value is damaged"
    "$SWARM" delete "$pool" large
    for number in {1..200}; do printf 'key-%s\tvalue-%s\n' "$number" "$number"; done > "$work/in"
    "$SWARM" import "$pool" "$work/in"
    "$SWARM" export "$pool" | grep ^key- | sort > "$work/out"
    sort "$work/in" | cmp - "$work/out" || die "what was imported is not what was exported"
    "$SWARM" info "$pool"
    same "clients that are left" 0 "$(clients)"
    contains "a wrong GID" "GID index 77" "$(fails 3 "$SWARM" get "$pool" greeting --gid-index 77)"
    "$SWARM" doctor --static "$file" || true
    bad="$(fails 1 "$SWARM" doctor --gid-index 77 --static /nowhere)"
    contains "the doctor of a wrong GID" "GID index 77" "$bad"
    contains "the doctor of a list that is not there" "/nowhere" "$bad"
    contains "the doctor of the rest" "clock source" "$bad"

    announce "bench"
    "$SWARM" bench "$pool" --keys 500 --ops 3000 --clients 2 --workload b
    announce "a pool that is written over again and again, while another client waits for lines"
    "$SWARM" destroy --force "$pool" > /dev/null
    "$SWARM" create "$pool" --capacity 8MiB
    stays "$pool"
    "$SWARM" bench "$pool" --keys 200 --value-size 4096 --ops 5000 --clients 2 --workload a
    "$SWARM" info "$pool"
    exec 7>&-
    wait "$client" || die "the client that waited ended with $?: $(cat "$work/import.log")"
    fresh --max-clients 2
    contains "too many clients" "client slots" \
        "$(fails 3 "$SWARM" bench "$pool" --clients 3 --keys 10 --ops 100)"
    same "clients that are left of those" 0 "$(clients)"
    stop_nodes
    contains "a node's report" "memory registrations" "$(cat "$work/node-7471.log")"
fi

if wants lone; then
    # Once it ended with the process that read its reports, without a word, and its memory was gone.
    announce "a memory node at an IPv6 address, in huge pages, serves on when nobody reads its reports"
    interface="$(ip -o address show to "$address" | awk '{ print $2; exit }')"
    ip -6 address add fd99::1/64 dev "$interface" nodad
    echo 'nodes = ["[fd99::1]:7474"]' > "$work/lone.toml"
    lone="rdma:$work/lone.toml"
    set_aside="$(< /proc/sys/vm/nr_hugepages)"
    echo 40 > /proc/sys/vm/nr_hugepages
    mkfifo "$work/reports"
    head -n 1 < "$work/reports" > "$work/lone.log" &
    "$SWARM" memnode --listen '[fd99::1]:7474' --capacity "$capacity" --static "$work/lone.toml" \
        --report 1s > "$work/reports" &
    nodes=("$!")
    running+=("$!")
    waits 30 "a memory node" grep -q '^ready' "$work/lone.log"
    contains "huge pages" "in huge pages" "$(< "$work/lone.log")"
    "$SWARM" create "$lone" --nodes 1 --capacity "$capacity"
    stays "$lone"
    # Clients take none: they would lock more than they have to.
    same "huge pages that are left" 8 "$(sed -n 's/^HugePages_Free: *//p' /proc/meminfo)"
    printf 'greeting\thello\n' >&7
    exec 7>&-
    wait "$client" || die "the client ended with $?: $(cat "$work/import.log")"
    sleep 3
    same "what it holds" hello "$("$SWARM" get "$lone" greeting)"
    contains "a GID of the other family" "cannot be reached" \
        "$(fails 3 "$SWARM" get "$lone" greeting --gid-index 1)"
    stop_nodes
    ip -6 address del fd99::1/64 dev "$interface"
    echo "$set_aside" > /proc/sys/vm/nr_hugepages
fi

if wants torture; then
    announce "torture: clients are killed, memory nodes' daemons stopped; one stamp slot for all writers"
    start_nodes
    fresh --max-clients 64 --slots 1
    "$SWARM" torture "$pool" --seconds 5 --clients 3 --keys 3 --kill-clients --freeze-node \
        --history "$work/history"
    "$SWARM" check "$work/history"
    stop_nodes
fi

if wants nodes; then
    announce "torture: a memory node is killed, as are clients"
    start_nodes
    fresh --max-clients 64
    "$SWARM" torture "$pool" --seconds 5 --clients 3 --keys 3 --kill-clients --kill-node \
        --history "$work/history"
    "$SWARM" check "$work/history"
    announce "the others go on, also for those that come later"
    "$SWARM" put "$pool" still there
    same get there "$("$SWARM" get "$pool" still)"
    announce "without a majority: errors within seconds that name who is missing"
    stays "$pool"
    kill -KILL "${nodes[0]}" "${nodes[1]}" 2> /dev/null || true
    sleep 1
    without_majority() {
        printf 'after\tno\n' >&7
        exec 7>&-
        status=0
        wait "$client" || status=$?
        same "the client's exit status" 3 "$status"
        contains "the client" "too few memory nodes answer: memory node $address:" \
            "$(cat "$work/import.log")"
        contains "a later client" "memory nodes answered, 2 are needed: memory node $address:" \
            "$(fails 3 "$SWARM" get "$pool" still)"
    }
    in_time 15 "to report it" without_majority
    stop_nodes
fi

if wants evict; then
    announce "an evicted client's write does not land"
    start_nodes
    fresh
    stays "$pool"
    "$SWARM" info "$pool"
    contains "who is there, for programs" '"owners":[{"client":0,' "$("$SWARM" info "$pool" --json)"
    evict_everywhere
    printf 'after\tno\n' >&7
    exec 7>&-
    status=0
    wait "$client" || status=$?
    same "the evicted client's exit status" 3 "$status"
    contains "the evicted client" "was evicted" "$(cat "$work/import.log")"
    fails 1 "$SWARM" get "$pool" after > /dev/null
    same get yes "$("$SWARM" get "$pool" before)"
    contains "nobody there" "has no client 0" "$(fails 3 "$SWARM" evict "$pool" 0)"
    announce "a lock whose holder is killed: the next client has it once the dead one is evicted"
    holder_dies "$pool"
    sleep 3
    [[ ! -s "$work/inside" ]] || die "a client is taken for dead, and nobody has fenced it"
    "$SWARM" evict "$pool" "$slot"
    waits 60 "the lock to be taken over" test -s "$work/inside"
    wait "$waiter" || die "the one that waited for the lock ended with $?"
    same "who holds the lock behind that" "" "$("$SWARM" locks "$pool" | grep 'held by' || true)"
    stop_nodes
fi

if wants etcd; then
    announce "the same with etcd"
    members=127.0.0.1:2379
    named="rdma://$members/pool"
    without_etcd() {
        contains "etcd gone at start" "etcd at" "$(fails 3 "$SWARM" get "$named" a)"
        contains "etcd gone at start" "etcd at" \
            "$(fails 3 "$SWARM" create "$named" --capacity "$capacity")"
        contains "etcd gone at start" "etcd at" "$(fails 3 "$SWARM" memnode --listen "$address:7481" \
            --capacity 64MiB --etcd "$members" --name a)"
    }
    in_time 30 "to report it" without_etcd
    start_etcd "$members"
    nodes=()
    for name in a b c; do
        memnode "$name" --listen "$address:$((7481 + ${#nodes[@]}))" --capacity "$capacity" \
            --etcd "$members" --name "$name" --report 1s
        nodes+=("$node")
    done
    twin="$(fails 3 "$SWARM" memnode --listen "$address:7490" --capacity 64MiB --etcd "$members" \
        --name a)"
    contains "two nodes with one name" "$address:7481" "$twin"
    contains "two nodes with one name" "$address:7490" "$twin"
    # One that was not answered in time may have made it.
    despite_late_etcd "$SWARM" create "$named" --capacity "$capacity" ||
        despite_late_etcd "$SWARM" info "$named"
    despite_late_etcd "$SWARM" put "$named" greeting hello
    doctor="$("$SWARM" doctor --etcd "$members" --node "$address:7481" || true)"
    echo "$doctor"
    # Those that etcd knows need not be named.
    same "the nodes that the doctor has asked" 3 "$(grep -c 'a queue pair works' <<< "$doctor")"
    announce "torture with etcd"
    despite_late_etcd "$SWARM" torture "$named" --seconds 4 --clients 3 --keys 3 --kill-clients
    announce "a daemon that nobody reaches learns of an eviction from etcd"
    stays "$named"
    slot="$(despite_late_etcd "$SWARM" info "$named" | sed -n 's/^client *\([0-9][0-9]*\) .*incarnation.*/\1/p' | head -n 1)"
    before="$(fenced c)"
    cut_off 7483
    # On a busy host others may be late as well.
    evicted="$(despite_late_etcd "$SWARM" evict "$named" "$slot" --json)"
    [[ "$evicted" =~ \"missing\":\[[^]]*\"c\" ]] || die "node c received the eviction: $evicted"
    fences_more() { (($(fenced c) > before)); }
    waits 10 "the daemon that was cut off to fence the client" fences_more
    reconnect
    printf 'after\tno\n' >&7
    exec 7>&-
    status=0
    wait "$client" || status=$?
    same "the evicted client's exit status" 3 "$status"
    fails 1 "$SWARM" get "$named" after > /dev/null
    announce "a lock whose holder is killed: with etcd, the next client has it once the lease is over"
    holder_dies "$named"
    waits 60 "the lock to be taken over" test -s "$work/inside"
    wait "$waiter" || die "the one that waited for the lock ended with $?"
    announce "etcd dies; the clients that there are go on"
    stays "$named"
    kill -KILL "$etcd"
    sleep 8
    for number in {1..50}; do printf 'after-%s\tyes\n' "$number"; done >&7
    sleep 1
    contains "a new client" "etcd at" "$(fails 3 "$SWARM" get "$named" before)"
    exec 7>&-
    wait "$client" || die "the client did not go on: $(cat "$work/import.log")"
    start_etcd "$members"
    same get yes "$(despite_late_etcd "$SWARM" get "$named" after-50)"
    "$SWARM" destroy "$named" --force
    stop_nodes
fi

if wants device; then
    # Once nobody was notified, and the system waited for the daemon for ever.
    announce "a memory node whose device is removed reports it, and ends"
    memnode removed --listen "$address:7471" --capacity "$capacity" --static "$file"
    interface="$(ip -o address show to "$address" | awk '{ print $2; exit }')"
    rdma link delete rxe0 &
    running+=("$!")
    status=0
    wait "$node" || status=$?
    same "the memory node's exit status" 3 "$status"
    contains "the memory node" "its RDMA device was removed" "$(< "$work/removed.log")"
    wait "${running[-1]}" || die "the device stays"
    contains "a client" "no RDMA device" "$(fails 1 "$SWARM" doctor --rdma)"
    rdma link add rxe0 type rxe netdev "$interface"
fi
announce "all is well"
