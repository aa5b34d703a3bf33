//! Chunks' counters: how many objects of a chunk are set aside, at every node.
//!
//! A counter only grows, but for what its owner takes back on leaving; what counts is the largest
//! that a majority shows. Beside it every change counts, and says whose it is, so that no word comes back and no two
//! clients make the same: what a former owner took back, and what arrives late, finds another word than it expects.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, Verb};
use swarm_core::layout::{Class, Geometry, MAX_CLIENTS};
use swarm_core::node::{Address, NodeId, NodeSet};
use swarm_core::quorum::{Group, Next};

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

const OBJECT_BITS: u32 = 32;
const SLOT_BITS: u32 = MAX_CLIENTS.ilog2();
/// Changes of a counter that clients share; the rest of what there is room for is for those who lag.
const MOST_CHANGES: u64 = 1 << 21;

/// A counter's word: `[ changes 22 | slot 10 | objects 32 ]`, the slot of whoever made the last change.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counter(u64);

impl Counter {
    /// Objects set aside.
    pub(super) fn objects(self) -> u64 {
        self.0 % (1 << OBJECT_BITS)
    }

    /// Changes of this word.
    fn changes(self) -> u64 {
        self.0 >> (SLOT_BITS + OBJECT_BITS)
    }

    /// Whether there are changes left for it.
    pub(super) fn can_change(self) -> bool {
        self.changes() < MOST_CHANGES
    }

    /// The same after one change more than either, by the holder of this slot, with so many objects.
    fn changed(self, other: Self, slot: usize, objects: u64) -> Self {
        let changes = self.changes().max(other.changes()) + 1;
        Self((changes << SLOT_BITS | slot as u64) << OBJECT_BITS | objects)
    }

    /// The change at one node that takes objects back, down to so many, by whoever made the one before.
    pub(super) fn take_back(self, at: Address, objects: u64) -> Verb<'static> {
        let slot = (self.0 >> OBJECT_BITS) as usize % MAX_CLIENTS;
        Verb::Cas { at, expect: self.0, new: self.changed(self, slot, objects).0 }
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
    /// Whose change it is.
    pub(super) slot: usize,
}

impl Raise {
    /// Its word then, where no node lagged.
    pub(super) fn raised(&self) -> Counter {
        self.over(self.from)
    }

    /// What takes the place of the word `held`.
    fn over(&self, held: Counter) -> Counter {
        held.changed(self.from, self.slot, self.to.max(held.objects()))
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

/// Moves a counter that many clients move from `from`, as it was read, on to so many objects, for whoever is the first to.
/// Yields its word then, or nothing if others were first; a minority of nodes may be past these objects all the same. One
/// roundtrip, more where nodes lag.
///
/// A node has a vote only if this moved its counter past all of these objects.
pub(super) async fn take_range<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: Address,
    (from, to): (Counter, u64),
) -> Result<Option<Counter>, Error> {
    let raise = Raise { at, from, to, slot: group.session().client };
    let (mut words, mut is_lost) = (vec![from; group.nodes()], false);
    let all = NodeSet::all(group.nodes());
    let taken = group
        .settle(all, group.majority(), |node: NodeId, reply| {
            let word = &mut words[node.index()];
            let cas = |held: Counter| Next::Post(group.fabric().post(node, &[raise.cas(held)]));
            let Some(reply) = reply else { return cas(*word) };
            match reply.first() {
                Some(&held) if Counter(held) == *word => Next::Vote,
                Some(&held) if Counter(held).objects() <= from.objects() => {
                    *word = Counter(held);
                    cas(*word)
                }
                Some(_) => {
                    is_lost = true;
                    Next::Missing
                }
                None => Next::NoVote,
            }
        })
        .await;
    match taken {
        Ok(_) => Ok(Some(raise.raised())),
        Err(_) if is_lost => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::ops::Range;
    use std::rc::Rc;

    use fastrand::Rng;
    use swarm_core::quorum::Session;
    use swarm_core::sim::seeds::seeds;
    use swarm_core::sim::{Chaos, Setup, Sim, SimClock, SimFabric};
    use swarm_core::words::{Incarnation, WordFormat};

    use super::*;

    const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
    const AT: Address = Address(1);
    const EIGHT: Raise = Raise { at: AT, from: Counter(0), to: 8, slot: 3 };

    fn group(sim: &Sim, id: usize) -> Rc<Group<SimFabric, SimClock>> {
        let session = Session { client: id, incarnation: Incarnation(id as u64 + 1) };
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

    type Given = Rc<RefCell<Vec<Range<u64>>>>;

    /// Takes some ranges, and notes what it gives out of them. Of some it takes the rest back, as on leaving.
    async fn take_ranges(group: Rc<Group<SimFabric, SimClock>>, mut rng: Rng, given: Given) {
        for _ in 0..4 {
            let Ok(counters) = read_counters(&group, &[AT]).await else { return };
            let from = counters[0];
            let to = from.objects() + rng.u64(1..=8);
            let Ok(Some(taken)) = take_range(&group, AT, (from, to)).await else { continue };
            let used = rng.u64(from.objects()..=to);
            given.borrow_mut().push(from.objects()..used);
            if rng.bool() {
                for node in NodeSet::all(group.nodes()) {
                    drop(group.fabric().post(node, &[taken.take_back(AT, used)]));
                }
            } else {
                given.borrow_mut().push(used..to);
            }
        }
    }

    /// Many clients move one counter, take back what they did not give out, and die in between; nodes lag, crash and
    /// lose their answers.
    #[test]
    fn nobody_is_given_what_somebody_else_has_of_a_shared_chunk() {
        let mut ranges = 0;
        for seed in seeds(2000) {
            let mut rng = Rng::with_seed(seed);
            let (nodes, clients) = ([1, 3, 3, 5][rng.usize(..4)], rng.usize(2..=4));
            let setup = Setup {
                words: 8,
                prompt: [0.0, 0.5][rng.usize(..2)],
                starve: [0.0, 0.3][rng.usize(..2)],
                ..Setup::new(seed, nodes, clients).stalling()
            };
            let mut sim = Sim::new(&setup);
            sim.set_chaos(Chaos::random(&mut rng, nodes, clients, 500.0));
            let given = Given::default();
            for id in 0..clients {
                let dice = Rng::with_seed(rng.u64(..));
                sim.spawn(id, take_ranges(group(&sim, id), dice, Rc::clone(&given)));
            }
            sim.run(100_000);
            let mut given = given.take();
            given.retain(|range| !range.is_empty());
            given.sort_by_key(|range| range.start);
            let apart = given.windows(2).all(|two| two[0].end <= two[1].start);
            assert!(apart, "seed {seed}: {given:?}");
            ranges += given.len();
        }
        assert!(ranges > 0, "nobody got anything");
    }
}
