//! Zeroes garbage before reuse.
//!
//! **Invariant:** garbage, except a buffer with a complete write of this client, is free only after
//! it was zeroed at *every* node (E8). A register must begin with empty stamp slots, a record with
//! no accepted ballot, and, for a client that took over the chunk, a buffer with a lock that no
//! larger number holds. No other client can reach the object by then, so a WRITE may touch its
//! control words.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS, Verb};
use swarm_core::layout::{ChunkClass, ReplicaSet, buffer};
use swarm_core::node::NodeSet;
use swarm_core::quorum::Group;
use swarm_core::words::{GRANULE_WORDS, Pointer};

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

/// Words of most objects that are zeroed: a record's, or a buffer's.
const FEW: usize = buffer::HEADER_WORDS;

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
            let kind = due.kind.unwrap_or(self.records());
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
        let nodes = group.nodes();
        let zeros = Zeros::new(self.words_to_reset(kind, true));
        // An object whose pointer is none of this kind's is left out.
        let sites: heapless::Vec<ReplicaSet, MAX_VERBS> =
            objects.iter().filter_map(|&object| self.site(kind, object)).collect();
        let post = |node| {
            let words = self.words_to_reset(kind, node == kind.home);
            let write = |site: &ReplicaSet| Verb::Write {
                at: site.place.at(node, nodes),
                head: &zeros.words()[..words],
                tail: &[],
            };
            let verbs: heapless::Vec<Verb<'_>, MAX_VERBS> = sites.iter().map(write).collect();
            group.fabric().post(node, &verbs)
        };
        let holders = sites.first().map_or(NodeSet::EMPTY, |site| site.holders);
        group.at_all_of(holders, post, |_, _| {}).await?;
        Ok(())
    }

    /// Returns how many words to zero: all of a register or a cell; of other objects the header.
    fn words_to_reset(&self, kind: ObjectKind, at_home: bool) -> usize {
        match kind.class {
            ChunkClass::Homed { full, .. } if at_home => full.granules() as usize * GRANULE_WORDS,
            ChunkClass::Homed { small, .. } => usize::from(small) * GRANULE_WORDS,
            _ => buffer::HEADER_WORDS,
        }
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::layout::SizeClass;
    use swarm_core::node::NodeId;

    use super::*;
    use crate::heap::tests::alone;

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
