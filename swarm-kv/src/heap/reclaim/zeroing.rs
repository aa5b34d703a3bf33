//! Zeroes garbage before reuse.
//!
//! **Invariant:** garbage, except a buffer with a complete write of this client, is free only after
//! it was zeroed at *every* node (E8). A register must begin with empty stamp slots, a record with
//! no accepted ballot, and, for a client that took over the chunk, a buffer with a lock that no
//! larger number holds. No other client can reach the object by then, so a WRITE may touch its
//! control words.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS, Verb};
use swarm_core::layout::{ChunkClass, Location, ReplicaSet, buffer, record};
use swarm_core::node::{Address, NodeId, NodeSet};
use swarm_core::quorum::Group;
use swarm_core::words::{GRANULE_WORDS, Pointer};
use zerocopy::IntoBytes;

use crate::error::Error;
use crate::heap::{Heap, ObjectKind};

/// Objects that are being zeroed. If that fails, they are retired again, until the chains that were
/// to zero them have ended.
struct ZeroBatch<'h> {
    heap: &'h Heap,
    /// Their kind; none for bootstrap records.
    kind: Option<ObjectKind>,
    objects: Vec<Pointer>,
    epoch: u64,
}

/// Words of most objects that are zeroed, a record's or a buffer's: the granule that has the header. A WRITE of whole
/// granules takes its words eight at a time.
const FEW: usize = GRANULE_WORDS;
const _: () = assert!(buffer::HEADER_WORDS <= FEW && record::HEADER_WORDS <= FEW);

/// Zeros, which take no memory where they are few.
struct Zeros(Option<Box<[u64]>>);

impl Zeros {
    fn new(words: usize) -> Self {
        Self((words > FEW).then(|| vec![0; words].into()))
    }

    fn words(&self) -> &[u64] {
        self.0.as_deref().unwrap_or(&[0; FEW])
    }
}

impl ZeroBatch<'_> {
    fn done(mut self) {
        let objects = std::mem::take(&mut self.objects);
        match self.kind {
            Some(kind) => self.heap.reclaimer.renewed(kind, &objects),
            None => self.heap.bootstrap_free.borrow_mut().extend(objects),
        }
    }
}

impl Drop for ZeroBatch<'_> {
    fn drop(&mut self) {
        // The operation that was to zero them began in this epoch or before. After two more epochs
        // it has ended, with its chains, and no other client can reach the objects.
        let (objects, until) = (std::mem::take(&mut self.objects), self.epoch);
        match self.kind {
            _ if objects.is_empty() => {}
            Some(kind) => self.heap.reclaimer.put_off(kind, &objects, until),
            None => *self.heap.bootstrap_retired.borrow_mut() = Some((until, objects)),
        }
    }
}

impl Heap {
    /// Zeroes what was retired [`GRACE`](swarm_core::epoch::GRACE) epochs before `epoch`, in at
    /// most `batches` batches, except objects that a node in `silent` holds. Returns how many
    /// objects were freed. The caller must have read the map in this generation. One roundtrip a
    /// batch.
    ///
    /// # Errors
    /// If not all nodes answer; the objects stay retired.
    pub(crate) async fn reset_due<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        (epoch, batches, silent): (u64, usize, NodeSet),
        each: impl Fn(&ReplicaSet),
    ) -> Result<usize, Error> {
        let mut reset = 0;
        for _ in 0..batches {
            let Some(due) = self.due(epoch, silent) else { break };
            let kind = due.kind.unwrap_or_else(|| self.records());
            self.reset(group, kind, &due.objects).await?;
            reset += due.objects.len();
            due.objects.iter().filter_map(|&o| self.site(kind, o)).for_each(|site| each(&site));
            due.done();
        }
        Ok(reset)
    }

    fn due(&self, epoch: u64, silent: NodeSet) -> Option<ZeroBatch<'_>> {
        let objects = self.reclaimer.due(epoch, MAX_VERBS, self.are_reset(silent));
        let objects = objects.map(|(kind, objects)| (Some(kind), objects));
        // All nodes hold bootstrap records.
        let bootstrap_records =
            || if silent.is_empty() { self.due_bootstrap_records(epoch) } else { None };
        let (kind, objects) = objects.or_else(|| Some((None, bootstrap_records()?)))?;
        Some(ZeroBatch { heap: self, kind, objects, epoch })
    }

    /// Whether objects of a kind can be zeroed while these nodes are silent: none of them holds
    /// such objects.
    pub(in crate::heap) fn are_reset(
        &self,
        silent: NodeSet,
    ) -> impl Fn(ObjectKind) -> bool + use<> {
        move |kind| match kind.class {
            // The home of an all-but-one buffer is the node without a copy.
            ChunkClass::AllButOne(_) => silent.holding(|node| node != kind.home).is_empty(),
            _ => silent.is_empty(),
        }
    }

    /// Zeroes all words of the objects that a reader would go by, at every node that holds them
    /// (E8). One roundtrip.
    async fn reset<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
        objects: &[Pointer],
    ) -> Result<(), Error> {
        if matches!(kind.class, ChunkClass::Uniform(_)) && zero_now(group, objects) {
            return Ok(());
        }
        let nodes = group.nodes();
        let zeros = Zeros::new(self.words_to_reset(kind, true));
        // An object whose pointer is none of this kind's is left out.
        let sites: heapless::Vec<ReplicaSet, MAX_VERBS> =
            objects.iter().filter_map(|&object| self.site(kind, object)).collect();
        let post = |node| {
            let words = self.words_to_reset(kind, node == kind.home);
            let write = |site: &ReplicaSet| Verb::Write {
                at: site.place.at(node, nodes),
                head: &[],
                tail: zeros.words()[..words].as_bytes(),
            };
            let verbs: heapless::Vec<Verb<'_>, MAX_VERBS> = sites.iter().map(write).collect();
            group.fabric().post(node, &verbs)
        };
        let holders = sites.first().map_or(NodeSet::EMPTY, |site| site.holders);
        group.at_all_of(holders, post, |_, _| {}).await?;
        Ok(())
    }

    /// Returns how many words to zero: all of a register or a cell; of other objects the granule with the header.
    fn words_to_reset(&self, kind: ObjectKind, at_home: bool) -> usize {
        match kind.class {
            ChunkClass::Homed { full, .. } if at_home => full.granules() as usize * GRANULE_WORDS,
            ChunkClass::Homed { small, .. } => usize::from(small) * GRANULE_WORDS,
            _ => FEW,
        }
    }
}

