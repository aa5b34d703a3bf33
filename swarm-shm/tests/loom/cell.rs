//! Changes of a cell under the memory model: swarm-core's own read and its fast round in a straight
//! line, over a fabric that runs chains on loom's words. One node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use swarm_core::cell::{CellRef, Proposal, Proposed, propose, read};
use swarm_core::layout::{Location, record};
use swarm_core::node::NodeId;
use swarm_core::quorum::Group;
use swarm_core::words::{GRANULE_WORDS, Pointer, WriteNumber};
use swarm_shm::FIRST_WORD;

use super::Node;
use super::register::{At, LoomFabric, explore_roomy, group_of, now, spawn};

const CELL: Pointer = Pointer(FIRST_WORD / GRANULE_WORDS as u64);
/// A record for each change: five words before the payload, which has one.
const RECORDS: Pointer = Pointer(CELL.0 + 1);
const CHANGES: u64 = 4;
const WORDS: usize = (1 + CHANGES as usize) * GRANULE_WORDS;
const _: () = assert!(record::HEADER_WORDS < GRANULE_WORDS);

fn cell() -> CellRef {
    CellRef::new(Location::everywhere(CELL, NodeId(0)), 1)
}

fn look(group: &Group<LoomFabric, At>) -> (u64, swarm_core::cell::View) {
    let found = now(read(group, &cell(), &())).expect("the node answers");
    (found.first().copied().unwrap_or(0), found.view)
}

/// Adds 1, in record number `nth`. Returns whether that is committed.
fn add(group: &Group<LoomFabric, At>, nth: u64) -> bool {
    let (value, view) = look(group);
    let change = WriteNumber::new(group.session().incarnation, nth + 1);
    let payload = &[value + 1];
    let record = Pointer(RECORDS.0 + nth);
    let proposal = Proposal { change, record, payload, initial_writes: &[], sparing: false };
    match now(propose(group, &cell(), &view, &proposal, &())).expect("the node answers") {
        Proposed::Committed(_) => true,
        Proposed::Lost { .. } => false,
    }
}

/// Each change that is committed adds to what all before it came to, and a reader sees them in order.
#[test]
fn changes_of_a_cell_beside_each_other_and_a_read() {
    let lost = Arc::new(AtomicBool::new(false));
    let met = Arc::clone(&lost);
    explore_roomy(Some(1), move || {
        let node = Node::new(WORDS);
        let first = group_of(&node, 0, 100);
        assert!(add(&first, 0), "nobody else is there");
        let adds = spawn(move || u64::from(add(&first, 1)));
        let second = group_of(&node, 1, 100);
        let (seen, _) = look(&second);
        let added = u64::from(add(&second, 2));
        let (then, _) = look(&second);
        let all = 1 + added + adds.join().expect("the other");
        assert!((1..=2).contains(&seen) && seen <= then && then <= all, "{seen}, {then}, {all}");
        assert_eq!(look(&group_of(&node, 2, 100)).0, all);
        lost.fetch_or(all < 3, Ordering::Relaxed);
    });
    assert!(met.load(Ordering::Relaxed), "one of two at a time is lost");
}
