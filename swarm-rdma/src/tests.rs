//! Tests that need private interfaces: peers that misbehave, and completions that fail. They need a
//! device; `ci/rdma.sh` runs them in a guest.

#[path = "../tests/common/in_time.rs"]
mod in_time;

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

use in_time::{beside, in_time};

use crate::handshake::{ClientHello, Reject};
use crate::verbs::{Channel, Connection, Event, EventKind, Id, Limits, status_text};
use crate::{
    ClientId, ConnectOptions, Counters, Endpoint, Fault, InstanceId, MemoryNode, NodeHello, PoolId,
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

fn by_default() -> ConnectOptions {
    ConnectOptions::new(POOL, ME, 1024)
}

/// For nodes that stay up. A busy host may withhold the processor from a node for seconds: the device
/// sends a packet again for 7.5 s before the connection counts as lost.
fn patient() -> ConnectOptions {
    let mut options = by_default();
    options.patience = Duration::from_secs(60);
    options.ack_timeout = 18;
    options.retries = 6;
    options
}

fn connect_as(options: &ConnectOptions, address: SocketAddr) -> RdmaFabric {
    RdmaFabric::connect(options, &[Endpoint { address, life: None }]).expect("a fabric")
}

fn connect(address: SocketAddr) -> RdmaFabric {
    connect_as(&patient(), address)
}

/// A fabric that does not wait for its node.
fn ask(address: SocketAddr) -> RdmaFabric {
    connect_as(&ConnectOptions { patience: Duration::ZERO, ..patient() }, address)
}

/// Waits until something is so. The bound counts sleeps, which are longer on a busy host.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if so() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it does not come: {what}");
}

fn fault(fabric: &RdmaFabric) -> Option<Fault> {
    fabric.status()[0].fault.clone()
}

