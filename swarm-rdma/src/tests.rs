//! Tests that need private interfaces: peers that misbehave, and completions that fail. They need a
//! device; `ci/rdma.sh` runs them in a guest.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rdma_sys::ibv_wc_status;
use swarm_core::fabric::{Fabric, NodeDown, Verb};
use swarm_core::layout::LAYOUT_VERSION;
use swarm_core::node::{Address, NodeId};

use crate::handshake::{ClientHello, Reject};
use crate::verbs::{Channel, Connection, Event, EventKind, Id, Limits, status_text};
use crate::{
    ClientId, ConnectOptions, Endpoint, Fault, InstanceId, MemoryNode, NodeHello, PoolId,
    RdmaFabric, ServeOptions, devices,
};

const POOL: PoolId = PoolId(77);
const ME: ClientId = ClientId { slot: 1, incarnation: 5 };
const AT: Address = Address(600);

fn device_address() -> Option<IpAddr> {
    let devices = match devices() {
        Ok(devices) => devices,
        Err(error) => {
            assert!(std::env::var_os("SWARM_RDMA_REQUIRED").is_none(), "{error}");
            eprintln!("SKIPPED, run it by ci/rdma.sh: {error}");
            return None;
        }
    };
    let gids = devices.iter().flat_map(|device| &device.ports).flat_map(|port| &port.gids);
    gids.filter_map(|gid| gid.address()).find(IpAddr::is_ipv4)
}

fn serve(at: IpAddr) -> MemoryNode {
    serve_as(0, at)
}

fn serve_as(number: u8, at: IpAddr) -> MemoryNode {
    let node = MemoryNode::serve(&ServeOptions::new(SocketAddr::new(at, 0), 1 << 20));
    let node = node.expect("a memory node");
    node.enlist(POOL, NodeId(number));
    node
}

fn connect(address: SocketAddr) -> RdmaFabric {
    let options = ConnectOptions::new(POOL, ME, 1024);
    RdmaFabric::connect(&options, &[Endpoint { address, life: None }]).expect("a fabric")
}

fn fault(fabric: &RdmaFabric) -> Option<Fault> {
    fabric.status()[0].fault.clone()
}

/// Posts a chain. Returns its reply, and how long that took.
fn post(fabric: &RdmaFabric, chain: &[Verb<'_>]) -> (Result<Vec<u64>, NodeDown>, Duration) {
    let begun = Instant::now();
    let mut posted = pin!(fabric.post(NodeId(0), chain));
    loop {
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(reply) = posted.as_mut().poll(&mut cx) {
            return (reply.map(|reply| reply.to_vec()), begun.elapsed());
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "a chain does not end");
    }
}

fn read() -> Verb<'static> {
    Verb::Read { at: AT, words: 1 }
}

/// Waits until chains reach the node again.
fn until_up(fabric: &RdmaFabric) -> Duration {
    let begun = Instant::now();
    while post(fabric, &[read()]).0.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the node does not come back");
        thread::sleep(Duration::from_millis(1));
    }
    begun.elapsed()
}

