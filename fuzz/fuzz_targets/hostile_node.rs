//! Nodes whose words were written by somebody who does not keep to the protocol: registers, buffers,
//! cells, records and buckets may hold anything. Operations end, with an answer or an error.
#![no_main]

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use swarm_core::clock::Clock;
use swarm_core::fabric::loopback::Loopback;
use swarm_core::layout::{Geometry, HEADER_BYTES, MIN_CAPACITY};
use swarm_core::node::{Address, NodeId};
use swarm_core::quorum::{Session, Timeouts};
use swarm_core::words::Incarnation;
use swarm_kv::{Client, Options, block_on};

const NODES: usize = 3;
/// Keys that are there at first: enough for a split.
const KEYS: u16 = 40;
/// Things that happen in one run, at most.
const STEPS: usize = 64;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Changes bits of a word that is not 0.
    Flip {
        node: u8,
        which: u16,
        bits: u64,
    },
    /// Puts one word in another's place.
    Copy {
        node: u8,
        from: u16,
        to: u16,
    },
    Get(u16),
    Put(u16, u8),
    Insert(u16, u8),
    Update(u16, u8),
    Delete(u16),
    Scan,
    Usage,
    /// Another client, that remembers nothing.
    Fresh,
}

/// A clock that goes on by a little each time that somebody looks.
#[derive(Default)]
struct Looked(Cell<u64>);

impl Clock for Looked {
    fn now(&self) -> u64 {
        self.0.set(self.0.get() + 1000);
        self.0.get()
    }
}

type Store = Client<Loopback, Looked>;

fn client(nodes: &Loopback, geometry: Geometry, number: usize) -> Store {
    let session = Session { client: number, incarnation: Incarnation(1 + number as u64) };
    let timeouts = Timeouts { deadline: 2_000_000, ..Timeouts::default() };
    let options = Options::default().cached_keys(16).cached_buckets(4).timeouts(timeouts);
    Client::new(nodes.clone(), Looked::default(), geometry, session, options)
}

fn key(number: u16) -> Vec<u8> {
    format!("key {}", number % (2 * KEYS)).into_bytes()
}

fn play(step: &Step, store: &Store, nodes: &Loopback, used: &[u64]) {
    let place = |which: u16| Address(used[usize::from(which) % used.len()]);
    let node = |node: u8| NodeId(node % NODES as u8);
    let calls = store.blocking();
    match *step {
        Step::Flip { node: n, which, bits } => {
            let word = nodes.word(node(n), place(which));
            nodes.set_word(node(n), place(which), word ^ bits);
        }
        Step::Copy { node: n, from, to } => {
            nodes.set_word(node(n), place(to), nodes.word(node(n), place(from)));
        }
        Step::Get(k) => drop(calls.get(&key(k))),
        Step::Put(k, n) => drop(calls.put(&key(k), &vec![n; usize::from(n)])),
        Step::Insert(k, n) => drop(calls.insert(&key(k), &vec![n; usize::from(n)])),
        Step::Update(k, n) => drop(calls.update(&key(k), &vec![n; usize::from(n)])),
        Step::Delete(k) => drop(calls.delete(&key(k))),
        Step::Scan => drop(block_on(store.for_each(|_, _| ControlFlow::Continue(())))),
        Step::Usage => drop(block_on(store.usage())),
        Step::Fresh => {}
    }
}

/// Nodes that hold the keys, and the words of them that are in use.
struct Sound {
    geometry: Geometry,
    nodes: Loopback,
    used: Vec<u64>,
}

static SOUND: LazyLock<Sound> = LazyLock::new(|| {
    let geometry = Geometry::new(NODES, MIN_CAPACITY, 8, 1).expect("a geometry");
    let words = geometry.capacity / 8;
    let nodes = Loopback::new(NODES, words as usize);
    let store = client(&nodes, geometry, 0);
    for number in 0..KEYS {
        store.blocking().put(&key(number), &[7; 40]).expect("sound nodes");
    }
    let holds = |node: usize, at| nodes.word(NodeId(node as u8), Address(at)) != 0;
    let used = (HEADER_BYTES / 8..words).filter(|&at| (0..NODES).any(|n| holds(n, at))).collect();
    drop(store);
    Sound { geometry, nodes, used }
});

/// Other nodes that hold the same. Whole nodes are mostly empty, and long to copy.
fn copy(nodes: &Loopback, geometry: Geometry, used: &[u64]) -> Loopback {
    let copy = Loopback::new(NODES, geometry.capacity as usize / 8);
    for node in (0..NODES as u8).map(NodeId) {
        for at in used.iter().copied().map(Address) {
            copy.set_word(node, at, nodes.word(node, at));
        }
    }
    copy
}

fuzz_target!(|steps: Vec<Step>| {
    let Sound { geometry, nodes, used } = &*SOUND;
    let nodes = copy(nodes, *geometry, used);
    let mut store = client(&nodes, *geometry, 1);
    let mut clients = 2;
    for step in steps.iter().take(STEPS) {
        if matches!(step, Step::Fresh) && clients < 8 {
            store = client(&nodes, *geometry, clients);
            clients += 1;
        }
        play(step, &store, &nodes, used);
    }
});
