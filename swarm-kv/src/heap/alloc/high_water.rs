//! High-water marks: how many objects of a chunk may be handed out, at every node.
//!
//! **Invariant:** a mark only grows, except when its owner lowers it on leaving (E8a). The mark
//! that counts is the largest one that a majority shows. Its word also holds the number of changes
//! and the client slot of the last change. So no word returns, and no two clients write the same
//! word: a former owner's chain that arrives late finds another word than it expects.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS, Verb};
use swarm_core::layout::{ChunkClass, Geometry, MAX_CLIENTS};
use swarm_core::node::{Address, NodeId, NodeSet};
use swarm_core::quorum::{Group, Next};

use crate::error::Error;

/// Returns the homes for which a chunk of this class has high-water marks; for all-but-one buffers, the
/// nodes without a copy.
pub(in crate::heap) fn homes(
    geometry: &Geometry,
    class: ChunkClass,
) -> impl ExactSizeIterator<Item = NodeId> + use<> {
    let homes = match class {
        ChunkClass::Homed { .. } | ChunkClass::AllButOne(_) => geometry.nodes as u8,
        ChunkClass::Uniform(_) | ChunkClass::AllNodes(_) | ChunkClass::Large => 1,
        ChunkClass::LargeTail => 0,
    };
    (0..homes).map(NodeId)
}

const OBJECT_BITS: u32 = 32;
const SLOT_BITS: u32 = MAX_CLIENTS.ilog2();
/// Changes of a mark that clients share; the remaining numbers are for clients that lag.
const MOST_CHANGES: u64 = 1 << 21;

/// A high-water mark's word: `[ changes 22 | slot 10 | objects 32 ]`, with the client slot of the
/// last change.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::heap) struct HighWater(u64);

impl HighWater {
    /// Returns how many objects may be handed out.
    pub(in crate::heap) fn objects(self) -> u64 {
        self.0 % (1 << OBJECT_BITS)
    }

    /// Returns how often this word was changed.
    fn changes(self) -> u64 {
        self.0 >> (SLOT_BITS + OBJECT_BITS)
    }

    /// Whether the word has changes left.
    pub(in crate::heap) fn can_change(self) -> bool {
        self.changes() < MOST_CHANGES
    }

    /// Returns the word with one change more than either, by this client slot, with this many
    /// objects. A new word for each change (E8a).
    fn changed(self, other: Self, slot: usize, objects: u64) -> Self {
        let changes = self.changes().max(other.changes()) + 1;
        Self((changes << SLOT_BITS | slot as u64) << OBJECT_BITS | objects)
    }

    /// Returns the verb that lowers the mark at one node to this many objects, on behalf of the
    /// last change's client slot. The CAS fails if the word was changed since (E8a, E8b).
    pub(in crate::heap) fn take_back(self, at: Address, objects: u64) -> Verb<'static> {
        let slot = (self.0 >> OBJECT_BITS) as usize % MAX_CLIENTS;
        Verb::Cas { at, expect: self.0, new: self.changed(self, slot, objects).0 }
    }
}

/// READs marks, and returns of each the largest that a majority shows. One roundtrip.
pub(in crate::heap) async fn read_counters<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    counters: &[Address],
) -> Result<Vec<HighWater>, Error> {
    read_adjacent(group, counters, 1).await
}

/// The same of `homes` marks from each of these on, as a chunk's marks lie side by side. One verb
/// for each chunk: they are words of their own, so a READ that tears shows each as it was.
pub(in crate::heap) async fn read_adjacent<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    counters: &[Address],
    homes: usize,
) -> Result<Vec<HighWater>, Error> {
    let reads: Vec<Verb<'_>> = counters.iter().map(|&at| Verb::Read { at, words: homes }).collect();
    let mut largest = vec![HighWater::default(); counters.len() * homes];
    // Each client asks other nodes first.
    let first = group.preferred(NodeId((group.session().client % group.nodes()) as u8));
    group
        .collect_votes(first, group.majority(), |node, reply| {
            let Some(reply) = reply else { return Next::Post(group.fabric().post(node, &reads)) };
            for (largest, &counter) in largest.iter_mut().zip(reply.iter()) {
                let rank = |counter: &HighWater| (counter.objects(), counter.changes());
                *largest = std::cmp::max_by_key(HighWater(counter), *largest, rank);
            }
            Next::Vote
        })
        .await?;
    Ok(largest)
}