/// A peer that answers requests by calling `answer`.
struct Peer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Peer {
    fn start(at: IpAddr, mut answer: impl FnMut(Event) + Send + 'static) -> Self {
        let channel = Channel::new().expect("a channel");
        let listener = Id::new(&channel).expect("an identifier");
        listener.bind(SocketAddr::new(at, 0)).expect("an address");
        listener.listen(8).expect("a listener");
        let address = SocketAddr::new(at, listener.port());
        let stop = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let _listener = listener;
            while !its.load(std::sync::atomic::Ordering::Relaxed) {
                match channel.next().expect("the channel works") {
                    Some(event) => answer(event),
                    None => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Answers each request by a rejection with these bytes.
fn rejecting(at: IpAddr, bytes: Vec<u8>) -> Peer {
    Peer::start(at, move |event| {
        if let Some(id) = event.request {
            id.reject(&bytes).expect("a rejection");
        }
    })
}

/// Accepts each request with these bytes, and keeps the connection.
fn accepting(node: &MemoryNode, at: IpAddr, bytes: Vec<u8>, keep: bool) -> Peer {
    let (domain, queue, region) = node.parts();
    let mut kept = Vec::new();
    Peer::start(at, move |event| {
        let Some(id) = event.request else { return };
        let limits = Limits { queue: 1, inline: 0, asked: 0, answered: 16, retries: 0 };
        let connection =
            Connection::new(id, &domain, &queue, &region, limits).expect("it connects");
        connection.accept(&bytes).expect("it accepts");
        if keep {
            kept.push(connection);
        }
    })
}

#[test]
fn refusals_name_the_node_and_what_is_wrong() {
    let Some(at) = device_address() else { return };
    type Expected = fn(SocketAddr) -> Fault;
    let refusals: [(Vec<u8>, Expected); 4] = [
        (vec![7; 40], |address| Fault::Foreign { address }),
        (Vec::new(), |address| Fault::Foreign { address }),
        (Reject::Version(9).encode()[..Reject::BYTES].to_vec(), |address| Fault::Version {
            address,
            version: 9,
        }),
        (Reject::Exhausted.encode()[..Reject::BYTES].to_vec(), |address| Fault::Exhausted {
            address,
        }),
    ];
    for (bytes, expected) in refusals {
        let peer = rejecting(at, bytes);
        let found = fault(&connect(peer.address));
        let expected = expected(peer.address);
        assert_eq!(found, Some(expected.clone()));
        assert!(expected.to_string().contains(&peer.address.to_string()), "{expected}");
    }
}

#[test]
fn consent_of_the_wrong_node_is_no_connection() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let good = NodeHello {
        pool: POOL,
        node: NodeId(0),
        life: InstanceId(1),
        layout_version: LAYOUT_VERSION,
        words: 1 << 17,
        base: 0,
        rkey: 0,
    };
    type Expected = fn(&Fault) -> bool;
    let cards: [(NodeHello, Expected); 4] = [
        (NodeHello { pool: PoolId(1), ..good }, |fault| matches!(fault, Fault::OtherPool { .. })),
        (NodeHello { node: NodeId(2), ..good }, |fault| matches!(fault, Fault::OtherNode { .. })),
        (NodeHello { words: 1000, ..good }, |fault| matches!(fault, Fault::Small { .. })),
        (NodeHello { layout_version: 99, ..good }, |fault| {
            matches!(fault, Fault::Version { version: 99, .. })
        }),
    ];
    for (card, expected) in cards {
        let peer = accepting(&node, at, card.encode()[..NodeHello::BYTES].to_vec(), true);
        let fabric = connect(peer.address);
        let found = fault(&fabric).expect("there is no connection");
        assert!(expected(&found), "{found}");
        assert_eq!(post(&fabric, &[read()]).0, Err(NodeDown));
    }
    let peer = accepting(&node, at, b"hello".to_vec(), true);
    assert_eq!(fault(&connect(peer.address)), Some(Fault::Foreign { address: peer.address }));
}

#[test]
fn a_peer_may_be_gone_at_each_stage() {
    let Some(at) = device_address() else { return };
    // An address without a route.
    let nowhere: SocketAddr = "203.0.113.9:7000".parse().expect("an address");
    assert!(matches!(fault(&connect(nowhere)), Some(Fault::Unreachable { .. })));
    // A port without a listener.
    let silent = SocketAddr::new(at, 9);
    let found = fault(&connect(silent)).expect("a fault");
    assert!(found.to_string().contains("no memory node listens there"), "{found}");
    // A peer that listens and never answers.
    let mut held = Vec::new();
    let peer = Peer::start(at, move |event| held.extend(event.request));
    let begun = Instant::now();
    let found = fault(&connect(peer.address));
    assert!(matches!(found, Some(Fault::Unreachable { .. })), "{found:?}");
    assert!(begun.elapsed() < Duration::from_secs(3), "it gave up after {:?}", begun.elapsed());
    // A peer that drops the request without an answer.
    let peer = Peer::start(at, |event| drop(event.request));
    assert!(fault(&connect(peer.address)).is_some());
    // A peer that accepts and is gone at once.
    let node = serve(at);
    let card = NodeHello {
        pool: POOL,
        node: NodeId(0),
        life: InstanceId(1),
        layout_version: LAYOUT_VERSION,
        words: 1 << 17,
        base: 0,
        rkey: 0,
    };
    let peer = accepting(&node, at, card.encode()[..NodeHello::BYTES].to_vec(), false);
    let fabric = connect(peer.address);
    let (reply, took) = post(&fabric, &[read()]);
    assert_eq!(reply, Err(NodeDown));
    assert!(took < Duration::from_millis(400), "{took:?}");
}

#[test]
fn a_majority_does_not_wait_for_a_silent_host() {
    let Some(at) = device_address() else { return };
    let nodes = [0, 1].map(|number| serve_as(number, at));
    let mut held = Vec::new();
    let silent = Peer::start(at, move |event| held.extend(event.request));
    let addresses = [nodes[0].address(), nodes[1].address(), silent.address];
    let endpoints = addresses.map(|address| Endpoint { address, life: None });
    let begun = Instant::now();
    let options = ConnectOptions::new(POOL, ME, 1024);
    let fabric = RdmaFabric::connect(&options, &endpoints).expect("a fabric");
    let took = begun.elapsed();
    let up = fabric.status().iter().filter(|status| status.fault.is_none()).count();
    assert_eq!(up, 2);
    assert!(took < Duration::from_millis(700), "{took:?}");
}

#[test]
fn a_node_greets_strangers_with_a_refusal() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let hello = ClientHello { pool: POOL, node: NodeId(0), client: ME }.encode();
    let mut later = hello;
    later[8] = 200;
    let cases = [
        (b"GET / HTTP/1.1".to_vec(), Reject::Foreign),
        (Vec::new(), Reject::Foreign),
        (later[..ClientHello::BYTES].to_vec(), Reject::Version(crate::TRANSPORT_VERSION)),
    ];
    for (said, expected) in cases {
        let channel = Channel::new().expect("a channel");
        let mut id = Some(Id::new(&channel).expect("an identifier"));
        let resolving = id.as_ref().expect("it is there");
        resolving.resolve_address(None, node.address(), Duration::from_secs(1)).expect("begun");
        let mut asking = None;
        let begun = Instant::now();
        let refusal = loop {
            assert!(begun.elapsed() < Duration::from_secs(5), "no answer");
            let Some(event) = channel.next().expect("the channel works") else { continue };
            match (event.kind, id.as_ref()) {
                (EventKind::AddressResolved, Some(id)) => {
                    id.resolve_route(Duration::from_secs(1)).expect("begun");
                }
                (EventKind::RouteResolved, Some(_)) => {
                    let id = id.take().expect("it is there");
                    let (domain, queue, region) = node.parts();
                    let limits = Limits { queue: 4, inline: 0, asked: 1, answered: 1, retries: 1 };
                    let connection = Connection::new(id, &domain, &queue, &region, limits);
                    let connection = connection.expect("a queue pair");
                    connection.connect(&said).expect("asked");
                    asking = Some(connection);
                }
                (EventKind::Rejected, _) => break Reject::decode(event.private.bytes()),
                _ => {}
            }
        };
        assert_eq!(refusal, Ok(expected));
        drop(asking);
    }
    assert_eq!(node.report().refused, 3);
}

/// The reason was lost with the request, and the node passed for something that is no memory node.
#[test]
fn a_node_without_queue_pairs_says_so() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    node.inject_exhaustion();
    let found = fault(&connect(node.address()));
    assert_eq!(found, Some(Fault::Exhausted { address: node.address() }));
    // On a busy machine the client has asked again by now.
    assert!(node.report().refused > 0);
}

/// A client's device uses the depth in the node's answer. This was the limit of the node's device,
/// which may exceed the client's: then no connection was established.
#[test]
fn no_more_is_under_way_than_was_asked_for() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let fabric = connect(node.address());
    assert_eq!(post(&fabric, &[read()]).0, Ok(vec![0]));
    assert_eq!(fabric.asks(), Some(16));
}

