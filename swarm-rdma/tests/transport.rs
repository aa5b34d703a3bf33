//! The transport on a real device: what it counts, whom it fences, what it reports when something is
//! wrong.

mod common;

use std::env;
use std::net::SocketAddr;
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use common::in_time::in_time;
use common::{
    POOL, Running, client, connect, connect_as, device_address, endpoints, options, post, report,
    serve, until,
};
use swarm_core::fabric::{Fabric, NodeDown, Verb};
use swarm_core::node::{Address, NodeId};
use swarm_rdma::{
    ClientId, ConnectOptions, DeviceChoice, Endpoint, Error, Fault, MemoryNode, MemorySource,
    PoolId, RdmaFabric, ServeOptions, devices,
};

const AT: Address = Address(600);

fn read() -> Verb<'static> {
    Verb::Read { at: AT, words: 1 }
}

fn write(word: &[u64; 1]) -> Verb<'_> {
    Verb::Write { at: AT, head: word, tail: &[] }
}

fn write_beside() -> Verb<'static> {
    Verb::Write { at: AT.plus(8), head: &[1], tail: &[] }
}

#[test]
fn a_host_without_a_device_says_so_and_what_to_do() {
    if let Err(error) = devices() {
        let message = error.to_string();
        assert!(matches!(error, Error::NoDevice { .. }), "{message}");
        assert!(
            message.contains("no RDMA device") && message.contains("modprobe rdma_rxe"),
            "{message}"
        );
        let endpoint = Endpoint { address: "127.0.0.1:7000".parse().expect("one"), life: None };
        let refused = RdmaFabric::connect(&options(client(0)), &[endpoint]);
        assert!(matches!(refused, Err(Error::NoDevice { .. })));
        let refused = MemoryNode::serve(&ServeOptions::new(endpoint.address, 1 << 20));
        assert!(matches!(refused, Err(Error::NoDevice { .. })));
    }
}

#[test]
fn a_choice_of_device_port_or_gid_that_leads_nowhere_is_explained() {
    let Some(at) = device_address() else { return };
    let found = devices().expect("there is one");
    let name = found[0].name.clone();
    let endpoint = Endpoint { address: SocketAddr::new(at, 9), life: None };
    let refused = |device: DeviceChoice| {
        let mut options = options(client(0));
        options.device = device;
        let error = RdmaFabric::connect(&options, &[endpoint]).expect_err("it is refused");
        error.to_string()
    };
    let choice = DeviceChoice::default();
    let message = refused(DeviceChoice { device: Some("mlx5_9".to_owned()), ..choice.clone() });
    assert!(message.contains("no RDMA device mlx5_9") && message.contains(&name), "{message}");
    let message = refused(DeviceChoice { port: Some(7), ..choice.clone() });
    assert!(message.contains("no port 7"), "{message}");
    let message = refused(DeviceChoice { gid_index: Some(200), ..choice.clone() });
    assert!(message.contains("GID index 200") && message.contains(&at.to_string()), "{message}");
    let message = refused(DeviceChoice { gid_index: Some(0), ..choice.clone() });
    assert!(message.contains("link-local"), "{message}");
    let mut good = options(client(0));
    good.device = DeviceChoice { device: Some(name), port: Some(1), gid_index: Some(1) };
    let nodes = serve(at, 1, 1 << 20);
    let fabric = RdmaFabric::connect(&good, &endpoints(&nodes)).expect("a good choice");
    assert_eq!(post(&fabric, 0, &[read()]), Ok(vec![0]));
}