/// Puts `homes` marks from each of these on at `node`, which `joining` posts to: those that a
/// majority of the others shows (E8a). Two roundtrips.
///
/// A majority with the new node then shows no less than one of the others does. A mark that a
/// leaving client lowered may be larger at the new node than elsewhere, as at a node that lags.
pub(in crate::heap) async fn fill_counters<F: Fabric, N: Fabric, C: Clock>(
    group: &Group<F, C>,
    (joining, node): (&N, NodeId),
    counters: &[Address],
    homes: usize,
) -> Result<(), Error> {
    let marks = read_adjacent(group, counters, homes).await?;
    let places = counters.iter().flat_map(|at| (0..homes).map(|home| at.plus(home)));
    let cas = |(at, mark): (Address, HighWater)| Verb::Cas { at, expect: 0, new: mark.0 };
    let chain: Vec<Verb<'_>> = places.zip(marks).filter(|(_, mark)| mark.0 != 0).map(cas).collect();
    for chain in chain.chunks(MAX_VERBS) {
        let posted = joining.post(node, chain).await;
        posted.map_err(|_| swarm_core::error::Error::NO_ANSWER)?;
    }
    Ok(())
}

/// A change of a mark to this many objects.
#[derive(Clone, Copy)]
pub(in crate::heap) struct Raise {
    pub(in crate::heap) at: Address,
    /// The word as last seen.
    pub(in crate::heap) from: HighWater,
    /// How many objects may be handed out afterwards.
    pub(in crate::heap) to: u64,
    /// The client slot that makes the change.
    pub(in crate::heap) slot: usize,
}

impl Raise {
    /// Returns the word afterwards at nodes that did not lag.
    pub(in crate::heap) fn raised(&self) -> HighWater {
        self.over(self.from)
    }

    /// Returns the word that replaces the word `held`.
    fn over(&self, held: HighWater) -> HighWater {
        held.changed(self.from, self.slot, self.to.max(held.objects()))
    }

    fn cas(&self, held: HighWater) -> Verb<'static> {
        Verb::Cas { at: self.at, expect: held.0, new: self.over(held).0 }
    }
}

/// Raises marks at a majority. One roundtrip, more where nodes lag.
///
/// E8a: only a node whose words this call changed has a vote, even if they showed as many objects
/// before. Otherwise a former owner's chain that arrives late could lower them. Where one word was
/// not as expected, all are changed again; that does no harm to a word that was changed already.
pub(in crate::heap) async fn raise_counters<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    raises: &[Raise],
) -> Result<(), Error> {
    let froms: Vec<HighWater> = raises.iter().map(|raise| raise.from).collect();
    let mut words = vec![froms; group.nodes()];
    let all = NodeSet::all(group.nodes());
    let cas = |node, words: &[HighWater]| {
        let chain: Vec<Verb<'_>> =
            raises.iter().zip(words).map(|(raise, &held)| raise.cas(held)).collect();
        Next::Post(group.fabric().post(node, &chain))
    };
    group
        .collect_votes(all, group.majority(), |node: NodeId, reply| {
            let words = &mut words[node.index()];
            let Some(reply) = reply else { return cas(node, words) };
            if reply.len() < raises.len() {
                return Next::NoVote;
            }
            let mut changed = true;
            for ((raise, word), &held) in raises.iter().zip(words.iter_mut()).zip(reply.iter()) {
                let held = HighWater(held);
                let swapped = held == *word;
                *word = if swapped { raise.over(held) } else { held };
                changed &= swapped;
            }
            if changed { Next::Vote } else { cas(node, words) }
        })
        .await?;
    Ok(())
}