/// A device with a lower inline limit than requested made no queue pair at all.
#[test]
fn a_device_takes_inline_what_it_can() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let (domain, queue, region) = node.parts();
    let channel = Channel::new().expect("a channel");
    let id = Id::new(&channel).expect("an identifier");
    id.resolve_address(None, node.address(), Duration::from_secs(1)).expect("begun");
    let begun = Instant::now();
    while id.device().is_none() {
        drop(channel.next().expect("the channel works"));
        assert!(begun.elapsed() < Duration::from_secs(5), "no answer");
    }
    let wished = 1 << 20;
    let limits = Limits { queue: 4, inline: wished, asked: 1, answered: 1, retries: 1 };
    let connection = Connection::new(id, &domain, &queue, &region, limits).expect("a queue pair");
    let inline = connection.limits().inline;
    assert!((64..wished).contains(&inline), "{inline}");
}

/// Checks how a failed completion appears to callers: the chain's node does not answer, later
/// chains fail, too, and the connection is made anew.
fn fails_and_recovers(fabric: &RdmaFabric, chain: &[Verb<'_>], says: &str) -> Duration {
    let behind: Vec<_> = {
        let failing = fabric.post(NodeId(0), chain);
        let mut all = vec![failing];
        all.extend((0..20).map(|_| fabric.post(NodeId(0), &[read()])));
        all
    };
    let begun = Instant::now();
    let mut took = Duration::ZERO;
    for (number, completion) in behind.into_iter().enumerate() {
        let mut completion = pin!(completion);
        loop {
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(reply) = completion.as_mut().poll(&mut cx) {
                assert!(reply.is_err(), "chain {number} is behind a failure");
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "chain {number} does not end");
        }
        if number == 0 {
            took = begun.elapsed();
            let found = fault(fabric).expect("a fault").to_string();
            assert!(found.contains(says), "{found}");
        }
    }
    until_up(fabric);
    took
}

#[test]
fn failed_completions_are_nodes_that_do_not_answer() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let fabric = connect(node.address());
    let write = Verb::Write { at: AT, head: &[9], tail: &[] };
    post(&fabric, &[write]).0.expect("the node is up");

    // The handshake promises more memory than there is: the device refuses.
    fabric.inject_larger_memory();
    let far = Verb::Read { at: Address(1 << 30), words: 4 };
    fails_and_recovers(&fabric, &[far], "remote access error");
    fabric.inject_larger_memory();
    let far = Verb::Write { at: Address(1 << 30), head: &[1; 4], tail: &[] };
    fails_and_recovers(&fabric, &[far], "remote access error");
    fabric.inject_larger_memory();
    let far = Verb::Cas { at: Address(1 << 30), expect: 0, new: 1 };
    fails_and_recovers(&fabric, &[read(), far, read()], "remote access error");

    // The node has taken the access flags off.
    node.forbid();
    fails_and_recovers(&fabric, &[write], "remote invalid request error");

    // The work request names a wrong local key: this end's device refuses.
    fabric.inject_wrong_key();
    fails_and_recovers(&fabric, &[read()], "local protection error");
    let large = Verb::Write { at: AT, head: &[9; 100], tail: &[] };
    fabric.inject_wrong_key();
    fails_and_recovers(&fabric, &[large, read()], "local ");

    assert_eq!(post(&fabric, &[read()]).0, Ok(vec![9]));
    assert!(fabric.counters().connections >= 7, "{:?}", fabric.counters());
    assert_eq!(fabric.counters().registrations, 1);
}