/// Zeroes objects that have the same address everywhere, at every node (E8), in a straight line: on synchronous memory,
/// where no node is suspect. Returns whether all answered; otherwise all of it is to be done again.
fn zero_now<F: Fabric, C: Clock>(group: &Group<F, C>, objects: &[Pointer]) -> bool {
    let (n, fabric) = (group.nodes(), group.fabric());
    if !fabric.is_near() || !group.suspects().is_empty() {
        return false;
    }
    let at = |&object: &Pointer| Location::everywhere(object, NodeId(0)).at(NodeId(0), n);
    let all: heapless::Vec<Address, MAX_VERBS> = objects.iter().map(at).collect();
    let mut nodes = NodeSet::all(n);
    let is_done = nodes.all(|node| fabric.clear::<FEW>(node, &all).is_some());
    fabric.charge(n * all.len(), n * all.len() * FEW * 8);
    is_done
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::{Geometry, SizeClass};
    use swarm_core::quorum::Session;
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::heap::Purpose;
    use crate::heap::tests::{Watched, alone, still};
    use crate::runtime::block_on::block_on;

    /// A record is used again whose memory has words of its former use at each of three nodes. `is_near`: as on synchronous
    /// memory; `lost`: the chain of zeros of which the answer never comes. Returns how many chains of zeros were posted.
    fn chains_that_zero(is_near: bool, lost: Option<usize>) -> usize {
        let geometry = Geometry::new(3, 4 << 20, 2, 1).expect("geometry");
        let nodes = Loopback::new(3, 4 << 17);
        let posted = Cell::new(None);
        let is_lost = |chain: &[Verb<'_>]| {
            let ([Verb::Write { .. }], Some(before)) = (chain, posted.get()) else { return false };
            posted.set(Some(before + 1));
            lost == Some(before)
        };
        let fabric = Watched::new(if is_near { nodes.near() } else { nodes.clone() }, is_lost);
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let group = Group::new(fabric, still(), geometry.format, session);
        let (heap, cell) = (Heap::new(geometry, 0), geometry.bucket_cell(0).pointer);
        let kind = heap.plain(16);
        let record = block_on(heap.allocate(&group, kind, Purpose::Replace)).expect("memory");
        let words = || {
            let at = |node, word| Location::everywhere(record, NodeId(0)).at(node, 3).plus(word);
            let of = move |node| (0..record::HEADER_WORDS).map(move |word| (node, at(node, word)));
            NodeSet::all(3).flat_map(of)
        };
        words().for_each(|(node, at)| nodes.set_word(node, at, 7));
        heap.reclaimer.committed(cell, record);
        assert!(heap.reclaimer.replaced(record, cell, 1));
        posted.set(Some(0));
        let reset = heap.reset_due(&group, (3, 1, NodeSet::EMPTY), |_| {});
        assert_eq!(block_on(reset), Ok(1));
        assert!(words().all(|(node, at)| nodes.word(node, at) == 0));
        assert_eq!(heap.take_unused(kind, Purpose::Replace), Some(record), "the first in memory");
        posted.get().expect("it was set")
    }

    #[test]
    fn records_are_zeroed_at_every_node() {
        assert_eq!(chains_that_zero(false, None), 3);
        assert_eq!(chains_that_zero(true, None), 3);
    }

    /// A node did not answer in a straight line: nobody knows what is there.
    #[test]
    fn what_was_not_answered_is_zeroed_once_more() {
        assert_eq!(chains_that_zero(true, Some(1)), 5);
    }

    /// An object that a silent node holds is not zeroed; a buffer of which it has no copy is.
    #[test]
    fn what_a_silent_node_holds_is_not_waited_for() {
        let (_, heap) = alone();
        let silent: NodeSet = [NodeId(1)].into_iter().collect();
        let all_but_one = |home| ObjectKind {
            class: ChunkClass::AllButOne(SizeClass::for_granules(2)),
            home,
            chunks: 1,
        };
        let are_reset = heap.are_reset(silent);
        assert!(are_reset(all_but_one(NodeId(1))));
        assert!(!are_reset(all_but_one(NodeId(0))) && !are_reset(heap.plain(16)));
        assert!(heap.are_reset(NodeSet::EMPTY)(heap.plain(16)));
    }
}