/// Makes marks, as they were read, this client slot's own. Returns their words afterwards. One
/// roundtrip, more where nodes lag; none if nothing was handed out below any of them.
///
/// E8a: the owner before may have left, and its CAS that lowers a mark may still be on its way. This
/// client takes what is below the mark as used, and reuses it once it is garbage. If the mark came
/// down after that, the next owner would give the same objects out once more. So a majority's words
/// change first: the CAS finds none of them.
pub(in crate::heap) async fn adopt_counters<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    counters: &[(Address, HighWater)],
    slot: usize,
) -> Result<Vec<HighWater>, Error> {
    let raise = |&(at, from): &(Address, HighWater)| Raise { at, from, to: from.objects(), slot };
    let is_used = |(_, mark): &&(Address, HighWater)| mark.objects() > 0;
    let raises: Vec<Raise> = counters.iter().filter(is_used).map(raise).collect();
    if !raises.is_empty() {
        raise_counters(group, &raises).await?;
    }
    let word = |it| if is_used(&it) { raise(it).raised() } else { it.1 };
    Ok(counters.iter().map(word).collect())
}

/// Moves a shared mark from `from`, as it was read, to this many objects, if no other client is
/// first. Returns the word afterwards, or `None` if another client was first; then a minority of
/// nodes may be past these objects all the same. One roundtrip, more where nodes lag.
///
/// E8b: a node has a vote only if this call moved its mark past all of these objects.
pub(in crate::heap) async fn take_range<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: Address,
    (from, to): (HighWater, u64),
) -> Result<Option<HighWater>, Error> {
    let raise = Raise { at, from, to, slot: group.session().client };
    let (mut words, mut is_lost) = (vec![from; group.nodes()], false);
    let all = NodeSet::all(group.nodes());
    let taken = group
        .collect_votes(all, group.majority(), |node: NodeId, reply| {
            let word = &mut words[node.index()];
            let cas = |held: HighWater| Next::Post(group.fabric().post(node, &[raise.cas(held)]));
            let Some(reply) = reply else { return cas(*word) };
            match reply.first() {
                Some(&held) if HighWater(held) == *word => Next::Vote,
                Some(&held) if HighWater(held).objects() <= from.objects() => {
                    *word = HighWater(held);
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
    use swarm_core::sim::seeds::{Playing, seeds};
    use swarm_core::sim::{FaultRates, Setup, Sim, SimClock, SimFabric};
    use swarm_core::words::{Incarnation, WordFormat};

    use super::*;

    const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
    const AT: Address = Address(1);
    const EIGHT: Raise = Raise { at: AT, from: HighWater(0), to: 8, slot: 3 };

    fn group(sim: &Sim, id: usize) -> Rc<Group<SimFabric, SimClock>> {
        let session = Session { client: id, incarnation: Incarnation(id as u64 + 1) };
        let format = WordFormat { pointer_bits: 20, tick_shift: 6 };
        Rc::new(Group::new(sim.fabric(id), sim.clock(id), format, session))
    }

    /// A client leaves, and takes back seven of eight objects; one node applies that late. By then
    /// the next client has raised the mark by the same seven.
    #[test]
    fn what_a_former_owner_takes_back_late_lowers_nothing() {
        let mut sim = Sim::new(&Setup { words: 8, ..Setup::new(1, 3, 3) });
        let [former, next, last] = [0, 1, 2].map(|id| group(&sim, id));
        let seen = Rc::new(Cell::new(HighWater::default()));
        let (owner, word) = (Rc::clone(&former), Rc::clone(&seen));
        sim.spawn(0, async move {
            raise_counters(&owner, &[EIGHT]).await.expect("raised");
            word.set(EIGHT.raised());
        });
        assert!(sim.finish(0, &NODES));
        for node in NODES {
            sim.take_all(0, node);
            drop(former.fabric().post(node, &[seen.get().take_back(AT, 1)]));
        }
        NODES[1..].iter().for_each(|&node| sim.take_all(0, node));
        let owner = Rc::clone(&next);
        sim.spawn(1, async move {
            let counters = read_counters(&owner, &[AT]).await.expect("a majority");
            assert_eq!(counters[0].objects(), 1);
            let again = Raise { from: counters[0], ..EIGHT };
            raise_counters(&owner, &[again]).await.expect("raised");
        });
        sim.poll_once(1);
        sim.roundtrip(1, &NODES[1..]);
        assert!(sim.finish(1, &NODES[..2]));
        sim.take_all(0, NODES[0]);
        let word = Rc::clone(&seen);
        sim.spawn(2, async move {
            word.set(read_counters(&last, &[AT]).await.expect("a majority")[0]);
        });
        assert!(sim.finish(2, &[NODES[0], NODES[2]]));
        assert_eq!(seen.get().objects(), 8, "they would be given out twice");
    }

    /// A client leaves, and takes back seven of eight objects, which one node has applied when the
    /// next client takes up all eight. The others apply it later.
    #[test]
    fn what_the_next_owner_took_up_is_not_taken_back() {
        for readers in [[0, 1], [0, 2], [1, 2]] {
            let mut sim = Sim::new(&Setup { words: 8, ..Setup::new(1, 3, 3) });
            let [former, next, last] = [0, 1, 2].map(|id| group(&sim, id));
            let owner = Rc::clone(&former);
            sim.spawn(
                0,
                async move { raise_counters(&owner, &[EIGHT]).await.expect("a majority") },
            );
            assert!(sim.finish(0, &NODES));
            for node in NODES {
                sim.take_all(0, node);
                drop(former.fabric().post(node, &[EIGHT.raised().take_back(AT, 1)]));
            }
            sim.take_all(0, NODES[1]);
            sim.spawn(1, async move {
                let marks = read_counters(&next, &[AT]).await.expect("a majority");
                assert_eq!(marks[0].objects(), 8);
                adopt_counters(&next, &[(AT, marks[0])], 3).await.expect("a majority");
            });
            assert!(sim.finish(1, &NODES[..2]));
            [NODES[0], NODES[2]].into_iter().for_each(|node| sim.take_all(0, node));
            let seen = Rc::new(Cell::new(HighWater::default()));
            let word = Rc::clone(&seen);
            sim.spawn(2, async move {
                word.set(read_counters(&last, &[AT]).await.expect("a majority")[0]);
            });
            assert!(sim.finish(2, &readers.map(|node| NODES[node])));
            assert_eq!(seen.get().objects(), 8, "nodes {readers:?}: given out twice");
        }
    }

    type Given = Rc<RefCell<Vec<Range<u64>>>>;

    /// Takes some ranges, and notes what it hands out. Of some it takes the rest back, as on
    /// leaving.
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

    /// Many clients move one mark, take back what they did not hand out, and die in between; nodes
    /// lag, crash and lose their replies.
    #[test]
    fn nobody_is_given_what_somebody_else_has_of_a_shared_chunk() {
        let mut ranges = 0;
        for seed in seeds(2000) {
            let _playing = Playing::seed(seed);
            let mut rng = Rng::with_seed(seed);
            let (nodes, clients) = ([1, 3, 3, 5][rng.usize(..4)], rng.usize(2..=4));
            let setup = Setup {
                words: 8,
                prompt: [0.0, 0.5][rng.usize(..2)],
                starve: [0.0, 0.3][rng.usize(..2)],
                ..Setup::new(seed, nodes, clients).stalling()
            };
            let mut sim = Sim::new(&setup);
            sim.set_chaos(FaultRates::random(&mut rng, nodes, clients, 500.0));
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