/// Not every device and peer can cause each class of failure, so each replaces a success: local
/// length (1) to the last that verbs knows.
#[test]
fn each_class_of_failed_completion_is_a_node_that_does_not_answer() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let fabric = connect(node.address());
    let write = Verb::Write { at: AT, head: &[9], tail: &[] };
    for status in 1..=ibv_wc_status::IBV_WC_GENERAL_ERR {
        post(&fabric, &[write]).0.expect("the node is up");
        fabric.inject_status(status);
        assert_eq!(post(&fabric, &[read()]).0, Err(NodeDown), "{}", status_text(status));
        let found = fault(&fabric).expect("a fault").to_string();
        assert!(found.contains(&status_text(status)), "{found}");
        until_up(&fabric);
    }
    assert_eq!(post(&fabric, &[read()]).0, Ok(vec![9]));
    assert_eq!(fabric.counters().registrations, 1);
}

/// The node's queue pair is dead, and does not answer: after three retries, that is an error.
#[test]
fn a_peer_that_falls_silent_is_an_error_within_about_100_ms() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let fabric = connect(node.address());
    let write = Verb::Write { at: AT, head: &[9], tail: &[] };
    let mut times = [Duration::ZERO; 7];
    for took in &mut times {
        post(&fabric, &[write]).0.expect("the node is up");
        node.kill_silently();
        *took = fails_and_recovers(&fabric, &[write], "the node does not answer");
    }
    times.sort_unstable();
    eprintln!("a peer that fell silent was an error after {times:?}");
    assert!(times[0] > Duration::from_millis(40), "it was retried: {times:?}");
    // The kernel's timers are late when the processors are busy.
    assert!(times[3] < Duration::from_millis(150), "{times:?}");
    assert!(times[6] < Duration::from_millis(400), "{times:?}");
}

/// A device that does not report that the node is silent, because it is set to wait for ever. A
/// device that has forgotten its work does not report it, either.
#[test]
fn a_chain_that_the_device_never_ends_is_an_error_all_the_same() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let mut options = ConnectOptions::new(POOL, ME, 1024);
    options.ack_timeout = 0;
    let endpoint = Endpoint { address: node.address(), life: None };
    let fabric = RdmaFabric::connect(&options, &[endpoint]).expect("a fabric");
    post(&fabric, &[read()]).0.expect("the node is up");
    node.kill_silently();
    let took = fails_and_recovers(&fabric, &[read()], "does not end");
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(3), "{took:?}");
    assert_eq!(fabric.counters().probes, 1);
    assert!(fabric.counters().sleeps > 100, "it slept meanwhile: {:?}", fabric.counters());
}

#[test]
fn slots_come_back_from_connections_that_fail() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let fabric = connect(node.address());
    let payload = vec![3; 64 << 10];
    for round in 0..12 {
        for _ in 0..6 {
            // There are only four of the largest slots.
            let large = Verb::Write { at: AT, head: &[], tail: &payload };
            drop(fabric.post(NodeId(0), &[large, read()]));
        }
        node.forbid();
        while fault(&fabric).is_none() {
            drop(fabric.post(NodeId(0), &[read()]));
        }
        until_up(&fabric);
        let (reply, _) =
            post(&fabric, &[Verb::Write { at: AT, head: &[round], tail: &[] }, read()]);
        assert_eq!(reply, Ok(vec![round]));
    }
}
