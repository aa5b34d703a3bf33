//! Clients in threads of their own.

use std::vec::Vec;

use super::{nodes, wait};
use crate::fabric::{Fabric, Verb};
use crate::node::{Address, NodeId};

/// Runs clients in threads of their own. Each publishes (WRITE, then CAS of a flag) and watches
/// what the others publish, and all add to one word. A client that sees a flag sees what was
/// written before it, and no addition is lost.
///
/// # Panics
/// If the fabric does not do what it must.
pub fn race<F: Fabric + Send>(make: impl Fn(usize) -> F, base: Address) {
    let mut fabrics: Vec<F> = (0..=RACERS).map(make).collect();
    let last = fabrics.pop().expect("one more than there are racers");
    for node in nodes(&last) {
        let zeros = Verb::Write { at: base, head: &[0; 1 + RACERS * LANE], tail: &[] };
        wait(last.post(node, &[zeros]), || ()).expect("the node is up");
    }
    std::thread::scope(|scope| {
        for (client, fabric) in fabrics.into_iter().enumerate() {
            scope.spawn(move || {
                let racing = async {
                    for round in 1..=ROUNDS {
                        for node in nodes(&fabric) {
                            publish(&fabric, node, base, client, round).await;
                            watch(&fabric, node, base, (client + 1) % RACERS).await;
                        }
                    }
                };
                wait(racing, || ());
            });
        }
    });
    for node in nodes(&last) {
        let sum = Verb::Read { at: base, words: 1 };
        let sum = wait(last.post(node, &[sum]), || ()).expect("the node is up");
        assert_eq!(*sum, [ROUNDS * RACERS as u64], "{node} lost additions");
    }
}

const RACERS: usize = 3;
const ROUNDS: u64 = 3000;
/// Words of a racer: its flag, then what it publishes.
const LANE: usize = 8;

fn lane(base: Address, client: usize) -> Address {
    base.plus(1 + client * LANE)
}

async fn publish<F: Fabric>(fabric: &F, node: NodeId, base: Address, client: usize, round: u64) {
    let flag = lane(base, client);
    let write = Verb::Write { at: flag.plus(1), head: &[round; LANE - 1], tail: &[] };
    let raise = Verb::Cas { at: flag, expect: round - 1, new: round };
    let reply = fabric.post(node, &[write, raise]).await.expect("the node is up");
    assert_eq!(*reply, [round - 1], "only its owner changes a flag");
    added(fabric, node, base, round - 1).await;
}

async fn watch<F: Fabric>(fabric: &F, node: NodeId, base: Address, other: usize) {
    let flag = Verb::Read { at: lane(base, other), words: 1 };
    let published = Verb::Read { at: lane(base, other).plus(1), words: LANE - 1 };
    let reply = fabric.post(node, &[flag, published]).await.expect("the node is up");
    let behind = |words: &[u64], flag| words.iter().any(|word| *word < flag);
    assert!(!behind(&reply[1..], reply[0]), "a chain's later READ saw older words");
    let seen = fabric.post(node, &[flag]).await.expect("the node is up");
    let reply = fabric.post(node, &[published]).await.expect("the node is up");
    assert!(!behind(&reply, seen[0]), "a later chain's READ saw older words");
}

/// Adds 1 to the word at `at`, whose value is expected to be `seen`. Returns the sum.
pub(super) async fn added<F: Fabric>(fabric: &F, node: NodeId, at: Address, mut seen: u64) -> u64 {
    loop {
        let add = Verb::Cas { at, expect: seen, new: seen + 1 };
        let was = fabric.post(node, &[add]).await.expect("the node is up")[0];
        if was == seen {
            return seen + 1;
        }
        assert!(was > seen, "a sum went down from {seen} to {was}");
        seen = was;
    }
}
