//! Chunks' counters: how many objects of a chunk are set aside, at every node.
//!
//! A counter only grows, but for what its owner takes back on leaving; what counts is the largest
//! that a majority shows. Beside it every change counts, so that no word comes back: what a former owner
//! took back, and what arrives late, finds another word than it expects.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Address, Fabric, NodeId, Verb};
use swarm_core::gather::Next;
use swarm_core::geometry::{Class, Geometry};
use swarm_core::group::Group;
use swarm_core::node_set::NodeSet;

use crate::error::Error;

/// The homes that a chunk of this class has counters for, or the nodes that buffers in it do without.
pub(super) fn homes(
    geometry: &Geometry,
    class: Class,
) -> impl ExactSizeIterator<Item = NodeId> + use<> {
    let homes = match class {
        Class::Homed { .. } | Class::Lean(_) => geometry.nodes as u8,
        Class::Plain(_) | Class::Wide(_) | Class::Run => 1,
        Class::RunTail => 0,
    };
    (0..homes).map(NodeId)
}

/// A counter's word: `[ changes 32 | objects 32 ]`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counter(u64);

impl Counter {
    /// Objects set aside.
    pub(super) fn objects(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    /// Changes of this word.
    fn changes(self) -> u64 {
        self.0 >> 32
    }

    /// The same after one change more than either, with so many objects.
    fn changed(self, other: Self, objects: u64) -> Self {
        Self((self.changes().max(other.changes()) + 1) << 32 | objects)
    }

    /// The change at one node that takes objects back, down to so many.
    pub(super) fn take_back(self, at: Address, objects: u64) -> Verb<'static> {
        Verb::Cas { at, expect: self.0, new: self.changed(self, objects).0 }
    }
}

/// READs counters: of each the largest that a majority shows. One roundtrip.
pub(super) async fn read_counters<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    counters: &[Address],
) -> Result<Vec<Counter>, Error> {
    let reads: Vec<Verb<'_>> = counters.iter().map(|&at| Verb::Read { at, words: 1 }).collect();
    let mut largest = vec![Counter::default(); counters.len()];
    let all = NodeSet::all(group.nodes());
    group
        .settle(all, group.majority(), |node, reply| {
            let Some(reply) = reply else { return Next::Post(group.fabric().post(node, &reads)) };
            for (largest, &counter) in largest.iter_mut().zip(reply.iter()) {
                let rank = |counter: &Counter| (counter.objects(), counter.changes());
                *largest = std::cmp::max_by_key(Counter(counter), *largest, rank);
            }
            Next::Vote
        })
        .await?;
    Ok(largest)
}

/// A counter that is to show so many objects.
#[derive(Clone, Copy)]
pub(super) struct Raise {
    pub(super) at: Address,
    /// Its word as last seen.
    pub(super) from: Counter,
    /// So many objects are set aside then.
    pub(super) to: u64,
}

impl Raise {
    /// Its word then, where no node lagged.
    pub(super) fn raised(&self) -> Counter {
        self.over(self.from)
    }

    /// What takes the place of the word `held`.
    fn over(&self, held: Counter) -> Counter {
        held.changed(self.from, self.to.max(held.objects()))
    }

    fn cas(&self, held: Counter) -> Verb<'static> {
        Verb::Cas { at: self.at, expect: held.0, new: self.over(held).0 }
    }
}

/// Raises counters at a majority. One roundtrip, more where nodes lag.
///
/// Counters are changed by CAS, and only a node whose words this changed has a vote, though they showed
/// as many objects before: a chain of a former owner that arrives late must not lower them. Where one
/// word was another than expected, all are changed again: to a word that was changed already, that does
/// no harm.
pub(super) async fn raise_counters<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    raises: &[Raise],
) -> Result<(), Error> {
    let froms: Vec<Counter> = raises.iter().map(|raise| raise.from).collect();
    let mut words = vec![froms; group.nodes()];
    let all = NodeSet::all(group.nodes());
    let cas = |node, words: &[Counter]| {
        let chain: Vec<Verb<'_>> =
            raises.iter().zip(words).map(|(raise, &held)| raise.cas(held)).collect();
        Next::Post(group.fabric().post(node, &chain))
    };
    group
        .settle(all, group.majority(), |node: NodeId, reply| {
            let words = &mut words[node.index()];
            let Some(reply) = reply else { return cas(node, words) };
            if reply.len() < raises.len() {
                return Next::NoVote;
            }
            let mut changed = true;
            for ((raise, word), &held) in raises.iter().zip(words.iter_mut()).zip(reply.iter()) {
                let held = Counter(held);
                let swapped = held == *word;
                *word = if swapped { raise.over(held) } else { held };
                changed &= swapped;
            }
            if changed { Next::Vote } else { cas(node, words) }
        })
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use swarm_core::group::Session;
    use swarm_core::sim::{Setup, Sim, SimClock, SimFabric};
    use swarm_core::words::{Incarnation, WordFormat};

    use super::*;

    const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
    const AT: Address = Address(1);
    const EIGHT: Raise = Raise { at: AT, from: Counter(0), to: 8 };

    fn group(sim: &Sim, id: usize) -> Rc<Group<SimFabric, SimClock>> {
        let session = Session { client: 3, incarnation: Incarnation(id as u64 + 1) };
        let format = WordFormat { pointer_bits: 20, tick_shift: 6 };
        Rc::new(Group::new(sim.fabric(id), sim.clock(id), format, session))
    }

    /// A client leaves, and takes back seven objects of eight; one node hears of it late. Who comes next
    /// has set the same seven aside by then.
    #[test]
    fn what_a_former_owner_takes_back_late_lowers_nothing() {
        let mut sim = Sim::new(&Setup { words: 8, ..Setup::new(1, 3, 3) });
        let [former, next, last] = [0, 1, 2].map(|id| group(&sim, id));
        let told = Rc::new(Cell::new(Counter::default()));
        let (owner, word) = (Rc::clone(&former), Rc::clone(&told));
        sim.spawn(0, async move {
            raise_counters(&owner, &[EIGHT]).await.expect("set aside");
            word.set(EIGHT.raised());
        });
        assert!(sim.finish(0, &NODES));
        for node in NODES {
            sim.take_all(0, node);
            drop(former.fabric().post(node, &[told.get().take_back(AT, 1)]));
        }
        NODES[1..].iter().for_each(|&node| sim.take_all(0, node));
        let owner = Rc::clone(&next);
        sim.spawn(1, async move {
            let counters = read_counters(&owner, &[AT]).await.expect("a majority");
            assert_eq!(counters[0].objects(), 1);
            let again = Raise { from: counters[0], ..EIGHT };
            raise_counters(&owner, &[again]).await.expect("set aside");
        });
        sim.poll_once(1);
        sim.roundtrip(1, &NODES[1..]);
        assert!(sim.finish(1, &NODES[..2]));
        sim.take_all(0, NODES[0]);
        let word = Rc::clone(&told);
        sim.spawn(2, async move {
            word.set(read_counters(&last, &[AT]).await.expect("a majority")[0]);
        });
        assert!(sim.finish(2, &[NODES[0], NODES[2]]));
        assert_eq!(told.get().objects(), 8, "they would be given out twice");
    }
}