/// Waits until the node cannot be reached for such a reason. An attempt that took too long, as on a
/// busy host, is followed by another.
fn until_fault(fabric: &RdmaFabric, is_expected: impl Fn(&Fault) -> bool) -> Fault {
    let mut found = None;
    for _ in 0..20_000 {
        found = fault(fabric);
        if let Some(found) = found.take_if(|found| is_expected(found)) {
            return found;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("the fault at last: {found:?}");
}

/// Runs a posted chain to its end. Gives up after a minute in which it polled often: a slow host polls
/// rarely, and gets more time.
fn wait<T>(chain: impl Future<Output = T>) -> T {
    let mut chain = pin!(chain);
    let (begun, mut polls) = (Instant::now(), 0);
    loop {
        if let Poll::Ready(reply) = chain.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return reply;
        }
        polls += 1;
        let is_over = polls > 50_000 && begun.elapsed() > Duration::from_secs(60);
        assert!(!is_over, "a chain does not end");
    }
}

/// Posts a chain and waits for its reply.
fn post(fabric: &RdmaFabric, chain: &[Verb<'_>]) -> Result<Vec<u64>, NodeDown> {
    wait(fabric.post(NodeId(0), chain)).map(|reply| reply.to_vec())
}

fn read() -> Verb<'static> {
    Verb::Read { at: AT, words: 1 }
}

/// Waits until chains reach the node, and nothing is in flight any more: no probe of a wait that a busy
/// host made long.
fn until_up(fabric: &RdmaFabric) {
    until("the node is up", || post(fabric, &[read()]).is_ok());
    until("nothing is in flight", || {
        fabric.drain();
        fabric.oldest_under_way() == fabric.posted()
    });
}

/// Posts chains until one is not answered. Returns how long that took, from the last answer on.
fn until_lost(fabric: &RdmaFabric) -> Duration {
    for _ in 0..10_000 {
        let begun = Instant::now();
        if post(fabric, &[read()]).is_err() {
            return begun.elapsed();
        }
    }
    panic!("a node that is gone answers");
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

/// Answers each request by a rejection with these bytes, unless a busy host is so late with it that the
/// client has given up: then it asks again.
fn rejecting(at: IpAddr, bytes: Vec<u8>) -> Peer {
    Peer::start(at, move |event| {
        let _ = event.request.map(|id| id.reject(&bytes));
    })
}

/// Accepts each request with these bytes, and keeps the connection. A client may have given up, as
/// above.
fn accepting(node: &MemoryNode, at: IpAddr, bytes: Vec<u8>, keep: bool) -> Peer {
    let (domain, queue, region) = node.parts();
    let mut kept = Vec::new();
    Peer::start(at, move |event| {
        let Some(id) = event.request else { return };
        let limits = Limits { queue: 1, inline: 0, asked: 0, answered: 16, retries: 0 };
        let connection = Connection::new(id, &domain, &queue, &region, limits);
        let accepted = connection.ok().filter(|it| it.accept(&bytes).is_ok());
        if keep {
            kept.extend(accepted);
        }
    })
}

/// A time that resolving an address does not take, even on a busy host.
const LONG: Duration = Duration::from_secs(120);

/// Waits for an event.
fn next_event(channel: &Arc<Channel>) -> Event {
    let mut found = None;
    until("an event", || {
        found = channel.next().expect("the channel works");
        found.is_some()
    });
    found.expect("it has come")
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
        let expected = expected(peer.address);
        until_fault(&ask(peer.address), |found| *found == expected);
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
        let fabric = ask(peer.address);
        until_fault(&fabric, expected);
        assert_eq!(post(&fabric, &[read()]), Err(NodeDown));
    }
    let peer = accepting(&node, at, b"hello".to_vec(), true);
    let foreign = Fault::Foreign { address: peer.address };
    until_fault(&ask(peer.address), |found| *found == foreign);
}

#[test]
fn a_peer_may_be_gone_at_each_stage() {
    let Some(at) = device_address() else { return };
    // An address without a route.
    let nowhere: SocketAddr = "203.0.113.9:7000".parse().expect("an address");
    let is_unreachable = |fault: &Fault| matches!(fault, Fault::Unreachable { .. });
    until_fault(&ask(nowhere), is_unreachable);
    // A port without a listener.
    let silent = SocketAddr::new(at, 9);
    let says_so = |fault: &Fault| fault.to_string().contains("no memory node listens there");
    until_fault(&ask(silent), says_so);
    // A peer that listens and never answers.
    let mut held = Vec::new();
    let peer = Peer::start(at, move |event| held.extend(event.request));
    let limit = Duration::ZERO..Duration::from_secs(3);
    in_time("a silent peer was given up", limit, 3, || {
        let begun = Instant::now();
        let fabric = connect_as(&by_default(), peer.address);
        let took = begun.elapsed();
        until_fault(&fabric, is_unreachable);
        took
    });
    // A peer that drops the request without an answer.
    let peer = Peer::start(at, |event| drop(event.request));
    until_fault(&ask(peer.address), |fault| !matches!(fault, Fault::NotYet { .. }));
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
    let limit = Duration::ZERO..Duration::from_millis(400);
    in_time("a peer that was gone was an error", limit, 10, || {
        until_lost(&connect_as(&by_default(), peer.address))
    });
}

#[test]
fn a_majority_does_not_wait_for_a_silent_host() {
    let Some(at) = device_address() else { return };
    let nodes = [0, 1].map(|number| serve_as(number, at));
    let mut held = Vec::new();
    let silent = Peer::start(at, move |event| held.extend(event.request));
    let addresses = [nodes[0].address(), nodes[1].address(), silent.address];
    let endpoints = addresses.map(|address| Endpoint { address, life: None });
    let limit = Duration::ZERO..Duration::from_millis(700);
    in_time("a majority was connected", limit, 10, || {
        let begun = Instant::now();
        let fabric = RdmaFabric::connect(&patient(), &endpoints).expect("a fabric");
        let took = begun.elapsed();
        let up = fabric.status().iter().filter(|status| status.fault.is_none()).count();
        assert_eq!(up, 2);
        took
    });
}

#[test]
fn a_node_answers_strangers_with_a_refusal() {
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
    for (hello, expected) in cases {
        let channel = Channel::new().expect("a channel");
        let mut id = Some(Id::new(&channel).expect("an identifier"));
        let resolving = id.as_ref().expect("it is there");
        resolving.resolve_address(None, node.address(), LONG).expect("begun");
        let mut asking = None;
        let refusal = loop {
            let event = next_event(&channel);
            match (event.kind, id.as_ref()) {
                (EventKind::AddressResolved, Some(id)) => {
                    id.resolve_route(LONG).expect("begun");
                }
                (EventKind::RouteResolved, Some(_)) => {
                    let id = id.take().expect("it is there");
                    let (domain, queue, region) = node.parts();
                    let limits = Limits { queue: 4, inline: 0, asked: 1, answered: 1, retries: 1 };
                    let connection = Connection::new(id, &domain, &queue, &region, limits);
                    let connection = connection.expect("a queue pair");
                    connection.connect(&hello).expect("asked");
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
    let exhausted = Fault::Exhausted { address: node.address() };
    until_fault(&ask(node.address()), |found| *found == exhausted);
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
    assert_eq!(post(&fabric, &[read()]), Ok(vec![0]));
    assert_eq!(fabric.asks(), Some(16));
}

/// How soon a silent peer is an error depends on two numbers, which the device must have been given.
#[test]
fn the_device_retransmits_as_the_options_specify() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    for (options, expected) in [(by_default(), (12, 3)), (patient(), (18, 6))] {
        let fabric = connect_as(&options, node.address());
        let mut found = None;
        until("the node is up", || {
            drop(fabric.post(NodeId(0), &[read()]));
            found = fabric.retransmission();
            found.is_some()
        });
        assert_eq!(found, Some(expected));
    }
}

/// A device with a lower inline limit than requested made no queue pair at all.
#[test]
fn a_device_takes_inline_what_it_can() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let (domain, queue, region) = node.parts();
    let channel = Channel::new().expect("a channel");
    let id = Id::new(&channel).expect("an identifier");
    id.resolve_address(None, node.address(), LONG).expect("begun");
    while id.device().is_none() {
        drop(next_event(&channel));
    }
    let wished = 1 << 20;
    let limits = Limits { queue: 4, inline: wished, asked: 1, answered: 1, retries: 1 };
    let connection = Connection::new(id, &domain, &queue, &region, limits).expect("a queue pair");
    let inline = connection.limits().inline;
    assert!((64..wished).contains(&inline), "{inline}");
}

/// Checks how a failed completion appears to callers: the chain's node does not answer, later
/// chains fail, too, and the connection is made anew. Returns how long the chain took, and what the
/// fabric had counted meanwhile.
fn fails_and_recovers(fabric: &RdmaFabric, chain: &[Verb<'_>], says: &str) -> (Duration, Counters) {
    fabric.take_failures();
    let begun = Instant::now();
    let failing = fabric.post(NodeId(0), chain);
    let connection = fabric.counters().connections;
    // A busy host may let the fabric reconnect before all of them are posted.
    let behind: Vec<_> = (0..20)
        .map(|_| (fabric.post(NodeId(0), &[read()]), fabric.counters().connections))
        .collect();
    assert!(wait(failing).is_err());
    let (took, counters) = (begun.elapsed(), fabric.counters());
    let found = fabric.take_failures();
    assert!(found.iter().any(|why| why.contains(says)), "{found:?}");
    if let Some(found) = fault(fabric) {
        assert!(found.to_string().contains(&fabric.status()[0].address.to_string()), "{found}");
    }
    for (number, (completion, of)) in behind.into_iter().enumerate() {
        let reply = wait(completion);
        assert!(reply.is_err() || of > connection, "chain {number} is behind a failure");
    }
    until_up(fabric);
    (took, counters)
}

#[test]
fn failed_completions_are_nodes_that_do_not_answer() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let fabric = connect(node.address());
    let write = Verb::Write { at: AT, head: &[9], tail: &[] };
    post(&fabric, &[write]).expect("the node is up");
    until_up(&fabric);

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

    assert_eq!(post(&fabric, &[read()]), Ok(vec![9]));
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
        post(&fabric, &[write]).expect("the node is up");
        until_up(&fabric);
        fabric.take_failures();
        fabric.inject_status(status);
        assert_eq!(post(&fabric, &[read()]), Err(NodeDown), "{}", status_text(status));
        let found = fabric.take_failures();
        assert_eq!(found.first(), Some(&status_text(status)), "{found:?}");
        until_up(&fabric);
    }
    assert_eq!(post(&fabric, &[read()]), Ok(vec![9]));
    assert_eq!(fabric.counters().registrations, 1);
}

/// The node's queue pair is dead, and does not answer: after three retries, that is an error.
#[test]
fn a_peer_that_falls_silent_is_an_error_within_about_100_ms() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let fabric = connect_as(&by_default(), node.address());
    let write = Verb::Write { at: AT, head: &[9], tail: &[] };
    // Sooner, it would not have been retried.
    let bounds = Duration::from_millis(40)..Duration::from_millis(150);
    in_time("a peer that fell silent was an error", bounds, 20, || {
        until_up(&fabric);
        node.kill_silently();
        fails_and_recovers(&fabric, &[write], "the node does not answer").0
    });
}

/// A device that does not report that the node is silent, because it is set to wait for ever. A
/// device that has forgotten its work does not report it, either.
#[test]
fn a_chain_that_the_device_never_ends_is_an_error_all_the_same() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let fabric = connect_as(&ConnectOptions { ack_timeout: 0, ..by_default() }, node.address());
    let bounds = Duration::from_millis(900)..Duration::from_secs(3);
    in_time("a chain that did not end was an error", bounds, 10, || {
        until_up(&fabric);
        node.kill_silently();
        let before = fabric.counters();
        let ((took, after), control) =
            beside(|| fails_and_recovers(&fabric, &[read()], "does not end"));
        let (probes, sleeps) = (after.probes - before.probes, after.sleeps - before.sleeps);
        assert!(probes <= 1, "{probes} probes");
        // A host that stops for the whole second leaves no time for either.
        if probes == 0 || sleeps < control.sleeps / 8 {
            eprintln!("{probes} probes, {sleeps} sleeps, {} beside it", control.sleeps);
            return Duration::MAX;
        }
        took
    });
}

/// A chain that waits for room must not fail at a node that is up: it once did after a second, however
/// long the device was to try.
#[test]
fn a_chain_waits_for_room_as_long_as_its_connection_lasts() {
    let Some(at) = device_address() else { return };
    let node = serve(at);
    let options = ConnectOptions { ack_timeout: 17, retries: 2, ..patient() };
    let fabric = connect_as(&options, node.address());
    until_up(&fabric);
    node.kill_silently();
    fabric.take_failures();
    let is_refused = (0..10_000).any(|_| {
        let mut chain = pin!(fabric.post(NodeId(0), &[read()]));
        chain.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    });
    assert!(is_refused, "a chain of a silent node ends");
    let found = fabric.take_failures();
    assert!(found.iter().any(|why| why.contains("the node does not answer")), "{found:?}");
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
        let before = fabric.counters().connections;
        until("another connection", || {
            drop(fabric.post(NodeId(0), &[read()]));
            fabric.counters().connections > before
        });
        until_up(&fabric);
        let reply = post(&fabric, &[Verb::Write { at: AT, head: &[round], tail: &[] }, read()]);
        assert_eq!(reply, Ok(vec![round]));
    }
}