#[test]
fn memory_that_is_not_to_be_had_is_an_error_and_no_disaster() {
    let Some(at) = device_address() else { return };
    let listen = SocketAddr::new(at, 0);
    let refused =
        |options: &ServeOptions| MemoryNode::serve(options).expect_err("it is refused").to_string();
    let message = refused(&ServeOptions::new(listen, 1 << 40));
    assert!(message.contains("choose a smaller capacity"), "{message}");
    let message = refused(&ServeOptions::new(listen, 0));
    assert!(message.contains("positive multiple of 8"), "{message}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4096).expect("a length");
    let mut short = ServeOptions::new(listen, 1 << 20);
    short.memory = MemorySource::File(file.path().to_owned());
    let message = refused(&short);
    assert!(message.contains("4096 bytes long"), "{message}");
    let message = refused(&ServeOptions::new("203.0.113.1:7000".parse().expect("one"), 1 << 20));
    assert!(message.contains("203.0.113.1:7000") && message.contains("bind"), "{message}");
    // Once a node that listened where no device is was ready for clients that never came.
    let message = refused(&ServeOptions::new("127.0.0.1:0".parse().expect("one"), 1 << 20));
    assert!(message.contains("an address of an RDMA device"), "{message}");
}

#[test]
fn a_file_can_be_a_node_s_memory() {
    let Some(at) = device_address() else { return };
    let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file");
    std::fs::write(file.path(), vec![7; 1 << 20]).expect("its bytes");
    let mut mapped = ServeOptions::new(SocketAddr::new(at, 0), 1 << 20);
    mapped.memory = MemorySource::File(file.path().to_owned());
    let node = MemoryNode::serve(&mapped).expect("a memory node");
    node.enlist(POOL, NodeId(0));
    let nodes = [node];
    let fabric = connect(client(1), &endpoints(&nodes));
    assert_eq!(post(&fabric, 0, &[read()]), Ok(vec![0]), "what the file held is gone");
    post(&fabric, 0, &[write(&[0x0102])]).expect("the node is up");
    let bytes = || std::fs::read(file.path()).expect("its bytes");
    assert_eq!(bytes()[600 * 8..600 * 8 + 2], [2, 1]);
    // Once a second node that was given the same file erased the first one's memory.
    let refused = MemoryNode::serve(&mapped).expect_err("it is taken").to_string();
    assert!(refused.contains("another memory node's"), "{refused}");
    assert_eq!(bytes()[600 * 8..600 * 8 + 2], [2, 1]);
    drop((fabric, nodes));
    MemoryNode::serve(&mapped).expect("it is free again");
}

/// Runs as a child with little memory to lock, as a user who cannot help it.
#[test]
fn refused_memlock_names_the_limit() {
    let Some(at) = device_address() else { return };
    if env::var_os("SWARM_RDMA_MEMLOCK").is_some_and(|limit| limit == "65536") {
        let error = MemoryNode::serve(&ServeOptions::new(SocketAddr::new(at, 0), 1 << 20));
        let error = error.expect_err("1 MiB cannot be locked");
        assert!(matches!(error, Error::Memlock { limit: 65536, .. }), "{error}");
        assert!(error.to_string().contains("LimitMEMLOCK=infinity"), "{error}");
        let endpoint = Endpoint { address: SocketAddr::new(at, 9), life: None };
        let error = RdmaFabric::connect(&options(client(0)), &[endpoint]);
        assert!(matches!(error, Err(Error::Memlock { .. })), "{error:?}");
        return;
    }
    if env::var_os("SWARM_RDMA_MEMLOCK").is_some() {
        // Room for one client and not for two: the second one's error names the limit.
        let endpoint = Endpoint { address: SocketAddr::new(at, 9), life: None };
        let mut options = options(client(0));
        options.patience = Duration::ZERO;
        let _first = RdmaFabric::connect(&options, &[endpoint]).expect("there is room for one");
        let second = RdmaFabric::connect(&options, &[endpoint]);
        assert!(matches!(second, Err(Error::Memlock { limit: 8_388_608, .. })), "{second:?}");
        return;
    }
    for limit in ["65536", "8388608"] {
        let mut command = Command::new("prlimit");
        command.arg(format!("--memlock={limit}"));
        command.args(["setpriv", "--reuid=65534", "--regid=65534"]);
        command.args(["--clear-groups", "--bounding-set=-all"]);
        command.arg(env::current_exe().expect("this program"));
        command.args(["--exact", "refused_memlock_names_the_limit", "--nocapture"]);
        let ended = command.env("SWARM_RDMA_MEMLOCK", limit).output().expect("a child");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    }
}

#[test]
fn a_chain_is_one_doorbell_and_one_completion() {
    let Some(at) = device_address() else { return };
    let nodes = serve(at, 3, 1 << 20);
    let fabric = connect(client(1), &endpoints(&nodes));
    for node in 0..3 {
        post(&fabric, node, &[read()]).expect("the node is up");
    }
    let before = fabric.counters();
    let swap = Verb::Cas { at: AT, expect: 0, new: 0 };
    for _ in 0..100 {
        for node in 0..3 {
            post(&fabric, node, &[write(&[0]), swap, read()]).expect("the node is up");
        }
    }
    let after = fabric.counters();
    // On a busy host, a wait that was long has probed.
    let probes = after.probes - before.probes;
    assert_eq!(after.chains - before.chains, 300 + probes);
    assert_eq!(after.doorbells - before.doorbells, 300 + probes);
    assert_eq!(after.signalled - before.signalled, 300 + probes);
    assert_eq!(after.work_requests - before.work_requests, 900 + probes);
    assert_eq!(after.fenced, before.fenced, "nothing of WRITE, CAS, READ waits");
    assert_eq!(after.registrations, 1);
    post(&fabric, 0, &[read(), write(&[1]), swap, write(&[2])]).expect("the node is up");
    assert_eq!(fabric.counters().fenced - after.fenced, 2, "a WRITE waits for READ and CAS");
    assert!(nodes.iter().all(|node| node.report().registrations == 1));
    assert!(nodes.iter().all(|node| node.report().accepted == 1));
}

#[test]
fn what_a_queue_pair_has_no_room_for_waits() {
    let Some(at) = device_address() else { return };
    let nodes = serve(at, 1, 1 << 20);
    let fabric = connect(client(1), &endpoints(&nodes));
    post(&fabric, 0, &[read()]).expect("the node is up");
    // Three work requests each: many times what a queue pair takes, and READs and atomics among them.
    let add = |n| Verb::Cas { at: AT, expect: n, new: n + 1 };
    let posted: Vec<_> =
        (0..2000).map(|n| fabric.post(NodeId(0), &[write_beside(), add(n), read()])).collect();
    drop(posted);
    assert_eq!(post(&fabric, 0, &[read()]), Ok(vec![2000]), "each took effect, in order");
    let counters = fabric.counters();
    assert!(counters.full > 0, "{counters:?}");
    assert_eq!((counters.connections, counters.registrations), (1, 1));
}

#[test]
fn a_chain_in_the_background_goes_out_with_the_next_one() {
    let Some(at) = device_address() else { return };
    let nodes = serve(at, 1, 1 << 20);
    let endpoints = endpoints(&nodes);
    let (fabric, other) = (connect(client(1), &endpoints), connect(client(2), &endpoints));
    let node = NodeId(0);
    let add = |n| Verb::Cas { at: AT, expect: n, new: n + 1 };
    assert_eq!(post(&fabric, 0, &[read()]), Ok(vec![0]));
    let before = fabric.counters();
    for n in (0..300).step_by(3) {
        fabric.post_deferred(node, &[add(n)]);
        fabric.post_deferred(node, &[add(n + 1), read()]);
        assert_eq!(post(&fabric, 0, &[read(), add(n + 2)]), Ok(vec![n + 2, n + 2]));
    }
    let after = fabric.counters();
    let probes = after.probes - before.probes;
    assert_eq!(after.doorbells - before.doorbells, 100 + probes);
    assert_eq!(after.signalled - before.signalled, 100 + probes);
    assert_eq!(after.work_requests - before.work_requests, 500 + probes);
    // What does not fit goes out at once, behind what waits.
    let large = [7; 1000];
    fabric.post_deferred(node, &[add(300)]);
    fabric.post_deferred(node, &[Verb::Write { at: AT.plus(1), head: &large, tail: &[] }]);
    until("it is there", || post(&other, 0, &[read()]) == Ok(vec![301]));
    fabric.post_deferred(node, &[add(301)]);
    assert_eq!(post(&other, 0, &[read()]), Ok(vec![301]), "it waits");
    fabric.flush();
    until("it is flushed", || post(&other, 0, &[read()]) == Ok(vec![302]));
    // Tear-down waits for a deferred chain, but half a second at most: that is too short if a busy host
    // lets the device wait.
    drop(fabric);
    let waits = (3..13).any(|slot| {
        let fabric = connect(client(slot), &endpoints);
        post(&fabric, 0, &[write(&[302])]).expect("the node is up");
        fabric.post_deferred(node, &[add(302)]);
        let begun = Instant::now();
        drop(fabric);
        let took = begun.elapsed();
        let is_there = post(&other, 0, &[read()]) == Ok(vec![303]);
        assert!(is_there || took >= DRAIN, "tear-down did not wait");
        is_there
    });
    assert!(waits, "no deferred chain got there");
}

/// How long tear-down waits.
const DRAIN: Duration = Duration::from_millis(500);

#[test]
fn an_evicted_client_s_write_does_not_land() {
    let Some(at) = device_address() else { return };
    let nodes = serve(at, 1, 1 << 20);
    let endpoints = endpoints(&nodes);
    let (evicted, other) = (connect(client(1), &endpoints), connect(client(2), &endpoints));
    post(&evicted, 0, &[write(&[5])]).expect("it is not evicted yet");
    // Many of its chains are under way when the fence comes.
    let add = |n| Verb::Cas { at: AT, expect: n, new: n + 1 };
    let posted: Vec<_> = (5..200).map(|n| evicted.post(NodeId(0), &[add(n)])).collect();
    assert_eq!(nodes[0].fence(client(1)), 1);
    let at_fence = post(&other, 0, &[read()]).expect("others go on");
    for n in at_fence[0]..at_fence[0] + 50 {
        drop(evicted.post(NodeId(0), &[add(n)]));
        let lands = post(&evicted, 0, &[write(&[999])]);
        assert_eq!(lands, Err(NodeDown));
    }
    drop(posted);
    assert_eq!(post(&other, 0, &[read()]), Ok(at_fence), "nothing landed behind the fence");
    until("it learns why", || {
        drop(evicted.post(NodeId(0), &[read()]));
        matches!(evicted.status()[0].fault, Some(Fault::Fenced { .. }))
    });
    let message = evicted.status()[0].fault.as_ref().expect("a fault").to_string();
    assert!(message.contains("client 1") && message.contains("evicted"), "{message}");
    assert_eq!(nodes[0].fence(client(1)), 0, "again");
    // Its next life is another client, whom nobody has evicted; earlier ones stay out.
    let next = ClientId { incarnation: 900, ..client(1) };
    post(&connect(next, &endpoints), 0, &[write(&[6])]).expect("a new client");
    let late = RdmaFabric::connect(&options(ClientId { incarnation: 899, ..next }), &endpoints);
    let late = late.expect("a fabric");
    until("it is fenced", || matches!(late.status()[0].fault, Some(Fault::Fenced { .. })));
    assert_eq!(nodes[0].report().fenced, 1);
}

#[test]
fn nodes_of_other_pools_and_numbers_are_refused() {
    let Some(at) = device_address() else { return };
    let nodes = serve(at, 1, 1 << 20);
    let fault = |pool, endpoint, wanted: &str| {
        let mut options = options(client(3));
        options.pool = pool;
        let fabric = RdmaFabric::connect(&options, &[endpoint]).expect("a fabric");
        assert_eq!(post(&fabric, 0, &[read()]), Err(NodeDown));
        until(wanted, || {
            let message = fabric.status()[0].fault.as_ref().expect("a fault").to_string();
            message.contains(wanted) && message.contains(&endpoint.address.to_string())
        });
    };
    let endpoint = endpoints(&nodes)[0];
    fault(PoolId(3), endpoint, "belongs to pool");
    fault(
        POOL,
        Endpoint { life: Some(swarm_rdma::InstanceId(4)), ..endpoint },
        "has lost what it held",
    );
    nodes[0].enlist(POOL, NodeId(2));
    fault(POOL, endpoint, "is node 2 of its pool, not node 0");
    nodes[0].release().expect("it is released");
    fault(POOL, Endpoint { life: None, ..endpoint }, "belongs to no pool");
}

/// Three nodes as processes; one dies under load.
#[test]
fn a_killed_node_is_an_error_in_a_moment_and_never_comes_back_empty() {
    let Some(at) = device_address() else { return };
    let mut nodes: Vec<_> = (0..3).map(|number| Running::start(number, at, 0)).collect();
    let mut client_of_dead_node = None;
    let limit = Duration::ZERO..Duration::from_millis(150);
    in_time("a killed node was an error", limit, 5, || {
        client_of_dead_node = None;
        nodes[1] = Running::start(1, at, 0);
        let endpoints: Vec<_> = nodes.iter().map(Running::endpoint).collect();
        // The options that clients have; with them a busy host loses connections, which are made anew.
        let fabric = connect_as(&ConnectOptions::new(POOL, client(1), 1024), &endpoints);
        for node in 0..3 {
            until("the node is up", || post(&fabric, node, &[write(&[7])]).is_ok());
        }
        nodes[1].kill();
        let took = until_error(&fabric, 1);
        client_of_dead_node = Some((fabric, endpoints[1].address));
        took
    });
    let (fabric, address) = client_of_dead_node.expect("a try");
    until("the others go on", || post(&fabric, 0, &[read()]) == Ok(vec![7]));
    // Later chains fail at once: nothing is posted.
    let mut later = pin!(fabric.post(NodeId(1), &[read()]));
    let polled = later.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(NodeDown))), "a chain of a dead node is posted");
    // It starts again, at the same place, with empty memory, and reports that it is the same.
    nodes[1] = Running::start(1, at, address.port());
    assert_eq!(nodes[1].endpoint().address, address);
    until("it is known to be another", || {
        drop(fabric.post(NodeId(1), &[read()]));
        matches!(fabric.status()[1].fault, Some(Fault::Reborn { .. }))
    });
    assert_eq!(post(&fabric, 1, &[read()]), Err(NodeDown));
}

/// Posts chains until one is not answered. Returns how long that took, from the last answer on.
fn until_error(fabric: &RdmaFabric, node: u8) -> Duration {
    for _ in 0..10_000 {
        let begun = Instant::now();
        if post(fabric, node, &[read()]).is_err() {
            return begun.elapsed();
        }
    }
    panic!("a dead node answers");
}

/// Not a test of its own: what the tests' children run.
#[test]
fn child() {
    let Some(number) = Running::number() else { return };
    let at: SocketAddr = env::var("SWARM_RDMA_AT").expect("an address").parse().expect("one");
    let node = MemoryNode::serve(&ServeOptions::new(at, 32 << 20)).expect("a memory node");
    node.enlist(POOL, NodeId(number));
    report(&node);
    // Ends when the parent does.
    let _ = std::io::stdin().read_line(&mut String::new());
}
