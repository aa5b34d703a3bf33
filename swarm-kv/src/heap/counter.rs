//! Chunks' counters: how many objects of a chunk are set aside, at every node.
//!
//! A counter only grows, but for what its owner takes back on leaving; what counts is the largest
//! value that a majority shows.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Address, Fabric, MAX_NODES, NodeId, Verb};
use swarm_core::gather::Next;
use swarm_core::geometry::{Class, Geometry};
use swarm_core::group::Group;
use swarm_core::node_set::NodeSet;

use crate::error::Error;

/// The homes that a chunk of this class has counters for.
pub(super) fn homes(
    geometry: &Geometry,
    class: Class,
) -> impl ExactSizeIterator<Item = NodeId> + use<> {
    let homes = match class {
        Class::Homed { .. } => geometry.nodes as u8,
        Class::Plain(_) | Class::Run => 1,
        Class::RunTail => 0,
    };
    (0..homes).map(NodeId)
}

/// READs counters: of each the largest that a majority shows. One roundtrip.
pub(super) async fn read_counters<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    counters: &[Address],
) -> Result<Vec<u64>, Error> {
    let reads: Vec<Verb<'_>> = counters.iter().map(|&at| Verb::Read { at, words: 1 }).collect();
    let mut largest = vec![0; counters.len()];
    let all = NodeSet::all(group.nodes());
    group
        .settle(all, group.majority(), |node, reply| {
            let Some(reply) = reply else { return Next::Post(group.fabric().post(node, &reads)) };
            for (largest, &counter) in largest.iter_mut().zip(reply.iter()) {
                *largest = counter.max(*largest);
            }
            Next::Vote
        })
        .await?;
    Ok(largest)
}

/// Raises a counter to `to` at a majority. One roundtrip, more where nodes lag.
///
/// Counters are changed by CAS: a chain of a former owner that arrives late must not lower one.
pub(super) async fn raise_counter<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: Address,
    from: u64,
    to: u64,
) -> Result<(), Error> {
    let mut expect = [from; MAX_NODES];
    let all = NodeSet::all(group.nodes());
    let cas =
        |node, expect| Next::Post(group.fabric().post(node, &[Verb::Cas { at, expect, new: to }]));
    group
        .settle(all, group.majority(), |node: NodeId, reply| {
            let Some(reply) = reply else { return cas(node, from) };
            let Some(&held) = reply.first() else { return Next::NoVote };
            if held == expect[node.index()] || held >= to {
                return Next::Vote;
            }
            expect[node.index()] = held;
            cas(node, held)
        })
        .await?;
    Ok(())
}
